//! Arrays as rows: some axes of a stack, one of rows, and the axes of a row's items, in C order.

use smallvec::SmallVec;

use crate::cpu::Level;
use crate::format::Format;
use crate::layout::transfer::{Gaps, gather, scatter};
use crate::layout::{OPERANDS, Run, SOURCE, TARGET};

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
        for row in 0..rows {
            let mut position = start;
            while position < start + count {
                let within = position % length;
                let taken = (length - within).min(start + count - position);
                let mut offset = row as isize * self.row_stride + within as isize * stride;
                let mut outer = position / length;
                for &(length, stride) in self.inner.iter().rev().skip(1) {
                    offset += (outer % length) as isize * stride;
                    outer /= length;
                }
                call(Run::row([offset; OPERANDS], strides, taken));
                position += taken;
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
