//! Bands: blocks side by side, found and written one after the other.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::encoder::Encoder;
use super::operands::refuse;
use super::source::{Buffers, Held, bits_of};
use crate::error::Error;
use crate::kernels::tile::TILE;
use crate::quantization::arithmetic::Blocks;
use crate::quantization::largest::{Extremes, raise_largest, widen};
use crate::quantization::scaled::Float;
use crate::quantization::work::{Extent, Item, run_items};

/// Elements of a band of joined rows, at most: they stay in the innermost cache.
const JOINED: usize = 1 << 13;

/// Elements of a block that is worth finding its largest magnitude by several threads.
const LARGE: usize = 1 << 17;

impl<T: Held> Encoder<'_, T> {
    /// # Safety
    /// As for [`encode`].
    pub(super) unsafe fn run(mut self, threads: usize) -> Result<(), Error> {
        let bytes = self.source.x.size() * self.extent.columns + self.data.size() * self.data.width();
        let (block, columns) = (self.extent.block, self.extent.columns);
        // SAFETY: the caller's promise; items are apart.
        unsafe {
            if block.0 * block.1 > LARGE {
                self.grid = Some(self.find_grid(bytes, threads)?);
            }
            let tall = if self.grid.is_some() { 1 } else { block.0 };
            let joins = self.joins();
            run_items(&self.extent, (self.wide, tall), bytes, threads, |item| {
                let columns = if joins { item.rows.len() * columns } else { columns };
                T::with_buffers(|buffers| self.item(item, joins, columns, buffers));
                Ok(())
            })?;
            if self.failed.load(Ordering::Relaxed) { self.first_not_finite() } else { Ok(()) }
        }
    }

    /// Finds the largest magnitudes and the extremes of all blocks.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn find_grid(&self, bytes: usize, threads: usize) -> Result<Vec<(T, Extremes<T>)>, Error> {
        let (down, across) = (self.extent.row_blocks(), self.extent.column_blocks());
        let grid =
            Mutex::new(vec![(T::default(), Extremes::default()); self.extent.matrices() * down * across]);
        let width = self.extent.block.1;
        // SAFETY: the caller's promise.
        run_items(&self.extent, (TILE, 1), bytes, threads, |item| unsafe {
            T::with_buffers(|buffers| {
                for row in item.rows.clone() {
                    let (first, last) = (item.columns.start / width, item.columns.end.div_ceil(width));
                    buffers.clear(last - first);
                    let columns = (item.columns.start, item.columns.end);
                    self.measure((item.matrix, row, 1), columns, first, buffers);
                    let place = (item.matrix * down + self.extent.row_block(row)) * across + first;
                    let Ok(mut grid) = grid.lock() else { return };
                    let found = buffers.amax.iter().zip(&buffers.extremes);
                    for (known, (&amax, extremes)) in grid[place..].iter_mut().zip(found) {
                        known.0 = known.0.larger(amax);
                        known.1.include(extremes.low);
                        known.1.include(extremes.high);
                    }
                }
            });
            Ok(())
        })?;
        Ok(grid.into_inner().unwrap_or_default())
    }

    /// Adds rows, between two columns, to what is known of their blocks, the first of which has this number.
    ///
    /// # Safety
    /// As for [`encode`].
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
        if self.zero_point.is_none() && self.bias.is_none() {
            return;
        }
        let Buffers { raw, values, extremes, .. } = buffers;
        for row in row..row + rows {
            for start in (begin..end).step_by(TILE) {
                let count = TILE.min(end - start);
                let blocks = Blocks { width, begun: start % width };
                let here = start / width - first..(start + count).div_ceil(width) - first;
                // SAFETY: the caller's promise.
                unsafe {
                    let room = (&mut *raw, values.0.as_mut_ptr());
                    let found = self.source.load(matrix, row, (start, count), room);
                    widen(self.level, (found, count), blocks, &mut extremes[here]);
                }
            }
        }
    }

    /// Whether the rows of an item follow each other without gaps in every array and share no blocks, and are as good as
    /// one row.
    fn joins(&self) -> bool {
        let Extent { columns, block, .. } = self.extent;
        let across = self.extent.column_blocks();
        let unit = self.what.packing.unit(self.what.scheme.bits);
        let blocks = [Some(&self.scale), self.zero_point.as_ref(), self.bias.as_ref().map(|bias| &bias.0)];
        block.0 == 1
            && self.grid.is_none()
            && columns <= JOINED
            && columns % block.1 == 0
            && columns % unit == 0
            && self.source.x.is_gapless(columns)
            && self.data.is_gapless(self.data.width())
            && blocks.into_iter().flatten().all(|rows| rows.is_gapless(across))
    }

    /// Encodes an item of work, whose rows are joined to one of so many columns or have as many.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn item(&self, item: &Item, joins: bool, columns: usize, buffers: &mut Buffers<T>) {
        let (tall, width) = (self.extent.block.0, self.extent.block.1);
        if joins {
            let wide = (JOINED / self.extent.columns).max(1) * self.extent.columns;
            for start in (0..columns).step_by(wide) {
                let end = columns.min(start + wide);
                let (first, blocks) = (start / width, (end - start) / width);
                // SAFETY: the caller's promise for these rows.
                unsafe {
                    self.band((item.matrix, item.rows.start, 1), (start, end), (first, blocks), buffers);
                };
            }
            return;
        }
        let mut row = item.rows.start;
        while row < item.rows.end {
            let rows = (tall - row % tall).min(item.rows.end - row);
            for start in item.columns.clone().step_by(self.wide) {
                let end = item.columns.end.min(start + self.wide).min(columns);
                let (first, blocks) = (start / width, end.div_ceil(width) - start / width);
                // SAFETY: the caller's promise for these rows and columns.
                unsafe { self.band((item.matrix, row, rows), (start, end), (first, blocks), buffers) };
            }
            row += rows;
        }
    }

    /// Encodes blocks side by side, or some of their rows.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn band(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, end): (usize, usize),
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) {
        let row_block = self.extent.row_block(row);
        buffers.clear(blocks);
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(grid) = &self.grid {
                let place =
                    (matrix * self.extent.row_blocks() + row_block) * self.extent.column_blocks() + first;
                let found = &grid[place..place + blocks];
                for ((amax, extremes), known) in buffers.amax.iter_mut().zip(&mut buffers.extremes).zip(found)
                {
                    (*amax, *extremes) = *known;
                }
            } else {
                self.measure((matrix, row, rows), (start, end), first, buffers);
            }
            if let (Some(amax), false) = (self.what.amax, self.what.scheme.global_scale) {
                let found = buffers.amax.iter().all(|amax| amax.to_f64().is_finite());
                buffers.amax.fill(T::from_f64(if found { amax } else { f64::NAN }));
            }
            let mut largest = [T::default()];
            let whole = Blocks { width: blocks.max(1), begun: 0 };
            let found = (buffers.amax.as_ptr().cast(), blocks);
            raise_largest(self.level, found, whole, bits_of(&mut largest));
            if !largest[0].is_finite() && !self.what.nan_scales {
                self.failed.store(true, Ordering::Relaxed);
                return;
            }
            if let Some(error) = self.what.four_over_six {
                self.better_scales((matrix, row, rows), (start, end), first, error, buffers);
            } else {
                self.scales(matrix, 1.0, buffers);
            }
            if row % self.extent.block.0 == 0 {
                self.write_blocks(matrix, row_block, (first, blocks), buffers);
            }
            for row in row..row + rows {
                for begin in (start..end).step_by(self.tile_width()) {
                    let count = self.tile_width().min(end - begin);
                    let Buffers { raw, values, .. } = &mut *buffers;
                    let from = if self.source.is_bf16 && self.bias.is_none() {
                        (self.source.read(matrix, row, (begin, count), raw), Float::Bf16)
                    } else {
                        let room = (raw, values.0.as_mut_ptr());
                        (self.source.load(matrix, row, (begin, count), room).cast(), Float::F32)
                    };
                    self.tile(matrix, row, (from, begin, count), first, buffers);
                }
            }
        }
    }

    /// Columns of a tile: a multiple of the packing's unit.
    fn tile_width(&self) -> usize {
        let unit = self.what.packing.unit(self.what.scheme.bits);
        TILE / unit * unit
    }

    /// Writes the scales, zero points and biases of a band.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn write_blocks(
        &self,
        matrix: usize,
        row_block: usize,
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) {
        let (level, items) = (self.level, (1, first, blocks));
        // SAFETY: the caller's promise; the vectors have an entry for each block.
        unsafe {
            self.scale.write(level, self.scale.row(matrix, row_block), items, buffers.bytes.as_ptr());
            if let Some(zero_point) = &self.zero_point {
                buffers.bytes.clear();
                buffers.bytes.extend(buffers.shifts.iter().map(|shift| shift.to_f64() as i8 as u8));
                zero_point.write(level, zero_point.row(matrix, row_block), items, buffers.bytes.as_ptr());
            }
            if let Some((bias, to)) = &self.bias {
                let Buffers { shifts, constant, bytes, .. } = buffers;
                constant.clear();
                constant.extend_from_slice(shifts);
                to.round(constant, bytes);
                bias.write(level, bias.row(matrix, row_block), items, bytes.as_ptr());
            }
        }
    }

    /// Returns the error for the first element in C order that is not finite.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn first_not_finite(&self) -> Result<(), Error> {
        let Extent { rows, columns, .. } = self.extent;
        let mut found = None;
        T::with_buffers(|buffers| {
            for row in 0..self.extent.matrices() * rows {
                for start in (0..columns).step_by(TILE) {
                    let count = TILE.min(columns - start);
                    let Buffers { raw, values, .. } = &mut *buffers;
                    // SAFETY: the caller's promise.
                    unsafe {
                        let room = (raw, values.0.as_mut_ptr());
                        let tile = self.source.load(row / rows, row % rows, (start, count), room);
                        let value = |place: usize| tile.add(place).read_unaligned();
                        if let Some(place) = (0..count).find(|&place| !value(place).is_finite()) {
                            found = Some((row, start + place, value(place).to_f64()));
                            return;
                        }
                    }
                }
            }
        });
        let Some((row, column, value)) = found else { return Ok(()) };
        let (mut rest, mut index) = (row / rows, vec![row % rows, column]);
        for &length in self.extent.stack.iter().rev() {
            index.insert(0, rest % length);
            rest /= length;
        }
        refuse(format!(
            "x has {value} at index {index:?}, for which no scale is right; set nonfinite=\"nan\" to give its block a \
             scale of NaN."
        ))
    }
}
