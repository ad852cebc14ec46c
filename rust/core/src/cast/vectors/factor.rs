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

/// The same, where subnormal products are not good enough: those are rounded to odd.
#[derive(Clone, Copy)]
pub(super) struct RoundedNormal<F> {
    pub(super) rounded: Rounded<F>,
    pub(super) exact: Times<F, true>,
}

impl<F: Floats> Floats for RoundedNormal<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe {
            let product = self.rounded.singles::<V>(source);
            if V::any_subnormal(product) { self.exact.singles::<V>(source) } else { product }
        }
    }
}

/// Floats times a factor of any bits, rounded to nearest even as float32.
#[derive(Clone, Copy)]
pub(super) struct Wide<F> {
    pub(super) source: F,
    pub(super) factor: f64,
}

impl<F: Floats> Floats for Wide<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::double_product(self.source.singles::<V>(source), self.factor) }
    }
}

/// Which numbers are near a tie between two results: some of their bits, after something has been added, are clear.
#[derive(Clone, Copy)]
pub(super) struct Ties {
    added: u32,
    clear: u32,
}

impl Ties {
    /// Of numbers that drop the lower half of their bits, and no more where they are subnormal.
    pub(super) const OF_UPPER: Self = Self { added: 1 << 15, clear: 0xffff };
    /// Of numbers that drop 13 bits or more.
    pub(super) const OF_HALVES: Self = Self { added: 0, clear: 0xfff };

    /// Those of products whose factor has been rounded: factor and product are each off by half a unit of their last
    /// place, which is up to two of the product's.
    pub(super) fn of_rounded_factor(self) -> Self {
        const NEAR: u32 = 4;
        Self { added: self.added + NEAR, clear: self.clear & !(2 * NEAR - 1) }
    }
}

/// Floats times a factor as a format sees them that has these ties: by a product that is rounded anyhow, unless it is so
/// near a tie that it may not tell on which side.
#[derive(Clone, Copy)]
pub(super) struct Decided<F, const DOUBLE: bool> {
    pub(super) times: Times<F, DOUBLE>,
    pub(super) ties: Ties,
}

impl<F: Floats, const DOUBLE: bool> Floats for Decided<F, DOUBLE> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe {
            let Self { times, ties } = self;
            let product = V::product(times.source.singles::<V>(source), times.single_factor::<V>());
            let undecided = V::any_clear(product, V::splat32(ties.added), V::splat32(ties.clear));
            if undecided { times.singles::<V>(source) } else { product }
        }
    }
}

/// Floats with their last bit set, but for infinities and NaN: ties have become more than ties, and nothing else has
/// come to another side of one.
#[derive(Clone, Copy)]
pub(super) struct AboveTies<F>(pub(super) F);

impl<F: Floats> Floats for AboveTies<F> {
    const SIZE: usize = F::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::with_last_bit(self.0.singles::<V>(source)) }
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
    pub(super) unsafe fn single_factor<V: Vector>(&self) -> V::Singles {
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
