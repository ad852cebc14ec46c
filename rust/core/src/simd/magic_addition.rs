//! float32 to codes of fewer bits by magic-number addition.

use super::vector::Vector;

/// The operations of a level without long tables from float32 to codes of 8 bits.
///
/// # Safety
/// As for [`Vector`].
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
pub(crate) trait MagicAddition: Vector {
    /// Multiplies float32 by the third constant, a power of two, and rounds to nearest even by adding an anchor: the
    /// power of two of each float, at least the first constant, with the second one added to its bits. Returns how many
    /// places of the anchor the sum is away from it, plus the bits of the power shifted right.
    unsafe fn rounded_by_addition(
        a: Self::F32s,
        smallest_anchor_factor: [Self::Integers; 3],
        shift: u32,
    ) -> Self::Integers;
    /// Rounds numbers down to codes, float32 or (unless `SIGNED`) their magnitudes: adds the first constant to their bits
    /// and shifts them right, and adds the third one to their products with the second. Returns the magnitudes of both in
    /// 16 bits, packed as by [`MagicAddition::pack_u16`]; those of products that overflow are large.
    unsafe fn rounded_down<const SIGNED: bool>(
        a: [Self::F32s; 2],
        added_scale_half: [Self::Integers; 3],
        shift: u32,
    ) -> [Self::Integers; 2];
    /// Packs two registers of i32 into one of i16, with saturation, in an order of the level's own.
    unsafe fn pack_u16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Packs two registers of i16 into one of unsigned bytes, with saturation, in an order of the level's own.
    unsafe fn pack_u8(low: Self::Integers, high: Self::Integers) -> Self::Integers;
    /// Returns bytes whose top bits are the signs of float32, in the order of the packed bytes.
    unsafe fn signs(a: [Self::F32s; 4]) -> Self::Integers;
    /// Returns which float32 are NaN, in that order.
    unsafe fn nan8(a: [Self::F32s; 4]) -> Self::Mask8;
    /// Moves bytes from that order to memory order.
    unsafe fn in_sequence(a: Self::Integers) -> Self::Integers;
}
