//! Entries of piecewise lookup tables of 32 bytes, and codes of 4 bits to packed ones.

use super::vector::Vector;

/// Entries of a table, one for each interval.
pub(crate) const INTERVALS: usize = 32;

/// The operations of a level on tables with an entry for each interval of magnitudes.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Intervals: Vector {
    /// Tables in registers.
    type Entries: Copy;
    /// Loads the tables of the halves of a register. Only the longest registers have two: others take the first one.
    unsafe fn load_entries(tables: [&[u8; INTERVALS]; 2]) -> Self::Entries;
    /// Returns the entries of u16 below 32 in their lower bytes; the upper ones may be anything.
    unsafe fn entries16(entries: Self::Entries, intervals: Self::Integers) -> Self::Integers;
    /// Returns the entries of bytes below 16. The tables are the same.
    unsafe fn entries8(entries: Self::Entries, intervals: Self::Integers) -> Self::Integers;
    /// Stores the u16 of two registers, all below 16, as nibbles: half a register of bytes. The bytes of `weights` tell
    /// where the two nibbles of each go: 1 is low, 16 is high.
    unsafe fn store_nibbles(target: *mut u8, a: Self::Integers, b: Self::Integers, weights: Self::Integers);
}
