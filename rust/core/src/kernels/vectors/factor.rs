//! Sources of floats multiplied by one factor as they are loaded.

use super::float_source::{Floats, OddBf16, odd_bf16};
use crate::simd::Vector;
use crate::simd::halves::{INFINITY, SIGN, to_odd, up_above_middle};

/// Floats times a float32 factor, rounded to nearest even in float32.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<F> {
    pub(crate) source: F,
    pub(crate) factor: f32,
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<F: Floats> Floats for Rounded<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        let factor = V::from_bits(V::splat32(self.factor.to_bits()));
        V::product(self.source.f32s::<V>(source), factor)
    }
}

/// The same, except that registers with subnormal products are rounded to odd.
#[derive(Clone, Copy)]
pub(super) struct RoundedNormal<F> {
    pub(super) rounded: Rounded<F>,
    pub(super) exact: Times<F, true>,
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<F: Floats> Floats for RoundedNormal<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        let product = self.rounded.f32s::<V>(source);
        if V::any_subnormal(product) { self.exact.f32s::<V>(source) } else { product }
    }
}

/// Floats times a float64 factor, rounded once to nearest even in float32.
#[derive(Clone, Copy)]
pub(super) struct Wide<F> {
    pub(super) source: F,
    pub(super) factor: f64,
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<F: Floats> Floats for Wide<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::f64_product::<false>(self.source.f32s::<V>(source), self.factor)
    }
}

/// A test for numbers near a tie between two results: the bits `clear` of their sum with `added` are all zero.
#[derive(Clone, Copy)]
pub(super) struct Ties {
    added: u32,
    clear: u32,
}

impl Ties {
    /// For targets that drop the lower 16 bits, of subnormals too.
    pub(super) const OF_BF16: Self = Self { added: 1 << 15, clear: 0xffff };
    /// For targets that drop 13 bits or more.
    pub(super) const OF_F16: Self = Self { added: 0, clear: 0xfff };
    /// For targets that drop 17 bits or more.
    pub(super) const OF_BYTES: Self = Self { added: 0, clear: 0xffff };

    /// Widens the test for products with a rounded factor: factor and product are each off by half a unit in the last
    /// place, together by at most one unit and a half of the product's.
    pub(super) fn of_rounded_factor(self) -> Self {
        const NEAR: u32 = 2;
        Self { added: self.added + NEAR, clear: self.clear & !(2 * NEAR - 1) }
    }
}

/// Floats times a factor, for a target with these ties: a product in float32, unless it is so near a tie that its
/// rounding may have crossed it; then one in float64.
#[derive(Clone, Copy)]
pub(super) struct Decided<F> {
    times: Times<F, true>,
    ties: Ties,
}

impl<F: Floats> Decided<F> {
    pub(super) fn new(source: F, factor: f64, ties: Ties) -> Self {
        let is_f32 = f64::from(factor as f32) == factor;
        let ties = if is_f32 { ties } else { ties.of_rounded_factor() };
        Self { times: Times { source, factor }, ties }
    }

    /// Returns two registers of products whose rounding is not exact.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    #[inline(always)]
    unsafe fn products<V: Vector>(&self, source: *const u8) -> [V::F32s; 2] {
        let (factor, [first, second]) = (self.times.f32_factor::<V>(), self.times.source.pair::<V>(source));
        [V::product(first, factor), V::product(second, factor)]
    }
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<F: Floats> Floats for Decided<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        let Self { times, ties } = self;
        let product = V::product(times.source.f32s::<V>(source), times.f32_factor::<V>());
        let undecided = V::any_clear([product; 2], V::splat32(ties.added), V::splat32(ties.clear));
        if undecided { times.f32s::<V>(source) } else { product }
    }

    /// One test for both registers.
    #[inline(always)]
    unsafe fn pair<V: Vector>(&self, source: *const u8) -> [V::F32s; 2] {
        let Self { times, ties } = self;
        let products = self.products::<V>(source);
        let undecided = V::any_clear(products, V::splat32(ties.added), V::splat32(ties.clear));
        if undecided { times.pair::<V>(source) } else { products }
    }

    #[inline(always)]
    unsafe fn pair_midrange<V: Vector>(&self, source: *const u8) -> [V::F32s; 2] {
        self.pair::<V>(source)
    }

    /// Rounds by the lower 16 bits of products; `None` if some are so near the middle that their side is unknown.
    #[inline(always)]
    unsafe fn nearest_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        let [first, second] = self.products::<V>(source);
        let (low, high) = V::unzip16(V::bits(first), V::bits(second));
        // As signed 16-bit numbers, the middle 0x8000 is the smallest.
        let turned = V::add16(low, V::splat16(NEAR));
        let undecided = V::any16(V::above16(V::splat16(SIGN + 2 * NEAR + 1), turned));
        // One jump for both.
        if undecided | V::any_nan([first, second]) {
            None
        } else {
            Some(up_above_middle::<V>(low, high, one))
        }
    }

    /// Does the same for rounding to odd, where lower bits near zero are in doubt.
    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> OddBf16<V::Integers> {
        let [first, second] = self.products::<V>(source);
        let (low, cut) = V::unzip16(V::bits(first), V::bits(second));
        // Adding the top bit makes zero the smallest signed number.
        let turned = V::add16(low, V::splat16(SIGN + NEAR));
        let near = V::above16(V::splat16(SIGN + 2 * NEAR + 1), turned);
        if V::any16(near) {
            // Zeros, infinities and NaN are exact.
            let (magnitude, zero) = (V::and(cut, V::splat16(!SIGN)), V::splat16(0));
            let finite = V::choose16(V::above16(V::splat16(INFINITY), magnitude), magnitude, zero);
            if V::any16(V::above16(V::choose16(near, finite, zero), zero)) {
                return odd_bf16::<V>(self.times.pair::<V>(source), one);
            }
        }
        OddBf16 { cut, odd: to_odd::<V>(low, cut, one) }
    }
}

/// A product whose lower 16 bits are this near to zero or to the middle may belong to the other side: factor and
/// product are each off by half a unit in the last place, together at most two units of the product's.
const NEAR: u16 = 3;

/// Floats times a factor, rounded to odd. Without `THROUGH_F64`, the factor is a float32, and subnormal products may be
/// rounded to nearest.
#[derive(Clone, Copy)]
pub(super) struct Times<F, const THROUGH_F64: bool> {
    pub(super) source: F,
    pub(super) factor: f64,
}

impl<F: Floats, const THROUGH_F64: bool> Times<F, THROUGH_F64> {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn f32_factor<V: Vector>(&self) -> V::F32s {
        V::from_bits(V::splat32((self.factor as f32).to_bits()))
    }
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<F: Floats, const THROUGH_F64: bool> Floats for Times<F, THROUGH_F64> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        let f32s = self.source.f32s::<V>(source);
        if !THROUGH_F64 {
            let product = V::product_to_odd(f32s, self.f32_factor::<V>());
            // A product that became zero is nearer to zero than to any other result.
            if !V::any_subnormal(product) {
                return product;
            }
        }
        V::f64_product::<true>(f32s, self.factor)
    }
}
