//! Lanes of 32 bits for draws, and for the floats that are rounded by them.

use super::vector::Vector;

/// What a level does with lanes of 32 bits.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait StochasticOps: Vector {
    /// The first lanes that there are.
    unsafe fn load32(lanes: &[u32; 16]) -> Self::Integers;
    unsafe fn xor(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn add32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn sub32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The lower halves of products.
    unsafe fn mul32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of lanes without a sign.
    unsafe fn min32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn shr32<const COUNT: u32>(a: Self::Integers) -> Self::Integers;
    /// Lower halves, in place of upper ones.
    unsafe fn raised(a: Self::Integers) -> Self::Integers;
    /// All by one count below 32.
    unsafe fn shr32_by(a: Self::Integers, count: u32) -> Self::Integers;
    /// Words, by one count below 16.
    unsafe fn shr16_by(a: Self::Integers, count: u32) -> Self::Integers;
    /// Magnitudes of singles as bits. Those below a power of two become as many of its last places as they hold, on top
    /// of the bits of the power, less an exponent.
    unsafe fn fixed_below(a: Self::Integers, power: Self::F32s) -> Self::Integers;
    /// Whether any lane has all of these bits.
    unsafe fn any_have(a: [Self::Integers; 4], bits: Self::Integers) -> bool;
    /// Whether any word is below the bound, without signs.
    unsafe fn any_below16(a: Self::Integers, bound: Self::Integers) -> bool;
}

/// What the exponents of singles are counted in.
pub(super) const EXPONENT: u32 = 1 << (f32::MANTISSA_DIGITS - 1);
