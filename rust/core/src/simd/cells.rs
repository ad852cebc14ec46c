//! Codes of few bits by tables of 32 bytes, one for each half of a register.

use super::vector::Vector;

/// Entries of a table.
pub(crate) const CELLS: usize = 32;

/// The operations of a level that looks cells of magnitudes up.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Cells: Vector {
    /// Tables in registers.
    type Cells: Copy;
    /// Loads the tables of the halves of a register. Only the longest registers have two: others take the first one.
    unsafe fn load_cells(tables: [&[u8; CELLS]; 2]) -> Self::Cells;
    /// Returns the entries of u16 below 32. Entry 0 of the first table is 0.
    unsafe fn entries16(cells: Self::Cells, indices: Self::Integers) -> Self::Integers;
    /// Returns the entries of bytes below 16. The tables are the same.
    unsafe fn entries8(cells: Self::Cells, indices: Self::Integers) -> Self::Integers;
    /// Returns one number in the u16 of the lower half, and another in those of the upper half. Only the longest registers
    /// have two: others take the first one.
    #[inline(always)]
    unsafe fn splat_halves16([first, _]: [u16; 2]) -> Self::Integers {
        // SAFETY: the trait's contract.
        unsafe { Self::splat16(first) }
    }
}
