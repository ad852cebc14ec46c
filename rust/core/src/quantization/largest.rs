//! The largest magnitude of each block, and its extremes.

use super::arithmetic::{Blocks, LANES};
use super::real::{Bits, Real};
use crate::cpu::level::run_portable;
use crate::cpu::{Level, RawKernel};
use crate::simd::{Vector, with_vectors};

struct Largest<'a, B> {
    tile: *const B,
    count: usize,
    blocks: Blocks,
    found: &'a mut [B],
}

impl<B: Bits> RawKernel for Largest<'_, B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { tile, count, blocks: Blocks { width, begun }, found } = self;
        let (mut start, mut end) = (0, width - begun);
        for largest in found {
            end = end.min(count);
            for place in start..end {
                // SAFETY: the caller of `raise_largest` vouches for `count` elements.
                *largest = (*largest).max(unsafe { tile.add(place).read_unaligned() }.magnitude());
            }
            (start, end) = (end, end + width);
        }
    }
}

/// The same, a register at a time.
struct InRegisters<'a, B, V>(Largest<'a, B>, V);

impl<B: Bits, V: Vector> RawKernel for InRegisters<'_, B, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Largest { tile, count, blocks: Blocks { width, begun }, found } = self.0;
        let lanes = V::BYTES / size_of::<B>();
        let (mut start, mut end) = (0, width - begun);
        for largest in found {
            end = end.min(count);
            // SAFETY: the vectors are there; the caller of `raise_largest` vouches for `count` elements.
            unsafe {
                let (mut first, mut second) = (V::splat16(0), V::splat16(0));
                // Two, so that none waits for the last comparison.
                while start + 2 * lanes <= end {
                    first = B::raised::<V>(first, V::load(tile.add(start).cast()));
                    second = B::raised::<V>(second, V::load(tile.add(start + lanes).cast()));
                    start += 2 * lanes;
                }
                while start < end {
                    let rest = (end - start).min(lanes);
                    let bits = if rest == lanes {
                        V::load(tile.add(start).cast())
                    } else {
                        V::load_first(tile.add(start).cast(), rest * size_of::<B>())
                    };
                    first = B::raised::<V>(first, bits);
                    start += rest;
                }
                *largest = (*largest).max(B::most::<V>(B::raised::<V>(first, second)));
            }
            end += width;
        }
    }
}

/// Raises the largest magnitude of each block by the elements of a tile.
///
/// # Safety
/// `count` elements are readable.
pub(super) unsafe fn raise_largest<B: Bits>(
    level: Level,
    (tile, count): (*const B, usize),
    blocks: Blocks,
    found: &mut [B],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let done = if size_of::<B>() == size_of::<u64>() {
            None
        } else {
            with_vectors!(level, vectors => {
                vectors.run(InRegisters(Largest { tile, count, blocks, found: &mut *found }, vectors));
            })
        };
        if done.is_none() {
            run_portable(Largest { tile, count, blocks, found });
        }
    }
}

/// The smallest and the largest element of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extremes<T> {
    pub(super) low: T,
    pub(super) high: T,
}

impl<T: Real> Default for Extremes<T> {
    fn default() -> Self {
        Self { low: T::from_f32(f32::INFINITY), high: T::from_f32(f32::NEG_INFINITY) }
    }
}

impl<T: Real> Extremes<T> {
    #[inline(always)]
    pub(super) fn include(&mut self, value: T) {
        self.low = if value < self.low { value } else { self.low };
        self.high = if value > self.high { value } else { self.high };
    }

    pub(super) fn with_zero(mut self) -> Self {
        self.include(T::default());
        self
    }
}

struct Widen<'a, T> {
    tile: *const T,
    count: usize,
    blocks: Blocks,
    extremes: &'a mut [Extremes<T>],
}

impl<T: Real> RawKernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { tile, count, blocks: Blocks { width, begun }, extremes } = self;
        let (mut start, mut end) = (0, width - begun);
        for extremes in extremes {
            end = end.min(count);
            let (mut low, mut high) = ([extremes.low; LANES], [extremes.high; LANES]);
            // SAFETY: the caller of `widen` vouches for `count` elements.
            unsafe {
                while start + LANES <= end {
                    let from = tile.add(start).cast::<[T; LANES]>().read_unaligned();
                    for (lane, value) in from.into_iter().enumerate() {
                        low[lane] = if value < low[lane] { value } else { low[lane] };
                        high[lane] = if value > high[lane] { value } else { high[lane] };
                    }
                    start += LANES;
                }
                // Without a whole register, these are the infinities that they began as.
                for (low, high) in low.into_iter().zip(high) {
                    extremes.low = if low < extremes.low { low } else { extremes.low };
                    extremes.high = if high > extremes.high { high } else { extremes.high };
                }
                while start < end {
                    extremes.include(tile.add(start).read_unaligned());
                    start += 1;
                }
            }
            end += width;
        }
    }
}

/// Includes the elements of a tile in the extremes of their blocks.
///
/// # Safety
/// `count` elements are readable.
pub(super) unsafe fn widen<T: Real>(
    level: Level,
    (tile, count): (*const T, usize),
    blocks: Blocks,
    extremes: &mut [Extremes<T>],
) {
    // SAFETY: the caller's promise.
    unsafe { T::run(level, Widen { tile, count, blocks, extremes }) };
}
