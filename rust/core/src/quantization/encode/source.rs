//! The weight, piece by piece.

use std::marker::PhantomData;

use crate::cast::Prepared;
use crate::cpu::Level;
use crate::error::Error;
use crate::kernels::vectors::shapes::{Shape, shape_of};
use crate::quantization::arithmetic::{Area, PIECE, Piece};
use crate::quantization::largest::raise_largest;
use crate::quantization::real::{Real, format};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::transposed::TransposedItem;
use crate::quantization::work::{Columns, Extent, Item, Place};

/// Returns floats as their bits.
pub(super) fn bits_of<T: Real>(values: &mut [T]) -> &mut [T::Bits] {
    // SAFETY: by `Real`, they are as large, and any bits are a value of both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// Returns a bf16 as a float.
pub(super) fn of_bf16<T: Real>(bits: u16) -> T {
    T::from_f32(f32::from_bits(u32::from(bits) << u16::BITS))
}

/// Rows that are moved together, at least: their elements in a column fill a line of the cache.
pub(super) const TRANSPOSED_ROWS: usize = 16;

/// The weight, as pieces of floats.
pub(super) struct Source<T> {
    pub(super) x: Rows,
    cast: Prepared,
    /// Elements are floats of the type already.
    is_direct: bool,
    /// Rows are not dense, and items are moved before they are read.
    pub(super) transposes: bool,
    shape: Option<Shape>,
    /// Columns of a block.
    width: usize,
    level: Level,
    real: PhantomData<T>,
}

impl<T: Real> Source<T> {
    pub(super) fn new(x: &Array, extent: &Extent) -> Result<Self, Error> {
        let rows = Rows::new(x, extent.stack.len());
        Ok(Self {
            cast: Prepared::new(x.format, None, format::<T>())?,
            is_direct: x.format == format::<T>(),
            transposes: !rows.is_dense(),
            shape: x.format.float().and_then(|spec| shape_of(&spec)),
            x: rows,
            width: extent.block.1,
            level: Level::active(),
            real: PhantomData,
        })
    }

    /// Whether elements are the upper halves of float32.
    pub(super) fn is_bf16(&self) -> bool {
        self.shape == Some(Shape::Bf16)
    }

    /// Moves an item to the buffers, if its rows are not dense, where it is until they are released.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn fill(&self, item: &Item, stored: &mut Stored) {
        if self.transposes {
            // SAFETY: the caller's promise.
            unsafe { stored.item.fill(self.level, &self.x, item) };
        }
    }

    /// Returns a piece of some rows as it is stored: where it is, which may not be aligned, or in the room for it.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn read(&self, place: Place, columns: Columns, stored: &mut Stored) -> Area<*const u8> {
        let (x, room) = (stored.item.of(&self.x), stored.piece.0.as_mut_ptr().cast());
        let (Place { matrix, row, rows }, Columns { start, count }) = (place, columns);
        // SAFETY: the caller's promise; elements have up to 8 bytes.
        unsafe {
            let (first, pitch) = x.read(self.level, x.row(matrix, row), (rows, start, count), room);
            Area { first, pitch, rows, columns: count }
        }
    }

    /// Returns a piece as floats: where it is, or in the room for it.
    ///
    /// # Safety
    /// The elements are readable, and there is room for them.
    pub(super) unsafe fn load(
        &self,
        place: Place,
        columns: Columns,
        stored: &mut Stored,
        room: *mut T,
    ) -> Area<*const T> {
        // SAFETY: the caller's promise.
        unsafe {
            let area = self.read(place, columns, stored);
            if self.is_direct {
                return area.cast();
            }
            let Area { rows, columns, .. } = area;
            if area.is_gapless(self.x.size()) {
                self.cast.convert(area.first, room.cast(), rows * columns);
            } else {
                for row in 0..rows {
                    self.cast.convert(area.row(row), room.add(row * columns).cast(), columns);
                }
            }
            Area { first: room, pitch: (columns * size_of::<T>()) as isize, rows, columns }
        }
    }

    /// Whether elements of 16 bits are in the order of their magnitudes after the sign.
    fn is_short(&self) -> bool {
        matches!(self.shape, Some(Shape::Bf16 | Shape::F16))
    }

    /// Finds the largest magnitudes, which are 0 before, of blocks side by side in rows, given the number of the first one.
    /// Those of elements of 16 bits are found as such.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn raise(
        &self,
        place: Place,
        columns: Columns,
        first: usize,
        (amax, shorts): (&mut [T], &mut Vec<u16>),
        elements: &mut Elements<T>,
    ) {
        let Elements { stored, values } = elements;
        if T::IS_SINGLE && self.is_short() {
            shorts.clear();
            shorts.resize(amax.len(), 0);
            // SAFETY: the caller's promise; there are as many.
            unsafe {
                self.raise_shorts(place, columns, first, shorts, stored);
                self.cast.convert(shorts.as_ptr().cast(), amax.as_mut_ptr().cast(), shorts.len());
            }
            return;
        }
        for (place, columns) in self.pieces(place, columns, self.is_direct) {
            let (blocks, places) = columns.in_blocks(self.width, first);
            // SAFETY: the caller's promise.
            unsafe {
                let area = self.load(place, columns, stored, values.0.as_mut_ptr()).cast();
                raise_largest(self.level, area, blocks, bits_of(&mut amax[places]));
            }
        }
    }

    /// Finds those of elements of 16 bits.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn raise_shorts(
        &self,
        place: Place,
        columns: Columns,
        first: usize,
        shorts: &mut [u16],
        stored: &mut Stored,
    ) {
        for (place, columns) in self.pieces(place, columns, true) {
            let (blocks, places) = columns.in_blocks(self.width, first);
            // SAFETY: the caller's promise.
            unsafe {
                let area = self.read(place, columns, stored).cast();
                raise_largest(self.level, area, blocks, &mut shorts[places]);
            }
        }
    }

    /// Returns rows and columns that are read at once: what lies densely, where it is, without room.
    fn pieces(
        &self,
        place: Place,
        columns: Columns,
        is_direct: bool,
    ) -> impl Iterator<Item = (Place, Columns)> {
        let at_once = is_direct && (self.transposes || self.x.is_dense());
        let step = if at_once { columns.count.max(1) } else { PIECE };
        columns.groups(step).flat_map(move |columns| {
            let elements = if at_once { 0 } else { columns.count };
            place.pieces(elements).map(move |place| (place, columns))
        })
    }
}

/// Elements of the weight that are not read where they are: a piece, or an item.
#[derive(Default)]
pub(super) struct Stored {
    piece: Box<Piece<u64>>,
    item: TransposedItem,
}

impl Stored {
    /// Returns room for a piece.
    pub(super) fn room(&mut self) -> *mut u8 {
        self.piece.0.as_mut_ptr().cast()
    }

    /// Forgets the item.
    pub(super) fn release(&mut self) {
        self.item.release();
    }
}

/// Elements of the weight, as they are stored, and as floats.
#[derive(Default)]
pub(super) struct Elements<T: Real> {
    pub(super) stored: Stored,
    pub(super) values: Box<Piece<T>>,
}
