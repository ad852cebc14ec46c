//! Items of rows that are not dense in their array, row by row without gaps: moved together, they cross the array in whole
//! lines of the cache.

use super::rows::Rows;
use super::work::{Columns, Item, Place};
use crate::cpu::Level;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The memory of a thread for an item.
#[derive(Default)]
pub(super) struct TransposedItem {
    memory: Vec<u64>,
    rows: Option<Rows>,
}

impl TransposedItem {
    /// Makes room for some items of rows of an array.
    pub(super) fn make(&mut self, array: &Rows, place: Place, items: Columns) -> *mut u8 {
        let bytes = place.rows * items.count * array.size();
        self.memory.resize(self.memory.len().max(bytes.div_ceil(size_of::<u64>())), 0);
        let memory = self.memory.as_mut_ptr().cast();
        self.rows = Some(array.elsewhere(memory, (place.row, items.start, items.count)));
        memory
    }

    /// Fills the memory with an item.
    ///
    /// # Safety
    /// Its elements are readable.
    pub(super) unsafe fn fill(&mut self, level: Level, array: &Rows, item: &Item) {
        let to = self.make(array, item.place(), Columns::of(&item.columns));
        let (row, rows) = (item.rows.start, item.rows.len());
        let (start, columns) = (item.columns.start, item.columns.len());
        let (size, side) = (array.size(), LINE / array.size());
        // By way of a small square, because lines that are a power of two apart push each other out of the cache.
        let mut square = [0u64; LINE * LINE / size_of::<u64>()];
        let square = square.as_mut_ptr().cast::<u8>();
        for left in (0..columns).step_by(LINE) {
            for above in (0..rows).step_by(side) {
                let (rows, wide) = (side.min(rows - above), LINE.min(columns - left));
                let to = to.wrapping_add((above * columns + left) * size);
                let bytes = wide * size;
                // SAFETY: the caller's promise; there is room for the elements of the item, and of the square.
                unsafe {
                    let from = array.row(item.matrix, row + above);
                    let (first, pitch) = array.read(level, from, (rows, start + left, wide), square);
                    for row in 0..rows {
                        let line = first.offset(row as isize * pitch);
                        to.add(row * columns * size).copy_from_nonoverlapping(line, bytes);
                    }
                }
            }
        }
    }

    /// Returns the rows that stand for those of an array, or these.
    pub(super) fn of<'a>(&'a self, array: &'a Rows) -> &'a Rows {
        self.rows.as_ref().unwrap_or(array)
    }

    /// Forgets the rows.
    pub(super) fn release(&mut self) {
        self.rows = None;
    }
}
