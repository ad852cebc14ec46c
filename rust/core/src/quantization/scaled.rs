//! Elements times numbers of their blocks, or divided by them, from bf16 or float32 to bf16 or float32 in one pass.

use super::arithmetic::Blocks;
use crate::cpu::level::run_portable;
use crate::cpu::{Level, RawKernel};
use crate::simd::{MOST_BYTES, Vector, unknown_one, with_vectors};

/// A float as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    /// The upper 16 bits of a float32.
    Bf16,
    F32,
}

/// What an element is read from and written to.
trait Stored: Copy + Default {
    fn f32(self) -> f32;
    /// Rounds to nearest even; NaN is the positive one.
    fn rounded(value: f32) -> Self;
    /// Loads two registers of float32.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2];
    /// Stores two registers of float32, none of them NaN, rounded to nearest even; `one` is 1 in every u16.
    ///
    /// # Safety
    /// As for loads.
    unsafe fn store<V: Vector>(target: *mut Self, values: [V::F32s; 2], one: V::Integers);
}

impl Stored for f32 {
    #[inline(always)]
    fn f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        value
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2] {
        let source = source.cast::<u8>();
        // SAFETY: the trait's contract.
        unsafe { [V::from_bits(V::load(source)), V::from_bits(V::load(source.add(V::BYTES)))] }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(target: *mut Self, [first, second]: [V::F32s; 2], _one: V::Integers) {
        let target = target.cast::<u8>();
        // SAFETY: the trait's contract.
        unsafe {
            V::store(target, V::bits(first));
            V::store(target.add(V::BYTES), V::bits(second));
        }
    }
}

impl Stored for u16 {
    #[inline(always)]
    fn f32(self) -> f32 {
        f32::from_bits(u32::from(self) << u16::BITS)
    }

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        let bits = value.to_bits();
        let half = (1 << (u16::BITS - 1)) - 1 + (bits >> u16::BITS & 1);
        (bits.wrapping_add(half) >> u16::BITS) as Self
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2] {
        let source = source.cast::<u8>();
        // SAFETY: the trait's contract.
        unsafe { [V::load_bf16(source), V::load_bf16(source.add(V::BYTES / 2))] }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(target: *mut Self, [first, second]: [V::F32s; 2], one: V::Integers) {
        // SAFETY: the trait's contract.
        unsafe { V::store(target.cast(), V::nearest_bf16(first, second, one)) };
    }
}

/// Elements to scale, and the numbers of their blocks.
#[derive(Clone, Copy)]
pub(super) struct Scaling<'a> {
    pub(super) from: (*const u8, Float),
    pub(super) to: (*mut u8, Float),
    pub(super) count: usize,
    pub(super) blocks: Blocks,
    pub(super) numbers: &'a [f32],
    /// What [`reciprocals`] returned, to divide; else it is empty.
    pub(super) reciprocals: &'a [f32],
}

/// Elements of one block.
struct Scaled<A, Z, const DIVIDE: bool> {
    from: *const A,
    to: *mut Z,
    count: usize,
    number: f32,
}

impl<A: Stored, Z: Stored, const DIVIDE: bool> Scaled<A, Z, DIVIDE> {
    /// Scales them one by one.
    ///
    /// # Safety
    /// As for [`scale`].
    #[inline(always)]
    unsafe fn each(&self, start: usize, end: usize) {
        for place in start..end {
            // SAFETY: the caller's promise.
            unsafe {
                let value = self.from.add(place).read_unaligned().f32();
                let result = if DIVIDE { value / self.number } else { value * self.number };
                let result = if !DIVIDE && result.is_nan() { f32::NAN } else { result };
                self.to.add(place).write_unaligned(Z::rounded(result));
            }
        }
    }

    /// Scales two registers, and returns whether no product is NaN.
    ///
    /// Markstein: from a correctly rounded reciprocal, one step of correction gives a quotient within an ulp, and the
    /// next one the correctly rounded quotient, while nothing underflows.
    ///
    /// # Safety
    /// The level's features, and as many elements at both pointers.
    #[inline(always)]
    unsafe fn step<V: Vector>(
        from: *const A,
        to: *mut Z,
        numbers: [V::F32s; 2],
        ones: [V::Integers; 2],
    ) -> bool {
        // SAFETY: the caller's promise. No `map`: the instructions of a level are not inlined into closures.
        unsafe {
            let [a, b] = A::load::<V>(from);
            let results = if DIVIDE {
                [Self::quotient::<V>(a, numbers, ones[1]), Self::quotient::<V>(b, numbers, ones[1])]
            } else {
                let results = [V::product(a, numbers[0]), V::product(b, numbers[0])];
                if V::any_nan(results[0], results[1]) {
                    return false;
                }
                results
            };
            Z::store::<V>(to, results, ones[0]);
        }
        true
    }

    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn quotient<V: Vector>(
        value: V::F32s,
        [minus, reciprocal]: [V::F32s; 2],
        sign: V::Integers,
    ) -> V::F32s {
        // SAFETY: the caller's promise.
        unsafe {
            let first = V::product(value, reciprocal);
            let second = V::product_sum(V::product_sum(first, minus, value), reciprocal, first);
            let third = V::product_sum(V::product_sum(second, minus, value), reciprocal, second);
            // Sums of zeros lose the sign.
            V::from_bits(V::or_masked(V::bits(third), V::bits(first), sign))
        }
    }

    /// Scales them a register of bf16 at a time.
    ///
    /// # Safety
    /// The vectors are there, and as for [`scale`]. The reciprocal is not 0.
    #[inline(always)]
    unsafe fn in_registers<V: Vector>(&self, reciprocal: f32) {
        let step = V::BYTES / 2;
        // SAFETY: the caller's promise; rooms have registers for a step.
        unsafe {
            let number = if DIVIDE { -self.number } else { self.number }.to_bits();
            let reciprocal = V::splat32(reciprocal.to_bits());
            let numbers = [V::from_bits(V::splat32(number)), V::from_bits(reciprocal)];
            let ones = [V::splat16(u16::from(unknown_one())), V::splat32(1 << 31)];
            let mut start = 0;
            while start + step <= self.count {
                if !Self::step::<V>(self.from.add(start), self.to.add(start), numbers, ones) {
                    self.each(start, start + step);
                }
                start += step;
            }
            let rest = self.count - start;
            if rest > 0 {
                let mut rooms = [[0u32; MOST_BYTES / 2]; 2];
                let [from, to] = rooms.each_mut().map(|room| room.as_mut_ptr());
                let (from, to) = (from.cast::<A>(), to.cast::<Z>());
                let (source, target) = (self.from.add(start).cast::<u8>(), self.to.add(start).cast::<u8>());
                from.cast::<u8>().copy_from_nonoverlapping(source, rest * size_of::<A>());
                if Self::step::<V>(from, to, numbers, ones) {
                    target.copy_from_nonoverlapping(to.cast(), rest * size_of::<Z>());
                } else {
                    self.each(start, self.count);
                }
            }
        }
    }
}

/// The blocks of a tile, one after the other.
struct EachBlock<'a, A, Z, const DIVIDE: bool> {
    from: *const A,
    to: *mut Z,
    what: Scaling<'a>,
}

/// The same in registers.
struct InRegisters<'a, A, Z, V, const DIVIDE: bool>(EachBlock<'a, A, Z, DIVIDE>, V);

/// Runs an expression with the elements of each block and its reciprocal.
macro_rules! each_block {
    ($blocks:expr, |$block:ident, $reciprocal:ident| $call:expr) => {
        let EachBlock { from, to, what: Scaling { count, blocks, numbers, reciprocals, .. } } = $blocks;
        let (mut start, mut end) = (0, blocks.width - blocks.begun);
        for (index, &number) in numbers.iter().enumerate() {
            end = end.min(count);
            let $reciprocal = if DIVIDE { reciprocals[index] } else { 1.0 };
            let (from, to) = (from.wrapping_add(start), to.wrapping_add(start));
            let $block = Scaled::<A, Z, DIVIDE> { from, to, count: end - start, number };
            // SAFETY: the caller of `scale` vouches for the elements.
            unsafe { $call };
            (start, end) = (end, end + blocks.width);
        }
    };
}

impl<A: Stored, Z: Stored, const DIVIDE: bool> RawKernel for EachBlock<'_, A, Z, DIVIDE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        each_block!(self, |block, _reciprocal| block.each(0, block.count));
    }
}

impl<A: Stored, Z: Stored, V: Vector, const DIVIDE: bool> RawKernel for InRegisters<'_, A, Z, V, DIVIDE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        each_block!(self.0, |block, reciprocal| if reciprocal == 0.0 {
            block.each(0, block.count);
        } else {
            block.in_registers::<V>(reciprocal);
        });
    }
}

/// Multiplies each element by the number of its block, or divides it, in float32.
///
/// # Safety
/// `count` elements are readable at the first place and writable at the second, which is the first or does not overlap
/// it. None is rounded from float32 to bf16, and quotients that are rounded to it are not NaN.
pub(super) unsafe fn scale(level: Level, what: Scaling<'_>) {
    /// # Safety
    /// As for `scale`.
    unsafe fn run<A: Stored, Z: Stored, const DIVIDE: bool>(level: Level, what: Scaling<'_>) {
        let blocks = || EachBlock::<A, Z, DIVIDE> { from: what.from.0.cast(), to: what.to.0.cast(), what };
        // SAFETY: the caller's promise.
        unsafe {
            if with_vectors!(level, vectors => vectors.run(InRegisters(blocks(), vectors))).is_none() {
                run_portable(blocks());
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (what.from.1, what.to.1, what.reciprocals.is_empty()) {
            (Float::Bf16, Float::Bf16, true) => run::<u16, u16, false>(level, what),
            (Float::Bf16, Float::F32, true) => run::<u16, f32, false>(level, what),
            (Float::F32, _, true) => run::<f32, f32, false>(level, what),
            (Float::Bf16, Float::Bf16, false) => run::<u16, u16, true>(level, what),
            (Float::Bf16, Float::F32, false) => run::<u16, f32, true>(level, what),
            (Float::F32, _, false) => run::<f32, f32, true>(level, what),
        }
    }
}

/// Returns the reciprocals of divisors with which [`quotients`] of magnitudes up to these are right; 0 for others.
pub(super) fn reciprocals(level: Level, divisors: &[f32], largest: &[f32], to: &mut Vec<f32>) {
    // Their products stay far from overflow, and what underflows is far below every code.
    const FAR: f32 = f32::from_bits((127 + 60) << 23);
    const ALL_ONES: u32 = (1 << 23) - 1;
    to.clear();
    to.extend(divisors.iter().zip(largest).map(|(&divisor, &largest)| {
        let reciprocal = 1.0 / divisor;
        let size = divisor.abs();
        let safe = size > 1.0 / FAR
            && size < FAR
            && divisor.to_bits() & ALL_ONES != ALL_ONES
            && largest * reciprocal.abs() < FAR;
        if safe && level != Level::PORTABLE { reciprocal } else { 0.0 }
    }));
}
