//! Elements times numbers of their blocks, or divided by them, from bf16 or float32 to bf16 or float32 in one pass.

use super::arithmetic::{Blocks, LANES};
use crate::cpu::{Level, RawKernel};

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

struct Scaled<'a, A, Z, const DIVIDE: bool> {
    from: *const A,
    to: *mut Z,
    what: Scaling<'a>,
}

impl<A: Stored, Z: Stored, const DIVIDE: bool> Scaled<'_, A, Z, DIVIDE> {
    #[inline(always)]
    fn one(value: A, number: f32) -> Z {
        if DIVIDE {
            return Z::rounded(value.f32() / number);
        }
        let product = value.f32() * number;
        Z::rounded(if product.is_nan() { f32::NAN } else { product })
    }

    /// Markstein: from a correctly rounded reciprocal, one step of correction gives a quotient within an ulp, and the
    /// next one the correctly rounded quotient, while nothing underflows.
    #[inline(always)]
    fn quotient(value: A, number: f32, reciprocal: f32) -> Z {
        let value = value.f32();
        let first = value * reciprocal;
        let second = (-first).mul_add(number, value).mul_add(reciprocal, first);
        let third = (-second).mul_add(number, value).mul_add(reciprocal, second);
        // Sums of zeros lose the sign.
        Z::rounded(f32::from_bits(third.to_bits() | (first.to_bits() & (1 << 31))))
    }
}

impl<A: Stored, Z: Stored, const DIVIDE: bool> RawKernel for Scaled<'_, A, Z, DIVIDE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { from, to, what: Scaling { count, blocks, numbers, reciprocals, .. } } = self;
        let (mut start, mut end) = (0, blocks.width - blocks.begun);
        for (block, &number) in numbers.iter().enumerate() {
            end = end.min(count);
            let reciprocal = if DIVIDE { reciprocals[block] } else { 0.0 };
            // SAFETY: the caller of `scale` vouches for `count` elements at both.
            unsafe {
                while start + LANES <= end {
                    let values = from.add(start).cast::<[A; LANES]>().read_unaligned();
                    let mut results = [Z::default(); LANES];
                    if DIVIDE && reciprocal != 0.0 {
                        for (result, value) in results.iter_mut().zip(values) {
                            *result = Self::quotient(value, number, reciprocal);
                        }
                    } else {
                        for (result, value) in results.iter_mut().zip(values) {
                            *result = Self::one(value, number);
                        }
                    }
                    to.add(start).cast::<[Z; LANES]>().write_unaligned(results);
                    start += LANES;
                }
                while start < end {
                    to.add(start).write_unaligned(Self::one(from.add(start).read_unaligned(), number));
                    start += 1;
                }
            }
            end += blocks.width;
        }
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
    unsafe fn run<A: Stored, Z: Stored>(level: Level, what: Scaling<'_>) {
        let (from, to) = (what.from.0.cast::<A>(), what.to.0.cast::<Z>());
        // SAFETY: the caller's promise.
        unsafe {
            if what.reciprocals.is_empty() {
                level.run_raw(Scaled::<A, Z, false> { from, to, what });
            } else {
                level.run_raw(Scaled::<A, Z, true> { from, to, what });
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (what.from.1, what.to.1) {
            (Float::Bf16, Float::Bf16) => run::<u16, u16>(level, what),
            (Float::Bf16, Float::F32) => run::<u16, f32>(level, what),
            (Float::F32, _) => run::<f32, f32>(level, what),
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
