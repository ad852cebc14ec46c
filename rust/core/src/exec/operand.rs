//! The elements of an array, tile by tile: where they are, or copied to and from the buffers of a thread.

use crate::cpu::Level;
use crate::layout::transfer::{Gaps, gather, scatter};
use crate::layout::{Layout, Run};

/// An array that a pass reads or writes. Where its elements are, a [`Layout`] says.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) pointer: *mut u8,
    /// Its number among the operands of the layout.
    pub(crate) number: usize,
    /// Bytes of an element.
    pub(crate) size: usize,
    /// Whether elements are in the other byte order.
    pub(crate) swapped: bool,
    /// Whether elements are in native byte order and without gaps, so that no tile is copied.
    pub(crate) direct: bool,
}

// SAFETY: the pointer is only followed in `Pass::process`, whose caller promises that it may be, from any thread.
unsafe impl Send for Operand {}
// SAFETY: as above.
unsafe impl Sync for Operand {}

impl Operand {
    #[inline(always)]
    pub(crate) fn new(
        pointer: *mut u8,
        (layout, number): (&Layout, usize),
        (size, swapped): (usize, bool),
    ) -> Self {
        let swapped = swapped && size > 1; // single bytes have no order
        let direct = !swapped && layout.is_dense(number, size);
        Self { pointer, number, size, swapped, direct }
    }

    /// Returns where the first element of the runs is.
    pub(crate) fn first(&self, runs: &[Run]) -> *mut u8 {
        self.pointer.wrapping_offset(runs[0].offsets[self.number])
    }

    /// Returns the elements of the runs: where they are, or copied to the room.
    ///
    /// # Safety
    /// They are readable, and with [`Gaps::Read`] memory between them is too; the room has as many bytes.
    #[inline]
    pub(crate) unsafe fn read(&self, level: Level, gaps: Gaps, runs: &[Run], room: *mut u8) -> *const u8 {
        if self.direct {
            return self.first(runs).cast_const();
        }
        // SAFETY: passed on.
        unsafe { self.gather(level, gaps, runs, room) };
        room.cast_const()
    }

    /// Copies the elements of the runs to the room, in native byte order.
    ///
    /// # Safety
    /// As for [`Operand::read`].
    pub(crate) unsafe fn gather(&self, level: Level, gaps: Gaps, runs: &[Run], room: *mut u8) {
        let from = (self.pointer.cast_const(), gaps);
        // SAFETY: passed on.
        unsafe { gather(level, from, self.number, runs, (self.size, self.swapped), room) };
    }

    /// Copies elements in native byte order from a tile to where those of the runs are.
    ///
    /// # Safety
    /// They are writable, and the tile has as many.
    pub(crate) unsafe fn scatter(&self, level: Level, tile: *const u8, runs: &[Run]) {
        // SAFETY: passed on.
        unsafe { scatter(level, tile, self.pointer, self.number, runs, (self.size, self.swapped)) };
    }
}
