//! Plain casts of dense elements in native byte order, without reports or checks: stages over long stretches of memory,
//! with stores chosen for alignment and caches.
//!
//! | case | how |
//! |---|---|
//! | no stage | a copy |
//! | stochastic rounding | by a stage that draws in registers; else tile by tile, so that draws and lanes stay in the innermost cache |
//! | one stage | over all elements; long targets from an aligned element on |
//! | two stages | tile by tile, through lanes that stay in the innermost cache |
//! | real to complex | by a stage that writes zeros as well; else results go to a tile, and are interleaved from there |
//! | very long | results go to a tile, and are copied to memory past the caches from there |

use super::buffers::with_buffers;
use super::draws;
use super::scratch::Scratch;
use crate::codec::random::Stream;
use crate::cpu::InstructionSet;
use crate::kernels::stages::stage::{Span, Stage};
use crate::kernels::tile::TILE;
use crate::layout::streaming;
use crate::layout::transfer::spread;
use crate::route::Route;
use crate::simd::fence;
use crate::tuning::{ALIGNED_STORES, CACHE_LINE, STREAM_TILES};

/// Elements at either end that are cast by calls of their own, so that the compiler's unrolled loops have no remainder,
/// which they would convert one by one.
const END: usize = 256;

/// The operands of a dense cast.
pub(crate) struct Dense<'a> {
    pub(crate) route: &'a Route,
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    pub(crate) count: usize,
    /// Results are the real parts of the target's elements, whose imaginary parts become +0.
    pub(crate) real_to_complex: bool,
    /// For stochastic rounding, the stream of draws and the index of the first element.
    pub(crate) draws: Option<(Stream, u64)>,
}

impl Dense<'_> {
    /// Casts the elements.
    ///
    /// # Safety
    /// As for [`Dense::run_at_once`].
    pub(super) unsafe fn convert(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.run_at_once() {
                with_buffers(|scratch| self.run_in_tiles(scratch));
            }
        }
    }

    /// Returns whether a route reads nothing but the source.
    pub(crate) fn suits(route: &Route) -> bool {
        let drawn = route.encode.is_some() && !route.flags;
        !route.scaled && (!route.draws || drawn)
    }

    /// Runs a single stage, or a stochastic route, over all elements, if nothing else is needed. Returns whether it
    /// did.
    ///
    /// # Safety
    /// `count` elements are readable at the source and writable at the target, which overlaps the source only if
    /// elements of equal size coincide.
    pub(super) unsafe fn run_at_once(&self) -> bool {
        let Self { route, source, target, count, draws, .. } = *self;
        if let Some((stream, first)) = draws.filter(|_| route.draws) {
            let span = Span { source, target, count, ..Span::EMPTY };
            // SAFETY: the caller's promise.
            unsafe { draws::convert_with_draws(route, span, stream, first) };
            return true;
        }
        let stage = match (&route.decode, &route.encode) {
            _ if self.real_to_complex || route.flags => return false,
            (Some(stage), None) | (None, Some(stage)) if !stage.aligns(count) && self.streams() => {
                return false;
            }
            (Some(_), Some(_)) => return false,
            (Some(stage), None) | (None, Some(stage)) => stage,
            (None, None) => {
                let bytes = count * route.source_size;
                // SAFETY: the caller's promise; operands that stream do not overlap.
                unsafe {
                    if self.streams() {
                        streaming::copy(self.route.level, source, target, bytes);
                        fence();
                    } else {
                        source.copy_to(target, bytes);
                    }
                }
                return true;
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.run_aligned(stage.as_ref()) };
        true
    }

    /// Returns whether results should bypass the caches. In-place results are in them already, and where no more is
    /// written than read, the pauses in which tiles are copied cost more than they save.
    fn streams(&self) -> bool {
        let Self { route, source, target, count, .. } = *self;
        let long = count * (route.source_size + self.element()) >= STREAM_TILES;
        let pays = route.is_copy() || self.element() > route.source_size;
        long && pays && route.level.set() >= InstructionSet::Avx2 && source != target.cast_const()
    }

    /// Bytes of a target element.
    fn element(&self) -> usize {
        self.route.target_size * if self.real_to_complex { 2 } else { 1 }
    }

    /// # Safety
    /// As for [`Dense::run_at_once`].
    unsafe fn run_aligned(&self, stage: &dyn Stage) {
        let Self { route, source, target, count, .. } = *self;
        let run = |start: usize, end: usize| {
            let (source, target) = (
                source.wrapping_add(start * route.source_size),
                target.wrapping_add(start * route.target_size),
            );
            // SAFETY: the caller's promise; these are some of the elements.
            unsafe {
                stage.run(self.route.level, Span { source, target, count: end - start, ..Span::EMPTY });
            }
        };
        // In place, no element may be cast twice.
        if count < ALIGNED_STORES || stage.aligns(count) || source == target.cast_const() {
            return run(0, count);
        }
        let start = skew(target, route.target_size);
        let end = count - (count - start) % END;
        if start > 0 {
            run(0, END);
        }
        run(start, end);
        if end < count {
            run(count - END, count);
        }
    }

    /// Converts tile by tile.
    ///
    /// # Safety
    /// As for [`Dense::run_at_once`].
    pub(super) unsafe fn run_in_tiles(&self, scratch: &mut Scratch) {
        let Self { route, source, target, count, .. } = *self;
        let (element, streams) = (self.element(), self.streams());
        // A tile has room for half as many complex numbers.
        let most = if self.real_to_complex && streams { TILE / 2 } else { TILE };
        // The first tile ends where the targets of the others are aligned.
        let first = skew(target, element).min(count);
        let mut done = 0..0;
        if let (true, None, Some(stage)) = (self.real_to_complex, &route.decode, &route.encode) {
            let (source, target) =
                (source.wrapping_add(first * route.source_size), target.wrapping_add(first * element));
            let span = Span { source, target, count: count - first, ..Span::EMPTY };
            // SAFETY: the caller's promise; these are some of the elements.
            done = unsafe { first..first + stage.run_with_zeros(route.level, span) };
        }
        let mut end = 0;
        while end < count {
            let start = end;
            if start == done.start && !done.is_empty() {
                end = done.end;
                continue;
            }
            let length = if end == 0 { first } else { 0 };
            end = count.min(if length > 0 { length } else { end + most });
            // SAFETY: the caller's promise; these are some of the elements.
            unsafe {
                let (source, target) = (source.add(start * route.source_size), target.add(start * element));
                let count = end - start;
                if !self.real_to_complex && !streams {
                    route.convert((source, target), count, &mut scratch.work);
                    continue;
                }
                let mut results = source;
                if !route.is_copy() {
                    let tile = scratch.target.0.as_mut_ptr().cast::<u8>();
                    route.convert((source, tile), count, &mut scratch.work);
                    results = tile.cast_const();
                }
                if self.real_to_complex {
                    let pairs = if streams { scratch.source.0.as_mut_ptr().cast() } else { target };
                    spread(route.level, results, pairs, route.target_size, count);
                    results = pairs.cast_const();
                }
                if streams {
                    streaming::copy(route.level, results, target, count * element);
                }
            }
        }
        if streams {
            fence();
        }
    }
}

/// Returns the number of elements before the first that starts a cache line, if one does.
fn skew(target: *const u8, size: usize) -> usize {
    let bytes = target.align_offset(CACHE_LINE);
    if bytes.is_multiple_of(size) { bytes / size } else { 0 }
}
