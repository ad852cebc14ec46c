//! What elements that are scaled are read from and written to: float32, its upper halves, and integers of a byte.

use crate::codec::options::Rounding;
use crate::codec::rounding::{Directed, round_off};
use crate::simd::{Vector, up_above_middle};

/// What an element is read from.
pub(super) trait Source: Copy {
    /// Whether elements are the upper halves of float32.
    const HALF: bool;
    fn f32(self) -> f32;
    /// Loads two registers of float32.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2];
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

/// The sign of bf16.
pub(super) const TOP: u16 = 1 << 15;

/// Its infinity.
pub(super) const INFINITY: u16 = (f32::INFINITY.to_bits() >> u16::BITS) as u16;

/// Returns the upper half of a float32 in a rounding that does not depend on its sign, and whether anything was cut off.
#[inline(always)]
fn upper_half(value: f32, rounding: Rounding) -> (u16, bool) {
    let (half, inexact) = round_off(&Directed::new(rounding), value.to_bits(), u16::BITS, false, 0);
    (half as u16, inexact)
}

impl Source for f32 {
    const HALF: bool = false;

    #[inline(always)]
    fn f32(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2] {
        let source = source.cast::<u8>();
        // SAFETY: the trait's contract.
        unsafe { [V::from_bits(V::load(source)), V::from_bits(V::load(source.add(V::BYTES)))] }
    }
}

impl Source for i8 {
    const HALF: bool = false;

    #[inline(always)]
    fn f32(self) -> f32 {
        self.into()
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2] {
        let source = source.cast::<u8>();
        let second = source.wrapping_add(V::BYTES / size_of::<f32>());
        // SAFETY: the trait's contract.
        unsafe { [V::load_integers::<1, true>(source), V::load_integers::<1, true>(second)] }
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

    #[inline(always)]
    fn f32(self) -> f32 {
        f32::from_bits(u32::from(self) << u16::BITS)
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> [V::F32s; 2] {
        let source = source.cast::<u8>();
        // SAFETY: the trait's contract.
        unsafe { [V::load_bf16(source), V::load_bf16(source.add(V::BYTES / 2))] }
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
        // SAFETY: the trait's contract.
        unsafe { up_above_middle::<V>(low, high, one) }
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
        // SAFETY: the trait's contract.
        unsafe { V::or(high, V::min16(low, one)) }
    }
}
