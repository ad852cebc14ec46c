//! Broadcast sources, which have stride 0 along some axes: each element is converted once, to the first of its places
//! in the target, and copied from there to the others.

use std::marker::PhantomData;
use std::ops::Range;

use smallvec::SmallVec;

use super::job::{Job, Outcome, Search};
use super::pass::{self, Pass, Positions};
use crate::cpu::RawKernel;
use crate::layout::streaming;
use crate::layout::transfer::copy_run;
use crate::layout::{Axes, Run, SCALE, SOURCE, TARGET};
use crate::plain::Plain;
use crate::simd::fence;
use crate::sort_few::sort_few;
use crate::tuning::{CACHE_LINE, SECOND_CACHE, SMALL_COPY, STREAM_TILES};

/// The axes along which results are copied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Broadcast {
    /// From the nearest places to the farthest.
    axes: SmallVec<[BroadcastAxis; 2]>,
    /// Bytes from the first place by coordinates to the first one in memory.
    pub(crate) start: isize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BroadcastAxis {
    length: usize,
    /// Bytes, above 0.
    stride: isize,
}

impl Broadcast {
    /// Takes out the axes along which only the target moves. Not for casts that need the index of each element; the
    /// first place by coordinates, which has the smallest index, stays.
    pub(crate) fn take(axes: &mut Axes) -> Self {
        let mut broadcast = Self::default();
        if axes.iter().any(|axis| axis.length == 0) {
            return broadcast;
        }
        axes.retain(|axis| {
            let stride = axis.strides[TARGET];
            let repeated =
                axis.length > 1 && axis.strides[SOURCE] == 0 && axis.strides[SCALE] == 0 && stride != 0;
            if repeated {
                broadcast.start += stride.min(0) * (axis.length as isize - 1);
                broadcast.axes.push(BroadcastAxis { length: axis.length, stride: stride.abs() });
            }
            !repeated
        });
        sort_few(&mut broadcast.axes, |near, far| near.stride <= far.stride);
        broadcast.axes.dedup_by(|far, near| {
            let continues = far.stride == near.stride * near.length as isize;
            near.length *= if continues { far.length } else { 1 };
            continues
        });
        broadcast
    }
}

/// Runs a job on at most this many threads, and copies its results to their other places.
///
/// # Safety
/// As for [`Pass::process`] of the job, at all places of the target.
pub(crate) unsafe fn cast_broadcast(job: &Job<'_>, broadcast: &Broadcast, threads: usize) -> Outcome {
    let (Some(farthest), false) = (broadcast.axes.last(), job.search == Search::Only) else {
        // SAFETY: passed on.
        return unsafe { pass::run_pass(job, job.positions(), threads) };
    };
    let positions @ Positions { count, grain, .. } = job.positions();
    let places: usize = broadcast.axes.iter().map(|axis| axis.length).product();
    let bytes = count * (job.plan.route.source_size + job.target.size * places);
    let item = job.target.size * if job.real_to_complex { 2 } else { 1 };
    let copies = Copies { job, broadcast, item, streams: count * item * places >= STREAM_TILES };
    if count >= 2 * grain * threads {
        let run = job.layout.axes.last().map_or(0, |axis| axis.strides[TARGET]);
        let within = broadcast.axes.iter().filter(|axis| axis.stride < run);
        let within = item * within.map(|axis| axis.length).product::<usize>();
        let part = (SECOND_CACHE / within).clamp(grain, 16 * grain) / grain * grain;
        let pass = CopiedParts { copies, part, coordinates: farthest.length };
        // SAFETY: passed on.
        return unsafe { pass::run_pass(&pass, Positions { bytes, ..positions }, threads) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        let outcome = pass::run_pass(job, positions, 1);
        pass::run_pass(&copies, Positions { count: farthest.length, grain: 1, bytes, turn: None }, threads);
        outcome
    }
}

/// The cast of parts, each of which is copied while it is still in the cache of the thread that converted it.
struct CopiedParts<'a> {
    copies: Copies<'a>,
    /// Positions of a part.
    part: usize,
    /// Of the farthest axis.
    coordinates: usize,
}

impl Pass for CopiedParts<'_> {
    type Buffers = ();
    type Outcome = Outcome;

    unsafe fn process(&self, positions: Range<usize>, (): &mut (), outcome: &mut Outcome) {
        for start in positions.clone().step_by(self.part) {
            let part = start..positions.end.min(start + self.part);
            // SAFETY: passed on.
            unsafe {
                self.copies.job.process(part.clone(), &mut (), outcome);
                self.copies.make(part, 0..self.coordinates);
            }
        }
    }

    fn merge(outcome: &mut Outcome, next: Outcome) {
        Job::merge(outcome, next);
    }
}

/// The copies that remain when the first places have been written: a pass over the coordinates of the farthest axis, of
/// which no two have a place in common, and none has the first.
struct Copies<'a> {
    job: &'a Job<'a>,
    broadcast: &'a Broadcast,
    /// Bytes of a result.
    item: usize,
    /// Copies are more than caches hold.
    streams: bool,
}

impl Pass for Copies<'_> {
    type Buffers = ();
    type Outcome = ();

    unsafe fn process(&self, coordinates: Range<usize>, (): &mut (), (): &mut ()) {
        // SAFETY: passed on.
        unsafe { self.make(0..self.job.layout.count, coordinates) };
    }

    fn merge((): &mut (), (): ()) {}
}

impl Copies<'_> {
    /// Copies the results of these positions to all other places at these coordinates along the farthest axis.
    ///
    /// # Safety
    /// They were written, and all those places are writable.
    unsafe fn make(&self, positions: Range<usize>, coordinates: Range<usize>) {
        let Some((farthest, nearer)) = self.broadcast.axes.split_last() else { return };
        let mut runs = Vec::new();
        self.job.layout.runs(positions.start, positions.len(), &mut runs);
        let runs: Vec<Run> = runs.iter().flat_map(Run::each_row).collect();
        let mut rest = runs.as_slice();
        let _fence = self.streams.then_some(Fence);
        while let [run, ..] = rest {
            let (elements, used) = Elements::of(rest, self.item);
            rest = &rest[used..];
            // SAFETY: the caller's promise for all of these places.
            unsafe {
                let first = self.job.target.pointer.offset(run.offsets[TARGET]);
                let Some((nearest, between)) = nearer.split_first() else {
                    self.along(elements, first, *farthest, coordinates.clone());
                    continue;
                };
                let between_count: usize = between.iter().map(|axis| axis.length).product();
                for coordinate in coordinates.clone() {
                    for mut index in 0..between_count {
                        let mut place = first.offset(coordinate as isize * farthest.stride);
                        for axis in between {
                            place = place.offset((index % axis.length) as isize * axis.stride);
                            index /= axis.length;
                        }
                        if place != first {
                            copy_run(elements.size, (first, place), (elements.stride, elements.count));
                        }
                        self.along(elements, place, *nearest, 0..nearest.length);
                    }
                }
            }
        }
    }

    /// Copies elements to coordinates of one axis, of which 0 is where they are.
    ///
    /// # Safety
    /// As for [`Copies::make`].
    unsafe fn along(
        &self,
        elements: Elements,
        from: *mut u8,
        axis: BroadcastAxis,
        coordinates: Range<usize>,
    ) {
        let coordinates = coordinates.start.max(1)..coordinates.end;
        let Elements { size, stride, count } = elements;
        let block = if stride == size as isize || count == 1 { count * size } else { 0 };
        let adjacent = axis.stride == size as isize;
        // SAFETY: the caller's promise.
        unsafe {
            if block as isize == axis.stride && (CACHE_LINE / 4..=SMALL_COPY).contains(&block) {
                self.double(from, block, coordinates);
            } else if adjacent && coordinates.len() * size >= CACHE_LINE
                || block < CACHE_LINE && count < coordinates.len()
            {
                self.fill(elements, from, axis, coordinates);
            } else {
                for coordinate in coordinates {
                    let place = from.offset(coordinate as isize * axis.stride);
                    if block >= SMALL_COPY {
                        self.copy(from, place, block);
                    } else {
                        copy_run(size, (from, place), (stride, count));
                    }
                }
            }
        }
    }

    /// Copies bytes, past the caches if they would not stay there.
    ///
    /// # Safety
    /// They are readable at the first place and writable at the second, and apart.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.streams && bytes >= SMALL_COPY {
                streaming::copy(self.job.plan.route.level, from, to, bytes);
            } else {
                to.copy_from_nonoverlapping(from, bytes);
            }
        }
    }

    /// Copies each element to coordinates of an axis, one element after the other.
    ///
    /// # Safety
    /// As for [`Copies::make`].
    unsafe fn fill(&self, elements: Elements, from: *mut u8, axis: BroadcastAxis, coordinates: Range<usize>) {
        let level = self.job.plan.route.level;
        let fill = Fill { from, elements, axis, coordinates };
        // SAFETY: the caller's promise.
        unsafe {
            match elements.size {
                1 => level.run_moves(FillWith::<u8>(fill, PhantomData)),
                2 => level.run_moves(FillWith::<u16>(fill, PhantomData)),
                4 => level.run_moves(FillWith::<u32>(fill, PhantomData)),
                8 => level.run_moves(FillWith::<u64>(fill, PhantomData)),
                16 => level.run_moves(FillWith::<[u64; 2]>(fill, PhantomData)),
                _ => unreachable!("elements take a power of two of bytes, 16 at most"),
            }
        }
    }

    /// Copies a block to the adjacent places at these coordinates, doubling what is copied each time.
    ///
    /// # Safety
    /// As for [`Copies::make`].
    unsafe fn double(&self, block: *mut u8, size: usize, coordinates: Range<usize>) {
        let total = coordinates.len() * size;
        let mut done = size.min(total);
        // SAFETY: the caller's promise; what is copied lies before where it goes to.
        unsafe {
            let start = block.add(coordinates.start * size);
            start.copy_from_nonoverlapping(block, done);
            while done < total {
                let more = done.min(total - done).min(SECOND_CACHE / 8 / size * size);
                self.copy(start, start.add(done), more);
                done += more;
            }
        }
    }
}

/// Makes stores past the caches visible when dropped.
struct Fence;

impl Drop for Fence {
    fn drop(&mut self) {
        fence();
    }
}

/// Results that are copied together: `count` of them, at a stride.
#[derive(Clone, Copy)]
struct Elements {
    /// Bytes: of a result, or of a few that lie together.
    size: usize,
    stride: isize,
    count: usize,
}

impl Elements {
    /// Returns the elements of the first run or runs, and how many runs: one, or several at one stride whose rows make
    /// an element each (the two parts of a complex number).
    fn of(runs: &[Run], item: usize) -> (Self, usize) {
        let (run, size) = (&runs[0], runs[0].count * item);
        let stride = run.strides[TARGET];
        let dense = run.count == 1 || stride == item as isize;
        if !(dense && size <= 16 && size.is_power_of_two()) {
            return (Self { size: item, stride, count: run.count }, 1);
        }
        let step = |pair: &[Run]| pair[1].offsets[TARGET] - pair[0].offsets[TARGET];
        let stride = runs.get(..2).map_or(size as isize, step);
        let alike = |pair: &&[Run]| pair[1].count == run.count && step(pair) == stride;
        let count = 1 + runs.windows(2).take_while(alike).count();
        (Self { size, stride, count }, count)
    }
}

struct Fill {
    from: *mut u8,
    elements: Elements,
    axis: BroadcastAxis,
    coordinates: Range<usize>,
}

struct FillWith<T>(Fill, PhantomData<T>);

impl<T: Plain> RawKernel for FillWith<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Fill { from, elements, axis, coordinates } = self.0;
        for i in 0..elements.count as isize {
            // SAFETY: `Copies::fill`'s caller vouches for all places of these elements, which have this size.
            unsafe {
                let first = from.offset(i * elements.stride);
                let word = first.cast::<T>().read_unaligned();
                if axis.stride == size_of::<T>() as isize {
                    // The same loop for adjacent places, which the compiler vectorizes.
                    let to = first.cast::<T>();
                    for coordinate in coordinates.clone() {
                        to.add(coordinate).write_unaligned(word);
                    }
                } else {
                    for coordinate in coordinates.clone() {
                        let place = first.offset(coordinate as isize * axis.stride);
                        place.cast::<T>().write_unaligned(word);
                    }
                }
            }
        }
    }
}
