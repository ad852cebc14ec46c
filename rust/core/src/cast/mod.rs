//! Casting: `plan` decides, `run` carries out, `stages`, `vectors` and `tables` hold the loops.
//!
//! ```text
//! cast ── plan ── which stages: stages/ (a number at a time), vectors/ (a register at a time), tables/ (by code)
//!      └─ run/ ── which positions per thread; per tile: gather, stages, scatter
//!           ├─ layout/  where positions lie, and how bytes get there without being looked at
//!           └─ report/  what was lost, watched beside the stages
//! gradients/ ──── many arrays over one loss scale, in place; its own loops over the same layouts and stages
//! ```

mod few;
pub mod gradients;
pub mod layout;
mod operands;
mod ordinary;
#[deny(unsafe_code)]
mod plan;
mod prepared;
#[deny(unsafe_code)]
mod probe;
mod refusal;
mod report;
#[deny(unsafe_code)]
mod request;
mod rows;
mod run;
mod stages;
mod step;
mod tables;
#[deny(unsafe_code)]
mod tile;
#[deny(unsafe_code)]
mod variant;
mod vectors;

pub use operands::{Scales, Settings, Source, Target};
pub use ordinary::Ordinary;
pub use prepared::Prepared;
pub use probe::probe;
pub use run::parallel::{num_threads, set_num_threads};

use layout::{Axes, Axis, INDEX, Layout, OPERANDS, SCALE, SOURCE, TARGET, blocks};
use operands::{Parts, dense_count};
use plan::Plan;
use refusal::refusal;
use request::Request;
use run::repeat::{self, Repeats};
use run::{Job, Memory, Outcome, Search, parallel};
use step::Step;

use crate::codec::options::{NanRule, Overflow};
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::format::Format;
use crate::report::CastReport;

/// Casts every element of `source` to `target`, multiplying by `scales` before the one rounding.
///
/// # Errors
/// [`Error::Unsupported`] for complex to real; [`Error::Overflow`] and [`Error::Nan`] where the options ask for
/// them, naming the first offending element, with a target that is not `fresh` untouched.
///
/// # Safety
/// All elements of `shape` at the strides of `source` and `scales` are readable, and those of `target` writable, for
/// the length of the call, from any thread. What lies between neighbours in the source that are up to eight sizes apart is
/// readable too (if only because it lies in the same pages of memory), and no part of the target. No two elements of the
/// target overlap, and the target overlaps neither source nor scales; except that it may be the source, if their
/// elements have equal size and strides and `target.fresh` is not set.
pub unsafe fn cast(
    shape: &[usize],
    source: Source<'_>,
    target: Target<'_>,
    scales: Option<Scales<'_>>,
    settings: &Settings,
) -> Result<Option<CastReport>, Error> {
    let parts = Parts::of(source.format, target.format)?;
    let options = settings.options;
    let request = Request {
        source: parts.source,
        target: parts.target,
        options,
        scaled: scales.is_some(),
        // SAFETY: the caller's promise.
        factor: unsafe { scales.and_then(|scales| scales.only(shape)) },
        report: settings.report,
        count: shape.iter().product(),
    };
    if request.is_plain() {
        let step = Step::between(source.format, target.format)?;
        let (pointers, swapped) = ((source.pointer, target.pointer), (source.swapped, target.swapped));
        if let Some(count) = dense_count(shape, &source, &target) {
            let layout = step.dense(count);
            // SAFETY: the caller's promise; the layout has the elements of these arrays.
            unsafe { parallel::run(&step.job(&layout, pointers, swapped), settings.threads) };
            return Ok(None);
        }
        let strided = ((source.pointer, source.strides), (target.pointer, target.strides));
        // SAFETY: the caller's promise.
        if swapped == (false, false) && unsafe { few::cast(step, shape, strided.0, strided.1) } {
            return Ok(None);
        }
        let mut axes = axes(shape, &source, &target, None, &step.plan, &parts, settings);
        let repeats = Repeats::take(&mut axes);
        let pointers = (source.pointer, target.pointer.wrapping_offset(repeats.start));
        for layout in &blocks::cut(Layout::new(axes)) {
            // SAFETY: as above, with the repeats.
            unsafe { repeat::run(&step.job(layout, pointers, swapped), &repeats, settings.threads) };
        }
        return Ok(None);
    }
    if let Some(scales) = &scales
        // SAFETY: the caller's promise.
        && unsafe { rows::cast_rows(shape, &source, &target, scales, settings)? }
    {
        return Ok(None);
    }
    let plan = &DefaultEnvironment::compute(&request, |request| Plan::new(request, Level::active()))?;
    let mut axes = axes(shape, &source, &target, scales.as_ref(), plan, &parts, settings);
    // Each place has its own random number, and is counted by itself.
    let each = plan.stream.is_some() || settings.report;
    let repeats = if each { Repeats::default() } else { Repeats::take(&mut axes) };
    let layouts = blocks::cut(Layout::new(axes));
    let memory = Memory {
        source: source.pointer,
        target: target.pointer.wrapping_offset(repeats.start),
        scale: scales.map_or(std::ptr::null(), |scales| scales.pointer),
        source_swapped: source.swapped,
        target_swapped: target.swapped,
        real_to_complex: parts.real_to_complex,
    };
    let search = Search { overflow: options.overflow == Overflow::Raise, nan: options.nan == NanRule::Raise };
    let searches = (search.overflow || search.nan) && plan.flags;
    let job = |layout, dry| Job { plan, layout, memory, level: plan.level, search, dry };
    let run = |dry: bool| {
        let mut whole = Outcome::default();
        for layout in &layouts {
            // SAFETY: the caller's promise; layouts and repeats have the elements of the arrays.
            whole.merge(&unsafe { repeat::run(&job(layout, dry), &repeats, settings.threads) });
        }
        // SAFETY: the caller's promise; what was found is one of the elements.
        let refuse = |found| unsafe { refusal(found, shape, &source, scales.as_ref(), &parts, &target) };
        whole.found.map_or(Ok(whole.report), |found| Err(refuse(found)))
    };
    if searches && !target.fresh {
        run(true)?;
    }
    let report = run(false)?;
    Ok(settings.report.then(|| report.unwrap_or_default()))
}

/// The axes to walk. Operands that nobody reads get stride 0, so that they do not keep axes from merging.
fn axes(
    shape: &[usize],
    source: &Source<'_>,
    target: &Target<'_>,
    scales: Option<&Scales<'_>>,
    plan: &Plan,
    parts: &Parts,
    settings: &Settings,
) -> Axes {
    let raises = settings.options.overflow == Overflow::Raise || settings.options.nan == NanRule::Raise;
    let indexed = plan.stream.is_some() || raises;
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
    let source =
        Source { pointer: source.as_ptr(), strides: &from_stride, format: source_format, swapped: false };
    let target = Target {
        pointer: target.as_mut_ptr(),
        strides: &to_stride,
        format: target_format,
        swapped: false,
        fresh: false,
    };
    // SAFETY: the slices hold `count` elements each, and a `&mut` overlaps nothing.
    unsafe { cast(&[count], source, target, None, settings) }
}
