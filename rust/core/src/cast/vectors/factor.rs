//! Floats times one factor for all, on their way into vectors.

use super::upper_source::{Floats, Singles};
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
    /// Of numbers that drop 17 bits or more.
    pub(super) const OF_BYTES: Self = Self { added: 0, clear: 0xffff };

    /// Those of products whose factor has been rounded: factor and product are each off by half a unit of their last
    /// place, which is up to two of the product's.
    pub(super) fn of_rounded_factor(self) -> Self {
        const NEAR: u32 = 4;
        Self { added: self.added + NEAR, clear: self.clear & !(2 * NEAR - 1) }
    }
}

/// float32 times a factor as a format sees them that has these ties: by a product that is rounded anyhow, unless it is so
/// near a tie that it may not tell on which side.
#[derive(Clone, Copy)]
pub(super) struct Decided {
    pub(super) times: Times<Singles, true>,
    pub(super) ties: Ties,
}

impl Decided {
    /// For a format with these ties, and a factor that is near one.
    pub(super) fn new(ties: Ties, factor: f64) -> Self {
        let is_single = f64::from(factor as f32) == factor;
        let ties = if is_single { ties } else { ties.of_rounded_factor() };
        Self { times: Times { source: Singles, factor }, ties }
    }
}

impl Floats for Decided {
    const SIZE: usize = Singles::SIZE;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe {
            let Self { times, ties } = self;
            let factor = V::singles(V::splat32((times.factor as f32).to_bits()));
            let product = V::product(Singles.singles::<V>(source), factor);
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
                V::product_to_odd(singles, V::singles(V::splat32((self.factor as f32).to_bits())))
            }
        }
    }
}
