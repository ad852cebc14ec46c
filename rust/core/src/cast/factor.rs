//! Floats times one factor for all, on their way into vectors.

use super::upper_source::{Floats, Upper, upper};
use crate::simd::Vector;

/// Floats times a factor that float32 holds, rounded to nearest even: as float32, that is the product.
#[derive(Clone, Copy)]
pub(super) struct Rounded<F> {
    pub(super) source: F,
    pub(super) factor: f32,
}

impl<F: Floats> Floats for Rounded<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe {
            let factor = V::singles(V::splat32(self.factor.to_bits()));
            V::product(self.source.singles::<V>(source), factor)
        }
    }
}

/// Floats times a factor, rounded to odd. Unless by way of `DOUBLE`, the factor is a float32, and results are right that
/// are not far below every format of 16 bits but the upper halves.
#[derive(Clone, Copy)]
pub(super) struct Times<F, const DOUBLE: bool> {
    pub(super) source: F,
    pub(super) factor: f64,
}

/// Lower halves of float32 that are as near as this to zero may be on the other side of it: factor and product are each
/// off by half a unit of their last place, which is up to two of the product's.
const NEAR: u16 = 3;

const TOP: u16 = 1 << 15;
const INFINITY: u16 = (f32::INFINITY.to_bits() >> 16) as u16;

impl<F: Floats, const DOUBLE: bool> Times<F, DOUBLE> {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn single_factor<V: Vector>(&self) -> V::Singles {
        // SAFETY: the caller's promise.
        unsafe { V::singles(V::splat32((self.factor as f32).to_bits())) }
    }
}

impl<F: Floats, const DOUBLE: bool> Floats for Times<F, DOUBLE> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe {
            let singles = self.source.singles::<V>(source);
            if DOUBLE {
                V::double_product_to_odd(singles, self.factor)
            } else {
                V::product_to_odd(singles, self.single_factor::<V>())
            }
        }
    }

    /// By a product that is rounded anyhow, unless it is so near the end of its upper half that it may not tell on
    /// which side.
    #[inline(always)]
    unsafe fn upper<V: Vector>(&self, source: *const u8, one: V::Integers) -> Upper<V::Integers> {
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe {
            let rest = source.add(V::BYTES / 4 * Self::SIZE);
            if !DOUBLE && F::SIZE < 4 {
                // Few significant bits come near too often.
                return upper::<V>([self.singles::<V>(source), self.singles::<V>(rest)], one);
            }
            let factor = self.single_factor::<V>();
            let first = V::product(self.source.singles::<V>(source), factor);
            let second = V::product(self.source.singles::<V>(rest), factor);
            let (low, cut) = V::unzip16(V::bits(first), V::bits(second));
            // In two's complement: zero is half a turn from the least.
            let turned = V::add16(low, V::splat16(TOP + NEAR));
            let near = V::above16(V::splat16(TOP + 2 * NEAR + 1), turned);
            if V::any16(near) {
                // But zero, infinity and NaN are what they are.
                let (magnitude, zero) = (V::and(cut, V::splat16(!TOP)), V::splat16(0));
                let finite = V::choose16(V::above16(V::splat16(INFINITY), magnitude), magnitude, zero);
                if V::any16(V::above16(V::choose16(near, finite, zero), zero)) {
                    return upper::<V>([self.singles::<V>(source), self.singles::<V>(rest)], one);
                }
            }
            Upper { cut, odd: V::or(cut, V::min16(low, one)) }
        }
    }
}
