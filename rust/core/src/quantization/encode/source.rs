//! The weight, piece by piece, and the buffers of a thread.

use std::marker::PhantomData;
use std::sync::Mutex;

use super::operands::refuse;
use super::rounded::single;
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::error::Error;
use crate::kernels::tile::TILE;
use crate::kernels::vectors::shapes::{Shape, shape_of};
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece, on_level, pieces};
use crate::quantization::held::with_held;
use crate::quantization::largest::{Extremes, raise_largest};
use crate::quantization::real::{Real, format};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::work::{Extent, run_items};

/// Returns the largest magnitude of an array: NaN if an element is NaN, 0 if there are none.
///
/// # Errors
/// [`Error::InvalidOption`] if the elements are not floats.
///
/// # Safety
/// The elements are readable.
pub unsafe fn block_amax(x: &Array<'_>, threads: usize) -> Result<f64, Error> {
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
unsafe fn largest_of<T: Real>(x: &Array<'_>, threads: usize) -> Result<f64, Error> {
    let extent = Extent::of("x", x, (0, 0))?;
    let source = Source::<T>::new(x, &extent)?;
    let whole = Mutex::new(T::default());
    run_items(&extent, (TILE, 1), extent.columns * x.format.item_size(), threads, |item| {
        let mut largest = [T::default()];
        let rows = (item.matrix, item.rows.start, item.rows.len());
        let columns = (item.columns.start, item.columns.end);
        with_held(|buffers| {
            // SAFETY: the caller's promise.
            unsafe { source.raise(rows, columns, (extent.columns, 0), &mut largest, buffers) };
        });
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

/// The weight, as pieces of floats.
pub(super) struct Source<T> {
    pub(super) x: Rows,
    pub(super) cast: Prepared,
    /// Elements are floats of the type already, and need not be moved.
    pub(super) is_direct: bool,
    /// Elements have 16 bits, in the order of their magnitudes after the sign.
    pub(super) is_short: bool,
    /// They are the upper halves of float32.
    pub(super) is_bf16: bool,
    pub(super) level: Level,
    pub(super) real: PhantomData<T>,
}

impl<T: Real> Source<T> {
    pub(super) fn new(x: &Array<'_>, extent: &Extent) -> Result<Self, Error> {
        let rows = Rows::new(x, extent.stack.len());
        let shape = x.format.float().and_then(|spec| shape_of(&spec));
        Ok(Self {
            cast: Prepared::new(x.format, None, format::<T>())?,
            is_direct: rows.is_dense() && x.format == format::<T>(),
            is_short: matches!(shape, Some(Shape::Bf16 | Shape::F16)),
            is_bf16: shape == Some(Shape::Bf16),
            x: rows,
            level: Level::active(),
            real: PhantomData,
        })
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
        raw: &mut Piece<u64>,
    ) -> Area<*const u8> {
        // SAFETY: the caller's promise; elements have up to 8 bytes.
        unsafe {
            let (from, room) = (self.x.row(matrix, row), raw.0.as_mut_ptr().cast());
            let (first, pitch) = self.x.read(self.level, from, (rows, start, columns), room);
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
        (raw, room): (&mut Piece<u64>, *mut T),
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

    /// Raises the largest magnitudes of blocks side by side by rows between two columns, given the width of blocks and the
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
        let Buffers { raw, values, shorts, constant, .. } = buffers;
        shorts.clear();
        shorts.resize(if self.is_short { amax.len() } else { 0 }, 0);
        // What lies densely is read where it is.
        let at_once = self.is_direct || (self.is_short && self.x.is_dense());
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
                    if self.is_short {
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
        if self.is_short {
            constant.clear();
            constant.resize(amax.len(), T::default());
            // SAFETY: there are as many.
            unsafe { self.cast.run(shorts.as_ptr().cast(), constant.as_mut_ptr().cast(), shorts.len()) };
            on_level::<T>(self.level, || {
                for (amax, &found) in amax.iter_mut().zip(constant.iter()) {
                    *amax = amax.larger(found);
                }
            });
        }
    }
}

/// The buffers of a thread; vectors have an entry for each block of a band.
#[derive(Default)]
pub(super) struct Buffers<T: Real> {
    pub(super) raw: Piece<u64>,
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
    pub(super) constant: Vec<T>,
}

impl<T: Real> Buffers<T> {
    /// Forgets the blocks of the last band.
    pub(super) fn clear(&mut self, blocks: usize) {
        self.amax.clear();
        self.amax.resize(blocks, T::default());
        self.extremes.clear();
        self.extremes.resize(blocks, Extremes::default());
    }
}
