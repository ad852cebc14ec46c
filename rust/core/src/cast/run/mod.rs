//! Carrying a plan out over a range of positions, tile by tile.

pub(super) mod dense;
pub(super) mod draws;
mod long_rows;
pub(super) mod parallel;
pub(super) mod repeat;
pub(super) mod workers;

use std::cell::RefCell;
use std::ops::Range;

use self::dense::{Dense, Tiles};
use crate::cast::layout::streaming;
use crate::cast::layout::transfer::{Gaps, gather, scatter, scatter_real};
use crate::cast::layout::{INDEX, Layout, Run, SCALE, SOURCE, TARGET};
use crate::cast::plan::Plan;
use crate::cast::report::measure::MeterScratch;
use crate::cast::report::watch::WatchScratch;
use crate::cast::stages::stage::Span;
use crate::cast::tile::Tile;
use crate::codec::encode::{NAN, OVERFLOW};
use crate::cpu::{DefaultEnvironment, Level};
use crate::report::CastReport;

/// The memory of one cast; positions are those of a [`Layout`].
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) source: *const u8,
    pub(super) target: *mut u8,
    pub(super) scale: *const u8,
    pub(super) source_swapped: bool,
    pub(super) target_swapped: bool,
    /// Results are the real parts of the target's elements, whose imaginary parts become +0.
    pub(super) real_to_complex: bool,
}

// SAFETY: the pointers are only followed inside `Job::run`, whose caller promises that they may be, from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// What to look for besides converting.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    pub(super) overflow: bool,
    pub(super) nan: bool,
}

/// What a range of positions gave.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) report: Option<CastReport>,
    /// Flat index of the first element that was searched for, and whether it is a NaN.
    pub(super) found: Option<(u64, bool)>,
}

impl Outcome {
    pub(super) fn merge(&mut self, other: &Self) {
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
pub(super) struct Job<'a> {
    pub(super) plan: &'a Plan,
    pub(super) layout: &'a Layout,
    pub(super) memory: Memory,
    pub(super) level: Level,
    pub(super) search: Search,
    /// Convert and search, but leave the target alone.
    pub(super) dry: bool,
}

/// The scratch of one thread. Its parts are lent one by one: pointers into one tile stay valid while the work on
/// another goes on.
#[derive(Default)]
struct Scratch {
    source: Tile<u64>,
    target: Tile<u64>,
    runs: Vec<Run>,
    work: Work,
    watch: WatchScratch,
}

impl Scratch {
    fn tiles(&mut self) -> Tiles<'_> {
        let Self { target, work, .. } = self;
        Tiles { lanes: &mut work.lanes, results: target, flags: &mut work.flags }
    }
}

/// What is used between a tile's source and its target.
#[derive(Default)]
pub(super) struct Work {
    lanes: Tile<u64>,
    scales: Tile<f64>,
    draws: Tile<u32>,
    wide_draws: Tile<u64>,
    pub(super) flags: Tile<u8>,
    pub(super) meter: MeterScratch,
}

thread_local! {
    /// Kept between calls: clearing it each time would cost more than many a cast.
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::default();
}

/// Casts dense elements.
///
/// # Safety
/// As for [`Dense::run_at_once`].
pub(super) unsafe fn run_dense(dense: &Dense<'_>) {
    let _environment = DefaultEnvironment::enter();
    // SAFETY: the caller's promise.
    unsafe {
        if !dense.run_at_once() {
            SCRATCH.with_borrow_mut(|scratch| dense.run_in_tiles(&mut scratch.tiles()));
        }
    }
}

impl Job<'_> {
    /// Carries out positions `start..end`; `start` is a multiple of the layout's tile.
    ///
    /// # Safety
    /// Every element of the layout is readable at the source (and scale) and, unless dry, writable at the target, and
    /// the target overlaps neither, unless source and target elements of equal size coincide one by one. What lies
    /// between neighbours in the source that are up to eight sizes apart is readable, and no part of the target.
    pub(super) unsafe fn run(&self, start: usize, end: usize) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(dense) = self.dense(start, end) {
            // SAFETY: the caller's promise, for the elements of the range.
            unsafe { run_dense(&dense) };
            return outcome;
        }
        let _environment = DefaultEnvironment::enter();
        // SAFETY: the caller's promise.
        SCRATCH.with_borrow_mut(|scratch| unsafe { self.run_tiles(start..end, scratch, &mut outcome) });
        outcome
    }

    /// # Safety
    /// As for [`Job::run`].
    unsafe fn run_tiles(&self, positions: Range<usize>, scratch: &mut Scratch, outcome: &mut Outcome) {
        if self.plan.scaled && !positions.is_empty() && self.layout.line(SCALE) == Some(0) {
            // SAFETY: there is an element, so its scale is readable.
            let scale =
                unsafe { self.memory.scale.offset(self.layout.origin[SCALE]).cast::<f64>().read_unaligned() };
            scratch.work.scales.0.fill(scale);
        }
        if let Some(watch) = &self.plan.watch {
            scratch.watch.begin(watch, positions.len());
        }
        let tile = self.layout.tile;
        for position in positions.clone().step_by(tile) {
            let count = tile.min(positions.end - position);
            // SAFETY: the caller's promise.
            unsafe { self.run_tile(position, count, scratch, outcome) };
        }
        if let Some(watch) = &self.plan.watch {
            streaming::fence(self.level);
            let Scratch { work, watch: watch_scratch, .. } = scratch;
            watch.end(self.level, work, watch_scratch, outcome.report.get_or_insert_default());
        }
    }

    /// The range as dense elements that nobody asks anything about, if that is what it is.
    fn dense(&self, start: usize, end: usize) -> Option<Dense<'_>> {
        let (plan, memory, layout) = (self.plan, &self.memory, self.layout);
        let element = plan.target_size * if memory.real_to_complex { 2 } else { 1 };
        let native = !memory.source_swapped && !memory.target_swapped;
        let plain = !self.dry && !self.search.overflow && !self.search.nan && Dense::suits(plan);
        // Draws belong to places.
        let in_line = layout.count <= 1 || layout.line(INDEX) == Some(1);
        let drawn = plan.stream.is_none() || (in_line && !memory.real_to_complex);
        let dense = layout.is_dense(SOURCE, plan.source_size) && layout.is_dense(TARGET, element);
        // Dense operands: position `p` lies `p` sizes after the origin.
        (plain && native && dense && drawn).then(|| Dense {
            plan,
            level: self.level,
            source: memory
                .source
                .wrapping_offset(layout.origin[SOURCE] + (start * plan.source_size) as isize),
            target: memory.target.wrapping_offset(layout.origin[TARGET] + (start * element) as isize),
            count: end - start,
            real_to_complex: memory.real_to_complex,
            first: (layout.origin[INDEX] as u64).wrapping_add(start as u64),
        })
    }

    /// # Safety
    /// As for [`Job::run`].
    unsafe fn run_tile(&self, position: usize, count: usize, scratch: &mut Scratch, outcome: &mut Outcome) {
        let (plan, memory, layout) = (self.plan, &self.memory, self.layout);
        let Scratch { source: source_tile, target: target_tile, runs, work, watch: watch_scratch } = scratch;
        layout.runs(position, count, runs);
        let source_kind = (plan.source_size, memory.source_swapped);
        let target_kind = (plan.target_size, memory.target_swapped);
        // Dense operands are read and written where they are.
        let in_place = memory.source == memory.target.cast_const();
        let reads_direct = !memory.source_swapped
            && layout.is_dense(SOURCE, plan.source_size)
            && !(in_place && plan.is_watched());
        let writes_direct = !self.dry
            && !memory.target_swapped
            && !memory.real_to_complex
            && layout.is_dense(TARGET, plan.target_size);
        let streams = writes_direct && plan.watch.is_some() && !in_place && self.is_large();
        let tiles = (source_tile.0.as_mut_ptr().cast(), target_tile.0.as_mut_ptr().cast());
        // SAFETY: the caller's promise; tiles hold [`TILE`](crate::cast::TILE) elements of up to 8 bytes, and are
        // borrowed here only.
        unsafe {
            if let Some(ends) = self.long_rows(runs, [reads_direct, writes_direct]) {
                return self.run_rows(runs, ends, tiles, work);
            }
            if plan.is_copy() && writes_direct && !in_place {
                // No stop in a tile for what is not changed. (In place its bytes are swapped, by way of the tile.)
                let place = memory.target.offset(runs[0].offsets[TARGET]);
                gather(self.level, (memory.source, Gaps::Read), SOURCE, runs, source_kind, place);
                return;
            }
            let source = if reads_direct {
                memory.source.offset(runs[0].offsets[SOURCE])
            } else {
                gather(self.level, (memory.source, Gaps::Read), SOURCE, runs, source_kind, tiles.0);
                tiles.0.cast_const()
            };
            if plan.is_copy() && !self.dry {
                // No stop in a tile for what is not changed.
                if memory.real_to_complex {
                    scatter_real(self.level, source, memory.target, runs, target_kind);
                } else {
                    scatter(self.level, source, memory.target, TARGET, runs, target_kind);
                }
                return;
            }
            let target = if writes_direct && !streams {
                memory.target.offset(runs[0].offsets[TARGET])
            } else {
                tiles.1
            };
            self.prepare(count, runs, work);
            plan.convert(self.level, (source, target), count, work);
            self.look_for(&work.flags.0[..count], runs, outcome);
            if self.dry {
                return;
            }
            if let Some(meter) = &plan.meter {
                let Work { scales, flags, meter: columns, .. } = work;
                let scales = plan.scaled.then_some(&scales.0[..count]);
                let ends = (source, target.cast_const());
                let report = outcome.report.get_or_insert_default();
                meter.measure(self.level, ends, scales, &flags.0[..count], columns, report);
            }
            if let Some(watch) = &plan.watch {
                let report = outcome.report.get_or_insert_default();
                let ends = (source, target.cast_const());
                watch.look(self.level, ends, count, work, watch_scratch, report);
            }
            if streams {
                let place = memory.target.offset(runs[0].offsets[TARGET]);
                streaming::copy(self.level, target, place, count * plan.target_size);
            }
            if writes_direct {
                return;
            }
            if memory.real_to_complex {
                scatter_real(self.level, target, memory.target, runs, target_kind);
            } else {
                scatter(self.level, target, memory.target, TARGET, runs, target_kind);
            }
        }
    }

    /// Fills the scales and random words of a tile.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn prepare(&self, count: usize, runs: &[Run], work: &mut Work) {
        if self.plan.scaled && self.layout.line(SCALE) != Some(0) {
            let tile = work.scales.0.as_mut_ptr().cast();
            // SAFETY: the caller's promise; the tile has room.
            unsafe { gather(self.level, (self.memory.scale, Gaps::Leave), SCALE, runs, (8, false), tile) };
        }
        let Some(stream) = self.plan.stream else { return };
        if self.plan.lane_size == size_of::<u64>() {
            draws::fill(self.level, stream, runs, &mut work.wide_draws.0[..count]);
        } else {
            draws::fill(self.level, stream, runs, &mut work.draws.0[..count]);
        }
    }

    /// Whether results are so many that they would not stay in the caches.
    fn is_large(&self) -> bool {
        let size = self.plan.source_size + self.plan.target_size;
        self.layout.count * size >= streaming::STREAM_FROM
    }

    /// Notes the first element of the tile that must not be there.
    fn look_for(&self, flags: &[u8], runs: &[Run], outcome: &mut Outcome) {
        let overflow = if self.search.overflow { OVERFLOW } else { 0 };
        let nan = if self.search.nan { NAN } else { 0 };
        let wanted = overflow | nan;
        if wanted == 0 || flags.iter().fold(0, |all, flag| all | flag) & wanted == 0 {
            return;
        }
        let mut done = 0;
        for run in runs.iter().flat_map(Run::each_row) {
            for (i, flag) in flags[done..done + run.count].iter().enumerate() {
                if flag & wanted != 0 {
                    let index = run.offsets[INDEX] + run.strides[INDEX] * i as isize;
                    let here = (index as u64, flag & wanted & NAN != 0);
                    outcome.found = Some(outcome.found.map_or(here, |first| first.min(here)));
                }
            }
            done += run.count;
        }
    }
}

impl Plan {
    /// Runs the stages from dense source elements to dense target elements.
    ///
    /// # Safety
    /// `count` elements are readable at the source and writable at the target; `count` is at most [`TILE`](crate::cast::TILE).
    pub(super) unsafe fn convert(
        &self,
        level: Level,
        (source, target): (*const u8, *mut u8),
        count: usize,
        work: &mut Work,
    ) {
        let lanes = work.lanes.0.as_mut_ptr().cast::<u8>();
        let mut span = Span {
            source,
            target: lanes,
            count,
            scales: work.scales.0.as_ptr(),
            draws: if self.lane_size == size_of::<u64>() {
                work.wide_draws.0.as_ptr().cast()
            } else {
                work.draws.0.as_ptr().cast()
            },
            flags: work.flags.0.as_mut_ptr(),
        };
        // SAFETY: every tile has room for `count` elements of up to 8 bytes.
        unsafe {
            match (&self.decode, &self.encode) {
                (Some(decode), Some(_)) => {
                    decode.run(level, span);
                    span.source = lanes;
                }
                (Some(decode), None) => decode.run(level, Span { target, ..span }),
                (None, None) => {
                    span.source.copy_to(target, count * self.source_size);
                    work.flags.0[..count].fill(0);
                }
                (None, Some(_)) => {}
            }
            if let Some(scale) = &self.scale {
                if span.source != lanes.cast_const() {
                    span.source.copy_to_nonoverlapping(lanes, count * self.lane_size);
                    span.source = lanes;
                }
                scale.run(level, span);
            }
            if let Some(encode) = &self.encode {
                encode.run(level, Span { target, ..span });
            }
        }
    }
}
