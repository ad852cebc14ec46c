//! Where two arrays differ, and by how much.
//!
//! * `outcome`: what is found. `formats`: how pairs of formats are compared. `arrays`: the pass over two arrays.
//! * `differences`, `losses`: loops over a tile. `singles`: those over tiles of short floats.

mod arrays;
mod differences;
mod formats;
mod losses;
mod outcome;
mod singles;

pub(crate) use arrays::{Asked, Buffers};
pub use outcome::{Comparison, Losses};

use crate::cpu::{DefaultEnvironment, Level};
use crate::error::{Error, with_room};
use crate::exec::buffers::with_buffers;
use crate::exec::pass;
use crate::format::Format;
use crate::layout::{Axes, Axis, INDEX, Layout, OPERANDS, SOURCE, TARGET, blocks};
use crate::plan::operands::Source;
use crate::report::CastReport;

use arrays::{ComparedArrays, Comparing};
use formats::Common;

/// Compares two arrays of a shape, on at most this many threads; with `measures` the losses too. The outcome depends
/// neither on threads nor on strides.
///
/// # Safety
/// All elements of both arrays are readable.
#[must_use]
pub unsafe fn compare(
    shape: &[usize],
    first: Source<'_>,
    second: Source<'_>,
    measures: bool,
    threads: usize,
) -> Comparison {
    // SAFETY: passed on.
    unsafe { run(shape, [first, second], Asked::of(measures), threads) }
}

/// Returns what the second array lost of the first, as [`compare`] finds it, on one thread and without differences.
///
/// # Safety
/// As for [`compare`].
#[must_use]
pub unsafe fn report(shape: &[usize], first: Source<'_>, second: Source<'_>) -> CastReport {
    // SAFETY: passed on.
    let comparison = unsafe { run(shape, [first, second], Asked::Report, 1) };
    comparison.losses.map(|losses| losses.report).unwrap_or_default()
}

/// Returns whether two arrays of a shape have one format and the same bits, on at most this many threads.
///
/// # Safety
/// As for [`compare`].
#[must_use]
pub unsafe fn have_same_bits(shape: &[usize], first: Source<'_>, second: Source<'_>, threads: usize) -> bool {
    // SAFETY: passed on.
    first.format == second.format
        && unsafe { run(shape, [first, second], Asked::SameBits, threads) }.different == 0
}

/// Returns the ratio of signal to noise, in decibels, of each array of a stack, which the first axis counts, and the one of
/// another stack: that of [`compare`] with its losses.
///
/// # Errors
/// [`Error::InvalidOption`] for more arrays than there is memory for ratios.
///
/// # Safety
/// As for [`compare`].
pub unsafe fn ratios(shape: &[usize], stacks: [Source<'_>; 2]) -> Result<Vec<f64>, Error> {
    let formats = stacks.each_ref().map(|stack| stack.format);
    let [count, shape @ ..] = shape else { return Ok(Vec::new()) };
    let mut ratios = with_room("x", *count)?;
    with_buffers(|buffers: &mut Buffers| {
        let mut steps = Steps::new(formats, Asked::Ratio);
        let ratio = |index| {
            buffers.begin();
            steps.comparison = Comparison::default();
            // SAFETY: the caller's promise, for one array of each stack.
            unsafe { steps.add(shape, stacks.map(|stack| part(stack, index)), 0, buffers) };
            let losses = steps.comparison.losses.as_deref();
            losses.map_or(f64::NAN, |losses| losses.report.sqnr_db())
        };
        ratios.extend((0..*count).map(ratio));
    });
    Ok(ratios)
}

/// Returns an array of a stack.
fn part(stack: Source<'_>, index: usize) -> Source<'_> {
    let offset = stack.strides[0] * index as isize;
    Source { pointer: stack.pointer.wrapping_offset(offset), strides: &stack.strides[1..], ..stack }
}

/// # Safety
/// As for [`compare`].
unsafe fn run(shape: &[usize], arrays: [Source<'_>; 2], asked: Asked, threads: usize) -> Comparison {
    let Steps { comparing, comparison: mut whole } =
        Steps::new(arrays.each_ref().map(|array| array.format), asked);
    for layout in blocks::cut(Layout::new(axes(shape, &arrays))) {
        let compared = ComparedArrays::new(&comparing, &layout, 0, &arrays);
        // SAFETY: the caller's promise; the layouts have the elements of the arrays.
        whole.merge(&unsafe { pass::run_pass(&compared, compared.positions(), threads) });
    }
    whole
}

/// A comparison of two arrays of which some elements at a time are in memory. What was found of those before is known.
pub(crate) struct Steps {
    comparing: Comparing,
    pub(crate) comparison: Comparison,
}

impl Steps {
    /// Begins with buffers, which are those of this comparison from here on.
    pub(crate) fn begin(formats: [Format; 2], asked: Asked, buffers: &mut Buffers) -> Self {
        buffers.begin();
        Self::new(formats, asked)
    }

    fn new(formats: [Format; 2], asked: Asked) -> Self {
        let comparing = Comparing::new(Level::active(), Common::of(formats[0], formats[1]), asked);
        let losses = asked.measures().then(Box::default);
        Self { comparing, comparison: Comparison { losses, ..Comparison::default() } }
    }

    /// Adds elements, given the flat index of the first one.
    ///
    /// # Safety
    /// As for [`compare`].
    pub(crate) unsafe fn add(
        &mut self,
        shape: &[usize],
        arrays: [Source<'_>; 2],
        start: usize,
        buffers: &mut Buffers,
    ) {
        let _environment = DefaultEnvironment::enter();
        for layout in blocks::cut(Layout::new(axes(shape, &arrays))) {
            let compared = ComparedArrays::new(&self.comparing, &layout, start as u64, &arrays);
            // SAFETY: the caller's promise; the layouts have the elements of the arrays.
            unsafe { compared.add(0..layout.count, buffers, &mut self.comparison) };
        }
    }
}

/// Returns the axes to walk.
fn axes(shape: &[usize], [first, second]: &[Source<'_>; 2]) -> Axes {
    let mut index_stride = 1isize;
    let mut axes = Axes::new();
    for (axis, &length) in shape.iter().enumerate().rev() {
        let mut strides = [0; OPERANDS];
        strides[SOURCE] = first.strides[axis];
        strides[TARGET] = second.strides[axis];
        strides[INDEX] = index_stride;
        axes.push(Axis { length, strides });
        index_stride = index_stride.wrapping_mul(length as isize);
    }
    axes.reverse();
    axes
}
