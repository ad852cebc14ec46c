//! Codes to 16-bit results by tables of the codes of each block.

use super::block_arithmetic::{BlockArithmetic, BlockOperands, BlockRow};
use super::containers::Containers;
use super::operands::PerBlock;
use super::results::Results;
use super::values::{CodeValues, NUMBERS};
use crate::cpu::{Level, RawKernel};
use crate::kernels::tables::rectangle::{self, Planes, Rectangle, look_up};
use crate::kernels::tile::{TILE, Tile};
use crate::kernels::vectors::shapes::Shape;
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece, with_one};
use crate::quantization::lookup::{self, Choice, GROUP, HALF};
use crate::quantization::packing::Packing;
use crate::quantization::real::Real;
use crate::quantization::real::operation::SUBTRACT;
use crate::quantization::scaled::{self, Float, NO_EXPONENTS, Scaling};
use crate::quantization::work::{BlockSpan, Columns, Extent, Item, Place};

/// Blocks whose tables are made together.
const TABLES: usize = PIECE / HALF;

/// More half groups of one block than there are.
const ONE_BLOCK: u32 = usize::BITS - 1;

/// Codes of a byte of one block that are worth a table.
const PAYS_FROM: usize = 1 << 11;

/// How the codes of an item become results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nibbles by a table for each value of a scale of one byte, given half groups of a block as a power of two.
    NibblesByScale(u32),
    /// Nibbles by a table for each block.
    NibblesByBlock(u32),
    /// Bytes by a table for each block.
    Bytes,
}

/// What tables are made of, and the arrays.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a, T> {
    pub(super) extent: &'a Extent,
    pub(super) containers: &'a Containers,
    pub(super) values: &'a CodeValues,
    pub(super) arithmetic: &'a BlockArithmetic<T>,
    pub(super) results: &'a Results,
}

/// Decodes by tables.
pub(super) struct Tables<T> {
    way: Way,
    /// The values of the codes of a table, several times for nibbles.
    pattern: Vec<T>,
    /// The pattern has the offset, and results are its products with scales, in bf16; biases are added to these.
    has_products: bool,
    level: Level,
}

/// Room for the tables of 512 blocks, or of 256 scales.
pub(super) type TableRoom = Tile<[u64; 2]>;

/// What tables are filled with, for each of some blocks side by side, or values of scales.
#[derive(Clone, Copy)]
struct Filling {
    row: BlockRow,
    span: BlockSpan,
}

impl<T: Real> Tables<T> {
    /// Returns the way for a decoding, if one is faster than pieces, given whether results are values, less an offset, times
    /// scales.
    pub(super) fn new(parts: Parts<'_, T>, is_float: bool, only_scales: bool) -> Option<Self> {
        let Parts { extent, containers, values, arithmetic, results } = parts;
        let Containers { data, packing, bits, level, .. } = containers;
        let (level, width) = (*level, extent.block.1);
        let dense = data.is_dense() && results.out.is_dense() && results.out.size() == 2;
        let nibbles = *bits == 4 && *packing == Packing::HighFirst;
        let plain = (*packing == Packing::Dense || nibbles) && containers.high.is_none();
        if !dense || !plain || arithmetic.groups.is_some() {
            return None;
        }
        let elements = extent.block.0.min(extent.rows) * width.min(extent.columns);
        let shift = match width {
            _ if width >= extent.columns => Some(ONE_BLOCK),
            _ if width.is_power_of_two() && width >= HALF => Some((width / HALF).trailing_zeros()),
            _ => None,
        };
        let is_byte = |items: &PerBlock| items.items.size() == 1 && items.items.is_dense();
        let is_scaled = arithmetic.zero_point.is_none() && arithmetic.bias.is_none();
        let way = match (bits, shift) {
            (4, Some(shift)) if lookup::has_tables(level) => {
                let by_scale = is_scaled && arithmetic.scale.as_ref().is_some_and(is_byte);
                if by_scale { Way::NibblesByScale(shift) } else { Way::NibblesByBlock(shift) }
            }
            (8, _) if rectangle::pays(level, is_float) && elements >= PAYS_FROM => Way::Bytes,
            _ => return None,
        };
        // One table of bytes is made at a time, many of nibbles.
        let (entries, all) = if way == Way::Bytes { (NUMBERS.len(), NUMBERS.len()) } else { (HALF, TILE) };
        let mut pattern = vec![T::default(); all];
        let (first, rest) = pattern.split_at_mut(entries);
        // SAFETY: there are as many numbers.
        unsafe { values.fill(level, NUMBERS.as_ptr(), first) };
        let narrow = arithmetic.bias.is_none() || arithmetic.narrowing.is_some();
        let has_products = only_scales && narrow && results.shape == Some(Shape::Bf16);
        if has_products && arithmetic.offset != T::default() {
            with_one::<T, SUBTRACT>(level, first, arithmetic.offset, false);
        }
        for values in rest.chunks_exact_mut(entries) {
            values.copy_from_slice(first);
        }
        Some(Self { way, pattern, has_products, level })
    }

    /// Decodes an item, given the item as one row, if its rows follow each other without gaps in every array and share no
    /// scales. Returns the rows that are left to pieces.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    pub(super) unsafe fn decode(
        &self,
        parts: Parts<'_, T>,
        item: &Item,
        joined: Option<Item>,
        room: &mut TableRoom,
        (operands, values): (&mut BlockOperands<T>, &mut Piece<T>),
    ) -> Vec<Place> {
        let table_makers = (operands, values);
        // SAFETY: passed on.
        unsafe {
            match self.way {
                Way::NibblesByScale(shift) => {
                    let (item, shift) = in_one_row(parts.extent, item, joined, shift);
                    self.nibbles_by_scale(parts, &item, shift, room, table_makers);
                }
                Way::NibblesByBlock(shift) => {
                    let (item, shift) = in_one_row(parts.extent, item, joined, shift);
                    self.nibbles_by_block(parts, &item, shift, room, table_makers);
                }
                Way::Bytes => return self.bytes(parts, item, room, table_makers),
            }
        }
        Vec::new()
    }

    /// Fills tables: the results of codes 0 and up for each of some blocks, or values of scales.
    ///
    /// # Safety
    /// As for [`decode`](super::decode); the tables have room for them.
    unsafe fn fill(
        &self,
        parts: Parts<'_, T>,
        Filling { row, span }: Filling,
        tables: *mut u8,
        (operands, values): (&mut BlockOperands<T>, &mut Piece<T>),
    ) {
        let Parts { arithmetic, results, .. } = parts;
        let entries = row.width;
        let columns = Columns { start: span.first * entries, count: span.count * entries };
        let values = &mut values.0[..columns.count];
        // SAFETY: the caller's promise; the buffers have room for a piece.
        unsafe {
            if self.has_products {
                let blocks = arithmetic.prepare(row, columns, operands);
                let has_biases = arithmetic.bias.is_some();
                let to = if has_biases { operands.narrow.0.as_mut_ptr().cast() } else { tables };
                self.multiply_pattern(&operands.scale.0[..span.count], entries, to);
                if !has_biases {
                    return;
                }
                arithmetic.add_biases(values, blocks, operands);
            } else {
                for values in values.chunks_mut(self.pattern.len()) {
                    values.copy_from_slice(&self.pattern[..values.len()]);
                }
                let blocks = arithmetic.prepare(row, columns, operands);
                arithmetic.apply(values, blocks, operands);
            }
            results.cast.convert(values.as_ptr().cast(), tables, values.len());
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
            let scaling = Scaling {
                from: (area, Float::F32),
                to: (to.wrapping_add(done * size_of::<u16>()), Float::Bf16, 0),
                blocks,
                numbers,
                reciprocals: &[],
                exponents: NO_EXPONENTS,
            };
            // SAFETY: the caller's promise; the pattern has as many elements.
            unsafe { scaled::scale(self.level, scaling) };
            done += columns;
        }
    }

    /// Decodes nibbles whose scales have one byte.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    unsafe fn nibbles_by_scale(
        &self,
        parts: Parts<'_, T>,
        item: &Item,
        shift: u32,
        room: &mut TableRoom,
        (operands, values): (&mut BlockOperands<T>, &mut Piece<T>),
    ) {
        let Parts { extent, arithmetic, containers, .. } = parts;
        let Some(scale) = &arithmetic.scale else { return };
        let BlockSpan { first, count } = Columns::of(&item.columns).blocks(extent.block.1);
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut room.0).cast::<u8>();
            let (mut low, mut high) = (1usize, 0usize);
            for row in item.rows.clone() {
                let indices = scale.items.row(item.matrix, extent.row_block(row)).cast_const();
                let (least, most) = bounds(self.level, indices.add(first), count);
                if low > high || least < low || most > high {
                    (low, high) = if low > high { (least, most) } else { (low.min(least), high.max(most)) };
                    let codes = Columns { start: low, count: high + 1 - low };
                    for Columns { start: first, count } in codes.groups(TABLES) {
                        let row = BlockRow { matrix: item.matrix, row: None, width: HALF };
                        let filling = Filling { row, span: BlockSpan { first, count } };
                        let to = tables.add(first * lookup::ROW);
                        self.fill(parts, filling, to, (operands, values));
                    }
                }
                let choice = Choice {
                    tables,
                    first: item.columns.start / HALF,
                    block: 0,
                    shift,
                    indices: Some(indices),
                    high_first: containers.packing == Packing::HighFirst,
                };
                let (codes, to) = ends(&parts, item, row);
                lookup::nibbles(self.level, choice, codes, to, item.columns.len());
            }
        }
    }

    /// Decodes other nibbles.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    unsafe fn nibbles_by_block(
        &self,
        parts: Parts<'_, T>,
        item: &Item,
        shift: u32,
        room: &mut TableRoom,
        (operands, values): (&mut BlockOperands<T>, &mut Piece<T>),
    ) {
        let (extent, width) = (parts.extent, parts.extent.block.1);
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut room.0).cast::<u8>();
            let mut known = None;
            for row in item.rows.clone() {
                let (codes, to) = ends(&parts, item, row);
                let mut start = item.columns.start;
                while start < item.columns.end {
                    let first = start / width;
                    let end = ((first + TABLES) * width).min(item.columns.end);
                    let span = BlockSpan { first, count: end.div_ceil(width) - first };
                    let block = extent.row_block(row);
                    if known.replace((block, span)) != Some((block, span)) {
                        let row = BlockRow { matrix: item.matrix, row: Some(block), width: HALF };
                        self.fill(parts, Filling { row, span }, tables, (operands, values));
                    }
                    let choice = Choice {
                        tables,
                        first: start / HALF,
                        block: first,
                        shift,
                        indices: None,
                        high_first: parts.containers.packing == Packing::HighFirst,
                    };
                    let done = start - item.columns.start;
                    lookup::nibbles(self.level, choice, codes.add(done / 2), to.add(2 * done), end - start);
                    start = end;
                }
            }
        }
    }

    /// Decodes codes of a byte whose blocks are large; returns rows that it did not.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    unsafe fn bytes(
        &self,
        parts: Parts<'_, T>,
        item: &Item,
        room: &mut TableRoom,
        (operands, values): (&mut BlockOperands<T>, &mut Piece<T>),
    ) -> Vec<Place> {
        let Parts { extent, containers: Containers { data, .. }, results: Results { out, .. }, .. } = parts;
        let (width, columns) = (extent.block.1, Columns::of(&item.columns));
        let span = columns.blocks(width);
        let mut planes: Vec<Planes> = Vec::with_capacity(span.count);
        let mut left = Vec::new();
        for place in item.block_rows(extent) {
            let Place { matrix, row, rows } = place;
            planes.clear();
            // SAFETY: the caller's promise.
            unsafe {
                let tables = (&raw mut room.0).cast::<u8>();
                for first in span.first..span.first + span.count {
                    let row = BlockRow { matrix, row: Some(extent.row_block(row)), width: NUMBERS.len() };
                    let filling = Filling { row, span: BlockSpan { first, count: 1 } };
                    self.fill(parts, filling, tables, (operands, values));
                    let entries = tables.cast::<[[u8; 2]; 256]>().read_unaligned();
                    planes.push([0, 1].map(|byte| entries.map(|entry| entry[byte])));
                }
                let rectangle = Rectangle {
                    codes: data.row(matrix, row).add(columns.start),
                    pitch: data.pitch(),
                    target: out.row(matrix, row).add(2 * columns.start),
                    target_pitch: out.pitch(),
                    rows,
                    columns: columns.count,
                    first: width - columns.start % width,
                    width,
                };
                if !look_up(self.level, &planes, rectangle) {
                    left.push(place);
                }
            }
        }
        left
    }
}

/// Returns the item, and the half groups of a block as a power of two: as one row, if it is so.
fn in_one_row(extent: &Extent, item: &Item, joined: Option<Item>, shift: u32) -> (Item, u32) {
    let width = extent.block.1;
    let fits = extent.columns.is_multiple_of(GROUP) && width.is_multiple_of(HALF) && width.is_power_of_two();
    match joined.filter(|_| fits) {
        // One block to a row: many to all of them.
        Some(item) => (item, (width / HALF).trailing_zeros()),
        None => (item.clone(), shift),
    }
}

/// Returns where the nibbles of an item are in a row, and where their results go.
fn ends<T>(parts: &Parts<'_, T>, item: &Item, row: usize) -> (*const u8, *mut u8) {
    let (data, out, start) = (&parts.containers.data, &parts.results.out, item.columns.start);
    let codes = data.row(item.matrix, row).wrapping_add(start / 2);
    (codes, out.row(item.matrix, row).wrapping_add(start * out.size()))
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
