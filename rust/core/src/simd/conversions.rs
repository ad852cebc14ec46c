//! Floats to integers, and float32 to float64, a register at a time.

use super::vector::Vector;

/// What a level does with floats that become integers or wider floats.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Conversions: Vector {
    /// F32s truncated to integers of 32 bits, clamped; NaN gives 0.
    unsafe fn truncated(a: Self::F32s) -> Self::Integers;
    /// The same of the doubles at the pointer, two registers of them.
    unsafe fn truncated_f64(source: *const u8) -> Self::Integers;
    /// Doubles truncated to integers of 64 bits, likewise.
    unsafe fn truncated64(a: [Self::Integers; 4]) -> [Self::Integers; 4];
    /// Integers of 32 bits clamped to words, with a sign or without.
    unsafe fn clamp_to_16<const SIGNED: bool>(a: [Self::Integers; 2]) -> Self::Integers;
    /// The same to bytes.
    unsafe fn clamp_to_8<const SIGNED: bool>(a: [Self::Integers; 4]) -> Self::Integers;
    /// F32s as doubles.
    unsafe fn to_f64(a: Self::F32s) -> [Self::Integers; 2];
}

/// The first float that is too large for an integer of 32 bits.
#[cfg(target_arch = "x86_64")]
pub(super) const TOO_LARGE: f32 = -(i32::MIN as f32);
