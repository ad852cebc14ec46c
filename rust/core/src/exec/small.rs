//! Casts of a few elements, for which preparing threads, blocks and broadcasts would take longer than the cast.

use std::mem::MaybeUninit;

use super::dense::Dense;
use super::scratch::run_scaled;
use crate::codec::options::Options;
use crate::codec::random::Stream;
use crate::cpu::DefaultEnvironment;
use crate::error::Error;
use crate::format::Format;
use crate::layout::transfer::{Gaps, gather, scatter};
use crate::layout::{OPERANDS, Run, SOURCE, TARGET};
use crate::plan::operands::{Parts, Source, Target};
use crate::plan::{Plan, PlanKey};
use crate::tuning::SMALL_CAST;

/// Elements of up to 16 bytes.
type Elements = [MaybeUninit<[u64; 2]>; SMALL_CAST];

/// Casts elements in native byte order on this thread, if they are dense, or few and with few axes; returns whether it
/// did. Stochastic rounding, and elements that the options refuse or may refuse, are left to [`crate::cast::cast()`].
///
/// # Errors
/// [`Error::Unsupported`] for complex to real.
///
/// # Safety
/// As for [`crate::cast::cast()`].
#[inline]
pub unsafe fn cast_small(
    shape: &[usize],
    source: &Source<'_>,
    target: &Target<'_>,
    options: &Options,
    factor: Option<f64>,
) -> Result<bool, Error> {
    let count = shape.iter().product();
    let pair = (source.format, target.format);
    let key = PlanKey::new(pair, options, (factor.is_some(), factor), (false, count));
    let plan = Plan::find(&key, count)?;
    let strided = ((source.pointer, source.strides), (target.pointer, target.strides));
    // SAFETY: the caller's promise.
    Ok(unsafe { SmallCast(&plan).cast_small(shape, strided.0, strided.1, factor) })
}

/// Does the same for dense elements of two formats.
///
/// # Errors
/// As for [`cast_small`].
///
/// # Safety
/// `count` elements are readable at the source and writable at the target, which do not overlap.
pub unsafe fn cast_few(
    (source, source_format): (*const u8, Format),
    (target, target_format): (*mut u8, Format),
    count: usize,
    options: &Options,
    factor: Option<f64>,
) -> Result<bool, Error> {
    let pair = (source_format, target_format);
    let key = PlanKey::new(pair, options, (factor.is_some(), factor), (false, count));
    // SAFETY: the caller's promise.
    Plan::with(&key, count, |plan| unsafe {
        SmallCast(plan).cast_few(source, target, count, (factor, options.seed))
    })
}

/// An operand: its first element, and the bytes between elements per axis.
pub(crate) type Strided<'a, P> = (P, &'a [isize]);

/// A plan as it is run over few elements, or dense ones, on this thread.
#[derive(Clone, Copy)]
pub(crate) struct SmallCast<'a>(pub(crate) &'a Plan);

impl SmallCast<'_> {
    /// Casts `count` dense elements in native byte order, on this thread, by a plan without factors and draws, and
    /// without checking for refused elements.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    #[inline]
    pub(crate) unsafe fn convert(self, source: *const u8, target: *mut u8, count: usize) {
        let (route, count) = (&self.0.route, count * self.0.parts.components);
        let real_to_complex = self.0.parts.real_to_complex;
        let dense = Dense { route, source, target, count, real_to_complex, draws: None };
        // SAFETY: the caller's promise.
        unsafe { run_dense(&dense) };
    }

    /// Does the same by a plan with draws, which go by places in memory.
    ///
    /// # Safety
    /// As for [`SmallCast::convert`].
    #[inline(never)]
    unsafe fn run_drawn(self, source: *const u8, target: *mut u8, count: usize, seed: u64) {
        let (route, count) = (&self.0.route, count * self.0.parts.components);
        let draws = Some((Stream::new(seed), 0));
        let dense = Dense { route, source, target, count, real_to_complex: false, draws };
        // SAFETY: the caller's promise.
        unsafe { run_dense(&dense) };
    }

    /// Casts elements in native byte order, if they are dense, or few and with few axes, and none is refused; returns
    /// whether it did.
    ///
    /// # Safety
    /// As for [`crate::cast::cast()`].
    #[inline]
    pub(crate) unsafe fn cast_small(
        self,
        shape: &[usize],
        source: Strided<'_, *const u8>,
        target: Strided<'_, *mut u8>,
        factor: Option<f64>,
    ) -> bool {
        // Draws go by places in C order.
        let Some(run) = run_of(shape, source.1, target.1).filter(|_| !self.0.route.draws) else {
            return false;
        };
        let dense = run.is_dense(SOURCE, self.0.source_size()) && run.is_dense(TARGET, self.0.target_size());
        if run.len() > self.most(dense) {
            return false;
        }
        // SAFETY: the caller's promise for the elements of the run, which are all of them.
        run.len() == 0
            || unsafe {
                if dense {
                    self.cast_dense(source.0, target.0, run.len(), (factor, 0))
                } else {
                    self.cast_strided(source.0, target.0, &run, factor)
                }
            }
    }

    /// Casts dense elements in native byte order, if they are few and none is refused, with a factor and a seed where
    /// the plan needs them; returns whether it did. Draws go by places in memory.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    #[inline]
    pub(crate) unsafe fn cast_few(
        self,
        source: *const u8,
        target: *mut u8,
        count: usize,
        given: (Option<f64>, u64),
    ) -> bool {
        // SAFETY: the caller's promise; scaled elements are fewer than a tile.
        count <= self.most(true) && (count == 0 || unsafe { self.cast_dense(source, target, count, given) })
    }

    /// Returns how many elements a small cast has at most.
    #[inline(always)]
    fn most(self, dense: bool) -> usize {
        let Parts { components, real_to_complex, .. } = self.0.parts;
        match (self.0.route.scaled, dense) {
            _ if self.0.collector.is_some() => 0,
            _ if self.0.route.draws => {
                let drawn = dense && !real_to_complex && Dense::suits(&self.0.route);
                if drawn { usize::MAX } else { 0 }
            }
            // Scaled complex numbers are left to the general cast.
            (true, _) if components == 1 && !real_to_complex => SMALL_CAST,
            (true, _) => 0,
            (false, true) => usize::MAX,
            (false, false) => SMALL_CAST,
        }
    }

    /// # Safety
    /// `count` dense elements are readable at the source and writable at the target, which do not overlap; no more than a
    /// tile of them, if they are scaled.
    #[inline(always)]
    unsafe fn cast_dense(
        self,
        source: *const u8,
        target: *mut u8,
        count: usize,
        (factor, seed): (Option<f64>, u64),
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(refusal_check) = &self.0.refusal_check {
                let (level, codes) = (self.0.route.level, count * self.0.parts.components);
                if !refusal_check.safe.is_some_and(|safe| safe.holds(level, source, codes)) {
                    return false;
                }
            }
            match factor.filter(|_| self.0.route.scaled) {
                None if self.0.route.draws => self.run_drawn(source, target, count, seed),
                None => self.convert(source, target, count),
                Some(factor) => run_scaled(&self.0.route, (source, target), count, factor),
            }
        }
        true
    }

    /// Does the same by way of buffers for operands that are not dense.
    ///
    /// # Safety
    /// The elements of the run, [`SMALL_CAST`] at most, are readable at the source and writable at the target, which do not
    /// overlap.
    // A function of its own, so that dense casts do not pay for its stack.
    #[inline(never)]
    unsafe fn cast_strided(self, source: *const u8, target: *mut u8, run: &Run, factor: Option<f64>) -> bool {
        let (level, size, to_size) = (self.0.route.level, self.0.source_size(), self.0.target_size());
        let (dense, to_dense) = (run.is_dense(SOURCE, size), run.is_dense(TARGET, to_size));
        let mut elements: [Elements; 2] = [const { [const { MaybeUninit::uninit() }; SMALL_CAST] }; 2];
        let [from, to] = elements.each_mut().map(|elements| elements.as_mut_ptr().cast::<u8>());
        let to = if to_dense { target } else { to };
        // SAFETY: the caller's promise; there is room for those that are not dense.
        unsafe {
            if !dense {
                gather(level, (source, Gaps::Read), SOURCE, &[*run], (size, false), from);
            }
            let from = if dense { source } else { from };
            let done = self.cast_dense(from, to, run.len(), (factor, 0));
            if done && !to_dense {
                scatter(level, to.cast_const(), target, TARGET, &[*run], (to_size, false));
            }
            done
        }
    }
}

/// Casts dense elements outside of a pass.
///
/// # Safety
/// As for [`Dense::convert`].
#[inline(always)]
unsafe fn run_dense(dense: &Dense<'_>) {
    let _environment = DefaultEnvironment::enter();
    // SAFETY: passed on.
    unsafe { dense.convert() };
}

/// Returns all elements as one run in the order of the target's memory, if there is one.
fn run_of(shape: &[usize], source: &[isize], target: &[isize]) -> Option<Run> {
    let mut run = Run::row([0; OPERANDS], [0; OPERANDS], 1);
    let axes = shape.iter().zip(source.iter().zip(target));
    let mut axes = axes.filter(|&(&length, _)| length != 1).map(|(&length, (&source, &target))| {
        let mut strides = [0; OPERANDS];
        (strides[SOURCE], strides[TARGET]) = (source, target);
        (length, strides)
    });
    if let Some(first) = axes.next() {
        (run.count, run.strides) = first;
    }
    if let Some(second) = axes.next() {
        let first = (run.count, run.strides);
        let nearer = second.1[TARGET].unsigned_abs() <= first.1[TARGET].unsigned_abs();
        let (row, rows) = if nearer { (second, first) } else { (first, second) };
        (run.count, run.strides) = row;
        (run.rows, run.row_strides) = rows;
    }
    axes.next().is_none().then_some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_its_nearest_axis_of_the_target_inside() {
        let facts = |run: Run| (run.count, run.strides[SOURCE], run.rows, run.row_strides[SOURCE]);
        let found =
            |shape: &[usize], source: &[isize], target: &[isize]| run_of(shape, source, target).map(facts);
        assert_eq!(found(&[], &[], &[]), Some((1, 0, 1, 0)));
        assert_eq!(found(&[1, 5, 1], &[9, -8, 9], &[9, 2, 9]), Some((5, -8, 1, 0)));
        assert_eq!(found(&[3, 5], &[4, 12], &[10, 2]), Some((5, 12, 3, 4)));
        assert_eq!(found(&[3, 5], &[4, 12], &[2, -6]), Some((3, 4, 5, 12)));
        assert_eq!(found(&[3, 0], &[4, 12], &[2, 2]).map(|run| run.0 * run.2), Some(0));
        assert_eq!(found(&[2, 3, 5], &[1, 2, 6], &[15, 5, 1]), None);
    }
}
