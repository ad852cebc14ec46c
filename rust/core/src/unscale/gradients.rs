//! Divides gradients by a loss scale, checks them and computes their norm, reading each of them once.
//!
//! ```text
//! unscale ── a part per gradient, cut into chunks of 65,536 elements; threads take a few at a time
//!         └─ per tile: decode to lanes, times 1/scale, all finite? (sum of squares), encode, still finite?
//! ```
//!
//! The product is float32's, of the value and of the reciprocal rounded to float32, as `torch` and TensorFlow take it;
//! with float64 on either end it is float64's, rounded once. Sums are taken within chunks, then over chunks, in the
//! order of the elements: not of the memory, nor of the threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::gradient_route::{Operand, Route, Routes};
use super::multiply::{largest, square_sum};
use crate::codec::options::Overflow;
use crate::codec::pivot::{Binary32, Binary64, widen};
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::exec::parallel::in_parts;
use crate::exec::workers::Workers;
use crate::format::Format;
use crate::kernels::stages::stage::Span;
use crate::kernels::tile::{TILE, Tile};
use crate::layout::streaming;
use crate::layout::transfer::{Gaps, gather, scatter};
use crate::layout::{Axis, Layout, OPERANDS, Run, SOURCE, TARGET};
use crate::plan::operands::{Source, Target};

use super::gradient_route::Reciprocal;

/// Elements per chunk: they are summed, and given to a thread, together.
const CHUNK: usize = 64 * TILE;

/// Chunks that a thread takes at a time.
const CHUNKS_AT_ONCE: usize = 8;

/// One gradient, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// Lengths of the axes of both.
    pub shape: &'a [usize],
    /// The array to read.
    pub source: Source<'a>,
    /// The array to write; `None`: the gradients are only checked.
    pub target: Option<Target<'a>>,
}

/// The outcome of unscaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unscaled {
    /// All gradients are finite, before and after.
    pub finite: bool,
    /// The root of the sum of the squares of all leaves after division, before they were rounded to their targets; 0 if
    /// it was not requested.
    pub norm: f64,
}

/// Multiplies all gradients by the reciprocal of a scale. With `leaves`, the indices of gradients in the order in which
/// they are added (repeated ones count repeatedly), it also computes their norm.
///
/// # Errors
/// [`Error::InvalidOption`] for formats that are not real floats.
///
/// # Safety
/// As for [`crate::cast::cast`], for each gradient; and no target overlaps another gradient's source or target.
pub unsafe fn unscale(
    gradients: &[Gradient<'_>],
    reciprocal: Reciprocal,
    leaves: Option<&[usize]>,
    threads: usize,
) -> Result<Unscaled, Error> {
    let _environment = DefaultEnvironment::enter();
    let squares = leaves.is_some();
    let operand = Operand::Times(reciprocal.0);
    let work = Work { operand, overflow: Overflow::Ieee, squares, amax: false };
    // SAFETY: the caller's promise.
    let chunks = unsafe { carry_out(gradients, &work, threads)? };
    let finite = chunks.iter().all(|chunk| chunk.finite);
    let leaves = leaves.unwrap_or_default();
    Ok(Unscaled { finite, norm: DefaultEnvironment::compute(leaves, |leaves| norm(&chunks, leaves)) })
}

/// Multiplies by `factor` (or divides by it), saturates, and returns the largest magnitude of the source; NaN if it has
/// one.
///
/// # Errors
/// [`Error::InvalidOption`] for formats that are not real floats.
///
/// # Safety
/// As for [`crate::cast::cast`].
pub unsafe fn quantize(
    values: &Gradient<'_>,
    factor: f64,
    divide: bool,
    threads: usize,
) -> Result<f64, Error> {
    let _environment = DefaultEnvironment::enter();
    let operand = if divide { Operand::Over(factor) } else { Operand::Times(factor) };
    let work = Work { operand, overflow: Overflow::Saturate, squares: false, amax: true };
    // SAFETY: the caller's promise.
    let chunks = unsafe { carry_out(std::slice::from_ref(values), &work, threads)? };
    Ok(f64::from_bits(chunks.iter().fold(0, |most, chunk| most.max(chunk.largest))))
}

/// The work on all gradients.
struct Work {
    operand: Operand,
    overflow: Overflow,
    squares: bool,
    amax: bool,
}

/// # Safety
/// As for [`unscale`].
unsafe fn carry_out(gradients: &[Gradient<'_>], work: &Work, threads: usize) -> Result<Vec<Chunk>, Error> {
    let Work { operand, overflow, squares, amax } = *work;
    let level = Level::active();
    let mut routes = Routes { operand, overflow, level, known: Vec::new() };
    let mut parts = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        parts.push(Part::new(gradient, &mut routes, squares)?);
    }
    let bytes = parts.iter().map(Part::bytes).sum();
    let streams = bytes >= streaming::STREAM_FROM;
    let job = Job { parts: &parts, routes: &routes.known, squares, amax, level, bytes, streams };
    // SAFETY: the caller's promise.
    Ok(unsafe { job.run(threads) })
}

fn norm(chunks: &[Chunk], leaves: &[usize]) -> f64 {
    let start = |part| chunks.partition_point(|chunk| chunk.part < part);
    let chunks = leaves.iter().flat_map(|&part| &chunks[start(part)..start(part + 1)]);
    chunks.fold(0.0, |sum, chunk| sum + chunk.square_sum).sqrt()
}

/// One gradient with its layout and route.
struct Part {
    route: usize,
    layout: Layout,
    source: *const u8,
    target: *mut u8,
    source_kind: (usize, bool),
    target_kind: (usize, bool),
    source_dense: bool,
    target_dense: bool,
}

// SAFETY: the pointers are only followed inside `Job::run`, whose caller promises that they may be, from any thread.
unsafe impl Sync for Part {}

impl Part {
    fn new(gradient: &Gradient<'_>, routes: &mut Routes, squares: bool) -> Result<Self, Error> {
        let Gradient { shape, source, target } = *gradient;
        // A complex element is treated as two real ones.
        let real = source.format.component().unwrap_or(source.format);
        let (format, components) =
            if target.is_none() { (real, shape_of(source.format)) } else { (source.format, 1) };
        let route = routes.find(format, target.map(|target| target.format))?;
        let source_kind = (format.item_size(), source.swapped);
        let target_kind = target.map_or(source_kind, |target| (target.format.item_size(), target.swapped));
        let strides = target.map_or(source.strides, |target| target.strides);
        let axes = (0..shape.len()).map(|axis| axis_of(shape[axis], source.strides[axis], strides[axis]));
        let inner = axis_of(components, source_kind.0 as isize, source_kind.0 as isize);
        let axes = axes.chain([inner]).collect();
        let layout = if squares { Layout::in_this_order(axes, [0; OPERANDS]) } else { Layout::new(axes) };
        Ok(Self {
            route,
            source: source.pointer,
            target: target.map_or(std::ptr::null_mut(), |target| target.pointer),
            source_kind,
            target_kind,
            source_dense: !source.swapped && layout.is_dense(SOURCE, source_kind.0),
            target_dense: !target_kind.1 && layout.is_dense(TARGET, target_kind.0),
            layout,
        })
    }
}

impl Part {
    /// Returns the bytes read and written.
    fn bytes(&self) -> usize {
        self.layout.count * (self.source_kind.0 + self.target_kind.0)
    }

    /// Returns the address of an element of a dense target.
    fn target_address(&self, position: usize) -> usize {
        let origin = self.target.addr().wrapping_add_signed(self.layout.origin[TARGET]);
        origin.wrapping_add(position * self.target_kind.0)
    }
}

fn shape_of(format: Format) -> usize {
    if format.component().is_some() { 2 } else { 1 }
}

fn axis_of(length: usize, source: isize, target: isize) -> Axis {
    let mut strides = [0; OPERANDS];
    (strides[SOURCE], strides[TARGET]) = (source, target);
    Axis { length, strides }
}

/// The outcome of a chunk.
#[derive(Clone, Copy)]
struct Chunk {
    /// The gradient that it belongs to.
    part: usize,
    finite: bool,
    square_sum: f64,
    /// The largest magnitude of the source, as the bits of a float64.
    largest: u64,
}

impl Chunk {
    const EMPTY: Self = Self { part: 0, finite: true, square_sum: 0.0, largest: 0 };
}

struct Job<'a> {
    parts: &'a [Part],
    routes: &'a [(Format, Option<Format>, Route)],
    squares: bool,
    amax: bool,
    level: Level,
    /// Read and written.
    bytes: usize,
    /// Results that are not in place bypass the caches.
    streams: bool,
}

/// The scratch of one thread.
#[derive(Default)]
struct Scratch {
    source: Tile<u64>,
    lanes: Tile<u64>,
    target: Tile<u64>,
    flags: Tile<u8>,
    runs: Vec<Run>,
}

impl Job<'_> {
    /// The outcome of every chunk, in order.
    ///
    /// # Safety
    /// As for [`unscale`].
    unsafe fn run(&self, threads: usize) -> Vec<Chunk> {
        let work: Vec<(usize, usize)> = (self.parts.iter().enumerate())
            .flat_map(|(index, part)| (0..part.layout.count).step_by(CHUNK).map(move |start| (index, start)))
            .collect();
        let workers = Workers::engage(threads, self.bytes);
        // Each thread takes the next few chunks, so that one that starts late leaves more to the others.
        let next = AtomicUsize::new(0);
        // SAFETY: the caller's promise; each chunk is taken once.
        let take = |_| unsafe { self.take_chunks(&work, &next) };
        let mut chunks: Vec<_> = work.iter().map(|_| None).collect();
        in_parts(workers.count(), take, |found| {
            for (index, chunk) in found {
                chunks[index] = Some(chunk);
            }
        });
        chunks.into_iter().flatten().collect()
    }

    /// Works on chunks that no thread has taken yet, until there are none.
    ///
    /// # Safety
    /// As for [`unscale`].
    unsafe fn take_chunks(&self, work: &[(usize, usize)], next: &AtomicUsize) -> Vec<(usize, Chunk)> {
        let _environment = DefaultEnvironment::enter();
        let mut scratch = Box::<Scratch>::default();
        let mut found = Vec::new();
        loop {
            let first = next.fetch_add(CHUNKS_AT_ONCE, Ordering::Relaxed);
            if first >= work.len() {
                streaming::fence(self.level);
                return found;
            }
            for (index, &(part, start)) in work.iter().enumerate().skip(first).take(CHUNKS_AT_ONCE) {
                // SAFETY: the caller's promise.
                let chunk = unsafe { self.run_chunk(&self.parts[part], start, &mut scratch) };
                found.push((index, Chunk { part, ..chunk }));
            }
        }
    }

    /// # Safety
    /// As for [`unscale`].
    unsafe fn run_chunk(&self, part: &Part, start: usize, scratch: &mut Scratch) -> Chunk {
        let end = (start + CHUNK).min(part.layout.count);
        let direct = self.is_direct(part);
        let mut outcome = Chunk::EMPTY;
        let mut position = start;
        while position < end {
            let count = if !direct {
                TILE
            } else if position == start {
                // A few elements first, so that no vector of the rest straddles two cache lines.
                part.target_kind.0.max(64 - part.target_address(position) % 64) / part.target_kind.0
            } else {
                CHUNK
            };
            let count = count.min(end - position);
            // SAFETY: the caller's promise.
            let tile = unsafe { self.run_tile(part, position, count, scratch) };
            outcome.finite &= tile.finite;
            outcome.square_sum += tile.square_sum;
            outcome.largest = outcome.largest.max(tile.largest);
            position += count;
        }
        outcome
    }

    /// Returns whether a part needs no scratch: one loop from its source to its target.
    fn is_direct(&self, part: &Part) -> bool {
        let route = &self.routes[part.route].2;
        let one_loop = route.fused.is_some() || (route.decode.is_none() && route.encode.is_none());
        one_loop
            && !self.squares
            && !self.amax
            && part.source_dense
            && part.target_dense
            && !self.streams(part)
    }

    /// Returns whether a part's results are copied past the caches, from scratch.
    fn streams(&self, part: &Part) -> bool {
        self.streams && part.target_dense && !part.target.is_null() && part.source != part.target.cast_const()
    }

    /// # Safety
    /// As for [`unscale`]; more than [`TILE`] elements only for a direct part.
    unsafe fn run_tile(&self, part: &Part, position: usize, count: usize, scratch: &mut Scratch) -> Chunk {
        let Scratch { source: source_tile, lanes, target: target_tile, flags, runs } = scratch;
        let route = &self.routes[part.route].2;
        part.layout.runs(position, count, runs);
        // SAFETY: the caller's promise; tiles hold [`TILE`] elements of up to 8 bytes.
        unsafe {
            let source = if part.source_dense {
                part.source.offset(runs[0].offsets[SOURCE])
            } else {
                let tile = source_tile.0.as_mut_ptr().cast();
                gather(self.level, (part.source, Gaps::Leave), SOURCE, runs, part.source_kind, tile);
                tile.cast_const()
            };
            let Some(multiply) = &route.multiply else {
                let finite = route.scan.is_none_or(|scan| scan.holds(self.level, source, count));
                return Chunk { finite, ..Chunk::EMPTY };
            };
            let streams = self.streams(part);
            let target = if part.target_dense && !streams {
                part.target.offset(runs[0].offsets[TARGET])
            } else {
                target_tile.0.as_mut_ptr().cast()
            };
            let hand_over = |runs: &[Run]| {
                if streams {
                    let there = part.target.offset(runs[0].offsets[TARGET]);
                    streaming::copy(self.level, target.cast_const(), there, count * part.target_kind.0);
                } else if !part.target_dense {
                    scatter(self.level, target.cast_const(), part.target, TARGET, runs, part.target_kind);
                }
            };
            if let Some(fused) =
                route.fused.as_ref().filter(|_| !self.amax && (!self.squares || route.ends_in_lanes))
            {
                let finite = fused.run(self.level, source, target, count);
                let square_sum = self.square_sum(route, target.cast_const(), count);
                hand_over(runs);
                return Chunk { finite, square_sum, ..Chunk::EMPTY };
            }
            // Without an encoder the target's elements are the lanes.
            let lanes = if route.encode.is_some() { lanes.0.as_mut_ptr().cast() } else { target };
            let values = if let Some(decode) = &route.decode {
                decode.run(self.level, Span { source, target: lanes, count, ..Span::EMPTY });
                lanes.cast_const()
            } else {
                source
            };
            let largest = match (self.amax, route.wide) {
                (false, _) => 0,
                (true, false) => widen(largest::<Binary32>(self.level, values, count)),
                (true, true) => largest::<Binary64>(self.level, values, count),
            };
            let mut finite = multiply.run(self.level, values, lanes, count);
            let square_sum = self.square_sum(route, lanes.cast_const(), count);
            if let Some(encode) = &route.encode {
                let flags = flags.0.as_mut_ptr();
                encode.run(
                    self.level,
                    Span { source: lanes.cast_const(), target, count, flags, ..Span::EMPTY },
                );
            }
            if let Some(scan) = &route.scan {
                finite &= scan.holds(self.level, target.cast_const(), count);
            }
            hand_over(runs);
            Chunk { finite, square_sum, largest, ..Chunk::EMPTY }
        }
    }

    /// Returns the sum of the squares of a route's lanes, if it is asked for.
    ///
    /// # Safety
    /// `count` lanes are readable.
    unsafe fn square_sum(&self, route: &Route, lanes: *const u8, count: usize) -> f64 {
        // SAFETY: passed on.
        unsafe {
            match (self.squares, route.wide) {
                (false, _) => 0.0,
                (true, false) => square_sum::<Binary32>(self.level, lanes, count),
                (true, true) => square_sum::<Binary64>(self.level, lanes, count),
            }
        }
    }
}
