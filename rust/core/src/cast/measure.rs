//! Watching a cast: what each tile lost, as a [`CastReport`].

use super::stage::{Span, Stage};
use super::tile::Tile;
use super::{TILE, assemble};
use crate::codec::encode::{INEXACT, OVERFLOW};
use crate::codec::pivot::{Binary64, Pivot, SignedWord, UnsignedWord};
use crate::codec::reference;
use crate::cpu::{Kernel, Level};
use crate::format::{Format, Kind};
use crate::report::{CastReport, SquareSum};

/// Values of a format as float64, with the rest where float64 does not hold them.
enum Values {
    /// They are float64.
    Same,
    Exact(Box<dyn Stage>),
    Signed,
    Unsigned,
}

impl Values {
    fn new(format: Format) -> Self {
        match (format.row().bits, format.kind()) {
            (64, Kind::Integer { signed: true }) => Self::Signed,
            (64, Kind::Integer { signed: false }) => Self::Unsigned,
            _ => assemble::decoder::<Binary64>(format).map_or(Self::Same, Self::Exact),
        }
    }

    /// Writes the value of each code as a sum of two float64.
    ///
    /// # Safety
    /// `codes` is valid for as many elements as the slices are long.
    unsafe fn read(&self, level: Level, codes: *const u8, near: &mut [f64], rest: &mut [f64]) {
        rest.fill(0.0);
        let target = near.as_mut_ptr().cast::<u8>();
        match self {
            // SAFETY: the caller's promise for the codes; `near` is ours.
            Self::Same => unsafe { codes.copy_to_nonoverlapping(target, size_of_val(near)) },
            Self::Exact(stage) => {
                let span = Span { source: codes, target, count: near.len(), ..Span::EMPTY };
                // SAFETY: the caller's promise for the codes; `near` is ours.
                unsafe { stage.run(level, span) };
            }
            // SAFETY: the caller's promise.
            Self::Signed => unsafe { split::<SignedWord>(codes, near, rest) },
            // SAFETY: the caller's promise.
            Self::Unsigned => unsafe { split::<UnsignedWord>(codes, near, rest) },
        }
    }
}

/// # Safety
/// As for [`Values::read`].
unsafe fn split<P: Pivot<Bits = u64>>(codes: *const u8, near: &mut [f64], rest: &mut [f64]) {
    for (i, (near, rest)) in near.iter_mut().zip(rest).enumerate() {
        // SAFETY: the caller's promise.
        let word = unsafe { codes.cast::<u64>().add(i).read_unaligned() };
        (*near, *rest) = P::to_f64_pair(word);
    }
}

/// Compares the tiles of one cast.
pub(super) struct Meter {
    source: Values,
    target: Values,
    smallest_normal: f64,
    wraps: bool,
}

impl Meter {
    /// For a pair of real formats; `wraps` if values beyond the range wrap.
    pub(super) fn new(source: Format, target: Format, wraps: bool) -> Self {
        // The code after the largest subnormal; without subnormals nothing is below the smallest normal.
        let smallest_normal = target
            .float()
            .filter(|spec| spec.mantissa_bits > 0)
            .map_or(0.0, |spec| reference::value_of(&spec, 1 << spec.mantissa_bits));
        Self { source: Values::new(source), target: Values::new(target), smallest_normal, wraps }
    }

    /// The account of one tile.
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`TILE`].
    pub(super) unsafe fn measure(
        &self,
        level: Level,
        (source, target): (*const u8, *const u8),
        count: usize,
        scales: Option<&[f64]>,
        flags: &[u8],
    ) -> CastReport {
        let mut tiles: [Tile<f64>; 4] = Default::default();
        let [near, rest, result, result_rest] = tiles.each_mut().map(|tile| &mut tile.0[..count]);
        debug_assert!(count <= TILE);
        // SAFETY: the caller's promise.
        unsafe {
            self.source.read(level, source, near, rest);
            self.target.read(level, target, result, result_rest);
        }
        if let Some(scales) = scales {
            for ((near, rest), &scale) in near.iter_mut().zip(&mut *rest).zip(scales) {
                let product = *near * scale;
                *rest = near.mul_add(scale, -product) + *rest * scale;
                *rest = if rest.is_finite() { *rest } else { 0.0 };
                *near = product;
            }
        }
        let (mut roots, mut errors) = (Tile::default(), Tile::default());
        let columns = Columns {
            near,
            rest,
            result,
            result_rest,
            flags,
            roots: &mut roots.0[..count],
            errors: &mut errors.0[..count],
        };
        level.run(Account { columns, smallest_normal: self.smallest_normal, wraps: self.wraps })
    }
}

/// Parallel columns of one tile.
struct Columns<'a> {
    near: &'a [f64],
    rest: &'a [f64],
    result: &'a [f64],
    result_rest: &'a [f64],
    flags: &'a [u8],
    /// Where the sources that have a finite result go, and zeros for the others.
    roots: &'a mut [f64],
    /// Where their errors go.
    errors: &'a mut [f64],
}

/// Counts and extremes of a tile, all of them integers (magnitudes as their bits, whose order is the same), so that
/// vectors may take them in any order.
#[derive(Clone, Copy, Default)]
struct Tally {
    inexact: u64,
    overflowed: u64,
    saturated: u64,
    underflowed: u64,
    subnormal: u64,
    nan_in: u64,
    nan_out: u64,
    inf_in: u64,
    amax: u64,
    amin: u64,
    max_abs_error: u64,
    max_rel_error: u64,
    largest_root: u64,
}

struct Account<'a> {
    columns: Columns<'a>,
    smallest_normal: f64,
    wraps: bool,
}

const INFINITY: u64 = f64::INFINITY.to_bits();

impl Account<'_> {
    #[inline(always)]
    fn tally(&mut self) -> Tally {
        let Columns { near, rest, result, result_rest, flags, roots, errors } = &mut self.columns;
        let count = near.len();
        // Equal lengths, said where the compiler sees them.
        let (rest, result, result_rest) = (&rest[..count], &result[..count], &result_rest[..count]);
        let (flags, roots, errors) = (&flags[..count], &mut roots[..count], &mut errors[..count]);
        let limits = self.smallest_normal.to_bits();
        let mut tally = Tally { amin: u64::MAX, ..Tally::default() };
        for i in 0..count {
            let (x, y, flag) = (near[i], result[i], flags[i]);
            let (magnitude, outcome) = (x.abs().to_bits(), y.abs().to_bits());
            let error = ((y - x) + (result_rest[i] - rest[i])).abs();
            let beyond = flag & OVERFLOW != 0;
            let both = (magnitude < INFINITY) & (outcome < INFINITY);
            let nonzero = (magnitude < INFINITY) & (magnitude != 0);
            let limited = (outcome < INFINITY) & !self.wraps;
            let kept = |bits: u64, condition: bool| if condition { bits } else { 0 };
            tally.inexact += u64::from(flag & INEXACT != 0);
            tally.overflowed += u64::from(beyond & !limited);
            tally.saturated += u64::from(beyond & limited);
            tally.underflowed += u64::from(nonzero & (outcome == 0) & !beyond);
            tally.subnormal += u64::from((outcome != 0) & (outcome < limits));
            tally.nan_in += u64::from(magnitude > INFINITY);
            tally.nan_out += u64::from(outcome > INFINITY);
            tally.inf_in += u64::from(magnitude == INFINITY);
            tally.amax = tally.amax.max(kept(magnitude, nonzero));
            tally.amin = tally.amin.min(if nonzero { magnitude } else { u64::MAX });
            let relative = (error / x.abs()).to_bits();
            tally.max_abs_error = tally.max_abs_error.max(kept(error.to_bits(), both));
            tally.max_rel_error = tally.max_rel_error.max(kept(relative, both & nonzero));
            tally.largest_root = tally.largest_root.max(kept(magnitude, both));
            roots[i] = f64::from_bits(kept(magnitude, both));
            errors[i] = f64::from_bits(kept(error.to_bits(), both));
        }
        tally
    }
}

/// The sum of the squares of a column whose largest magnitude has these bits.
#[inline(always)]
fn square_sum(roots: &[f64], largest: u64) -> SquareSum {
    if largest == 0 {
        return SquareSum::default();
    }
    let top = SquareSum::top_for(f64::from_bits(largest));
    let [first, second] = SquareSum::root_scales(top);
    let mut bins = [0i64; 3];
    for root in roots {
        let units = SquareSum::bins_of(root * first * second);
        for (bin, units) in bins.iter_mut().zip(units) {
            *bin += units;
        }
    }
    SquareSum::new(top, bins)
}

impl Kernel for Account<'_> {
    type Output = CastReport;

    #[inline(always)]
    fn run(mut self) -> CastReport {
        let tally = self.tally();
        let count = self.columns.near.len() as u64;
        CastReport {
            count,
            exact: count - tally.inexact,
            overflowed: tally.overflowed,
            saturated: tally.saturated,
            underflowed: tally.underflowed,
            subnormal: tally.subnormal,
            nan_in: tally.nan_in,
            nan_out: tally.nan_out,
            inf_in: tally.inf_in,
            amax: f64::from_bits(tally.amax),
            amin_nonzero: f64::from_bits(if tally.amin == u64::MAX { 0 } else { tally.amin }),
            max_abs_error: f64::from_bits(tally.max_abs_error),
            max_rel_error: f64::from_bits(tally.max_rel_error),
            signal: square_sum(self.columns.roots, tally.largest_root),
            noise: square_sum(self.columns.errors, tally.max_abs_error),
        }
    }
}
