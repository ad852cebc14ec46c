//! The weight, piece by piece, and the buffers of a thread.

use std::marker::PhantomData;
use std::sync::Mutex;

use super::operands::refuse;
use super::places::Places;
use super::rounded::single;
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::error::Error;
use crate::kernels::tables::cells::{E4m3Cells, Left};
use crate::kernels::tile::TILE;
use crate::kernels::vectors::shapes::{Shape, shape_of};
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece, pieces};
use crate::quantization::held::with_held;
use crate::quantization::largest::{Extremes, raise_largest};
use crate::quantization::real::{Real, format};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::turned::Turned;
use crate::quantization::work::{Extent, Item, run_items};

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
    let whole = Mutex::new(T::default());
    let tile = (TILE, if source.turns { TURNED } else { 1 });
    run_items(&extent, tile, extent.columns * x.format.item_size(), threads, |item| {
        let mut largest = [T::default()];
        let rows = (item.matrix, item.rows.start, item.rows.len());
        let columns = (item.columns.start, item.columns.end);
        // SAFETY: the caller's promise.
        unsafe {
            source.with_item(item, |buffers| {
                source.raise(rows, columns, (extent.columns, 0), &mut largest, buffers);
            });
        }
        if let Ok(mut whole) = whole.lock() {
            *whole = whole.larger(largest[0]);
        }
        Ok(())
    })?;
    Ok(whole.into_inner().map_or(f64::NAN, T::to_f64))
}

/// Returns floats as their bits.
pub(super) fn bits_of<T: Real>(values: &mut [T]) -> &mut [T::Bits] {
    // SAFETY: as large, and all bits are valid in both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
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

    /// Calls a function with the buffers of this thread, which have the elements of an item if its rows are not dense.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn with_item(&self, item: &Item, function: impl FnOnce(&mut Buffers<T>)) {
        with_held(|buffers: &mut Buffers<T>| {
            if self.turns {
                // SAFETY: the caller's promise.
                unsafe { buffers.raw.turned.fill(self.level, &self.x, item) };
            }
            function(buffers);
            buffers.raw.turned.release();
        });
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

    /// Finds the largest magnitudes, which are 0 before, of blocks side by side in rows between two columns, given the width of blocks and the
    /// number of the first one.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn raise(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (begin, end): (usize, usize),
        (width, first): (usize, usize),
        amax: &mut [T],
        buffers: &mut Buffers<T>,
    ) {
        let Buffers { raw, values, shorts, .. } = buffers;
        // Elements of 16 bits are in the order of their magnitudes after the sign.
        let is_short = matches!(self.shape, Some(Shape::Bf16 | Shape::F16));
        shorts.clear();
        shorts.resize(if is_short { amax.len() } else { 0 }, 0);
        // What lies densely is read where it is.
        let at_once = (self.is_direct || is_short) && (self.turns || self.x.is_dense());
        let step = if at_once { end - begin } else { PIECE };
        for start in (begin..end).step_by(step) {
            let columns = step.min(end - start);
            let blocks = Blocks { width, begun: start % width };
            let here = start / width - first..(start + columns).div_ceil(width) - first;
            // What is read where it is needs no room.
            for (row, rows) in pieces((row, rows), if at_once { 0 } else { columns }) {
                let rows = (matrix, row, rows);
                // SAFETY: the caller's promise.
                unsafe {
                    if is_short {
                        let found = self.read(rows, (start, columns), raw).cast();
                        raise_largest(self.level, found, blocks, &mut shorts[here.clone()]);
                    } else {
                        let room = (&mut *raw, values.0.as_mut_ptr());
                        let found = self.load(rows, (start, columns), room).cast();
                        raise_largest(self.level, found, blocks, bits_of(&mut amax[here.clone()]));
                    }
                }
            }
        }
        if is_short {
            // SAFETY: there are as many.
            unsafe { self.cast.run(shorts.as_ptr().cast(), amax.as_mut_ptr().cast(), shorts.len()) };
        }
    }
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
    /// That of a factor whose cells are found.
    pub(super) own_reciprocal: Vec<f32>,
    pub(super) constant: Vec<T>,
    /// Where the cells of scales begin, of the last item with places, and whether the item in work has these; or the
    /// tables of the blocks of a band.
    pub(super) places: Option<Box<Places>>,
    pub(super) has_places: bool,
    pub(super) cells: Vec<E4m3Cells>,
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
