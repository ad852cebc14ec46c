//! Divides gradients by a loss scale, checks them and computes their norm, reading each of them once.
//!
//! ```text
//! pass ── a part per gradient, cut into chunks of 65,536 elements; threads take a few at a time
//!      └─ per tile: decode to lanes, times 1/scale, all finite? (sum of squares), encode, still finite?
//! ```
//!
//! The product is float32's, of the value and of the reciprocal rounded to float32, as `torch` and TensorFlow take it
//! of a scale that a float32 holds; with float64 on either end it is float64's, rounded once. Sums are taken within
//! chunks, then over chunks, in the order of the elements: not of the memory, nor of the threads.

use std::ops::Range;

use super::gradient_route::{GradientRoute, Operation, Routes};
use super::multiply::{largest, square_sum};
use crate::codec::options::Overflow;
use crate::codec::pivot::{Binary32, Binary64, widen};
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::exec::operand::Operand;
use crate::exec::pass::{self, Pass, Positions};
use crate::format::Format;
use crate::kernels::stages::stage::Span;
use crate::kernels::tile::{TILE, Tile};
use crate::layout::streaming;
use crate::layout::transfer::Gaps;
use crate::layout::{Axis, Layout, OPERANDS, Run, SOURCE, TARGET};
use crate::plan::operands::{Source, Target};
use crate::simd::fence;
use crate::tuning::{CACHE_LINE, STREAM_TILES};

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
    let operation = Operation::Times(reciprocal.0);
    let work = Work { operation, overflow: Overflow::Ieee, squares, amax: false };
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
    let operation = if divide { Operation::Over(factor) } else { Operation::Times(factor) };
    let work = Work { operation, overflow: Overflow::Saturate, squares: false, amax: true };
    // SAFETY: the caller's promise.
    let chunks = unsafe { carry_out(std::slice::from_ref(values), &work, threads)? };
    Ok(f64::from_bits(chunks.iter().fold(0, |most, chunk| most.max(chunk.largest))))
}

/// The work on all gradients.
struct Work {
    operation: Operation,
    overflow: Overflow,
    squares: bool,
    amax: bool,
}

/// # Safety
/// As for [`unscale`].
unsafe fn carry_out(gradients: &[Gradient<'_>], work: &Work, threads: usize) -> Result<Vec<Chunk>, Error> {
    let Work { operation, overflow, squares, amax } = *work;
    let level = Level::active();
    let mut routes = Routes { operation, overflow, level, known: Vec::new() };
    let mut parts = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        parts.push(Part::new(gradient, &mut routes, squares)?);
    }
    let bytes = parts.iter().map(Part::bytes).sum();
    let chunks: Vec<_> = (parts.iter().enumerate())
        .flat_map(|(index, part)| (0..part.layout.count).step_by(CHUNK).map(move |start| (index, start)))
        .collect();
    let positions = Positions { count: chunks.len(), grain: 1, bytes, turn: Some(CHUNKS_AT_ONCE) };
    let streams = bytes >= STREAM_TILES;
    let pass = Unscale { parts: &parts, chunks, routes: &routes.known, squares, amax, level, streams };
    // SAFETY: the caller's promise.
    Ok(unsafe { pass::run_pass(&pass, positions, threads) })
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
    source: Operand,
    /// As the source, without a place, if the gradient is only checked.
    target: Operand,
}

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
        let place = target.map_or(std::ptr::null_mut(), |target| target.pointer);
        Ok(Self {
            route,
            source: Operand::new(source.pointer.cast_mut(), (&layout, SOURCE), source_kind),
            target: Operand::new(place, (&layout, TARGET), target_kind),
            layout,
        })
    }

    /// Returns the bytes read and written.
    fn bytes(&self) -> usize {
        self.layout.count * (self.source.size + self.target.size)
    }

    /// Returns the address of an element of a dense target.
    fn target_address(&self, position: usize) -> usize {
        let origin = self.target.pointer.addr().wrapping_add_signed(self.layout.origin[TARGET]);
        origin.wrapping_add(position * self.target.size)
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

/// The pass over the chunks of all gradients.
struct Unscale<'a> {
    parts: &'a [Part],
    /// The part of each chunk, and its first element.
    chunks: Vec<(usize, usize)>,
    routes: &'a [(Format, Option<Format>, GradientRoute)],
    squares: bool,
    amax: bool,
    level: Level,
    /// Results that are not in place bypass the caches.
    streams: bool,
}

/// The buffers of a thread.
#[derive(Default)]
struct Buffers {
    source: Box<Tile<u64>>,
    lanes: Box<Tile<u64>>,
    target: Box<Tile<u64>>,
    flags: Box<Tile<u8>>,
    runs: Vec<Run>,
}

impl Pass for Unscale<'_> {
    type Buffers = Buffers;
    /// Of every chunk, in order.
    type Outcome = Vec<Chunk>;

    unsafe fn process(&self, chunks: Range<usize>, buffers: &mut Buffers, outcomes: &mut Vec<Chunk>) {
        outcomes.extend(self.chunks[chunks].iter().map(|&(part, start)| {
            // SAFETY: passed on.
            let chunk = unsafe { self.process_chunk(&self.parts[part], start, buffers) };
            Chunk { part, ..chunk }
        }));
        fence();
    }

    fn merge(outcomes: &mut Vec<Chunk>, next: Vec<Chunk>) {
        outcomes.extend(next);
    }
}

impl Unscale<'_> {
    /// # Safety
    /// As for [`unscale`].
    unsafe fn process_chunk(&self, part: &Part, start: usize, buffers: &mut Buffers) -> Chunk {
        let end = (start + CHUNK).min(part.layout.count);
        let direct = self.is_direct(part);
        let mut outcome = Chunk::EMPTY;
        let mut position = start;
        while position < end {
            let count = if !direct {
                TILE
            } else if position == start {
                // A few elements first, so that no vector of the rest straddles two cache lines.
                part.target.size.max(CACHE_LINE - part.target_address(position) % CACHE_LINE)
                    / part.target.size
            } else {
                CHUNK
            };
            let count = count.min(end - position);
            // SAFETY: the caller's promise.
            let tile = unsafe { self.process_tile(part, position, count, buffers) };
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
            && part.source.direct
            && part.target.direct
            && !self.streams(part)
    }

    /// Returns whether a part's results are copied past the caches, from scratch.
    fn streams(&self, part: &Part) -> bool {
        let Part { source, target, .. } = part;
        self.streams && target.direct && !target.pointer.is_null() && source.pointer != target.pointer
    }

    /// # Safety
    /// As for [`unscale`]; more than [`TILE`] elements only for a direct part.
    unsafe fn process_tile(
        &self,
        part: &Part,
        position: usize,
        count: usize,
        buffers: &mut Buffers,
    ) -> Chunk {
        let Buffers { source: source_tile, lanes, target: target_tile, flags, runs } = buffers;
        let route = &self.routes[part.route].2;
        part.layout.runs(position, count, runs);
        // SAFETY: the caller's promise; tiles hold [`TILE`] elements of up to 8 bytes.
        unsafe {
            let source = part.source.read(self.level, Gaps::Leave, runs, source_tile.0.as_mut_ptr().cast());
            let Some(multiply) = &route.multiply else {
                let finite = route.scan.is_none_or(|scan| scan.holds(self.level, source, count));
                return Chunk { finite, ..Chunk::EMPTY };
            };
            let streams = self.streams(part);
            let target = if part.target.direct && !streams {
                part.target.first(runs)
            } else {
                target_tile.0.as_mut_ptr().cast()
            };
            let hand_over = |runs: &[Run]| {
                if streams {
                    let bytes = count * part.target.size;
                    streaming::copy(self.level, target.cast_const(), part.target.first(runs), bytes);
                } else if !part.target.direct {
                    part.target.scatter(self.level, target.cast_const(), runs);
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
    unsafe fn square_sum(&self, route: &GradientRoute, lanes: *const u8, count: usize) -> f64 {
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
