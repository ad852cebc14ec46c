//! Operations on 32-bit lanes, for draws and stochastic rounding.

use super::conversions::Conversions;

/// The operations of a level on 32-bit lanes.
///
/// # Safety
/// As for [`Vector`](super::vector::Vector).
pub(crate) trait StochasticOps: Conversions {
    unsafe fn xor(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The low 32 bits of products.
    unsafe fn mul32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of unsigned lanes.
    unsafe fn min32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Shifts right by one count below 32, and fills with the sign.
    unsafe fn sar32(a: Self::Integers, count: u32) -> Self::Integers;
    /// Clamps the upper 16 bits to 8 bits, signed or unsigned.
    #[inline(always)]
    unsafe fn clamp_upper_to_8<const SIGNED: bool>([a, b, c, d]: [Self::Integers; 4]) -> Self::Integers {
        let (a, b) = (Self::sar32(a, 16), Self::sar32(b, 16));
        Self::clamp_to_8::<SIGNED>([a, b, Self::sar32(c, 16), Self::sar32(d, 16)])
    }
    /// The smaller of float32, none of them NaN.
    unsafe fn smaller(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Returns magnitudes of float32 as bits; those below `power` are converted to fixed point, in units of the last
    /// place of `power`, and added to its bits less one exponent step.
    unsafe fn fixed_below(a: Self::Integers, power: Self::F32s) -> Self::Integers;
    /// Returns whether any lane has all of these bits.
    unsafe fn any_have(a: [Self::Integers; 4], bits: Self::Integers) -> bool;
    /// Returns whether any lane has all of its lower 16 bits.
    unsafe fn any_low_ones(a: [Self::Integers; 4]) -> bool;
    /// Returns whether any unsigned u16 is below the bound.
    unsafe fn any_below16(a: Self::Integers, bound: Self::Integers) -> bool;
}

/// One step of a float32's exponent, in its bits.
pub(super) const EXPONENT: u32 = 1 << (f32::MANTISSA_DIGITS - 1);
