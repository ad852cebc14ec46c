//! Floats to integers of up to 64 bits, except uint64: truncated and clamped; NaN gives 0.

use super::float_source::Floats;
use super::vector_loop::{InSteps, Step, quarters};
use crate::kernels::stages::stage::Stage;
use crate::simd::Conversions;

/// Floats to integers, signed or unsigned.
#[derive(Clone, Copy)]
struct ToIntegers<F, const SIGNED: bool>(F);

impl<F: Floats, const SIGNED: bool> ToIntegers<F, SIGNED> {
    /// Returns four registers of 32-bit integers.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    #[inline(always)]
    unsafe fn truncated_four<V: Conversions>(self, source: *const u8) -> [V::Integers; 4] {
        let [a, b, c, d] = quarters::<V>(source, F::SIZE);
        // SAFETY: the caller's promise. No `map`: the instructions of a level are not inlined into closures.
        unsafe {
            [
                self.0.truncated::<V>(a),
                self.0.truncated::<V>(b),
                self.0.truncated::<V>(c),
                self.0.truncated::<V>(d),
            ]
        }
    }
}

impl<V: Conversions, F: Floats, const SIGNED: bool> Step<V, 1> for ToIntegers<F, SIGNED> {
    const FROM: usize = F::SIZE;
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn step(this: Self, source: *const u8) -> [V::Integers; 1] {
        // SAFETY: the trait's contract.
        unsafe { [V::clamp_to_8::<SIGNED>(this.truncated_four::<V>(source))] }
    }
}

impl<V: Conversions, F: Floats, const SIGNED: bool> Step<V, 2> for ToIntegers<F, SIGNED> {
    const FROM: usize = F::SIZE;
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn step(this: Self, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let [a, b, c, d] = this.truncated_four::<V>(source);
            [V::clamp_to_16::<SIGNED>([a, b]), V::clamp_to_16::<SIGNED>([c, d])]
        }
    }
}

impl<V: Conversions, F: Floats> Step<V, 4> for ToIntegers<F, true> {
    const FROM: usize = F::SIZE;
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn step(this: Self, source: *const u8) -> [V::Integers; 4] {
        // SAFETY: the trait's contract.
        unsafe { this.truncated_four::<V>(source) }
    }
}

impl<V: Conversions, F: Floats> Step<V, 8> for ToIntegers<F, true> {
    const FROM: usize = F::SIZE;
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn step(Self(floats): Self, source: *const u8) -> [V::Integers; 8] {
        let [a, b, c, d] = quarters::<V>(source, F::SIZE);
        // SAFETY: the trait's contract.
        unsafe {
            let (a, b) = (floats.f64s::<V>(a), floats.f64s::<V>(b));
            let (c, d) = (floats.f64s::<V>(c), floats.f64s::<V>(d));
            let first = V::truncated64([a[0], a[1], b[0], b[1]]);
            let second = V::truncated64([c[0], c[1], d[0], d[1]]);
            [first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3]]
        }
    }
}

/// Makes the stage to an integer format.
pub(super) fn stage<V: Conversions, F: Floats>(
    vectors: V,
    source: F,
    bits: u32,
    signed: bool,
) -> Option<Box<dyn Stage>> {
    match (bits, signed) {
        (8, true) => Some(InSteps::<V, _, 1>::boxed(vectors, ToIntegers::<F, true>(source))),
        (8, false) => Some(InSteps::<V, _, 1>::boxed(vectors, ToIntegers::<F, false>(source))),
        // Sources of 16 bits reach wider integers through float32.
        _ if F::SIZE == 2 => None,
        (16, true) => Some(InSteps::<V, _, 2>::boxed(vectors, ToIntegers::<F, true>(source))),
        (16, false) => Some(InSteps::<V, _, 2>::boxed(vectors, ToIntegers::<F, false>(source))),
        (32, true) => Some(InSteps::<V, _, 4>::boxed(vectors, ToIntegers::<F, true>(source))),
        (64, true) => Some(InSteps::<V, _, 8>::boxed(vectors, ToIntegers::<F, true>(source))),
        _ => None,
    }
}
