//! Casts a range of positions, tile by tile.

use std::ops::Range;

use super::dense::{Dense, run_dense};
use super::draws;
use super::scratch::{Scratch, with_scratch};
use crate::codec::encode::NAN;
use crate::codec::random::Stream;
use crate::cpu::DefaultEnvironment;
use crate::layout::streaming;
use crate::layout::transfer::{Gaps, gather, scatter, scatter_real};
use crate::layout::{INDEX, Layout, Run, SCALE, SOURCE, TARGET};
use crate::plan::Plan;
use crate::report::CastReport;
use crate::report::collector::{Collector, FlagFree, SHORT};
use crate::route::Route;
use crate::route::work::Work;

/// The memory of one cast; positions are those of a [`Layout`].
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

// SAFETY: the pointers are only followed inside `Job::run`, whose caller promises that they may be, from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

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

/// A cast that is ready to run.
pub(crate) struct Job<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) layout: &'a Layout,
    pub(crate) memory: Memory,
    /// The stream of draws, if the plan's route reads any.
    pub(crate) stream: Option<Stream>,
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

/// Bytes of source that are checked before they are converted: they stay in a cache of the core.
const BLOCK: usize = 1 << 17;

impl Job<'_> {
    /// Casts positions `start..end`; `start` is a multiple of the layout's tile.
    ///
    /// # Safety
    /// Every element of the layout is readable at the source (and scale) and, unless this is a search only, writable at
    /// the target, and the target overlaps neither, unless source and target elements of equal size coincide one by
    /// one. Memory between neighbours in the source that are up to eight sizes apart is readable, and not part of the
    /// target.
    pub(crate) unsafe fn run(&self, start: usize, end: usize) -> Outcome {
        let mut outcome = Outcome::default();
        if self.search == Search::No {
            // SAFETY: passed on.
            unsafe { self.convert(start..end, &mut outcome) };
            return outcome;
        }
        let block = (BLOCK / self.plan.route.source_size).next_multiple_of(self.layout.tile);
        for first in (start..end).step_by(block) {
            let positions = first..end.min(first + block);
            // SAFETY: the caller's promise, for some of the positions.
            unsafe {
                if !self.is_safe(&positions) {
                    let _environment = DefaultEnvironment::enter();
                    with_scratch(|scratch| self.search(positions.clone(), scratch, &mut outcome));
                }
                if self.search == Search::Blockwise && outcome.found.is_none() {
                    self.convert(positions, &mut outcome);
                }
            }
        }
        outcome
    }

    /// Returns whether the source codes alone show that nothing is refused.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn is_safe(&self, positions: &Range<usize>) -> bool {
        let Self { plan, memory, layout, .. } = self;
        let Route { source_size, level, .. } = plan.route;
        let safe = plan.refusal_check.as_ref().and_then(|refusal_check| refusal_check.safe);
        let reads_direct = !memory.source_swapped && layout.is_dense(SOURCE, source_size);
        let offset = layout.origin[SOURCE] + (positions.start * source_size) as isize;
        safe.filter(|_| reads_direct).is_some_and(|safe| {
            // SAFETY: the caller's promise for these positions.
            unsafe { safe.holds(level, memory.source.wrapping_offset(offset), positions.len()) }
        })
    }

    /// Converts positions without searching.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn convert(&self, positions: Range<usize>, outcome: &mut Outcome) {
        if let Some(dense) = self.dense(&positions) {
            // SAFETY: the caller's promise, for the elements of the range.
            return unsafe { run_dense(&dense) };
        }
        let _environment = DefaultEnvironment::enter();
        // SAFETY: the caller's promise.
        with_scratch(|scratch| unsafe { self.run_tiles(positions, scratch, outcome) });
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
    /// As for [`Job::run`].
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
            streaming::fence(self.plan.route.level);
            let Scratch { work, collector: collector_scratch, .. } = scratch;
            let report = outcome.report.get_or_insert_default();
            flag_free.end(&collector.meter, work, collector_scratch, report);
        }
    }

    /// Fills in the factors of all tiles, if all are the same.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn fill_scales(&self, positions: &Range<usize>, scratch: &mut Scratch) {
        let scaled = self.plan.route.scaled
            || self.plan.refusal_check.as_ref().is_some_and(|refusal_check| refusal_check.close.scaled);
        if scaled && !positions.is_empty() && self.layout.line(SCALE) == Some(0) {
            // SAFETY: there is an element, so its scale is readable.
            let scale =
                unsafe { self.memory.scale.offset(self.layout.origin[SCALE]).cast::<f64>().read_unaligned() };
            scratch.work.scales.0.fill(scale);
        }
    }

    /// Returns the range as a dense cast without report and checks, if it is one.
    fn dense(&self, positions: &Range<usize>) -> Option<Dense<'_>> {
        let (route, memory, layout) = (&self.plan.route, &self.memory, self.layout);
        let element = route.target_size * if memory.real_to_complex { 2 } else { 1 };
        let native = !memory.source_swapped && !memory.target_swapped;
        let plain = self.plan.collector.is_none() && Dense::suits(route);
        // Draws depend on indices, which must be consecutive too.
        let in_line = layout.count <= 1 || layout.line(INDEX) == Some(1);
        let drawn = !route.draws || (in_line && !memory.real_to_complex);
        let dense = layout.is_dense(SOURCE, route.source_size) && layout.is_dense(TARGET, element);
        let start = positions.start;
        // Dense operands: position `p` lies `p` sizes after the origin.
        (plain && native && dense && drawn).then(|| Dense {
            route,
            source: memory
                .source
                .wrapping_offset(layout.origin[SOURCE] + (start * route.source_size) as isize),
            target: memory.target.wrapping_offset(layout.origin[TARGET] + (start * element) as isize),
            count: positions.len(),
            real_to_complex: memory.real_to_complex,
            draws: self
                .stream
                .map(|stream| (stream, (layout.origin[INDEX] as u64).wrapping_add(start as u64))),
        })
    }

    /// # Safety
    /// As for [`Job::run`].
    unsafe fn run_tile(&self, position: usize, count: usize, scratch: &mut Scratch, outcome: &mut Outcome) {
        let (route, memory, layout) = (self.route(), &self.memory, self.layout);
        let level = route.level;
        let Scratch { source: source_tile, target: target_tile, runs, work, collector: collector_scratch } =
            scratch;
        layout.runs(position, count, runs);
        let source_kind = (route.source_size, memory.source_swapped);
        let target_kind = (route.target_size, memory.target_swapped);
        // Dense operands are read and written in place, without tiles.
        let collector = self.plan.collector.as_ref();
        let in_place = memory.source == memory.target.cast_const();
        let reads_direct = !memory.source_swapped
            && layout.is_dense(SOURCE, route.source_size)
            && !(in_place && collector.is_some());
        let writes_direct =
            !memory.target_swapped && !memory.real_to_complex && layout.is_dense(TARGET, route.target_size);
        let streams = writes_direct && self.flag_free().is_some() && !in_place && self.is_large();
        let copies = route.is_copy() && collector.is_none();
        let tiles = (source_tile.0.as_mut_ptr().cast(), target_tile.0.as_mut_ptr().cast());
        // SAFETY: the caller's promise; tiles hold [`TILE`](crate::cast::TILE) elements of up to 8 bytes, and are
        // borrowed here only.
        unsafe {
            if let Some(ends) = self.long_rows(runs, [reads_direct, writes_direct]) {
                return self.run_rows(runs, ends, tiles, work);
            }
            if copies && writes_direct && !in_place {
                // Unchanged elements are copied without a tile. (In place, bytes are swapped by way of the tile.)
                let place = memory.target.offset(runs[0].offsets[TARGET]);
                gather(level, (memory.source, Gaps::Read), SOURCE, runs, source_kind, place);
                return;
            }
            let source = if reads_direct {
                memory.source.offset(runs[0].offsets[SOURCE])
            } else {
                gather(level, (memory.source, Gaps::Read), SOURCE, runs, source_kind, tiles.0);
                tiles.0.cast_const()
            };
            if copies {
                // Unchanged elements are scattered straight from the source.
                if memory.real_to_complex {
                    scatter_real(level, source, memory.target, runs, target_kind);
                } else {
                    scatter(level, source, memory.target, TARGET, runs, target_kind);
                }
                return;
            }
            let target = if writes_direct && !streams {
                memory.target.offset(runs[0].offsets[TARGET])
            } else {
                tiles.1
            };
            self.prepare(route, count, runs, work);
            route.convert((source, target), count, work);
            if let Some(Collector { meter, .. }) = collector {
                let report = outcome.report.get_or_insert_default();
                let ends = (source, target.cast_const());
                if let Some(flag_free) = self.flag_free() {
                    flag_free.add_tile(meter, ends, count, work, collector_scratch, report);
                } else {
                    let scales = route.scaled.then_some(&work.scales.0[..count]);
                    let flags = &work.flags.0[..count];
                    meter.measure(level, ends, scales, flags, &mut collector_scratch.meter, report);
                }
            }
            if streams {
                let place = memory.target.offset(runs[0].offsets[TARGET]);
                streaming::copy(level, target, place, count * route.target_size);
            }
            if writes_direct {
                return;
            }
            if memory.real_to_complex {
                scatter_real(level, target, memory.target, runs, target_kind);
            } else {
                scatter(level, target, memory.target, TARGET, runs, target_kind);
            }
        }
    }

    /// Fills in the scales and draws of a tile that a route reads.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn prepare(&self, route: &Route, count: usize, runs: &[Run], work: &mut Work) {
        if route.scaled && self.layout.line(SCALE) != Some(0) {
            let tile = work.scales.0.as_mut_ptr().cast();
            // SAFETY: the caller's promise; the tile has room.
            unsafe { gather(route.level, (self.memory.scale, Gaps::Leave), SCALE, runs, (8, false), tile) };
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
        self.layout.count * size >= streaming::STREAM_FROM
    }

    /// Searches for the first refused element.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn search(&self, positions: Range<usize>, scratch: &mut Scratch, outcome: &mut Outcome) {
        let (Some(refusal_check), memory, layout) = (&self.plan.refusal_check, &self.memory, self.layout)
        else {
            return;
        };
        let (close, level, size) =
            (&refusal_check.close, refusal_check.close.level, refusal_check.close.source_size);
        let reads_direct = !memory.source_swapped && layout.is_dense(SOURCE, size);
        // SAFETY: passed on.
        unsafe { self.fill_scales(&positions, scratch) };
        let Scratch { source: source_tile, target: target_tile, runs, work, .. } = scratch;
        let tiles = (source_tile.0.as_mut_ptr().cast::<u8>(), target_tile.0.as_mut_ptr().cast::<u8>());
        for position in positions.clone().step_by(layout.tile) {
            let count = layout.tile.min(positions.end - position);
            layout.runs(position, count, runs);
            // SAFETY: the caller's promise; tiles have room, and are borrowed here only.
            unsafe {
                let source = if reads_direct {
                    memory.source.offset(runs[0].offsets[SOURCE])
                } else {
                    let kind = (size, memory.source_swapped);
                    gather(level, (memory.source, Gaps::Read), SOURCE, runs, kind, tiles.0);
                    tiles.0.cast_const()
                };
                if refusal_check.safe.is_some_and(|safe| safe.holds(level, source, count)) {
                    continue;
                }
                self.prepare(close, count, runs, work);
                close.convert((source, tiles.1), count, work);
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
