//! The largest magnitudes of blocks: of a band, of blocks of many bands, or of all blocks with that of the array.

use std::sync::Mutex;

use super::encoder::Encoder;
use super::scale_tables::ByTables;
use super::source::{Buffers, bits_of, of_bf16};
use crate::kernels::tile::TILE;
use crate::quantization::arithmetic::{Area, Blocks, PIECE, pieces};
use crate::quantization::largest::{Extremes, raise_largest, widen};
use crate::quantization::real::{Bits, Real};
use crate::quantization::work::{Item, ItemPass, run_items};

/// Infinity as bf16.
const INFINITY: u16 = 0x7f80;

impl<T: Real> Encoder<T> {
    /// Finds the largest magnitudes of a band, and returns the largest of all, as bf16 if elements are; none, if it is not
    /// finite and that is refused.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn measure_band(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        columns: (usize, usize),
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) -> Option<u16> {
        buffers.clear(blocks, self.grid.is_some() || self.widens());
        if let Some(grid) = &self.grid {
            let place = self.number_of((matrix, row), first);
            let found = &grid[place..place + blocks];
            for ((amax, extremes), known) in buffers.amax.iter_mut().zip(&mut buffers.extremes).zip(found) {
                (*amax, *extremes) = *known;
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.measure((matrix, row, rows), columns, first, buffers) };
        }
        if let (Some(amax), false) = (self.what.amax, self.what.scheme.global_scale) {
            let found = buffers.amax.iter().all(|amax| amax.to_f64().is_finite());
            buffers.amax.fill(T::from_f64(if found { amax } else { f64::NAN }));
        }
        let mut largest = [T::default()];
        let count = buffers.amax.len();
        // SAFETY: these are the elements of the vector.
        bits_of(&mut largest)[0] = unsafe { self.largest(buffers.amax.as_ptr().cast(), count) };
        let is_refused = !largest[0].is_finite() && !self.what.nan_scales;
        (!is_refused).then_some(((largest[0].to_f64() as f32).to_bits() >> u16::BITS) as u16)
    }

    /// Finds those of bf16, as such; the others are forgotten.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn measure_shorts(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        columns: (usize, usize),
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) -> Option<u16> {
        if let Some(amaxes) = &self.amaxes {
            let place = self.number_of((matrix, row), first);
            buffers.shorts.clear();
            buffers.shorts.extend_from_slice(&amaxes[place..place + blocks]);
        } else {
            let width = self.extent.block.1;
            // SAFETY: the caller's promise.
            unsafe {
                self.source.raise_shorts((matrix, row, rows), columns, (width, first), blocks, buffers);
            }
        }
        // SAFETY: these are the elements of the vector.
        let most = unsafe { self.largest(buffers.shorts.as_ptr(), buffers.shorts.len()) };
        (most < INFINITY).then_some(most)
    }

    /// Returns the largest of some magnitudes.
    ///
    /// # Safety
    /// So many are readable.
    unsafe fn largest<B: Bits>(&self, first: *const B, columns: usize) -> B {
        let (mut largest, blocks) = ([B::default()], Blocks { width: columns.max(1), begun: 0 });
        // SAFETY: the caller's promise.
        unsafe {
            raise_largest(self.level, Area { first, pitch: 0, rows: 1, columns }, blocks, &mut largest);
        };
        largest[0]
    }

    /// Returns the number among all blocks of one in a row.
    fn number_of(&self, (matrix, row): (usize, usize), block: usize) -> usize {
        let above = matrix * self.extent.row_blocks() + self.extent.row_block(row);
        above * self.extent.column_blocks() + block
    }

    /// Whether the largest magnitudes of all blocks are worth keeping when that of the array is found: bands need no others.
    pub(super) fn finds_amaxes(&self) -> bool {
        self.by_tables == Some(ByTables::OfScales) && self.what.four_over_six.is_none() && self.joins()
    }

    /// Finds the largest magnitudes of all blocks, and returns that of the array, for an encoder that joins rows.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn find_amaxes(&mut self, threads: usize) -> f64 {
        let mut amaxes = self.amaxes.take().unwrap_or_default();
        amaxes.clear();
        amaxes.resize(self.extent.matrices() * self.extent.row_blocks() * self.extent.column_blocks(), 0);
        let bytes = self.extent.columns * self.source.x.size();
        let pass = JoinedAmaxes { encoder: self, amaxes: Mutex::new(amaxes) };
        // SAFETY: the caller's promise.
        unsafe { run_items(&pass, &self.extent, (self.wide, self.tall), bytes, threads) };
        let amaxes = pass.amaxes.into_inner().unwrap_or_default();
        // SAFETY: these are the elements of the vector.
        let most = unsafe { self.largest(amaxes.as_ptr(), amaxes.len()) };
        self.amaxes = Some(amaxes);
        of_bf16(most)
    }

    /// Finds the largest magnitudes and the extremes of all blocks.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn find_grid(&self, bytes: usize, threads: usize) -> Vec<(T, Extremes<T>)> {
        let blocks = self.extent.matrices() * self.extent.row_blocks() * self.extent.column_blocks();
        let grid = Mutex::new(vec![(T::default(), Extremes::default()); blocks]);
        let pass = Grid { encoder: self, grid };
        // SAFETY: the caller's promise.
        unsafe { run_items(&pass, &self.extent, (TILE, self.tall), bytes, threads) };
        pass.grid.into_inner().unwrap_or_default()
    }

    /// Adds rows, between two columns, to what is known of their blocks, the first of which has this number.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn measure(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (begin, end): (usize, usize),
        first: usize,
        buffers: &mut Buffers<T>,
    ) {
        let width = self.extent.block.1;
        let mut amax = std::mem::take(&mut buffers.amax);
        // SAFETY: the caller's promise.
        unsafe { self.source.raise((matrix, row, rows), (begin, end), (width, first), &mut amax, buffers) };
        buffers.amax = amax;
        if !self.widens() {
            return;
        }
        let Buffers { raw, values, extremes, .. } = buffers;
        for start in (begin..end).step_by(PIECE) {
            let columns = PIECE.min(end - start);
            let blocks = Blocks { width, begun: start % width };
            let here = start / width - first..(start + columns).div_ceil(width) - first;
            for (row, rows) in pieces((row, rows), columns) {
                // SAFETY: the caller's promise.
                unsafe {
                    let room = (&mut *raw, values.0.as_mut_ptr());
                    let found = self.source.load((matrix, row, rows), (start, columns), room);
                    widen(self.level, found, blocks, &mut extremes[here.clone()]);
                }
            }
        }
    }
}

/// Finds the largest magnitudes of all blocks of joined rows, as bf16.
struct JoinedAmaxes<'a, T> {
    encoder: &'a Encoder<T>,
    amaxes: Mutex<Vec<u16>>,
}

impl<T: Real> ItemPass for JoinedAmaxes<'_, T> {
    type Buffers = Buffers<T>;
    type Outcome = ();

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers<T>, (): &mut ()) {
        let Encoder { source, extent, .. } = self.encoder;
        let (row, rows) = (item.rows.start, item.rows.len());
        let place = self.encoder.number_of((item.matrix, row), 0);
        let count = rows * extent.column_blocks();
        // SAFETY: the caller's promise; joined rows are as good as one.
        unsafe {
            source.with_item(item, buffers, |buffers| {
                let (first, all) = ((item.matrix, row, 1), (0, rows * extent.columns));
                source.raise_shorts(first, all, (extent.block.1, 0), count, buffers);
                if let Ok(mut amaxes) = self.amaxes.lock() {
                    amaxes[place..place + count].copy_from_slice(&buffers.shorts);
                }
            });
        }
    }

    fn merge((): &mut (), (): ()) {}
}

/// Finds the largest magnitudes and the extremes of all blocks, which may be larger than an item.
struct Grid<'a, T> {
    encoder: &'a Encoder<T>,
    grid: Mutex<Vec<(T, Extremes<T>)>>,
}

impl<T: Real> ItemPass for Grid<'_, T> {
    type Buffers = Buffers<T>;
    type Outcome = ();

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers<T>, (): &mut ()) {
        let encoder = self.encoder;
        let width = encoder.extent.block.1;
        let (first, last) = (item.columns.start / width, item.columns.end.div_ceil(width));
        let columns = (item.columns.start, item.columns.end);
        // SAFETY: the caller's promise.
        unsafe {
            encoder.source.with_item(item, buffers, |buffers| {
                for (row, rows) in encoder.of_blocks(item) {
                    buffers.clear(last - first, true);
                    encoder.measure((item.matrix, row, rows), columns, first, buffers);
                    let place = encoder.number_of((item.matrix, row), first);
                    let Ok(mut grid) = self.grid.lock() else { return };
                    let measured = buffers.amax.iter().zip(&buffers.extremes);
                    for (known, (&amax, extremes)) in grid[place..].iter_mut().zip(measured) {
                        known.0 = known.0.larger(amax);
                        known.1.include(extremes.low);
                        known.1.include(extremes.high);
                    }
                }
            });
        }
    }

    fn merge((): &mut (), (): ()) {}
}
