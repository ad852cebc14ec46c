//! The largest magnitude of each block, and its extremes.
//!
//! Unsafe functions need what those of [`crate::kernels::vectors`] do: their bodies are not marked again either.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this module says"
)]

use std::marker::PhantomData;

use super::arithmetic::{Area, Blocks, LANES};
use super::real::{Bits, Real};
use crate::cpu::level::run_portable;
use crate::cpu::{Level, RawKernel};
use crate::simd::{MOST_BYTES, Vector, with_vectors};

struct Largest<'a, B> {
    area: Area<*const B>,
    blocks: Blocks,
    found: &'a mut [B],
}

impl<B: Bits> RawKernel for Largest<'_, B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { area, blocks: Blocks { width, begun }, found } = self;
        let (mut start, mut end) = (0, width - begun);
        for largest in found {
            end = end.min(area.columns);
            // Not in memory, where compilers make no vectors of it.
            let mut most = *largest;
            for row in 0..area.rows {
                for place in start..end {
                    // SAFETY: the caller of `raise_largest` vouches for the elements.
                    let bits = unsafe { area.row(row).add(place).read_unaligned() };
                    most = most.max(bits.magnitude());
                }
            }
            *largest = most;
            (start, end) = (end, end + width);
        }
    }
}

/// Registers whose lanes are folded to one, group by group: the largest magnitude of each group of as many lanes as there
/// are registers, in the order of groups.
trait Folded<V: Vector> {
    const REGISTERS: usize;
    /// # Safety
    /// The level's features, and so many registers of u16 at the pointer.
    unsafe fn load(source: *const u8) -> V::Integers;
}

/// One register.
struct One;

/// Two trees side by side.
struct Twice<F>(PhantomData<F>);

type Sixteen = Twice<Twice<Twice<Twice<One>>>>;
type ThirtyTwo = Twice<Sixteen>;

impl<V: Vector> Folded<V> for One {
    const REGISTERS: usize = 1;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> V::Integers {
        u16::raised::<V>(V::splat16(0), V::load(source))
    }
}

impl<V: Vector, F: Folded<V>> Folded<V> for Twice<F> {
    const REGISTERS: usize = 2 * F::REGISTERS;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> V::Integers {
        let (first, second) = (F::load(source), F::load(source.add(F::REGISTERS * V::BYTES)));
        let (even, odd) = V::unzip16(first, second);
        V::max16(even, odd)
    }
}

/// The same, a register at a time.
struct InRegisters<'a, B, V>(Largest<'a, B>, V);

impl<B: Bits, V: Vector> InRegisters<'_, B, V> {
    /// Raises those of a row's first blocks, if they are as wide as one register or two (the longest registers: as one or
    /// half of one), and as many of them as fill registers with results. Returns how many these are.
    ///
    /// # Safety
    /// As for [`raise_largest`]; the vectors are there.
    #[inline(always)]
    unsafe fn short(&mut self) -> usize {
        let Largest { area, blocks: Blocks { width, begun }, found } = &mut self.0;
        let lanes = V::BYTES / size_of::<u16>();
        if size_of::<B>() != size_of::<u16>() || area.rows != 1 || *begun != 0 {
            return 0;
        }
        // Shorter registers take more instructions to fold than to search one by one.
        if V::BYTES < MOST_BYTES {
            let whole = area.columns / *width;
            let (from, found) = (area.first.cast::<u8>(), &mut found[..whole]);
            // SAFETY: the caller's promise: these blocks are whole.
            return unsafe {
                if *width == lanes {
                    each::<B, V, 1>(from, found)
                } else if *width == 2 * lanes {
                    each::<B, V, 2>(from, found)
                } else {
                    0
                }
            };
        }
        let whole = area.columns / *width / lanes * lanes;
        let (from, to) = (area.first.cast(), found[..whole].as_mut_ptr().cast());
        // SAFETY: the caller's promise: these blocks are whole, and each has its result.
        unsafe {
            match *width {
                16 => fold::<V, Sixteen>(from, to, whole / lanes),
                32 => fold::<V, ThirtyTwo>(from, to, whole / lanes),
                _ => return 0,
            }
        }
        whole
    }
}

/// Raises the largest magnitudes of blocks of so many registers; returns how many they are.
///
/// # Safety
/// The level's features, and the blocks are readable.
#[inline(always)]
unsafe fn each<B: Bits, V: Vector, const REGISTERS: usize>(mut from: *const u8, found: &mut [B]) -> usize {
    for largest in &mut *found {
        let mut most = B::raised::<V>(V::splat16(0), V::load(from));
        for register in 1..REGISTERS {
            most = B::raised::<V>(most, V::load(from.add(register * V::BYTES)));
        }
        *largest = (*largest).max(B::most::<V>(most));
        from = from.add(REGISTERS * V::BYTES);
    }
    found.len()
}

/// Raises registers of u16 by folded ones.
///
/// # Safety
/// The level's features; so many registers are readable and writable, and as many times [`Folded::REGISTERS`] readable.
#[inline(always)]
unsafe fn fold<V: Vector, F: Folded<V>>(from: *const u8, to: *mut u8, count: usize) {
    for i in 0..count {
        let (from, to) = (from.add(i * F::REGISTERS * V::BYTES), to.add(i * V::BYTES));
        V::store(to, V::max16(V::load(to), F::load(from)));
    }
}

impl<B: Bits, V: Vector> RawKernel for InRegisters<'_, B, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(mut self) {
        // SAFETY: the caller of `raise_largest` vouches for the elements.
        let done = unsafe { self.short() };
        let Largest { area, blocks: Blocks { width, begun }, found } = self.0;
        let lanes = V::BYTES / size_of::<B>();
        let (mut first, mut end) = (done * width, (done + 1) * width - begun);
        for largest in &mut found[done..] {
            end = end.min(area.columns);
            // SAFETY: the vectors are there; the caller of `raise_largest` vouches for the elements.
            unsafe {
                // Two, so that none waits for the last comparison.
                let (mut one, mut other) = (V::splat16(0), V::splat16(0));
                for row in 0..area.rows {
                    let (line, mut start) = (area.row(row), first);
                    while start + 2 * lanes <= end {
                        one = B::raised::<V>(one, V::load(line.add(start).cast()));
                        other = B::raised::<V>(other, V::load(line.add(start + lanes).cast()));
                        start += 2 * lanes;
                    }
                    while start < end {
                        let rest = (end - start).min(lanes);
                        let bits = if rest == lanes {
                            V::load(line.add(start).cast())
                        } else {
                            V::load_first(line.add(start).cast(), rest * size_of::<B>())
                        };
                        one = B::raised::<V>(one, bits);
                        start += rest;
                    }
                }
                *largest = (*largest).max(B::most::<V>(B::raised::<V>(one, other)));
            }
            (first, end) = (end, end + width);
        }
    }
}

/// Raises the largest magnitude of each block by the elements of rows that are blocks side by side.
///
/// # Safety
/// The elements are readable.
pub(super) unsafe fn raise_largest<B: Bits>(
    level: Level,
    area: Area<*const B>,
    blocks: Blocks,
    found: &mut [B],
) {
    let done: Option<()> = if const { size_of::<B>() == size_of::<u64>() } {
        None
    } else {
        with_vectors!(level, vectors => {
            vectors.run(InRegisters(Largest { area, blocks, found: &mut *found }, vectors));
        })
    };
    if done.is_none() {
        run_portable(Largest { area, blocks, found });
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
    area: Area<*const T>,
    blocks: Blocks,
    extremes: &'a mut [Extremes<T>],
}

impl<T: Real> RawKernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { area, blocks: Blocks { width, begun }, extremes } = self;
        let (mut first, mut end) = (0, width - begun);
        for extremes in extremes {
            end = end.min(area.columns);
            let (mut low, mut high) = ([extremes.low; LANES], [extremes.high; LANES]);
            // SAFETY: the caller of `widen` vouches for the elements.
            unsafe {
                for row in 0..area.rows {
                    let (line, mut start) = (area.row(row), first);
                    while start + LANES <= end {
                        let from = line.add(start).cast::<[T; LANES]>().read_unaligned();
                        for (lane, &value) in from.iter().enumerate() {
                            low[lane] = if value < low[lane] { value } else { low[lane] };
                            high[lane] = if value > high[lane] { value } else { high[lane] };
                        }
                        start += LANES;
                    }
                    while start < end {
                        extremes.include(line.add(start).read_unaligned());
                        start += 1;
                    }
                }
                // Without a whole register, these are the infinities that they began as.
                for (low, high) in low.into_iter().zip(high) {
                    extremes.low = if low < extremes.low { low } else { extremes.low };
                    extremes.high = if high > extremes.high { high } else { extremes.high };
                }
            }
            (first, end) = (end, end + width);
        }
    }
}

/// Includes the elements of rows in the extremes of their blocks, which are side by side.
///
/// # Safety
/// The elements are readable.
pub(super) unsafe fn widen<T: Real>(
    level: Level,
    area: Area<*const T>,
    blocks: Blocks,
    extremes: &mut [Extremes<T>],
) {
    T::run(level, Widen { area, blocks, extremes });
}
