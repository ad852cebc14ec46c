//! Arrays as rows: some axes of a stack, one of rows, and the axes of a row's items, in C order.

use smallvec::SmallVec;

use crate::cpu::Level;
use crate::format::Format;
use crate::layout::region::in_c_order;
use crate::layout::transfer::{Gaps, gather, scatter};
use crate::layout::{OPERANDS, Run, SOURCE, TARGET};
use crate::plan::operands::Source;

/// An array of a host in native byte order.
#[derive(Clone, Debug)]
pub struct Array {
    /// Its first element.
    pub pointer: *mut u8,
    /// Elements per axis.
    pub shape: SmallVec<[usize; 4]>,
    /// Bytes between elements per axis.
    pub strides: SmallVec<[isize; 4]>,
    /// What its elements are.
    pub format: Format,
}

// SAFETY: the pointer is only followed where the caller of a function of this room promises that it may be, from any
// thread.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    /// Returns rows of a matrix.
    pub(super) fn some_rows(&self, start: usize, count: usize) -> Self {
        let mut rows = self.clone();
        if let [length, ..] = &mut rows.shape[..] {
            *length = count;
            rows.pointer = self.pointer.wrapping_offset(start as isize * self.strides[0]);
        }
        rows
    }

    /// Returns an array in C order in memory that has room for it then; None if there is not so much memory.
    pub(super) fn dense(memory: &mut Vec<u64>, shape: &[usize], format: Format) -> Option<Self> {
        let (strides, bytes) = in_c_order(shape, format.item_size())?;
        let words = bytes.div_ceil(size_of::<u64>());
        if memory.len() < words {
            memory.try_reserve_exact(words - memory.len()).ok()?;
            memory.resize(words, 0);
        }
        Some(Self { pointer: memory.as_mut_ptr().cast(), shape: shape.into(), strides, format })
    }

    pub(super) fn source(&self) -> Source<'_> {
        Source { pointer: self.pointer, strides: &self.strides, format: self.format, swapped: false }
    }
}

/// One axis: its length, and bytes between items.
type Axis = (usize, isize);

/// An array as rows of items.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pointer: *mut u8,
    stack: SmallVec<[Axis; 2]>,
    row_stride: isize,
    /// The axes of a row, merged where possible; the last is the innermost.
    inner: SmallVec<[Axis; 2]>,
    size: usize,
}

// SAFETY: as for `Array`.
unsafe impl Send for Rows {}
// SAFETY: as for `Array`.
unsafe impl Sync for Rows {}

impl Rows {
    /// Takes the first `stack` axes as the stack and the next as rows.
    pub(super) fn new(array: &Array, stack: usize) -> Self {
        let mut axes = array.shape.iter().copied().zip(array.strides.iter().copied());
        let stack: SmallVec<[Axis; 2]> = axes.by_ref().take(stack).collect();
        let row_stride = axes.next().map_or(0, |axis| axis.1);
        let mut inner: SmallVec<[Axis; 2]> = SmallVec::new();
        for (length, stride) in axes.filter(|axis| axis.0 != 1) {
            match inner.last_mut() {
                Some(last) if last.1 == stride * length as isize => *last = (last.0 * length, stride),
                _ => inner.push((length, stride)),
            }
        }
        if inner.is_empty() {
            inner.push((1, array.format.item_size() as isize));
        }
        let size = array.format.item_size();
        Self { pointer: array.pointer, stack, row_stride, inner, size }
    }

    /// Sees as many items elsewhere in memory, as far from each other.
    pub(super) fn set_first(&mut self, pointer: *mut u8) {
        self.pointer = pointer;
    }

    /// Bytes of an item.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Items of a row.
    pub(super) fn width(&self) -> usize {
        self.inner.iter().map(|axis| axis.0).product()
    }

    /// Whether the items of a row are adjacent.
    pub(super) fn is_dense(&self) -> bool {
        self.inner.len() == 1 && (self.inner[0].1 == self.size as isize || self.inner[0].0 <= 1)
    }

    /// Bytes from row to row.
    pub(super) fn pitch(&self) -> isize {
        self.row_stride
    }

    /// Whether rows of so many items follow each other without gaps.
    pub(super) fn is_gapless(&self, items: usize) -> bool {
        self.is_dense() && self.row_stride == (items * self.size) as isize
    }

    /// Whether the items of a row are adjacent, or in runs of adjacent ones at a constant distance: pieces of a row are
    /// moved by one call then.
    pub(super) fn is_in_runs(&self) -> bool {
        self.is_dense() || (self.inner.len() == 2 && self.inner[1].1 == self.size as isize)
    }

    /// Whether each row begins where the one before it would go on, whatever is between items.
    pub(super) fn goes_on(&self) -> bool {
        self.row_stride == self.inner[0].0 as isize * self.inner[0].1
    }

    /// Returns rows of so many items without gaps, in other memory that begins with an item of a row.
    pub(super) fn elsewhere(&self, memory: *mut u8, (row, start, count): (usize, usize, usize)) -> Self {
        let before = (row * count + start) * self.size;
        Self {
            pointer: memory.wrapping_sub(before),
            stack: SmallVec::new(),
            row_stride: (count * self.size) as isize,
            inner: SmallVec::from_slice(&[(count, self.size as isize)]),
            size: self.size,
        }
    }

    /// Returns where a row begins.
    pub(super) fn row(&self, mut stack: usize, row: usize) -> *mut u8 {
        let mut offset = row as isize * self.row_stride;
        for &(length, stride) in self.stack.iter().rev() {
            offset += (stack % length) as isize * stride;
            stack /= length;
        }
        self.pointer.wrapping_offset(offset)
    }

    /// Returns where an item of a row is.
    pub(super) fn item(&self, stack: usize, row: usize, mut item: usize) -> *mut u8 {
        let mut place = self.row(stack, row);
        for &(length, stride) in self.inner.iter().rev() {
            place = place.wrapping_offset((item % length) as isize * stride);
            item /= length;
        }
        place
    }

    /// Calls a function with the run of each piece of items of rows, in the order of their tile.
    fn pieces(&self, (rows, start, count): (usize, usize, usize), mut call: impl FnMut(Run)) {
        let (length, stride) = self.inner[self.inner.len() - 1];
        let strides = [stride; OPERANDS];
        if self.inner.len() == 1 {
            let mut run = Run::row([start as isize * stride; OPERANDS], strides, count);
            (run.rows, run.row_strides) = (rows, [self.row_stride; OPERANDS]);
            call(run);
            return;
        }
        let (runs, pitch) = self.inner[self.inner.len() - 2];
        for row in 0..rows {
            let mut position = start;
            while position < start + count {
                let (within, left) = (position % length, start + count - position);
                let mut offset = row as isize * self.row_stride + within as isize * stride;
                let mut outer = position / length;
                // Whole runs at a constant distance go together. A row that goes on ends only with the piece.
                let most = if self.inner.len() == 2 { left } else { runs - outer % runs };
                let whole = if within == 0 { (left / length).min(most) } else { 0 };
                for axis in (0..self.inner.len() - 1).rev() {
                    let (length, stride) = self.inner[axis];
                    let index = if axis == 0 { outer } else { outer % length };
                    offset += index as isize * stride;
                    outer /= length;
                }
                let taken = if whole > 0 { length } else { (length - within).min(left) };
                let mut run = Run::row([offset; OPERANDS], strides, taken);
                (run.rows, run.row_strides) = (whole.max(1), [pitch; OPERANDS]);
                call(run);
                position += run.len();
            }
        }
    }

    /// Returns items of some rows, and the bytes from row to row: where they are if they are adjacent, else in the room.
    ///
    /// # Safety
    /// They are readable, and there is room for them.
    // Not inlined, as it would be a dozen times; it is called once for a piece.
    #[inline(never)]
    pub(super) unsafe fn read(
        &self,
        level: Level,
        first: *const u8,
        items: (usize, usize, usize),
        room: *mut u8,
    ) -> (*const u8, isize) {
        let (_, start, count) = items;
        if self.is_dense() {
            return (first.wrapping_add(start * self.size), self.row_stride);
        }
        let mut done = 0;
        self.pieces(items, |run| {
            // SAFETY: the caller's promise; what lies between items is part of their array.
            unsafe {
                let to = room.add(done * self.size);
                gather(level, (first, Gaps::Read), SOURCE, &[run], (self.size, false), to);
            }
            done += run.len();
        });
        (room, (count * self.size) as isize)
    }

    /// Writes dense items to some rows.
    ///
    /// # Safety
    /// They are writable, and the tile holds them.
    #[inline(never)]
    pub(super) unsafe fn write(
        &self,
        level: Level,
        first: *mut u8,
        items: (usize, usize, usize),
        tile: *const u8,
    ) {
        let mut done = 0;
        self.pieces(items, |run| {
            // SAFETY: the caller's promise.
            unsafe {
                scatter(level, tile.add(done * self.size), first, TARGET, &[run], (self.size, false));
            }
            done += run.len();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of u16 whose items have these axes, in an array of three rows that is its own indices.
    fn rows(memory: &mut [u16], row: isize, axes: &[Axis]) -> Rows {
        let (pointer, bytes) = (memory.as_mut_ptr().cast(), |stride: isize| stride * 2);
        let shape = [3].into_iter().chain(axes.iter().map(|axis| axis.0)).collect();
        let strides = [bytes(row)].into_iter().chain(axes.iter().map(|axis| bytes(axis.1))).collect();
        let format = Format::named("uint16").expect("it is in the table");
        Rows::new(&Array { pointer, shape, strides, format }, 0)
    }

    #[test]
    fn pieces_of_rows_with_gaps() {
        let mut memory: Vec<u16> = (0..400).collect();
        let all: [(isize, &[Axis], bool, bool); 6] = [
            (40, &[(5, 7), (4, 1)], true, false),
            (35, &[(5, 7), (4, 1)], true, true),
            (60, &[(3, 18), (2, 7), (4, 1)], false, false),
            (54, &[(3, 18), (2, 7), (4, 1)], false, true),
            (40, &[(5, 8), (4, 2)], false, true),
            (35, &[(5, 7)], false, true),
        ];
        for (row, axes, in_runs, goes_on) in all {
            let rows = rows(&mut memory, row, axes);
            assert_eq!((rows.is_in_runs(), rows.goes_on()), (in_runs, goes_on), "{axes:?}");
            let width = rows.width();
            let index = |row: usize, item: usize| {
                let place = rows.item(0, row + item / width, item % width);
                // SAFETY: within the memory, by the axes.
                unsafe { place.cast::<u16>().read_unaligned() }
            };
            // A row that goes on has the items of those after it.
            let longest = if goes_on { 3 * width } else { width };
            for (start, end) in
                (0..longest).flat_map(|start| (start + 1..=longest).map(move |end| (start, end)))
            {
                let number = if goes_on { 1 } else { 3 };
                let mut room = [0u16; 100];
                // SAFETY: as above; the room is larger than all rows.
                let (first, pitch) = unsafe {
                    let room = room.as_mut_ptr().cast();
                    rows.read(Level::active(), rows.row(0, 0), (number, start, end - start), room)
                };
                for (row, item) in (0..number).flat_map(|row| (start..end).map(move |item| (row, item))) {
                    let place = first.wrapping_offset(row as isize * pitch).cast::<u16>();
                    // SAFETY: as above.
                    let found = unsafe { place.add(item - start).read_unaligned() };
                    assert_eq!(found, index(row, item), "{axes:?} {start}..{end}");
                }
            }
        }
    }
}
