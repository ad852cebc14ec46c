//! Codes to 16-bit results by tables of the codes of each block.

use super::decoder::{Buffers, Decoder, Ends};
use crate::cpu::{Level, RawKernel};
use crate::kernels::tables::rectangle::{Planes, Rectangle, look_up};
use crate::quantization::arithmetic::{Area, Blocks, PIECE};
use crate::quantization::lookup::{self, Choice, GROUP, HALF};
use crate::quantization::packing::Packing;
use crate::quantization::real::Real;
use crate::quantization::scaled::{self, Float, NO_EXPONENTS, Scaling};
use crate::quantization::work::Item;

/// Blocks whose tables are made together.
const TABLES: usize = PIECE / HALF;

impl<T: Real> Decoder<T> {
    /// Returns the item, the columns of a block, and the half groups of one as a power of two: as one row, if its rows follow
    /// each other without gaps in every array and share no scales.
    fn in_one_row(&self, item: &Item, shift: u32) -> (Item, usize, u32) {
        let width = self.extent.block.1;
        let fits = self.extent.columns.is_multiple_of(GROUP)
            && width.is_multiple_of(HALF)
            && width.is_power_of_two();
        match self.joined(item).filter(|_| fits) {
            // One block to a row: many to all of them.
            Some(item) => (item, width, (width / HALF).trailing_zeros()),
            None => (item.clone(), width, shift),
        }
    }

    /// Fills tables: the results of codes 0 and up for each of some blocks, or values of scales.
    ///
    /// # Safety
    /// As for [`decode`]; the tables have room for them.
    unsafe fn fill_tables(
        &self,
        matrix: usize,
        block: Option<usize>,
        (first, number, entries): (usize, usize, usize),
        tables: *mut u8,
        buffers: &mut Buffers<T>,
    ) {
        let count = number * entries;
        let columns = (first * entries, count, entries);
        // SAFETY: the caller's promise; the buffers have room for a piece.
        unsafe {
            if self.products {
                let blocks = self.prepare(matrix, block, columns, buffers);
                let to = if self.bias.is_some() { buffers.narrow.0.as_mut_ptr().cast() } else { tables };
                self.multiply_pattern(&buffers.scale.0[..number], entries, to);
                if self.bias.is_none() {
                    return;
                }
                self.add_biases(count, blocks, buffers);
            } else {
                for values in buffers.values.0[..count].chunks_mut(self.pattern.len()) {
                    values.copy_from_slice(&self.pattern[..values.len()]);
                }
                let blocks = self.prepare(matrix, block, columns, buffers);
                self.apply_blocks(count, blocks, buffers);
            }
            self.results.run(buffers.values.0.as_ptr().cast(), tables, count);
        }
    }

    /// Multiplies the pattern by scales, and rounds to bf16.
    ///
    /// # Safety
    /// There is room for so many entries for each scale.
    unsafe fn multiply_pattern(&self, scales: &[T], entries: usize, to: *mut u8) {
        let blocks = Blocks { width: entries, begun: 0 };
        let mut done = 0;
        for numbers in scales.chunks(self.pattern.len() / entries).filter_map(T::f32s) {
            let columns = numbers.len() * entries;
            let area = Area { first: self.pattern.as_ptr().cast(), pitch: 0, rows: 1, columns };
            let what = Scaling {
                from: (area, Float::F32),
                to: (to.wrapping_add(done * size_of::<u16>()), Float::Bf16, 0),
                blocks,
                numbers,
                reciprocals: &[],
                exponents: NO_EXPONENTS,
            };
            // SAFETY: the caller's promise; the pattern has as many elements.
            unsafe { scaled::scale(self.level, what) };
            done += columns;
        }
    }

    /// Decodes nibbles whose scales have one byte.
    ///
    /// # Safety
    /// As for [`decode`].
    pub(super) unsafe fn nibbles_by_scale(
        &self,
        item: &Item,
        shift: u32,
        ends: &mut Ends,
        buffers: &mut Buffers<T>,
    ) {
        let Some(scale) = &self.scale else { return };
        let (item, width, shift) = self.in_one_row(item, shift);
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut ends.tables.0).cast::<u8>();
            let (mut low, mut high) = (1usize, 0usize);
            for row in item.rows.clone() {
                let (first, last) = (item.columns.start / width, item.columns.end.div_ceil(width));
                let indices = scale.items.row(item.matrix, self.extent.row_block(row)).cast_const();
                let (least, most) = bounds(self.level, indices.add(first), last - first);
                if low > high || least < low || most > high {
                    (low, high) = if low > high { (least, most) } else { (low.min(least), high.max(most)) };
                    for first in (low..=high).step_by(TABLES) {
                        let number = TABLES.min(high + 1 - first);
                        let to = tables.add(first * lookup::ROW);
                        self.fill_tables(item.matrix, None, (first, number, HALF), to, buffers);
                    }
                }
                let choice = Choice {
                    tables,
                    first: item.columns.start / HALF,
                    block: 0,
                    shift,
                    indices: Some(indices),
                    high_first: self.what.packing == Packing::HighFirst,
                };
                let (codes, to) = self.ends(&item, row);
                lookup::nibbles(self.level, choice, codes, to, item.columns.len());
            }
        }
    }

    /// Decodes other nibbles.
    ///
    /// # Safety
    /// As for [`decode`].
    pub(super) unsafe fn nibbles_by_block(
        &self,
        item: &Item,
        shift: u32,
        ends: &mut Ends,
        buffers: &mut Buffers<T>,
    ) {
        let (item, width, shift) = self.in_one_row(item, shift);
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut ends.tables.0).cast::<u8>();
            let mut known = None;
            for row in item.rows.clone() {
                let (codes, to) = self.ends(&item, row);
                let mut start = item.columns.start;
                while start < item.columns.end {
                    let first = start / width;
                    let end = ((first + TABLES) * width).min(item.columns.end);
                    let number = end.div_ceil(width) - first;
                    let block = self.extent.row_block(row);
                    if known.replace((block, first, number)) != Some((block, first, number)) {
                        self.fill_tables(item.matrix, Some(block), (first, number, HALF), tables, buffers);
                    }
                    let choice = Choice {
                        tables,
                        first: start / HALF,
                        block: first,
                        shift,
                        indices: None,
                        high_first: self.what.packing == Packing::HighFirst,
                    };
                    let done = start - item.columns.start;
                    lookup::nibbles(self.level, choice, codes.add(done / 2), to.add(2 * done), end - start);
                    start = end;
                }
            }
        }
    }

    /// Decodes codes of a byte whose blocks are large.
    ///
    /// # Safety
    /// As for [`decode`].
    pub(super) unsafe fn bytes(&self, item: &Item, ends: &mut Ends, buffers: &mut Buffers<T>) {
        let (tall, width) = self.extent.block;
        let Item { matrix, columns, .. } = item.clone();
        let (first, last) = (columns.start / width, columns.end.div_ceil(width));
        let mut found: Vec<Planes> = Vec::with_capacity(last - first);
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut ends.tables.0).cast::<u8>();
            let mut row = item.rows.start;
            while row < item.rows.end {
                let rows = (tall - row % tall).min(item.rows.end - row);
                let block = self.extent.row_block(row);
                found.clear();
                for first in first..last {
                    self.fill_tables(matrix, Some(block), (first, 1, 256), tables, buffers);
                    let entries = tables.cast::<[[u8; 2]; 256]>().read_unaligned();
                    found.push([0, 1].map(|byte| entries.map(|entry| entry[byte])));
                }
                let rectangle = Rectangle {
                    codes: self.data.row(matrix, row).add(columns.start),
                    pitch: self.data.pitch(),
                    target: self.out.row(matrix, row).add(2 * columns.start),
                    target_pitch: self.out.pitch(),
                    rows,
                    columns: columns.len(),
                    first: width - columns.start % width,
                    width,
                };
                if !look_up(self.level, &found, rectangle) {
                    self.pieces(&Item { rows: row..row + rows, ..item.clone() }, ends, buffers);
                }
                row += rows;
            }
        }
    }

    /// Returns where the nibbles of an item are in a row, and where their results go.
    fn ends(&self, item: &Item, row: usize) -> (*const u8, *mut u8) {
        let start = item.columns.start;
        let codes = self.data.row(item.matrix, row).wrapping_add(start / 2);
        (codes, self.out.row(item.matrix, row).wrapping_add(start * self.out.size()))
    }
}

/// Returns the smallest and the largest of some bytes; 1 and 0 if there are none.
///
/// # Safety
/// So many are readable.
unsafe fn bounds(level: Level, bytes: *const u8, count: usize) -> (usize, usize) {
    struct Bounds(*const u8, usize);
    impl RawKernel for Bounds {
        type Output = (u8, u8);

        #[inline(always)]
        unsafe fn run(self) -> (u8, u8) {
            (0..self.1).fold((u8::MAX, 0), |(low, high), place| {
                // SAFETY: the caller of `bounds` vouches for the bytes.
                let byte = unsafe { *self.0.add(place) };
                (low.min(byte), high.max(byte))
            })
        }
    }
    if count == 0 {
        return (1, 0);
    }
    // SAFETY: the caller's promise.
    let (low, high) = unsafe { level.run_raw(Bounds(bytes, count)) };
    (low.into(), high.into())
}
