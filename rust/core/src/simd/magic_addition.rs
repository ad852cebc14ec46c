//! F32s to codes of fewer bits by sums, a register at a time.

use super::vector::Vector;

/// What a level without long tables does with singles that become bytes.
///
/// # Safety
/// As for [`Vector`].
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
pub(crate) trait MagicAddition: Vector {
    /// F32s times a power of two, rounded to nearest even: of a power of two that is not above their magnitude, nor
    /// below the smallest, so many bits are left as a sum with it leaves, once an anchor has been added to its bits.
    unsafe fn rounded_by_addition(
        a: Self::F32s,
        smallest_anchor_factor: [Self::Integers; 3],
    ) -> Self::Integers;
    unsafe fn shr32(a: Self::Integers, count: u32) -> Self::Integers;
    /// The lanes of 32 bits of two registers, which have no more than 15, as words, in an order of the level's own.
    unsafe fn pack_u16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The words of two registers, which have no more than 15 bits, as bytes, or the largest, in an order of the level's
    /// own.
    unsafe fn pack_u8(low: Self::Integers, high: Self::Integers) -> Self::Integers;
    /// Bytes with the signs of singles for top bits, in the order of these two.
    unsafe fn signs(a: [Self::F32s; 4]) -> Self::Integers;
    /// Which singles are NaN, in that order.
    unsafe fn nan8(a: [Self::F32s; 4]) -> Self::Mask8;
    /// Whether any is.
    unsafe fn any_nan_of_four(a: [Self::F32s; 4]) -> bool;
    /// Bytes in that order, in the order of memory.
    unsafe fn in_sequence(a: Self::Integers) -> Self::Integers;
}
