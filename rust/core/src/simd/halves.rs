//! bf16, which is the upper half of a float32: its bits, and how float32 are rounded to it from registers of their halves.

use super::vector::{Vector, or_masked};

/// The sign of a bf16, and the middle between two, in the lower half of a float32.
pub(crate) const SIGN: u16 = 1 << 15;

/// The infinity of bf16.
pub(crate) const INFINITY: u16 = (f32::INFINITY.to_bits() >> u16::BITS) as u16;

/// Returns bf16 as float32: those at even places, and those at odd ones.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn alternate_bf16<V: Vector>(a: V::Integers) -> [V::F32s; 2] {
    [V::from_bits(V::raised(a)), V::from_bits(V::and(a, V::splat32(u32::MAX << 16)))]
}

/// Rounds the upper 16 bits to nearest even by the lower 16 bits.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn up_above_middle<V: Vector>(
    low: V::Integers,
    high: V::Integers,
    one: V::Integers,
) -> V::Integers {
    let above = V::sub_saturated16(or_masked::<V>(low, high, one), V::splat16(SIGN));
    V::add16(high, V::min16(above, one))
}

/// Converts two registers of float32, none of them NaN, to bf16 rounded to nearest even; `one` is 1 in every u16.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn nearest_bf16<V: Vector>(a: V::F32s, b: V::F32s, one: V::Integers) -> V::Integers {
    let (low, high) = V::halves(V::bits(a), V::bits(b));
    V::halves_in_order(up_above_middle::<V>(low, high, one))
}

/// Rounds the upper 16 bits to odd: the last bit records whether the lower 16 bits are zero. Another rounding to fewer bits
/// then gives what one rounding would (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn to_odd<V: Vector>(low: V::Integers, high: V::Integers, one: V::Integers) -> V::Integers {
    V::or(high, V::min16(low, one))
}

/// Returns the larger of magnitudes and those of other float32, lane by lane; NaN is beyond infinity.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn larger_magnitudes<V: Vector>(largest: V::Integers, bits: V::Integers) -> V::Integers {
    V::max32(largest, V::and(bits, V::splat32(u32::MAX >> 1)))
}
