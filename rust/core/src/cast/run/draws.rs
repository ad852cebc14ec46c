//! Random numbers for the elements that a stage rounds by chance.

use super::tile::Tile;
use crate::cast::TILE;
use crate::cast::layout::{INDEX, Run};
use crate::cast::plan::Plan;
use crate::cast::stages::stage::{Span, Stage};
use crate::codec::random::{Draw, Stream};
use crate::cpu::{Kernel, Level};

/// Fills `words` with the draws of evenly spaced indices.
struct Draws<'a, D> {
    stream: Stream,
    first: u64,
    step: u64,
    words: &'a mut [D],
}

impl<D: Draw> Kernel for Draws<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { stream, first, step, words } = self;
        let upper = |index: u64| (index >> u32::BITS) as u32;
        let steps = (words.len() as u64).saturating_sub(1);
        let last = first.wrapping_add(steps.wrapping_mul(step));
        let keys = D::keys(stream, upper(first));
        if upper(first) == upper(last) {
            for (i, draw) in words.iter_mut().enumerate() {
                let lower = (first as u32).wrapping_add((i as u32).wrapping_mul(step as u32));
                *draw = D::draw(keys, lower);
            }
            return;
        }
        for (i, draw) in words.iter_mut().enumerate() {
            let index = first.wrapping_add((i as u64).wrapping_mul(step));
            *draw = D::draw(D::keys(stream, upper(index)), index as u32);
        }
    }
}

/// Fills in the draws of the elements of runs.
pub(super) fn fill<D: Draw>(level: Level, stream: Stream, runs: &[Run], mut draws: &mut [D]) {
    for run in runs.iter().flat_map(Run::each_row) {
        let (here, rest) = draws.split_at_mut(run.count);
        let (first, step) = (run.offsets[INDEX] as u64, run.strides[INDEX] as u64);
        level.run(Draws { stream, first, step, words: here });
        draws = rest;
    }
}

/// Runs the one stage of a plan over elements that have the indices from `first` on, each with its draw.
///
/// # Safety
/// As for [`Stage::run`].
pub(super) unsafe fn run(plan: &Plan, stage: &dyn Stage, span: Span, stream: Stream, first: u64) {
    // SAFETY: passed on.
    unsafe {
        if plan.lane_size == size_of::<u64>() {
            run_as::<u64>(plan, stage, span, stream, first);
        } else {
            run_as::<u32>(plan, stage, span, stream, first);
        }
    }
}

/// # Safety
/// As for [`Stage::run`].
unsafe fn run_as<D: Draw>(plan: &Plan, stage: &dyn Stage, span: Span, stream: Stream, first: u64) {
    let mut tile = Tile::<D>::default();
    for start in (0..span.count).step_by(TILE) {
        let count = TILE.min(span.count - start);
        let first = first.wrapping_add(start as u64);
        plan.level.run(Draws { stream, first, step: 1, words: &mut tile.0[..count] });
        // SAFETY: the caller's promise, for a part of the span.
        unsafe {
            let source = span.source.add(start * plan.source_size);
            let target = span.target.add(start * plan.target_size);
            let draws = tile.0.as_ptr().cast();
            stage.run(plan.level, Span { source, target, count, draws, ..span });
        }
    }
}
