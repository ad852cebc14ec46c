//! The pass of a cast.

use std::ops::Range;

use super::buffers::with_buffers;
use super::dense::Dense;
use super::draws;
use super::long_rows::convert_rows;
use super::operand::Operand;
use super::pass::{Pass, Positions};
use super::scratch::Scratch;
use crate::codec::encode::NAN;
use crate::codec::random::Stream;
use crate::layout::streaming;
use crate::layout::transfer::{Gaps, gather, scatter_real};
use crate::layout::{INDEX, Layout, Run, SCALE, SOURCE, TARGET};
use crate::plan::Plan;
use crate::report::CastReport;
use crate::report::collector::{Collector, FlagFree, SHORT};
use crate::route::Route;
use crate::route::work::Work;
use crate::simd::fence;
use crate::tuning::{SECOND_CACHE, STREAM_TILES};

/// The memory of one cast.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    pub(crate) scale: *const u8,
    pub(crate) source_swapped: bool,
    pub(crate) target_swapped: bool,
    /// Results are the real parts of the target's elements, whose imaginary parts become +0.
    pub(crate) real_to_complex: bool,
}

/// The outcome of a range of positions.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) report: Option<CastReport>,
    /// Flat index of the first element that is refused, and whether it is a NaN.
    pub(crate) found: Option<(u64, bool)>,
}

impl Outcome {
    pub(crate) fn merge(&mut self, other: &Self) {
        if let Some(report) = &other.report {
            *self.report.get_or_insert_default() += report;
        }
        self.found = match (self.found, other.found) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// A cast of the elements of a layout. Processing it is safe where every element is readable at the source (and scale) and,
/// unless this is a search only, writable at the target, and the target overlaps neither, unless source and target
/// elements of equal size coincide one by one. Memory between neighbors in the source that are up to eight sizes apart
/// is readable, and not part of the target.
pub(crate) struct Job<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) layout: &'a Layout,
    source: Operand,
    pub(crate) target: Operand,
    scale: Operand,
    pub(crate) real_to_complex: bool,
    /// The stream of draws, if the plan's route reads any.
    stream: Option<Stream>,
    /// Whether refused elements are searched for.
    pub(crate) search: Search,
}

/// When refused elements are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// Never.
    No,
    /// Block by block, each before it is converted.
    Blockwise,
    /// In all elements, without converting any.
    Only,
}

impl Pass for Job<'_> {
    /// Dense casts need none.
    type Buffers = ();
    type Outcome = Outcome;

    unsafe fn process(&self, positions: Range<usize>, (): &mut (), outcome: &mut Outcome) {
        if self.search == Search::No {
            // SAFETY: passed on.
            return unsafe { self.convert(positions, outcome) };
        }
        // What is checked stays in the cache until it is converted.
        let block = (SECOND_CACHE / self.plan.route.source_size).next_multiple_of(self.layout.tile);
        for first in positions.clone().step_by(block) {
            let positions = first..positions.end.min(first + block);
            // SAFETY: the caller's promise, for some of the positions.
            unsafe {
                if !self.is_safe(&positions) {
                    with_buffers(|scratch| self.search(positions.clone(), scratch, outcome));
                }
                if self.search == Search::Blockwise && outcome.found.is_none() {
                    self.convert(positions, outcome);
                }
            }
        }
    }

    fn merge(outcome: &mut Outcome, next: Outcome) {
        outcome.merge(&next);
    }
}

impl<'a> Job<'a> {
    #[inline(always)]
    pub(crate) fn new(
        plan: &'a Plan,
        layout: &'a Layout,
        memory: Memory,
        stream: Option<Stream>,
        search: Search,
    ) -> Self {
        let Route { source_size, target_size, .. } = plan.route;
        let real_to_complex = memory.real_to_complex;
        let operand =
            |pointer, number, size, swapped| Operand::new(pointer, (layout, number), (size, swapped));
        let target = operand(memory.target, TARGET, target_size, memory.target_swapped);
        Self {
            plan,
            layout,
            source: operand(memory.source.cast_mut(), SOURCE, source_size, memory.source_swapped),
            target: Operand { direct: target.direct && !real_to_complex, ..target },
            scale: operand(memory.scale.cast_mut(), SCALE, size_of::<f64>(), false),
            real_to_complex,
            stream,
            search,
        }
    }

    /// Returns the elements of the layout, which are cast in whole tiles, so that each tile holds the same however many
    /// threads there are.
    pub(crate) fn positions(&self) -> Positions {
        let (count, grain) = (self.layout.count, self.layout.tile);
        Positions { count, grain, bytes: count * (self.source.size + self.target.size), turn: None }
    }

    /// Returns whether the source codes alone show that nothing is refused.
    ///
    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn is_safe(&self, positions: &Range<usize>) -> bool {
        let safe = self.plan.refusal_check.as_ref().and_then(|refusal_check| refusal_check.safe);
        safe.filter(|_| self.source.direct).is_some_and(|safe| {
            let first = self.dense_place(self.source, self.source.size, positions.start).cast_const();
            // SAFETY: the caller's promise for these positions.
            unsafe { safe.holds(self.plan.route.level, first, positions.len()) }
        })
    }

    /// Returns where an element of a dense operand is, given the bytes from one to the next.
    fn dense_place(&self, operand: Operand, size: usize, position: usize) -> *mut u8 {
        let offset = self.layout.origin[operand.number] + (position * size) as isize;
        operand.pointer.wrapping_offset(offset)
    }

    /// Converts positions without searching.
    ///
    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn convert(&self, positions: Range<usize>, outcome: &mut Outcome) {
        // SAFETY: the caller's promise, for the elements of the range.
        unsafe {
            match self.dense(&positions) {
                Some(dense) => dense.convert(),
                None => with_buffers(|scratch| self.run_tiles(positions, scratch, outcome)),
            }
        }
    }

    /// Returns the route of these elements. For a short report, the route that writes flags is faster than a separate
    /// pass.
    fn route(&self) -> &Route {
        let flag_free = self.plan.collector.as_ref().and_then(|collector| collector.flag_free.as_ref());
        flag_free.filter(|_| !self.pays()).map_or(&self.plan.route, |flag_free| &flag_free.close)
    }

    /// Returns the collector that needs no flags, if the elements are enough to pay for it.
    fn flag_free(&self) -> Option<&FlagFree> {
        let collector = self.plan.collector.as_ref().filter(|_| self.pays());
        collector.and_then(|collector| collector.flag_free.as_ref())
    }

    /// Whether the elements are enough for a separate pass.
    fn pays(&self) -> bool {
        self.layout.count > SHORT
    }

    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn run_tiles(&self, positions: Range<usize>, scratch: &mut Scratch, outcome: &mut Outcome) {
        // SAFETY: passed on.
        unsafe { self.fill_scales(&positions, scratch) };
        let flag_free = self.flag_free();
        if let Some(flag_free) = flag_free {
            scratch.collector.begin(flag_free, positions.len());
        }
        let tile = self.layout.tile;
        for position in positions.clone().step_by(tile) {
            let count = tile.min(positions.end - position);
            // SAFETY: the caller's promise.
            unsafe { self.run_tile(position, count, scratch, outcome) };
        }
        if let (Some(flag_free), Some(collector)) = (flag_free, &self.plan.collector) {
            fence();
            let Scratch { work, collector: collector_scratch, .. } = scratch;
            let report = outcome.report.get_or_insert_default();
            flag_free.end(&collector.meter, work, collector_scratch, report);
        }
    }

    /// Fills in the factors of all tiles, if all are the same.
    ///
    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn fill_scales(&self, positions: &Range<usize>, scratch: &mut Scratch) {
        let scaled = self.plan.route.scaled
            || self.plan.refusal_check.as_ref().is_some_and(|refusal_check| refusal_check.close.scaled);
        if scaled && !positions.is_empty() && self.layout.line(SCALE) == Some(0) {
            // SAFETY: there is an element, so its scale is readable.
            let scale = unsafe { self.dense_place(self.scale, 0, 0).cast::<f64>().read_unaligned() };
            scratch.work.scales.0.fill(scale);
        }
    }

    /// Returns the range as a dense cast without report and checks, if it is one.
    fn dense(&self, positions: &Range<usize>) -> Option<Dense<'_>> {
        let Self { source, target, layout, real_to_complex, .. } = *self;
        let route = &self.plan.route;
        let element = target.size * if real_to_complex { 2 } else { 1 };
        let plain = self.plan.collector.is_none() && Dense::suits(route);
        // Draws depend on indices, which must be consecutive too.
        let in_line = layout.count <= 1 || layout.line(INDEX) == Some(1);
        let drawn = !route.draws || (in_line && !real_to_complex);
        let dense = source.direct && !target.swapped && layout.is_dense(TARGET, element);
        let start = positions.start;
        (plain && dense && drawn).then(|| Dense {
            route,
            source: self.dense_place(source, source.size, start),
            target: self.dense_place(target, element, start),
            count: positions.len(),
            real_to_complex,
            draws: self
                .stream
                .map(|stream| (stream, (layout.origin[INDEX] as u64).wrapping_add(start as u64))),
        })
    }

    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn run_tile(&self, position: usize, count: usize, scratch: &mut Scratch, outcome: &mut Outcome) {
        let Self { source, target, real_to_complex, .. } = *self;
        let route = self.route();
        let level = route.level;
        let Scratch { source: source_tile, target: target_tile, runs, work, collector: collector_scratch } =
            scratch;
        self.layout.runs(position, count, runs);
        let collector = self.plan.collector.as_ref();
        let in_place = source.pointer == target.pointer;
        // Reports read the source after the target is written.
        let source = Operand { direct: source.direct && !(in_place && collector.is_some()), ..source };
        let streams = target.direct && self.flag_free().is_some() && !in_place && self.is_large();
        let copies = route.is_copy() && collector.is_none();
        if copies && in_place && source.swapped == target.swapped {
            return; // The elements are what they become, and must not be copied onto themselves.
        }
        let rooms = (source_tile.0.as_mut_ptr().cast(), target_tile.0.as_mut_ptr().cast());
        let write = |tile: *const u8, runs: &[Run]| {
            // SAFETY: the caller's promise; the tile has the results of these elements.
            unsafe {
                if real_to_complex {
                    let kind = (target.size, target.swapped);
                    scatter_real(level, tile, target.pointer, runs, kind);
                } else {
                    target.scatter(level, tile, runs);
                }
            }
        };
        // SAFETY: the caller's promise; tiles hold [`TILE`](crate::cast::TILE) elements of up to 8 bytes, and are
        // borrowed here only.
        unsafe {
            let by_rows = collector.is_none() && !real_to_complex && !copies && !route.draws;
            if by_rows && Dense::suits(route) && convert_rows(route, (&source, &target), runs, rooms, work) {
                return;
            }
            if copies && target.direct && !in_place {
                // Unchanged elements are copied without a tile. (In place, bytes are swapped by way of the tile.)
                let from = (source.pointer.cast_const(), Gaps::Read);
                let kind = (source.size, source.swapped);
                return gather(level, from, SOURCE, runs, kind, target.first(runs));
            }
            let codes = source.read(level, Gaps::Read, runs, rooms.0);
            if copies {
                // Unchanged elements are scattered straight from the source.
                return write(codes, runs);
            }
            let results = if target.direct && !streams { target.first(runs) } else { rooms.1 };
            self.prepare(route, count, runs, work);
            route.convert((codes, results), count, work);
            if let Some(Collector { meter, .. }) = collector {
                let report = outcome.report.get_or_insert_default();
                let ends = (codes, results.cast_const());
                if let Some(flag_free) = self.flag_free() {
                    flag_free.add_tile(meter, ends, count, work, collector_scratch, report);
                } else {
                    let scales = route.scaled.then_some(&work.scales.0[..count]);
                    let flags = &work.flags.0[..count];
                    meter.measure(level, ends, scales, flags, &mut collector_scratch.meter, report);
                }
            }
            if streams {
                streaming::copy(level, results, target.first(runs), count * target.size);
            } else if !target.direct {
                write(results, runs);
            }
        }
    }

    /// Fills in the scales and draws of a tile that a route reads.
    ///
    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn prepare(&self, route: &Route, count: usize, runs: &[Run], work: &mut Work) {
        if route.scaled && self.layout.line(SCALE) != Some(0) {
            let tile = work.scales.0.as_mut_ptr().cast();
            // SAFETY: the caller's promise; the tile has room.
            unsafe { self.scale.gather(route.level, Gaps::Leave, runs, tile) };
        }
        let Some(stream) = self.stream.filter(|_| route.draws) else { return };
        if route.lane_size == size_of::<u64>() {
            draws::fill(route.level, stream, runs, &mut work.wide_draws.0[..count]);
        } else {
            draws::fill(route.level, stream, runs, &mut work.draws.0[..count]);
        }
    }

    /// Returns whether the results are too many for the caches.
    fn is_large(&self) -> bool {
        let size = self.plan.route.source_size + self.plan.route.target_size;
        self.layout.count * size >= STREAM_TILES
    }

    /// Searches for the first refused element.
    ///
    /// # Safety
    /// As for [`Pass::process`].
    unsafe fn search(&self, positions: Range<usize>, scratch: &mut Scratch, outcome: &mut Outcome) {
        let (Some(refusal_check), layout) = (&self.plan.refusal_check, self.layout) else { return };
        let close = &refusal_check.close;
        // SAFETY: passed on.
        unsafe { self.fill_scales(&positions, scratch) };
        let Scratch { source: source_tile, target: target_tile, runs, work, .. } = scratch;
        let rooms = (source_tile.0.as_mut_ptr().cast(), target_tile.0.as_mut_ptr().cast());
        for position in positions.clone().step_by(layout.tile) {
            let count = layout.tile.min(positions.end - position);
            layout.runs(position, count, runs);
            // SAFETY: the caller's promise; tiles have room, and are borrowed here only.
            unsafe {
                let codes = self.source.read(close.level, Gaps::Read, runs, rooms.0);
                if refusal_check.safe.is_some_and(|safe| safe.holds(close.level, codes, count)) {
                    continue;
                }
                self.prepare(close, count, runs, work);
                close.convert((codes, rooms.1), count, work);
            }
            note_first(refusal_check.refused, &work.flags.0[..count], runs, outcome);
        }
    }
}

/// Notes the first refused element of a tile.
fn note_first(refused: u8, flags: &[u8], runs: &[Run], outcome: &mut Outcome) {
    if flags.iter().fold(0, |all, flag| all | flag) & refused == 0 {
        return;
    }
    let mut done = 0;
    for run in runs.iter().flat_map(Run::each_row) {
        for (i, flag) in flags[done..done + run.count].iter().enumerate() {
            if flag & refused != 0 {
                let index = run.offsets[INDEX] + run.strides[INDEX] * i as isize;
                let here = (index as u64, flag & refused & NAN != 0);
                outcome.found = Some(outcome.found.map_or(here, |first| first.min(here)));
            }
        }
        done += run.count;
    }
}
