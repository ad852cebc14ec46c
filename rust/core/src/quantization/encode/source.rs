//! The weight, piece by piece, and the buffers of a thread.

use std::marker::PhantomData;
use std::ops::Range;

use super::operands::refuse;
use super::rounded::single;
use super::scale_tables::ScaleTables;
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::error::Error;
use crate::kernels::tables::e4m3_codes::{Left, Lookup};
use crate::kernels::tile::TILE;
use crate::kernels::vectors::shapes::{Shape, shape_of};
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece, pieces};
use crate::quantization::largest::{Extremes, raise_largest};
use crate::quantization::real::{Real, format};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::turned::Turned;
use crate::quantization::work::{Extent, Item, ItemPass, run_items};

/// Returns the largest magnitude of an array: NaN if an element is NaN, 0 if there are none.
///
/// # Errors
/// [`Error::InvalidOption`] if the elements are not floats.
///
/// # Safety
/// The elements are readable.
pub unsafe fn block_amax(x: &Array, threads: usize) -> Result<f64, Error> {
    if x.format.float().is_none() {
        return refuse(format!("x has dtype {}; use a real float.", x.format.name()));
    }
    // SAFETY: passed on.
    unsafe {
        if x.format.float().is_some_and(|spec| spec.fits_in(&single())) {
            largest_of::<f32>(x, threads)
        } else {
            largest_of::<f64>(x, threads)
        }
    }
}

/// # Safety
/// As for [`block_amax`].
unsafe fn largest_of<T: Real>(x: &Array, threads: usize) -> Result<f64, Error> {
    let extent = Extent::of("x", x, (0, 0))?;
    let source = Source::<T>::new(x, &extent)?;
    let tile = (TILE, if source.turns { TURNED } else { 1 });
    let bytes = extent.columns * x.format.item_size();
    let pass = ArrayAmax { source, columns: extent.columns };
    // SAFETY: the caller's promise.
    Ok(unsafe { run_items(&pass, &extent, tile, bytes, threads) }.to_f64())
}

/// Finds the largest magnitude of an array.
struct ArrayAmax<T> {
    source: Source<T>,
    columns: usize,
}

impl<T: Real> ItemPass for ArrayAmax<T> {
    type Buffers = Buffers<T>;
    type Outcome = T;

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers<T>, amax: &mut T) {
        let mut largest = [T::default()];
        let rows = (item.matrix, item.rows.start, item.rows.len());
        let columns = (item.columns.start, item.columns.end);
        // SAFETY: the caller's promise.
        unsafe {
            self.source.with_item(item, buffers, |buffers| {
                self.source.raise(rows, columns, (self.columns, 0), &mut largest, buffers);
            });
        }
        *amax = amax.larger(largest[0]);
    }

    fn merge(amax: &mut T, next: T) {
        *amax = amax.larger(next);
    }
}

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
pub(super) const TURNED: usize = 16;

/// The weight, as pieces of floats.
pub(super) struct Source<T> {
    pub(super) x: Rows,
    pub(super) cast: Prepared,
    /// Elements are floats of the type already.
    pub(super) is_direct: bool,
    /// Rows are not dense, and items are moved before they are read.
    pub(super) turns: bool,
    shape: Option<Shape>,
    pub(super) level: Level,
    pub(super) real: PhantomData<T>,
}

impl<T: Real> Source<T> {
    pub(super) fn new(x: &Array, extent: &Extent) -> Result<Self, Error> {
        let rows = Rows::new(x, extent.stack.len());
        Ok(Self {
            cast: Prepared::new(x.format, None, format::<T>())?,
            is_direct: x.format == format::<T>(),
            turns: !rows.is_dense(),
            shape: x.format.float().and_then(|spec| shape_of(&spec)),
            x: rows,
            level: Level::active(),
            real: PhantomData,
        })
    }

    /// Whether elements are the upper halves of float32.
    pub(super) fn is_bf16(&self) -> bool {
        self.shape == Some(Shape::Bf16)
    }

    /// Calls a function with the buffers, which have the elements of an item if its rows are not dense.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn with_item<R>(
        &self,
        item: &Item,
        buffers: &mut Buffers<T>,
        function: impl FnOnce(&mut Buffers<T>) -> R,
    ) -> R {
        if self.turns {
            // SAFETY: the caller's promise.
            unsafe { buffers.raw.turned.fill(self.level, &self.x, item) };
        }
        let result = function(buffers);
        buffers.raw.turned.release();
        result
    }

    /// Returns a piece of some rows, given their first column and their number of columns, as it is stored: where it is,
    /// which may not be aligned, or in the room for it.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn read(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, columns): (usize, usize),
        raw: &mut Raw,
    ) -> Area<*const u8> {
        let (x, room) = (raw.turned.of(&self.x), raw.piece.0.as_mut_ptr().cast());
        // SAFETY: the caller's promise; elements have up to 8 bytes.
        unsafe {
            let (first, pitch) = x.read(self.level, x.row(matrix, row), (rows, start, columns), room);
            Area { first, pitch, rows, columns }
        }
    }

    /// Does the same as floats.
    ///
    /// # Safety
    /// The elements are readable, and there is room for them.
    pub(super) unsafe fn load(
        &self,
        rows: (usize, usize, usize),
        columns: (usize, usize),
        (raw, room): (&mut Raw, *mut T),
    ) -> Area<*const T> {
        // SAFETY: the caller's promise.
        unsafe {
            let found = self.read(rows, columns, raw);
            if self.is_direct {
                return found.cast();
            }
            let Area { rows, columns, .. } = found;
            if found.is_gapless(self.x.size()) {
                self.cast.run(found.first, room.cast(), rows * columns);
            } else {
                for row in 0..rows {
                    self.cast.run(found.row(row), room.add(row * columns).cast(), columns);
                }
            }
            Area { first: room, pitch: (columns * size_of::<T>()) as isize, rows, columns }
        }
    }

    /// Whether elements of 16 bits are in the order of their magnitudes after the sign.
    fn is_short(&self) -> bool {
        matches!(self.shape, Some(Shape::Bf16 | Shape::F16))
    }

    /// Finds the largest magnitudes, which are 0 before, of blocks side by side in rows between two columns, given the
    /// width of blocks and the number of the first one.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn raise(
        &self,
        rows: (usize, usize, usize),
        columns: (usize, usize),
        (width, first): (usize, usize),
        amax: &mut [T],
        buffers: &mut Buffers<T>,
    ) {
        if self.is_short() {
            // SAFETY: the caller's promise; there are as many.
            unsafe {
                self.raise_shorts(rows, columns, (width, first), amax.len(), buffers);
                let shorts = &buffers.shorts;
                self.cast.run(shorts.as_ptr().cast(), amax.as_mut_ptr().cast(), shorts.len());
            }
            return;
        }
        let Buffers { raw, values, .. } = buffers;
        for (rows, columns) in self.pieces(rows, columns, self.is_direct) {
            let (blocks, here) = blocks_of(columns, (width, first));
            // SAFETY: the caller's promise.
            unsafe {
                let found = self.load(rows, columns, (&mut *raw, values.0.as_mut_ptr())).cast();
                raise_largest(self.level, found, blocks, bits_of(&mut amax[here]));
            }
        }
    }

    /// Finds those of elements of 16 bits, of so many blocks.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn raise_shorts(
        &self,
        rows: (usize, usize, usize),
        columns: (usize, usize),
        (width, first): (usize, usize),
        count: usize,
        buffers: &mut Buffers<T>,
    ) {
        let Buffers { raw, shorts, .. } = buffers;
        shorts.clear();
        shorts.resize(count, 0);
        for (rows, columns) in self.pieces(rows, columns, true) {
            let (blocks, here) = blocks_of(columns, (width, first));
            // SAFETY: the caller's promise.
            unsafe {
                let found = self.read(rows, columns, raw).cast();
                raise_largest(self.level, found, blocks, &mut shorts[here]);
            }
        }
    }

    /// Returns rows and columns that are read at once: what lies densely, where it is, without room.
    fn pieces(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (begin, end): (usize, usize),
        is_direct: bool,
    ) -> impl Iterator<Item = ((usize, usize, usize), (usize, usize))> {
        let at_once = is_direct && (self.turns || self.x.is_dense());
        let step = if at_once { (end - begin).max(1) } else { PIECE };
        (begin..end).step_by(step).flat_map(move |start| {
            let columns = step.min(end - start);
            let elements = if at_once { 0 } else { columns };
            pieces((row, rows), elements).map(move |(row, rows)| ((matrix, row, rows), (start, columns)))
        })
    }
}

/// Returns the blocks of some columns, and their places among those from a first one on.
fn blocks_of((start, columns): (usize, usize), (width, first): (usize, usize)) -> (Blocks, Range<usize>) {
    let here = start / width - first..(start + columns).div_ceil(width) - first;
    (Blocks { width, begun: start % width }, here)
}

/// Elements of the weight that are not read where they are: a piece, or an item.
#[derive(Default)]
pub(super) struct Raw {
    piece: Piece<u64>,
    turned: Turned,
}

/// The buffers of a thread; vectors have an entry for each block of a band.
#[derive(Default)]
pub(super) struct Buffers<T: Real> {
    pub(super) raw: Raw,
    /// Packed codes of an item whose rows are not dense.
    pub(super) turned: Turned,
    pub(super) values: Piece<T>,
    pub(super) codes: Piece<u8>,
    pub(super) packed: Piece<u32>,
    pub(super) bytes: Vec<u8>,
    pub(super) rounded: Vec<u8>,
    /// The largest magnitudes of elements of 16 bits.
    pub(super) shorts: Vec<u16>,
    pub(super) amax: Vec<T>,
    pub(super) extremes: Vec<Extremes<T>>,
    pub(super) scale: Vec<T>,
    pub(super) factors: Vec<T>,
    pub(super) shifts: Vec<T>,
    pub(super) reciprocals: Vec<f32>,
    /// Those of factors whose tables are made.
    pub(super) own_reciprocals: Vec<f32>,
    pub(super) constant: Vec<T>,
    /// The tables of all stored scales that were made last; whether they are those of the item in work, and whether they
    /// have the codes of all blocks of the band.
    pub(super) tables: Option<Box<ScaleTables>>,
    pub(super) has_tables: bool,
    pub(super) by_scale: bool,
    /// The tables of blocks, or none.
    pub(super) of_blocks: Vec<Lookup>,
    pub(super) left: Vec<Left>,
}

impl<T: Real> Buffers<T> {
    /// Forgets the blocks of the last band, and makes room for these, with extremes or without.
    pub(super) fn clear(&mut self, blocks: usize, widens: bool) {
        self.amax.clear();
        self.amax.resize(blocks, T::default());
        self.extremes.clear();
        self.extremes.resize(if widens { blocks } else { 0 }, Extremes::default());
    }
}
