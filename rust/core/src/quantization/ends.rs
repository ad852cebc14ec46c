//! What elements that are scaled are read from and written to: float32, its upper halves, and integers of a byte.
//!
//! Unsafe functions need what those of [`crate::kernels::vectors`] do: their bodies are not marked again either.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this module says"
)]

use crate::codec::options::Rounding;
use crate::codec::rounding::{Directed, round_off};
use crate::kernels::vectors::float_source::{Bf16Source, F32Source, Floats};
use crate::kernels::vectors::integer_source::IntegerSource;
use crate::simd::Vector;
use crate::simd::halves::{to_odd, up_above_middle};

/// What an element is read from.
pub(super) trait Source: Copy {
    /// Whether elements are the upper halves of float32.
    const HALF: bool;
    fn f32(self) -> f32;
    /// How they are loaded.
    type Floats: Floats;
    /// The source of loads.
    const FLOATS: Self::Floats;
    /// Loads two registers of float32.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2] {
        Self::FLOATS.pair::<V>(source.cast())
    }
}

/// What an element is written to.
pub(super) trait Target: Copy {
    /// Whether results are upper halves of float32.
    const HALF: bool;
    fn rounded(value: f32) -> Self;
    /// Rounds registers of the lower and the upper halves of float32; `one` is 1 in every u16.
    ///
    /// # Safety
    /// The level's features.
    unsafe fn round<V: Vector>(low: V::Integers, high: V::Integers, one: V::Integers) -> V::Integers;
}

/// Returns the upper half of a float32 in a rounding that does not depend on its sign, and whether anything was cut off.
#[inline(always)]
fn upper_half(value: f32, rounding: Rounding) -> (u16, bool) {
    let (half, inexact) = round_off(&Directed::new(rounding), value.to_bits(), u16::BITS, false, 0);
    (half as u16, inexact)
}

impl Source for f32 {
    const HALF: bool = false;
    type Floats = F32Source;
    const FLOATS: Self::Floats = F32Source;

    #[inline(always)]
    fn f32(self) -> f32 {
        self
    }
}

impl Source for i8 {
    const HALF: bool = false;
    type Floats = IntegerSource<1, true>;
    const FLOATS: Self::Floats = IntegerSource;

    #[inline(always)]
    fn f32(self) -> f32 {
        self.into()
    }
}

impl Target for f32 {
    const HALF: bool = false;

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        value
    }

    #[inline(always)]
    unsafe fn round<V: Vector>(low: V::Integers, _high: V::Integers, _one: V::Integers) -> V::Integers {
        low
    }
}

impl Source for u16 {
    const HALF: bool = true;
    type Floats = Bf16Source;
    const FLOATS: Self::Floats = Bf16Source;

    #[inline(always)]
    fn f32(self) -> f32 {
        f32::from_bits(u32::from(self) << u16::BITS)
    }
}

/// bf16, to nearest even. NaN is not rounded to it but the positive one.
impl Target for u16 {
    const HALF: bool = true;

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        upper_half(value, Rounding::NearestEven).0
    }

    #[inline(always)]
    unsafe fn round<V: Vector>(low: V::Integers, high: V::Integers, one: V::Integers) -> V::Integers {
        up_above_middle::<V>(low, high, one)
    }
}

/// bf16 rounded to odd.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Odd(u16);

impl Target for Odd {
    const HALF: bool = true;

    #[inline(always)]
    fn rounded(value: f32) -> Self {
        let (cut, inexact) = upper_half(value, Rounding::TowardsZero);
        Self(cut | u16::from(inexact))
    }

    #[inline(always)]
    unsafe fn round<V: Vector>(low: V::Integers, high: V::Integers, one: V::Integers) -> V::Integers {
        to_odd::<V>(low, high, one)
    }
}
