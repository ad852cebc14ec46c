//! Codes of 4 bits to 16-bit results, by a table of 16 entries for each block of codes.

use super::vector::Vector;

/// The operation of a level that looks nibbles up in tables of their blocks.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait NibbleTables: Vector {
    /// Stores the entries of 32 nibbles from 16 bytes, low ones first: those of the first 16 in the first table, of the
    /// others in the second. Tables have 32 bytes.
    unsafe fn store_entries(tables: [*const u8; 2], codes: *const u8, target: *mut u8);
}
