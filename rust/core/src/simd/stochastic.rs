//! Operations on 32-bit lanes, for draws and stochastic rounding.

use super::conversions::Conversions;

/// The operations of a level on 32-bit lanes.
///
/// # Safety
/// As for [`Vector`](super::vector::Vector).
pub(crate) trait StochasticOps: Conversions {
    /// Loads as many of these lanes as a register has.
    unsafe fn load32(lanes: &[u32; 16]) -> Self::Integers;
    unsafe fn xor(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn add32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn sub32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The low 32 bits of products.
    unsafe fn mul32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of unsigned lanes.
    unsafe fn min32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn shr32<const COUNT: u32>(a: Self::Integers) -> Self::Integers;
    /// Returns all ones where the sign is set, and zero elsewhere.
    unsafe fn signs32(a: Self::Integers) -> Self::Integers;
    /// Clamps the upper 16 bits to 8 bits, signed or unsigned.
    #[inline(always)]
    unsafe fn clamp_upper_to_8<const SIGNED: bool>([a, b, c, d]: [Self::Integers; 4]) -> Self::Integers {
        // SAFETY: the trait's contract.
        unsafe {
            let (a, b) = (Self::upper_signed32(a), Self::upper_signed32(b));
            Self::clamp_to_8::<SIGNED>([a, b, Self::upper_signed32(c), Self::upper_signed32(d)])
        }
    }
    /// Shifts right by 16 bits, and fills with the sign.
    unsafe fn upper_signed32(a: Self::Integers) -> Self::Integers;
    /// The smaller of float32, none of them NaN.
    unsafe fn smaller(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Shifts left by 16 bits.
    unsafe fn raised(a: Self::Integers) -> Self::Integers;
    /// Shifts all lanes right by one count below 32.
    unsafe fn shr32_by(a: Self::Integers, count: u32) -> Self::Integers;
    /// Shifts u16 right by one count below 16.
    unsafe fn shr16_by(a: Self::Integers, count: u32) -> Self::Integers;
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
