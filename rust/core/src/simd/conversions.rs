//! Floats to integers, and float32 to float64 and sums of these, a register at a time.

use super::vector::{Vector, rounding};

/// The operations of a level from floats to integers and to wider floats.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Conversions: Vector {
    /// Whether [`Conversions::any_doubtful`] says so wherever a number is NaN or outside the range.
    const DOUBTS: bool = false;
    /// Truncates float32 to 32-bit integers, clamped; NaN gives 0.
    unsafe fn truncated(a: Self::F32s) -> Self::Integers;
    /// Truncates four registers to unsigned 32-bit integers, clamped; NaN gives 0.
    unsafe fn truncated_unsigned(a: [Self::F32s; 4]) -> [Self::Integers; 4];
    /// Loads two registers of float64 and truncates them to 32-bit integers, signed or unsigned.
    unsafe fn truncated_f64<const SIGNED: bool>(source: *const u8) -> Self::Integers;
    /// Does the same for signed integers in fewer instructions, unless [`Conversions::any_doubtful`] says otherwise.
    #[inline(always)]
    unsafe fn truncated_quickly_f64(source: *const u8) -> Self::Integers {
        Self::truncated_f64::<true>(source)
    }
    /// Returns whether any integer may come from NaN or a number outside the range.
    #[inline(always)]
    unsafe fn any_doubtful(_a: [Self::Integers; 4]) -> bool {
        false
    }
    /// Truncates float64 to 64-bit integers, signed or unsigned, clamped; NaN gives 0.
    unsafe fn truncated64<const SIGNED: bool>(a: [Self::Integers; 4]) -> [Self::Integers; 4];
    /// Clamps 32-bit integers to 16 bits, signed or unsigned.
    unsafe fn clamp_to_16<const SIGNED: bool>(a: [Self::Integers; 2]) -> Self::Integers;
    /// Clamps 32-bit integers to 8 bits, signed or unsigned.
    unsafe fn clamp_to_8<const SIGNED: bool>(a: [Self::Integers; 4]) -> Self::Integers;
    /// Rounds float32 to whole numbers, in one of the [`rounding`](super::rounding)s.
    unsafe fn whole<const ROUNDING: i32>(a: Self::F32s) -> Self::F32s;
    /// Rounds float32 to 32-bit integers, clamped, and NaN to 0, unless [`Conversions::any_doubtful`] says otherwise.
    unsafe fn rounded_quickly<const ROUNDING: i32>(a: Self::F32s) -> Self::Integers;
    /// Does the same to nearest, ties away from zero, for numbers below 2^22 in magnitude; others may be one off.
    #[inline(always)]
    unsafe fn rounded_away_quickly(a: Self::F32s) -> Self::Integers {
        const { assert!(Self::DOUBTS, "infinities become NaN") };
        // A last bit that is set lifts ties above the middle, and moves no other number to another side.
        let lifted = Self::from_bits(Self::or(Self::bits(a), Self::splat32(1)));
        Self::rounded_quickly::<{ rounding::NEAREST_EVEN }>(lifted)
    }
    /// Returns whether any bit differs between two times four registers.
    unsafe fn any_unequal(a: [Self::Integers; 4], b: [Self::Integers; 4]) -> bool;
    /// Converts float32 to float64.
    unsafe fn to_f64(a: Self::F32s) -> [Self::Integers; 2];
    /// Products of the first two plus the third, rounded to nearest once.
    unsafe fn product_sum_f64(a: Self::Integers, b: Self::Integers, c: Self::Integers) -> Self::Integers;
}

/// The smallest float that is too large for a 32-bit integer.
#[cfg(target_arch = "x86_64")]
pub(super) const TOO_LARGE: f32 = -(i32::MIN as f32);
