//! Floats times a float64 factor, rounded to float32 once, without float64 arithmetic for most elements.
//!
//! The factor is split into a float32 slightly nearer to zero and a remainder, which two float32 bound from below and
//! above. The two fused sums with them bound the exact product. If both round to the same float32, that is the result
//! (the rounding test of Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit",
//! 1991); otherwise, which is rare, float64 decides. For sources of few significant bits all significands are tested
//! beforehand.
//!
//! ```text
//! lacks    factor - first, of the same sign, so that zeros and infinities are preserved
//! low      x * (lacks less a margin), rounded; the margin is 2^-42 of the factor
//! high     x * (lacks plus the margin), rounded
//! result   x * first + low, and x * first + high, each rounded once
//! ```
//! The products with the remainder have a relative error of 2^-24, at most 2^-46 of the exact product, or an absolute
//! one of 2^-150 where they are subnormal: less than the margin if the exact product is at least 2^-107.

use super::float_source::Floats;
use crate::cpu::{Kernel, Level};
use crate::simd::Vector;

/// The margin, relative to the factor.
const MARGIN: f64 = 1.0 / (1u64 << 42) as f64;

/// Every float32 of at least 2^-95 has one of these bits set.
const NOT_TINY: u32 = 3 << 29;

/// With smaller factors, products of 2^-95 would be below 2^-107 and so undecided.
const LEAST: f64 = 1.0 / (1 << 11) as f64;

/// The parts of a factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    first: f32,
    /// The bounds of the remainder.
    lacks: [f32; 2],
    whole: f64,
}

impl Factor {
    /// Splits a factor; `None` if its magnitude is too small.
    pub(super) fn new(whole: f64) -> Option<Self> {
        // Nearer to zero than the factor, by more than the margin.
        let first = (whole * (1.0 - 1.5 * 2f64.powi(-24))) as f32;
        let (lacks, margin) = (whole - f64::from(first), whole * MARGIN);
        let lacks = [lacks - margin, lacks + margin].map(|end| end as f32);
        let has_sign = |part: f32| (f64::from(part) > 0.0) == (whole > 0.0) && part.is_normal();
        let fits = whole.abs() >= LEAST && has_sign(first) && lacks.into_iter().all(has_sign);
        fits.then_some(Self { first, lacks, whole })
    }

    /// Returns whether no product with a significand of so many bits needs float64 to decide.
    pub(super) fn is_decided(self, bits: u32, level: Level) -> bool {
        level.run(Undecided(self, bits)) == 0
    }
}

/// Counts the significands of so many bits whose products are not decided.
struct Undecided(Factor, u32);

impl Kernel for Undecided {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Self(Factor { first, lacks: [low, high], .. }, bits) = self;
        let mut count = 0;
        for significand in 1i32 << (bits - 1)..1 << bits {
            let x = significand as f32;
            count += u32::from(x.mul_add(first, x * low) != x.mul_add(first, x * high));
        }
        count
    }
}

/// Floats times such a factor. `TRIED` says that all significands were tested, so that elements need no test.
#[derive(Clone, Copy)]
pub(super) struct ErrorFreeProduct<F, const TRIED: bool> {
    pub(super) source: F,
    pub(super) factor: Factor,
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<F: Floats, const TRIED: bool> Floats for ErrorFreeProduct<F, TRIED> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        let Factor { first, lacks: [low, high], whole } = self.factor;
        let x = self.source.f32s::<V>(source);
        let first = V::from_bits(V::splat32(first.to_bits()));
        let low = V::product(x, V::from_bits(V::splat32(low.to_bits())));
        let result = V::product_sum(x, first, low);
        if F::TINY && V::any_clear([x; 2], V::splat32(0), V::splat32(NOT_TINY)) {
            return V::f64_product::<false>(x, whole);
        }
        if !TRIED {
            let high = V::product(x, V::from_bits(V::splat32(high.to_bits())));
            if V::any_differ(result, V::product_sum(x, first, high)) {
                return V::f64_product::<false>(x, whole);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_enclose_the_factor() {
        for whole in
            [0.1, -0.1, 1.0 / 3.0, 0.7, 1.5, 1.0 + f64::EPSILON, 2.0 - f64::EPSILON, -448.0 / 5.3, 1e30]
        {
            let Factor { first, lacks, .. } = Factor::new(whole).unwrap();
            let lacking = whole - f64::from(first);
            let [low, high] = lacks.map(f64::from).map(f64::abs);
            assert!(low < lacking.abs() && lacking.abs() < high, "{whole}");
            assert!(lacking.abs() < whole.abs() * 2f64.powi(-22), "{whole}");
            assert!(high - low < whole.abs() * 2f64.powi(-40), "{whole}");
        }
        for whole in [1e-5, 0.0, f64::INFINITY, f64::NAN] {
            assert!(Factor::new(whole).is_none(), "{whole}");
        }
    }

    // The portable level calls `fmaf`, and that of mingw rounds some sums twice: 1038 times 1 / 7.3 is one of them.
    #[test]
    #[cfg_attr(all(windows, target_env = "gnu"), ignore = "fmaf of mingw rounds twice")]
    fn what_is_decided_is_what_float64_gives() {
        for numerator in 1..200 {
            let factor = Factor::new(f64::from(numerator) / 7.3).unwrap();
            if factor.is_decided(11, Level::PORTABLE) {
                for significand in 1 << 10..1 << 11 {
                    let x = significand as f32;
                    let [low, _] = factor.lacks;
                    // A product of 11 bits and 53 fits in 64 bits.
                    let exact = rounded(significand as u64, factor.whole);
                    assert_eq!(x.mul_add(factor.first, x * low), exact, "{numerator} {significand}");
                }
            }
        }
    }

    /// A product, from its bits.
    fn rounded(significand: u64, factor: f64) -> f32 {
        const IMPLICIT: u64 = 1 << 52;
        let bits = factor.to_bits();
        let product = significand * (bits & (IMPLICIT - 1) | IMPLICIT);
        let unit = f64::from_bits(bits & !(IMPLICIT - 1)) * 2f64.powi(-52);
        (product as f32) * unit as f32
    }
}
