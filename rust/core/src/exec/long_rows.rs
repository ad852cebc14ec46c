//! Converts long rows where they are, without copies to tiles.

use super::dense::Dense;
use super::job::Job;
use crate::layout::transfer::{Gaps, gather, scatter};
use crate::layout::{Run, SOURCE, TARGET};
use crate::route::work::Work;

/// From this many bytes on, a row is worth a call of its own.
const LONG: usize = 1024;

/// The layout of one operand's elements in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Without gaps.
    Dense,
    /// In long rows without gaps.
    Rows,
    /// In any other way: they are copied to or from a tile of ours.
    Apart,
}

impl Job<'_> {
    /// Returns the layouts of both operands, if their rows are worth calls of their own; `dense` says which have no
    /// gaps.
    pub(super) fn long_rows(&self, runs: &[Run], dense: [bool; 2]) -> Option<[End; 2]> {
        let (route, memory) = (&self.plan.route, &self.memory);
        let plain = self.plan.collector.is_none() && !memory.real_to_complex;
        if !plain || route.is_copy() || route.draws || !Dense::suits(route) {
            return None;
        }
        let end = |operand: usize, size: usize, swapped: bool| {
            let is_long = |run: &Run| run.count * size >= LONG && run.strides[operand] == size as isize;
            match dense[operand] {
                true => End::Dense,
                false if !swapped && runs.iter().all(is_long) => End::Rows,
                false => End::Apart,
            }
        };
        let source = end(SOURCE, route.source_size, memory.source_swapped);
        let target = end(TARGET, route.target_size, memory.target_swapped);
        [source, target].contains(&End::Rows).then_some([source, target])
    }

    /// Converts a tile row by row.
    ///
    /// # Safety
    /// As for [`Job::run`]; the ends are those of these runs, whose elements each of the tiles has room for.
    pub(super) unsafe fn run_rows(
        &self,
        runs: &[Run],
        [source, target]: [End; 2],
        tiles: (*mut u8, *mut u8),
        work: &mut Work,
    ) {
        let (route, memory) = (&self.plan.route, self.memory);
        let level = route.level;
        let (size, to_size) = (route.source_size, route.target_size);
        let first = runs[0].offsets;
        let offset = |end: End, operand: usize, row: &Run, done: usize, size: usize| match end {
            End::Dense => first[operand] + (done * size) as isize,
            End::Rows => row.offsets[operand],
            End::Apart => (done * size) as isize,
        };
        let from = if source == End::Apart { tiles.0.cast_const() } else { memory.source };
        let to = if target == End::Apart { tiles.1 } else { memory.target };
        // SAFETY: the caller's promise.
        unsafe {
            if source == End::Apart {
                let kind = (size, memory.source_swapped);
                gather(level, (memory.source, Gaps::Read), SOURCE, runs, kind, tiles.0);
            }
            let mut done = 0;
            for row in runs.iter().flat_map(Run::each_row) {
                let from = from.offset(offset(source, SOURCE, &row, done, size));
                let to = to.offset(offset(target, TARGET, &row, done, to_size));
                route.convert((from, to), row.count, work);
                done += row.count;
            }
            if target == End::Apart {
                let kind = (to_size, memory.target_swapped);
                scatter(level, tiles.1.cast_const(), memory.target, TARGET, runs, kind);
            }
        }
    }
}
