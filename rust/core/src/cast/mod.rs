//! The cast of whole arrays: a plan, and its execution over a layout.
//!
//! * `prepared`: a plan that is run many times; `planned`: one with options, over few elements.
//! * `host_agreement`, `boundary_values`: where other libraries give the same results.
//! * `rows`: scales that differ along the first axes only.
//! * `refusal`: what an error says about an element.

mod boundary_values;
mod host_agreement;
mod planned;
mod prepared;
mod refusal;
mod rows;

pub use boundary_values::boundary_values;
pub use host_agreement::HostAgreement;
pub use planned::PlannedCast;
pub use prepared::Prepared;

pub use crate::exec::parallel::{num_threads, set_num_threads};
pub use crate::exec::small::{cast_few, cast_small};
/// Elements of a tile.
pub const TILE: usize = crate::kernels::tile::TILE;
pub use crate::plan::log_casts;
pub use crate::plan::operands::{Scales, Settings, Source, Target};

use refusal::refusal;

use crate::codec::random::Stream;
use crate::error::Error;
use crate::exec::broadcast::{self, Broadcast};
use crate::exec::job::{Job, Memory, Outcome, Search};
use crate::exec::pass;
use crate::exec::small::SmallCast;
use crate::exec::workers::threads_pay;
use crate::format::Format;
use crate::layout::{Axes, Axis, INDEX, Layout, OPERANDS, SCALE, SOURCE, TARGET, blocks};
use crate::plan::operands::dense_count;
use crate::plan::{Plan, PlanKey};
use crate::report::CastReport;
use crate::tuning::SECOND_CACHE;

/// Casts every element of `source` to `target`, multiplying by `scales` before the one rounding.
///
/// # Errors
/// [`Error::Unsupported`] for complex to real; [`Error::Overflow`] and [`Error::Nan`] where the options ask for
/// them, naming the first offending element, with a target that is not `fresh` untouched.
///
/// # Safety
/// All elements of `shape` at the strides of `source` and `scales` are readable, and those of `target` writable, for
/// the length of the call, from any thread. Memory between neighbors in the source that are up to eight sizes apart is
/// readable too (it is in the same pages), and not part of the target. No two elements of the target overlap, and the
/// target overlaps neither source nor scales; except that it may be the source, if their elements have equal size and
/// strides and `target.fresh` is not set.
pub unsafe fn cast(
    shape: &[usize],
    source: Source<'_>,
    target: Target<'_>,
    scales: Option<Scales<'_>>,
    settings: &Settings,
) -> Result<Option<CastReport>, Error> {
    // SAFETY: the caller's promise.
    unsafe { cast_from(0, shape, source, target, scales, settings) }
}

/// Casts elements of which the first has the flat index `first` in an array that is cast in pieces: draws and errors
/// are those of the whole array.
///
/// # Safety
/// As for [`cast()`].
pub(crate) unsafe fn cast_from(
    first: u64,
    shape: &[usize],
    source: Source<'_>,
    target: Target<'_>,
    scales: Option<Scales<'_>>,
    settings: &Settings,
) -> Result<Option<CastReport>, Error> {
    let count = shape.iter().product();
    // SAFETY: the caller's promise.
    let factor = unsafe { scales.and_then(|scales| scales.only(shape)) };
    let pair = (source.format, target.format);
    let key = PlanKey::new(pair, &settings.options, (scales.is_some(), factor), (settings.report, count));
    let plan = &*Plan::find(&key, count)?;
    let memory = Memory {
        source: source.pointer,
        target: target.pointer,
        scale: scales.map_or(std::ptr::null(), |scales| scales.pointer),
        source_swapped: source.swapped,
        target_swapped: target.swapped,
        real_to_complex: plan.parts.real_to_complex,
    };
    if plan.is_simple() {
        let bytes = count * (source.format.item_size() + target.format.item_size());
        let is_checked = plan.refusal_check.is_some();
        // A small array stays in the cache between its check and its cast.
        let alone = !threads_pay(settings.threads, bytes) && (!is_checked || bytes <= SECOND_CACHE);
        let alone = alone && !source.swapped && !target.swapped;
        let strided = ((source.pointer, source.strides), (target.pointer, target.strides));
        // SAFETY: the caller's promise.
        if alone && unsafe { SmallCast(plan).cast_small(shape, strided.0, strided.1, None) } {
            return Ok(None);
        }
        let count = dense_count(shape, &source, &target);
        if let Some(count) = count.filter(|_| !is_checked) {
            let layout = plan.dense(count);
            let job = Job::new(plan, &layout, memory, None, Search::No);
            // SAFETY: the caller's promise; the layout has the elements of these arrays.
            unsafe { pass::run_pass(&job, job.positions(), settings.threads) };
            return Ok(None);
        }
    }
    if let Some(scales) = &scales
        // SAFETY: the caller's promise.
        && unsafe { rows::cast_rows(shape, (&source, &target, scales), settings, cast)? }
    {
        return Ok(None);
    }
    let mut axes = axes(shape, &source, &target, scales.as_ref(), plan);
    // Stochastic rounding and reports treat each place of the target by itself.
    let each = plan.route.draws || settings.report;
    let broadcast = if each { Broadcast::default() } else { Broadcast::take(&mut axes) };
    let memory = Memory { target: memory.target.wrapping_offset(broadcast.start), ..memory };
    let mut layout = Layout::new(axes);
    let origin = first.wrapping_mul(plan.parts.components as u64);
    layout.origin[INDEX] = layout.origin[INDEX].wrapping_add(origin as isize);
    let layouts = blocks::cut(layout);
    let stream = plan.route.draws.then(|| Stream::new(settings.options.seed));
    let run = |search: Search| {
        let mut whole = Outcome::default();
        for layout in &layouts {
            let job = Job::new(plan, layout, memory, stream, search);
            // SAFETY: the caller's promise; layouts and broadcasts have the elements of the arrays.
            whole.merge(&unsafe { broadcast::cast_broadcast(&job, &broadcast, settings.threads) });
        }
        let refuse = |(index, is_nan): (u64, bool)| {
            let here = (index.wrapping_sub(origin), is_nan);
            // SAFETY: the caller's promise; what was found is one of the elements.
            unsafe { refusal(here, shape, &source, scales.as_ref(), &plan.parts, &target) }.after(first)
        };
        whole.found.map_or(Ok(whole.report), |found| Err(refuse(found)))
    };
    let report = match (&plan.refusal_check, target.fresh) {
        (None, _) => run(Search::No)?,
        (Some(_), true) => run(Search::Blockwise)?,
        (Some(_), false) => {
            run(Search::Only)?;
            run(Search::No)?
        }
    };
    Ok(settings.report.then(|| report.unwrap_or_default()))
}

/// Describes how [`cast()`] casts `count` elements: the formats and the level, the loops, how refused elements are
/// found, and how losses are. `factor` is the one for all elements, if they are `scaled` and there is one; `verbose` adds
/// the types of loops.
///
/// # Errors
/// [`Error::Unsupported`] for complex to real.
pub fn explain(
    (source, target): (Format, Format),
    (scaled, factor): (bool, Option<f64>),
    settings: &Settings,
    count: usize,
    verbose: bool,
) -> Result<String, Error> {
    let key = PlanKey::new((source, target), &settings.options, (scaled, factor), (settings.report, count));
    Ok(Plan::find(&key, count)?.describe(verbose))
}

/// Returns the axes to walk. Unused operands get stride 0, so that they do not keep axes from merging.
fn axes(
    shape: &[usize],
    source: &Source<'_>,
    target: &Target<'_>,
    scales: Option<&Scales<'_>>,
    plan: &Plan,
) -> Axes {
    let parts = &plan.parts;
    let indexed = plan.route.draws || plan.refusal_check.is_some();
    let mut index_stride = parts.components as isize;
    let mut axes = Axes::new();
    if parts.components == 2 {
        let mut strides = [0; OPERANDS];
        strides[SOURCE] = parts.source.item_size() as isize;
        strides[TARGET] = parts.target.item_size() as isize;
        strides[INDEX] = isize::from(indexed);
        axes.push(Axis { length: 2, strides });
    }
    for (axis, &length) in shape.iter().enumerate().rev() {
        let mut strides = [0; OPERANDS];
        strides[SOURCE] = source.strides[axis];
        strides[TARGET] = target.strides[axis];
        strides[INDEX] = if indexed { index_stride } else { 0 };
        strides[SCALE] = scales.map_or(0, |scales| scales.strides[axis]);
        axes.push(Axis { length, strides });
        index_stride = index_stride.wrapping_mul(length as isize);
    }
    axes.reverse();
    axes
}

/// Casts a dense slice of codes to another, both in native byte order: the safe way in for Rust.
///
/// # Errors
/// As for [`cast()`], and [`Error::InvalidOption`] if the slices do not hold equally many whole elements.
pub fn cast_slice(
    source: &[u8],
    source_format: Format,
    target: &mut [u8],
    target_format: Format,
    settings: &Settings,
) -> Result<Option<CastReport>, Error> {
    let (source, target) = ((source, source_format, false), (target, target_format, false));
    cast_dense(0, source, target, settings, false)
}

/// Casts a dense piece of a longer array, whose first element has the flat index `first` there: each side is codes, their
/// format, and whether they are in the other byte order. An error may leave the target half written.
///
/// # Errors
/// As for [`cast_slice`]; indices count from the start of the whole array.
pub fn cast_piece(
    first: u64,
    source: (&[u8], Format, bool),
    target: (&mut [u8], Format, bool),
    settings: &Settings,
) -> Result<Option<CastReport>, Error> {
    cast_dense(first, source, target, settings, true)
}

fn cast_dense(
    first: u64,
    (source, source_format, source_swapped): (&[u8], Format, bool),
    (target, target_format, target_swapped): (&mut [u8], Format, bool),
    settings: &Settings,
    fresh: bool,
) -> Result<Option<CastReport>, Error> {
    let (from, to) = (source_format.item_size(), target_format.item_size());
    let count = source.len() / from;
    if !source.len().is_multiple_of(from) || target.len() != count * to {
        return Err(Error::InvalidOption {
            message: format!(
                "target={} bytes does not hold the elements of source={} bytes; give it {} bytes.",
                target.len(),
                source.len(),
                count * to
            ),
        });
    }
    let (from_stride, to_stride) = ([from as isize], [to as isize]);
    let source = Source {
        pointer: source.as_ptr(),
        strides: &from_stride,
        format: source_format,
        swapped: source_swapped,
    };
    let target = Target {
        pointer: target.as_mut_ptr(),
        strides: &to_stride,
        format: target_format,
        swapped: target_swapped,
        fresh,
    };
    // SAFETY: the slices hold `count` elements each, and a `&mut` overlaps nothing.
    unsafe { cast_from(first, &[count], source, target, None, settings) }
}
