//! float16 times a factor, by the machine's own conversions.
//!
//! | operation | AVX2 + F16C | AVX-512 | NEON |
//! |---|---|---|---|
//! | float16 to float32 | `vcvtph2ps ymm, xmm` | `vcvtph2ps zmm, ymm` | `fcvtl` |
//! | float32 to float16 | `vcvtps2ph xmm, ymm` | `vcvtps2ph ymm, zmm` | `fcvtn`, `fcvtn2` |
//!
//! In the default floating-point environment all keep subnormals, and the payload of a NaN, which [`super::fused`]
//! clears.

use super::gradient_loop::Loop;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::{Level, RawKernel};
use crate::format::{FloatSpec, Specials};
use crate::simd::{Rest, Vector, rounding, with_vectors};

/// Makes the loop from float16 to float32 or float16, if the level has one.
pub(super) fn stage(source: &FloatSpec, to_f32: bool, factor: f32, level: Level) -> Option<Box<dyn Loop>> {
    let FloatSpec { signed, exponent_bits, mantissa_bits, bias, specials } = *source;
    let is_f16 = signed && (exponent_bits, mantissa_bits, bias, specials) == (5, 10, 15, Specials::Ieee);
    if !is_f16 {
        return None;
    }
    with_vectors!(level, vectors => boxed(vectors, to_f32, factor))
}

fn boxed<V: Vector>(vectors: V, to_f32: bool, factor: f32) -> Box<dyn Loop> {
    if to_f32 {
        Box::new(F16Multiply::<V, true> { factor, vectors })
    } else {
        Box::new(F16Multiply::<V, false> { factor, vectors })
    }
}

/// The loop on the level of these vectors, to float32 or back to float16.
struct F16Multiply<V, const TO_F32: bool> {
    factor: f32,
    vectors: V,
}

impl<V: Vector, const TO_F32: bool> Loop for F16Multiply<V, TO_F32> {
    unsafe fn run(&self, _level: Level, source: *const u8, target: *mut u8, count: usize) -> u32 {
        let Self { factor, vectors } = *self;
        // The level that the loop was made for.
        // SAFETY: the caller's promise.
        unsafe { vectors.run(F16Loop::<V, TO_F32> { factor, source, target, count, _vectors: vectors }) }
    }
}

struct F16Loop<V, const TO_F32: bool> {
    factor: f32,
    source: *const u8,
    target: *mut u8,
    count: usize,
    /// Their features are there.
    _vectors: V,
}

/// Bytes of a register, at most.
const MOST: usize = 64;

impl<V: Vector, const TO_F32: bool> F16Loop<V, TO_F32> {
    /// Bytes of a result.
    const SIZE: usize = if TO_F32 { 4 } else { 2 };

    /// Multiplies as many float16 as a register has; returns the larger of `most` and the bits of their magnitudes.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointers.
    #[inline(always)]
    unsafe fn step(factor: V::F32s, most: V::Integers, source: *const u8, target: *mut u8) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            // No closures: the instructions of a level are not inlined into them.
            let products = [
                V::product(V::load_f16(source), factor),
                V::product(V::load_f16(source.add(V::BYTES / 2)), factor),
            ];
            if TO_F32 {
                V::store(target, V::bits(products[0]));
                V::store(target.add(V::BYTES), V::bits(products[1]));
            } else {
                V::store(target, V::to_f16::<{ rounding::NEAREST_EVEN }>(products[0], products[1]));
            }
            let magnitude = V::splat32(!Binary32::SIGN);
            let first = V::max32(most, V::and(V::bits(products[0]), magnitude));
            V::max32(first, V::and(V::bits(products[1]), magnitude))
        }
    }
}

impl<V: Vector, const TO_F32: bool> RawKernel for F16Loop<V, TO_F32> {
    type Output = u32;

    #[inline(always)]
    unsafe fn run(self) -> u32 {
        let Self { factor, source, target, count, .. } = self;
        let lanes = V::BYTES / 2;
        let whole = count - count % lanes;
        // SAFETY: the vectors are there; the caller vouches for `count` elements at the pointers, and what is left of them
        // goes through room for a whole register.
        unsafe {
            let factor = V::from_bits(V::splat32(factor.to_bits()));
            let mut most = V::splat32(0);
            for i in (0..whole).step_by(lanes) {
                most = Self::step(factor, most, source.add(2 * i), target.add(Self::SIZE * i));
            }
            if whole < count {
                let rest = count - whole;
                let (mut from, mut to) = (Rest::<MOST>::new(), Rest::<{ 2 * MOST }>::new());
                source.add(2 * whole).copy_to_nonoverlapping(from.0.as_mut_ptr(), 2 * rest);
                most = Self::step(factor, most, from.0.as_ptr(), to.0.as_mut_ptr());
                let target = target.add(Self::SIZE * whole);
                to.0.as_ptr().copy_to_nonoverlapping(target, Self::SIZE * rest);
            }
            let mut each = Rest::<MOST>::new();
            V::store(each.0.as_mut_ptr(), most);
            each.0.as_chunks::<4>().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).fold(0, u32::max)
        }
    }
}
