//! Bands: blocks side by side, found and written one after the other.

use super::encoder::{Encoder, JOINED, is_large};
use super::operands::refuse;
use super::source::Buffers;
use crate::error::Error;
use crate::exec::buffers::with_buffers;
use crate::quantization::arithmetic::{PIECE, pieces};
use crate::quantization::real::Real;
use crate::quantization::rows::Rows;
use crate::quantization::work::{Extent, ITEM, Item, ItemPass, run_items};

/// The pass of an encoding: codes and what blocks have, band by band. The outcome is whether an element is refused.
struct Bands<'a, T> {
    encoder: &'a Encoder<T>,
    joins: bool,
}

impl<T: Real> ItemPass for Bands<'_, T> {
    type Buffers = Buffers<T>;
    type Outcome = bool;

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers<T>, failed: &mut bool) {
        let Self { encoder, joins } = *self;
        let columns = if joins { item.rows.len() } else { 1 } * encoder.extent.columns;
        // SAFETY: passed on.
        unsafe {
            encoder.source.with_item(item, buffers, |buffers| {
                *failed |= !encoder.item(item, joins, columns, buffers);
            });
        }
    }

    fn merge(failed: &mut bool, next: bool) {
        *failed |= next;
    }
}

impl<T: Real> Encoder<T> {
    /// # Safety
    /// As for [`encode`].
    pub(super) unsafe fn run(&mut self, threads: usize) -> Result<(), Error> {
        let bytes = self.source.x.size() * self.extent.columns + self.data.size() * self.data.width();
        // SAFETY: the caller's promise.
        unsafe {
            if is_large(&self.extent) {
                self.grid = Some(self.find_grid(bytes, threads));
            }
            let pass = Bands { joins: self.joins(), encoder: self };
            let failed = run_items(&pass, &self.extent, (self.wide, self.tall), bytes, threads);
            if failed { self.first_not_finite() } else { Ok(()) }
        }
    }

    /// Returns the rows of an item, those of a block together: the first one and how many.
    pub(super) fn of_blocks(&self, item: &Item) -> impl Iterator<Item = (usize, usize)> {
        let (tall, end) = (self.extent.block.0, item.rows.end);
        let mut row = item.rows.start;
        std::iter::from_fn(move || {
            let rows = (tall - row % tall).min(end - row);
            row += rows;
            (rows > 0).then_some((row - rows, rows))
        })
    }

    /// Whether each row of an item goes on where the one before it ends in every array, and they share no blocks: they are
    /// as good as one row.
    pub(super) fn joins(&self) -> bool {
        let Extent { columns, block, .. } = self.extent;
        let (what, size) = (&self.what, self.data.size());
        let unit = if self.is_plain() { size } else { what.packing.unit(what.scheme.bits) };
        let blocks = [Some(&self.scale), self.zero_point.as_ref(), self.bias.as_ref().map(|bias| &bias.0)];
        block.0 == 1
            && self.grid.is_none()
            && columns <= JOINED.min(ITEM / self.tall)
            && columns % block.1 == 0
            && columns % unit == 0
            && (self.source.turns || self.source.x.is_gapless(columns))
            && (self.turns || self.data.goes_on())
            && blocks.into_iter().flatten().all(Rows::goes_on)
    }

    /// Encodes an item of work, whose rows are joined to one of so many columns or have as many; returns whether no element
    /// is refused.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn item(&self, item: &Item, joins: bool, columns: usize, buffers: &mut Buffers<T>) -> bool {
        let mut is_finite = true;
        let (width, size) = (self.extent.block.1, self.data.size());
        let (from, to) = (self.bytes(item.columns.start) / size, self.bytes(item.columns.end).div_ceil(size));
        let (above, rows, items) = (item.rows.start, item.rows.len(), to - from);
        buffers.has_tables = self.has_tables(item.matrix, rows * item.columns.len(), buffers);
        let turned = self.turns.then(|| buffers.turned.make(&self.data, (above, rows), (from, items)));
        if joins {
            let wide = (JOINED / self.extent.columns).max(1) * self.extent.columns;
            for start in (0..columns).step_by(wide) {
                let end = columns.min(start + wide);
                let (first, blocks) = (start / width, (end - start) / width);
                // SAFETY: the caller's promise for these rows.
                is_finite &=
                    unsafe { self.band((item.matrix, above, 1), (start, end), (first, blocks), buffers) };
            }
        }
        for (row, rows) in self.of_blocks(item).take(if joins { 0 } else { usize::MAX }) {
            for start in item.columns.clone().step_by(self.wide) {
                let end = item.columns.end.min(start + self.wide).min(columns);
                let (first, blocks) = (start / width, end.div_ceil(width) - start / width);
                // SAFETY: the caller's promise for these rows and columns.
                is_finite &=
                    unsafe { self.band((item.matrix, row, rows), (start, end), (first, blocks), buffers) };
            }
        }
        if let Some(turned) = turned {
            let there = self.data.row(item.matrix, above);
            // SAFETY: the caller's promise; the memory has the containers of the item.
            unsafe { self.data.write(self.level, there, (rows, from, items), turned) };
            buffers.turned.release();
        }
        is_finite
    }

    /// Encodes blocks side by side, or some of their rows; returns whether no element is refused.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn band(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, end): (usize, usize),
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) -> bool {
        let row_block = self.extent.row_block(row);
        // Stored scales follow from the largest magnitudes as bf16, and codes from scales.
        let has_tables = buffers.has_tables && self.grid.is_none();
        let at_once = has_tables && self.what.four_over_six.is_none();
        // SAFETY: the caller's promise.
        unsafe {
            let (found, of_blocks) = ((matrix, row, rows), (start, end));
            let most = if at_once {
                self.measure_shorts(found, of_blocks, (first, blocks), buffers)
            } else {
                self.measure_band(found, of_blocks, (first, blocks), buffers)
            };
            let Some(most) = most else { return false };
            if at_once {
                self.scales_of_shorts(matrix, buffers);
            } else if let Some(error) = self.what.four_over_six {
                self.better_scales(found, of_blocks, first, error, buffers);
            } else {
                self.scales(matrix, 1.0, buffers);
                self.factors(matrix, buffers);
            }
            buffers.by_scale = has_tables && self.have_all(most, buffers);
            if at_once && !buffers.by_scale {
                self.complete(matrix, buffers);
            }
            self.find_block_tables(rows * self.extent.block.1.min(end - start), buffers);
            if row % self.extent.block.0 == 0 {
                self.write_blocks(matrix, row_block, (first, blocks), buffers);
            }
            let unit = self.what.packing.unit(self.what.scheme.bits);
            let wide = PIECE / unit * unit;
            for begin in (start..end).step_by(wide) {
                let columns = wide.min(end - begin);
                // Draws are for elements in a row, and containers end with it.
                let elements = if self.draws() { PIECE } else { columns.next_multiple_of(unit) };
                for (row, rows) in pieces((row, rows), elements) {
                    self.piece((matrix, row, rows), (begin, columns), first, buffers);
                }
            }
        }
        true
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
        with_buffers(|buffers: &mut Buffers<T>| {
            for row in 0..self.extent.matrices() * rows {
                for start in (0..columns).step_by(PIECE) {
                    let count = PIECE.min(columns - start);
                    let Buffers { raw, values, .. } = &mut *buffers;
                    // SAFETY: the caller's promise.
                    unsafe {
                        let room = (raw, values.0.as_mut_ptr());
                        let first = self.source.load((row / rows, row % rows, 1), (start, count), room).first;
                        let value = |place: usize| first.add(place).read_unaligned();
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
