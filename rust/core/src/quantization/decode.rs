//! Packed codes with their scales to floats, tile by tile.
//!
//! ```text
//! item of work: some rows and columns of a matrix of the stack, for one thread
//! tile:         gather the containers, unpack, codes to floats; minus zero point, times scale, plus bias; round, scatter
//! ```
//! Scales and zero points are spread over the columns of a tile once for all rows that share them.

use std::cell::RefCell;

use super::arithmetic::{Blocks, LANES, apply, by_block, with_one};
use super::lookup::{self, Choice, GROUP, HALF, Planes, Rectangle};
use super::nearest::look_up;
use super::packing::{Packing, add_high_bits, unpack};
use super::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use super::real::{Real, format};
use super::rows::{Array, Rows};
use super::scaled::{self, Float, Scaling};
use super::work::{Extent, Item, run_items};
use crate::cast::Prepared;
use crate::cpu::{Kernel, Level};
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::kernels::tile::{TILE, Tile};
use crate::kernels::vectors::shapes::{Shape, bf16_spec, shape_of};

/// What codes mean.
#[derive(Clone, Copy, Debug)]
pub enum Meaning<'a> {
    /// Values of a format.
    Format(Format),
    /// Indices into so many values.
    Map(&'a [f32]),
}

/// What a scale of the whole array does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalUse {
    /// Scales are multiplied by it.
    Multiply,
    /// Scales are divided by it.
    Divide,
    /// Products are multiplied by its reciprocal, rounded to float32; divided by it for exact results.
    After,
}

/// The operands of a decoding. Each array has the axes of the stack, then rows, then those of a row's items.
#[derive(Clone, Copy, Debug)]
pub struct Decoding<'a> {
    /// Containers of packed codes, of 1 or 4 bytes.
    pub data: Array<'a>,
    /// A second stream, of one more bit for each code.
    pub high: Option<Array<'a>>,
    /// What codes mean.
    pub meaning: Meaning<'a>,
    /// Bits of a code in `data`.
    pub bits: u32,
    /// Where codes are in their containers.
    pub packing: Packing,
    /// Rows and columns that share a scale; 0: a whole axis.
    pub block: (usize, usize),
    /// A scale for each block; without it they are 1.
    pub scale: Option<Array<'a>>,
    /// Codes are divided by their scales.
    pub scale_divides: bool,
    /// A float32 for each matrix of the stack.
    pub global_scale: Option<(Array<'a>, GlobalUse)>,
    /// Subtracted from every code.
    pub offset: i32,
    /// Subtracted from the codes of each block.
    pub zero_point: Option<Array<'a>>,
    /// Added to the products of each block.
    pub bias: Option<Array<'a>>,
    /// The block of each column, int32 or int64.
    pub group_index: Option<Array<'a>>,
    /// Divides the results of each column.
    pub divisor: Option<Array<'a>>,
    /// The real value is rounded once; else every operation is rounded to float32.
    pub exact: bool,
    /// Products are rounded to the format of the results before a bias is added.
    pub narrow: bool,
}

/// Decodes into floats of any format and strides.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes that do not fit each other and formats that an operand cannot have.
///
/// # Safety
/// The elements of all arrays are readable, those of `out` writable, and it overlaps neither itself nor the others.
pub unsafe fn decode(decoding: &Decoding<'_>, out: Array<'_>, threads: usize) -> Result<(), Error> {
    // SAFETY: passed on.
    unsafe {
        if decoding.exact {
            Decoder::<f64>::new(decoding, out)?.run(threads)
        } else {
            Decoder::<f32>::new(decoding, out)?.run(threads)
        }
    }
}

fn refuse<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidOption { message })
}

/// What each block of a matrix has.
struct PerBlock {
    items: Rows,
    /// From their format to float32.
    cast: Prepared,
}

impl PerBlock {
    fn new(argument: &str, array: &Array<'_>, extent: &Extent, grouped: bool) -> Result<Self, Error> {
        let real = match array.format.kind() {
            Kind::Float(_) => array.format.row().bits <= 32,
            Kind::Integer { .. } => array.format.row().bits <= 16,
            _ => false,
        };
        if !real {
            return refuse(format!(
                "{argument} has dtype {}; use a float of at most 32 bits, or an integer of at most 16.",
                array.format.name()
            ));
        }
        let found = extent.check(argument, array, extent.row_blocks())?;
        if !grouped && found != extent.column_blocks() {
            return refuse(format!(
                "{argument} has {found} items per row, {} columns in blocks of {} need {}; give one for each block.",
                extent.columns,
                extent.block.1,
                extent.column_blocks()
            ));
        }
        let cast = Prepared::new(array.format, None, format::<f32>())?;
        Ok(Self { items: Rows::new(array, extent.stack.len()), cast })
    }
}

/// The buffers of a thread.
#[derive(Default)]
struct Buffers<T: Real> {
    packed: Room,
    high: Room,
    codes: Tile<u8>,
    bits: Tile<u8>,
    values: Tile<T>,
    raw: Tile<u32>,
    f32s: Tile<f32>,
    tables: Tables,
    constant: T,
    scale: Tile<T>,
    zero: Tile<T>,
    bias: Tile<T>,
    narrow: Tile<u64>,
    divisor: Tile<T>,
    out: OutRoom,
    all: Vec<f32>,
}

/// Every byte.
static NUMBERS: [u8; 256] = {
    let mut numbers = [0; 256];
    let mut i = 0;
    while i < 256 {
        numbers[i] = i as u8;
        i += 1;
    }
    numbers
};

/// More half groups of one block than there are.
const ONE_BLOCK: u32 = usize::BITS - 1;

/// Codes of a byte of one block that are worth a table.
const PAYS_FROM: usize = 1 << 11;

/// Blocks whose tables are made together.
const TABLES: usize = TILE / HALF;

/// Rows of a tile whose operands are not dense.
const TALL: usize = 16;

/// Columns of such a tile.
const NARROW: usize = 256;

/// Room for the tables of 256 blocks, or of as many scales.
type Tables = Tile<[u64; 2]>;

/// Room for the containers of a tile.
type Room = Tile<[u64; 2]>;

/// Room for the results of a tile.
type OutRoom = Tile<[u64; 4]>;

/// A decoding with everything that is decided before an element is read.
struct Decoder<'a, T> {
    what: &'a Decoding<'a>,
    extent: Extent,
    data: Rows,
    high: Option<Rows>,
    scale: Option<PerBlock>,
    zero_point: Option<PerBlock>,
    bias: Option<PerBlock>,
    global: Vec<T>,
    groups: Option<Vec<u32>>,
    divisor: Option<Vec<T>>,
    map: Option<Box<[f32; 256]>>,
    elements: Option<Prepared>,
    /// The same to bf16, where results are products of values that it holds and scales.
    bf16_elements: Option<Prepared>,
    results: Prepared,
    out_shape: Option<Shape>,
    /// From results back, where products are rounded to their format.
    back: Option<Prepared>,
    out: Rows,
    offset: T,
    level: Level,
    /// Rounds to odd, because results are rounded once more.
    odd: bool,
    /// Columns of a tile, and its rows.
    tile: (usize, usize),
    way: Way,
    /// The elements of the codes of a table, as often as a tile has room.
    pattern: Box<Tile<T>>,
}

/// How the codes of an item become results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Tile by tile.
    Tiles,
    /// Nibbles by a table for each value of a scale of one byte, given half groups of a block as a power of two.
    NibblesByScale(u32),
    /// Nibbles by a table for each block.
    NibblesByBlock(u32),
    /// Bytes by a table for each block.
    Bytes,
}

impl<'a, T: Held> Decoder<'a, T> {
    /// # Safety
    /// As for [`decode`].
    unsafe fn new(what: &'a Decoding<'a>, out: Array<'_>) -> Result<Self, Error> {
        if out.format.float().is_none() {
            return refuse(format!("out has dtype {}; use a real float.", out.format.name()));
        }
        let extent = Extent::of("out", &out, what.block)?;
        let stack = extent.stack.len();
        let containers = |argument: &str, array: &Array<'_>, packing: Packing, bits| {
            let size = array.format.item_size();
            if size != 1 && size != 4 {
                let name = array.format.name();
                return refuse(format!(
                    "{argument} has dtype {name}; give a view of it of 1 or 4 bytes per item."
                ));
            }
            let found = extent.check(argument, array, extent.rows)?;
            let needed = packing.bytes(bits, extent.columns).div_ceil(size);
            if found != needed {
                return refuse(format!(
                    "{argument} has {found} items of {size} bytes per row, {} codes of {bits} bits need {needed}; \
                     give an array of that width.",
                    extent.columns
                ));
            }
            Ok(Rows::new(array, stack))
        };
        let data = containers("data", &what.data, what.packing, what.bits)?;
        let high = what.high.map(|high| containers("high", &high, Packing::Dense, 1)).transpose()?;
        let bits = what.bits + u32::from(high.is_some());
        let (elements, map) = match what.meaning {
            Meaning::Format(format) if format.row().bits <= 8 && bits <= 8 => {
                (Some(Prepared::new(format, None, self::format::<T>())?), None)
            }
            Meaning::Map(map) if map.len() == 1 << bits => {
                let mut entries = Box::new([0f32; 256]);
                entries[..map.len()].copy_from_slice(map);
                (None, Some(entries))
            }
            Meaning::Format(format) => {
                return refuse(format!(
                    "element={:?} is not valid; use a format of at most 8 bits.",
                    format.name()
                ));
            }
            Meaning::Map(map) => {
                return refuse(format!(
                    "code_map has {} values, codes of {bits} bits need {}.",
                    map.len(),
                    1 << bits
                ));
            }
        };
        let grouped = what.group_index.is_some();
        let per_block = |argument: &str, array: Option<Array<'_>>| {
            array.map(|array| PerBlock::new(argument, &array, &extent, grouped)).transpose()
        };
        let scale = per_block("scale", what.scale)?;
        let zero_point = per_block("zero_point", what.zero_point)?;
        let bias = per_block("bias", what.bias)?;
        let widths =
            [&scale, &zero_point, &bias].map(|found| found.as_ref().map(|found| found.items.width()));
        // SAFETY: the caller's promise.
        let (global, groups, divisor) = unsafe {
            (
                what.global_scale.map_or(Ok(Vec::new()), |(array, _)| extent.per_matrix(&array))?,
                what.group_index.map(|array| group_index(&array, &extent, widths)).transpose()?,
                what.divisor.map(|array| per_column(&array, &extent)).transpose()?,
            )
        };
        let results = Prepared::new(format::<T>(), None, out.format)?;
        let only_scales = scale.is_some()
            && zero_point.is_none()
            && bias.is_none()
            && !grouped
            && what.divisor.is_none()
            && what.offset == 0
            && !what.exact
            && !what.scale_divides
            && what.global_scale.is_none_or(|(_, how)| how != GlobalUse::After)
            && extent.block.1 >= LANES;
        let bf16_elements = match what.meaning {
            Meaning::Format(format) if only_scales && format.kind() != Kind::Bool => Format::all()
                .find(|known| known.float() == Some(bf16_spec()))
                .map(|bf16| Prepared::new(format, None, bf16)),
            _ => None,
        };
        let narrow = what.narrow && what.bias.is_some() && out.format != format::<T>();
        let back = narrow.then(|| Prepared::new(out.format, None, format::<T>())).transpose()?;
        let out_rows = Rows::new(&out, stack);
        let unit = what.packing.unit(what.bits);
        let dense = data.is_dense() && out_rows.is_dense() && high.as_ref().is_none_or(Rows::is_dense);
        let (widest, tall) = if dense { (TILE, 1) } else { (NARROW, TALL) };
        Ok(Self {
            what,
            data,
            high,
            scale,
            zero_point,
            bias,
            global: global.into_iter().map(T::from_f32).collect(),
            groups,
            divisor: divisor.map(|values| values.into_iter().map(T::from_f32).collect()),
            map,
            elements,
            bf16_elements: bf16_elements.transpose()?,
            out_shape: out.format.float().and_then(|spec| shape_of(&spec)),
            results,
            back,
            out: out_rows,
            offset: T::from_f32(what.offset as f32),
            level: Level::active(),
            odd: what.exact && out.format != format::<T>(),
            tile: (widest / unit * unit, tall),
            way: Way::Tiles,
            pattern: Box::default(),
            extent,
        }
        .with_way(out.format))
    }

    /// Chooses the fastest way.
    fn with_way(mut self, out: Format) -> Self {
        let (what, extent, level) = (self.what, &self.extent, self.level);
        let dense = self.data.is_dense() && self.out.is_dense() && out.item_size() == 2;
        let nibbles = what.bits == 4 && what.packing == Packing::HighFirst;
        let plain = (what.packing == Packing::Dense || nibbles) && what.high.is_none();
        if !dense || !plain || self.groups.is_some() || self.divisor.is_some() {
            return self;
        }
        let width = extent.block.1;
        let elements = extent.block.0.min(extent.rows) * width.min(extent.columns);
        let shift = match width {
            _ if width >= extent.columns => Some(ONE_BLOCK),
            _ if width.is_power_of_two() && width >= HALF => Some((width / HALF).trailing_zeros()),
            _ => None,
        };
        let is_byte = |items: &PerBlock| items.items.size() == 1 && items.items.is_dense();
        let only_scale = self.zero_point.is_none() && self.bias.is_none();
        match (what.bits, shift) {
            (4, Some(shift)) if lookup::has_nibbles(level) => {
                let by_scale = only_scale && self.scale.as_ref().is_some_and(is_byte);
                self.way = if by_scale { Way::NibblesByScale(shift) } else { Way::NibblesByBlock(shift) };
            }
            (8, _) if lookup::has_bytes(level) && elements >= PAYS_FROM => self.way = Way::Bytes,
            _ => return self,
        }
        let entries = if self.way == Way::Bytes { NUMBERS.len() } else { HALF };
        let (first, rest) = self.pattern.0.split_at_mut(entries);
        if let Some(map) = &self.map {
            look_up(level, map, &NUMBERS[..entries], first);
        } else if let Some(elements) = &self.elements {
            // SAFETY: as many codes as values.
            unsafe { elements.run(NUMBERS.as_ptr(), first.as_mut_ptr().cast(), entries) };
        }
        for values in rest.chunks_exact_mut(entries) {
            values.copy_from_slice(first);
        }
        self
    }

    /// # Safety
    /// As for [`decode`].
    unsafe fn run(&self, threads: usize) -> Result<(), Error> {
        let bytes = self.data.size() * self.data.width() + self.out.size() * self.extent.columns;
        // SAFETY: the caller's promise; items are apart.
        run_items(&self.extent, self.tile, bytes, threads, |item| unsafe {
            T::with_buffers(|buffers| self.item(item, buffers));
            Ok(())
        })
    }

    /// Decodes the rows and columns of one item.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn item(&self, item: &Item, buffers: &mut Buffers<T>) {
        // SAFETY: passed on.
        unsafe {
            match self.way {
                Way::Tiles => self.tiles(item, buffers),
                Way::NibblesByScale(shift) => self.nibbles_by_scale(item, shift, buffers),
                Way::NibblesByBlock(shift) => self.nibbles_by_block(item, shift, buffers),
                Way::Bytes => self.bytes(item, buffers),
            }
        }
    }

    /// Returns the item as one row, if its rows follow each other without gaps in every array and share no scales.
    fn in_one_row(&self, item: &Item) -> (Item, Option<usize>) {
        let Extent { columns, block, .. } = self.extent;
        let follow = |rows: &Rows, items: usize| rows.is_gapless(items);
        let per_block = [&self.scale, &self.zero_point, &self.bias];
        let across = self.extent.column_blocks();
        let joined = item.columns == (0..columns)
            && block.0 == 1
            && columns % block.1 == 0
            && columns % GROUP == 0
            && block.1 % HALF == 0
            && block.1.is_power_of_two()
            && follow(&self.data, columns * self.what.bits as usize / 8 / self.data.size())
            && follow(&self.out, columns)
            && per_block.iter().all(|items| items.as_ref().is_none_or(|items| follow(&items.items, across)));
        if !joined {
            return (item.clone(), None);
        }
        let columns = 0..item.rows.len() * columns;
        (Item { rows: item.rows.start..item.rows.start + 1, columns, ..item.clone() }, Some(block.1))
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
        buffers.values.0[..count].copy_from_slice(&self.pattern.0[..count]);
        // SAFETY: the caller's promise.
        unsafe {
            let blocks = self.prepare(matrix, block, (first * entries, count, entries), buffers);
            self.apply_blocks(count, blocks, buffers);
            self.results.run(buffers.values.0.as_ptr().cast(), tables, count);
        }
    }

    /// Decodes nibbles whose scales have one byte.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn nibbles_by_scale(&self, item: &Item, shift: u32, buffers: &mut Buffers<T>) {
        let Some(scale) = &self.scale else { return };
        let (item, joined) = self.in_one_row(item);
        // One block to a row: many to all of them.
        let width = joined.unwrap_or(self.extent.block.1);
        let shift =
            if joined.is_some() && width.is_power_of_two() { (width / HALF).trailing_zeros() } else { shift };
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut buffers.tables.0).cast::<u8>();
            let (mut low, mut high) = (1usize, 0usize);
            for row in item.rows.clone() {
                let (first, last) = (item.columns.start / width, item.columns.end.div_ceil(width));
                let indices = scale.items.row(item.matrix, self.extent.row_block(row)).cast_const();
                let found = std::slice::from_raw_parts(indices.add(first), last - first);
                let (least, most) = bounds(self.level, found);
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
    unsafe fn nibbles_by_block(&self, item: &Item, shift: u32, buffers: &mut Buffers<T>) {
        let (item, joined) = self.in_one_row(item);
        let width = joined.unwrap_or(self.extent.block.1);
        let shift =
            if joined.is_some() && width.is_power_of_two() { (width / HALF).trailing_zeros() } else { shift };
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut buffers.tables.0).cast::<u8>();
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
    unsafe fn bytes(&self, item: &Item, buffers: &mut Buffers<T>) {
        let (tall, width) = self.extent.block;
        let mut planes: Planes = [[0; 256]; 2];
        // SAFETY: the caller's promise.
        unsafe {
            let tables = (&raw mut buffers.tables.0).cast::<u8>();
            let mut row = item.rows.start;
            while row < item.rows.end {
                let rows = (tall - row % tall).min(item.rows.end - row);
                let mut start = item.columns.start;
                while start < item.columns.end {
                    let first = start / width;
                    let end = ((first + 1) * width).min(item.columns.end);
                    let block = self.extent.row_block(row);
                    self.fill_tables(item.matrix, Some(block), (first, 1, 256), tables, buffers);
                    let entries = tables.cast::<[[u8; 2]; 256]>().read_unaligned();
                    for (code, [low, high]) in entries.into_iter().enumerate() {
                        (planes[0][code], planes[1][code]) = (low, high);
                    }
                    let rectangle = Rectangle {
                        codes: self.data.row(item.matrix, row).add(start),
                        pitch: self.data.pitch(),
                        target: self.out.row(item.matrix, row).add(2 * start),
                        target_pitch: self.out.pitch(),
                        rows,
                        columns: end - start,
                    };
                    lookup::bytes(self.level, &planes, rectangle);
                    start = end;
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

    /// Decodes an item tile by tile.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn tiles(&self, item: &Item, buffers: &mut Buffers<T>) {
        let (widest, tall) = self.tile;
        for start in item.columns.clone().step_by(widest) {
            let count = widest.min(item.columns.end - start);
            if let Some(divisor) = &self.divisor {
                buffers.divisor.0[..count].copy_from_slice(&divisor[start..start + count]);
            }
            let mut prepared = None;
            for row in item.rows.clone().step_by(tall) {
                let rows = tall.min(item.rows.end - row);
                // SAFETY: the caller's promise for these rows and columns.
                unsafe { self.tile(item.matrix, (row, rows), (start, count), &mut prepared, buffers) };
            }
        }
    }

    /// Decodes a tile.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn tile(
        &self,
        matrix: usize,
        (row, rows): (usize, usize),
        (start, count): (usize, usize),
        prepared: &mut Option<(usize, Blocks)>,
        buffers: &mut Buffers<T>,
    ) {
        let (level, what) = (self.level, self.what);
        // SAFETY: the caller's promise; the rooms are large enough for a tile of rows, and each buffer for a row.
        unsafe {
            let containers = |rows_of: &Rows, (packing, bits): (Packing, u32), room: *mut u8| {
                let first = packing.bytes(bits, start) / rows_of.size();
                let last = packing.bytes(bits, start + count).div_ceil(rows_of.size());
                rows_of.read(level, rows_of.row(matrix, row), (rows, first, last - first), room)
            };
            let room = (&raw mut buffers.packed.0).cast();
            let (packed, pitch) = containers(&self.data, (what.packing, what.bits), room);
            let room = (&raw mut buffers.high.0).cast();
            let high = self.high.as_ref().map(|high| containers(high, (Packing::Dense, 1), room));
            let direct = self.out.is_dense();
            let out_row = count * self.out.size();
            for index in 0..rows {
                let block = self.extent.row_block(row + index);
                let width = self.extent.block.1;
                let (_, blocks) = match prepared.take() {
                    Some(known) if known.0 == block => known,
                    _ => (block, self.prepare(matrix, Some(block), (start, count, width), buffers)),
                };
                *prepared = Some((block, blocks));
                let packed = packed.offset(index as isize * pitch);
                let mut codes = packed;
                if what.bits < 8 || what.packing != Packing::Dense {
                    let unpacked = buffers.codes.0.as_mut_ptr();
                    unpack(level, (what.packing, what.bits), packed, unpacked, count);
                    if let Some((high, pitch)) = high {
                        let bits = buffers.bits.0.as_mut_ptr();
                        let high = high.offset(index as isize * pitch);
                        add_high_bits(level, what.bits, high, (unpacked, bits), count);
                    }
                    codes = unpacked;
                }
                let to = if direct {
                    self.out.row(matrix, row + index).add(start * self.out.size())
                } else {
                    (&raw mut buffers.out.0).cast::<u8>().add(index * out_row)
                };
                if let Some(elements) = &self.bf16_elements {
                    self.products(elements, codes, to, count, blocks, buffers);
                    continue;
                }
                self.values(codes, count, blocks, buffers);
                self.results.run(buffers.values.0.as_ptr().cast(), to, count);
            }
            if !direct {
                let tile = (&raw const buffers.out.0).cast();
                self.out.write(level, self.out.row(matrix, row), (rows, start, count), tile);
            }
        }
    }

    /// Turns the codes of a row of a tile into results by way of bf16.
    ///
    /// # Safety
    /// So many codes are readable, and results writable.
    unsafe fn products(
        &self,
        elements: &Prepared,
        codes: *const u8,
        to: *mut u8,
        count: usize,
        blocks: Blocks,
        buffers: &mut Buffers<T>,
    ) {
        let Buffers { narrow, values, scale, .. } = buffers;
        let Some(numbers) = T::f32s(&scale.0[..(blocks.begun + count).div_ceil(blocks.width)]) else {
            return;
        };
        let from = narrow.0.as_mut_ptr().cast::<u8>();
        let values = values.0.as_mut_ptr().cast::<u8>();
        let there = match self.out_shape {
            Some(Shape::Bf16) => (to, Float::Bf16),
            Some(Shape::F32) => (to, Float::F32),
            _ => (values, Float::F32),
        };
        // SAFETY: the caller's promise; the buffers have room for a tile.
        unsafe {
            elements.run(codes, from, count);
            let from = (from.cast_const(), Float::Bf16);
            let scaling = Scaling { from, to: there, count, blocks, numbers, reciprocals: &[] };
            scaled::scale(self.level, scaling);
            if there.0 == values {
                self.results.run(values, to, count);
            }
        }
    }

    /// Turns the codes of a row of a tile into values.
    ///
    /// # Safety
    /// So many codes are readable.
    unsafe fn values(&self, codes: *const u8, count: usize, blocks: Blocks, buffers: &mut Buffers<T>) {
        let values = &mut buffers.values.0[..count];
        // SAFETY: the caller's promise; the buffer has so many elements.
        unsafe {
            if let Some(map) = &self.map {
                look_up(self.level, map, std::slice::from_raw_parts(codes, count), values);
            } else if let Some(elements) = &self.elements {
                elements.run(codes, values.as_mut_ptr().cast(), count);
            }
        }
        self.apply_blocks(count, blocks, buffers);
    }

    /// Applies to values what their blocks have.
    fn apply_blocks(&self, count: usize, blocks: Blocks, buffers: &mut Buffers<T>) {
        let odd = self.odd;
        let Buffers { values, zero, scale, bias, narrow, divisor, constant, .. } = buffers;
        let values = &mut values.0[..count];
        if self.zero_point.is_some() {
            self.each::<SUBTRACT>(values, blocks, zero);
        } else if self.what.offset != 0 {
            with_one::<T, SUBTRACT>(self.level, values, self.offset, odd);
        }
        let exactly_after = self.what.exact && self.global_use() != Some(GlobalUse::Multiply);
        if self.what.scale_divides {
            self.each::<DIVIDE>(values, blocks, scale);
        } else if self.scale.is_some() {
            self.each::<MULTIPLY>(values, blocks, scale);
        } else if !self.global.is_empty() && !exactly_after {
            with_one::<T, MULTIPLY>(self.level, values, scale.0[0], odd);
        }
        if !self.global.is_empty() {
            if exactly_after {
                with_one::<T, DIVIDE>(self.level, values, *constant, odd);
            } else if self.global_use() == Some(GlobalUse::After) {
                with_one::<T, MULTIPLY>(self.level, values, *constant, odd);
            }
        }
        if let Some(back) = &self.back {
            let narrow = narrow.0.as_mut_ptr().cast::<u8>();
            // SAFETY: both buffers have room for so many elements, and are apart.
            unsafe {
                self.results.run(values.as_ptr().cast(), narrow, count);
                back.run(narrow, values.as_mut_ptr().cast(), count);
            }
        }
        if self.bias.is_some() {
            self.each::<ADD>(values, blocks, bias);
        }
        if self.divisor.is_some() {
            apply::<T, DIVIDE>(self.level, values, &divisor.0, odd);
        }
    }

    /// Applies an operation to values and the operands of their blocks.
    fn each<const OPERATION: u8>(&self, values: &mut [T], blocks: Blocks, operands: &Tile<T>) {
        if blocks.width == 1 {
            return apply::<T, OPERATION>(self.level, values, &operands.0, self.odd);
        }
        let (to, count) = (values.as_mut_ptr(), values.len());
        let operands = &operands.0[..(blocks.begun + count).div_ceil(blocks.width)];
        // SAFETY: these are the elements of the slice.
        unsafe { by_block::<T, OPERATION>(self.level, (to, to, count), blocks, operands, self.odd) };
    }

    fn global_use(&self) -> Option<GlobalUse> {
        self.what.global_scale.map(|(_, how)| how)
    }

    /// Reads what the blocks of a row of blocks have for the columns of a tile, given the columns of a block. Without a
    /// row, the bytes of scales are their own numbers.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn prepare(
        &self,
        matrix: usize,
        block: Option<usize>,
        columns: (usize, usize, usize),
        buffers: &mut Buffers<T>,
    ) -> Blocks {
        let level = self.level;
        let Buffers { raw, f32s, all, scale, zero, bias, constant, .. } = buffers;
        let global = self.global.get(matrix).copied().unwrap_or(T::ONE);
        let how = self.global_use();
        *constant = if how == Some(GlobalUse::After) && !self.what.exact {
            T::ONE.combine::<DIVIDE, false>(global)
        } else {
            global
        };
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(zero_point) = &self.zero_point {
                let found = self.read_blocks(zero_point, matrix, block, columns, (raw, f32s, all), zero);
                // Sums of small integers are exact.
                with_one::<T, ADD>(level, found, self.offset, false);
            }
            if let Some(items) = &self.bias {
                self.read_blocks(items, matrix, block, columns, (raw, f32s, all), bias);
            }
            let found = if let Some(items) = &self.scale {
                self.read_blocks(items, matrix, block, columns, (raw, f32s, all), scale)
            } else {
                scale.0[0] = T::ONE;
                &mut scale.0[..1]
            };
            // The exact product of two float32 is a float64; their quotient is not.
            match how {
                Some(GlobalUse::Multiply) => with_one::<T, MULTIPLY>(level, found, global, false),
                Some(GlobalUse::Divide) if !self.what.exact => {
                    with_one::<T, DIVIDE>(level, found, global, false);
                }
                _ => {}
            }
        }
        let (start, _, width) = columns;
        if self.groups.is_some() {
            Blocks { width: 1, begun: 0 }
        } else {
            Blocks { width, begun: start % width }
        }
    }

    /// Reads an item for each block of a tile, or for each column of groups.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn read_blocks<'b>(
        &self,
        items: &PerBlock,
        matrix: usize,
        block: Option<usize>,
        (start, count, width): (usize, usize, usize),
        (raw, f32s, all): (&mut Tile<u32>, &mut Tile<f32>, &mut Vec<f32>),
        to: &'b mut Tile<T>,
    ) -> &'b mut [T] {
        let first_row = block.map(|block| items.items.row(matrix, block).cast_const());
        // SAFETY: the caller's promise; a tile has no more blocks than columns.
        unsafe {
            let number = if let Some(groups) = &self.groups {
                let width = items.items.width();
                all.resize(width, 0.0);
                for start in (0..width).step_by(TILE) {
                    let count = TILE.min(width - start);
                    self.read(items, first_row, (start, count), raw, &mut all[start..start + count]);
                }
                for (place, &group) in f32s.0.iter_mut().zip(&groups[start..start + count]) {
                    *place = all[group as usize];
                }
                count
            } else {
                let (first, last) = (start / width, (start + count).div_ceil(width));
                self.read(items, first_row, (first, last - first), raw, &mut f32s.0[..last - first]);
                last - first
            };
            let to = &mut to.0[..number];
            for (place, &value) in to.iter_mut().zip(&f32s.0) {
                *place = T::from_f32(value);
            }
            to
        }
    }

    /// Reads items of a row as float32.
    ///
    /// # Safety
    /// As for [`decode`]; there are as many items.
    unsafe fn read(
        &self,
        items: &PerBlock,
        first: Option<*const u8>,
        (start, count): (usize, usize),
        raw: &mut Tile<u32>,
        to: &mut [f32],
    ) {
        // SAFETY: the caller's promise; items have up to 4 bytes.
        unsafe {
            let room = raw.0.as_mut_ptr().cast();
            let found = match first {
                Some(first) => items.items.read(self.level, first, (1, start, count), room).0,
                None => NUMBERS.as_ptr().add(start),
            };
            items.cast.run(found, to.as_mut_ptr().cast(), count);
        }
    }
}

/// Returns the smallest and the largest of some bytes; 1 and 0 if there are none.
fn bounds(level: Level, bytes: &[u8]) -> (usize, usize) {
    struct Bounds<'a>(&'a [u8]);
    impl Kernel for Bounds<'_> {
        type Output = (u8, u8);

        #[inline(always)]
        fn run(self) -> (u8, u8) {
            self.0.iter().fold((u8::MAX, 0), |(low, high), &byte| (low.min(byte), high.max(byte)))
        }
    }
    if bytes.is_empty() {
        return (1, 0);
    }
    let (low, high) = level.run(Bounds(bytes));
    (low.into(), high.into())
}

/// Reads the block of each column.
///
/// # Safety
/// The elements are readable.
unsafe fn group_index(
    array: &Array<'_>,
    extent: &Extent,
    widths: [Option<usize>; 3],
) -> Result<Vec<u32>, Error> {
    let size = array.format.item_size();
    let signed = array.format.kind() == Kind::Integer { signed: true };
    if !signed || size < 4 || array.shape != [extent.columns] {
        return refuse(format!(
            "group_index has dtype {} and shape {:?}; give an int32 or int64 for each of {} columns.",
            array.format.name(),
            array.shape,
            extent.columns
        ));
    }
    let groups = widths.into_iter().flatten().min().unwrap_or(0);
    (0..extent.columns)
        .map(|column| {
            let item = array.pointer.wrapping_offset(column as isize * array.strides[0]);
            // SAFETY: the caller's promise; the element has so many bytes.
            let group = unsafe {
                if size == 4 {
                    i64::from(item.cast::<i32>().read_unaligned())
                } else {
                    item.cast::<i64>().read_unaligned()
                }
            };
            let valid = u32::try_from(group).ok().filter(|&group| (group as usize) < groups);
            valid.map_or_else(
                || refuse(format!("group_index[{column}]={group} is not one of {groups} blocks; give 0 or more, and less.")),
                Ok,
            )
        })
        .collect()
}

/// Reads a float for each column.
///
/// # Safety
/// The elements are readable.
unsafe fn per_column(array: &Array<'_>, extent: &Extent) -> Result<Vec<f32>, Error> {
    if array.format.float().is_none() || array.format.row().bits > 32 || array.shape != [extent.columns] {
        return refuse(format!(
            "divisor has dtype {} and shape {:?}; give a float of at most 32 bits for each of {} columns.",
            array.format.name(),
            array.shape,
            extent.columns
        ));
    }
    let cast = Prepared::new(array.format, None, format::<f32>())?;
    let mut values = vec![0f32; extent.columns];
    for (column, value) in values.iter_mut().enumerate() {
        let item = array.pointer.wrapping_offset(column as isize * array.strides[0]);
        // SAFETY: the caller's promise for one element.
        unsafe { cast.run(item, (&raw mut *value).cast(), 1) };
    }
    Ok(values)
}

/// A type whose buffers each thread keeps.
trait Held: Real {
    /// Calls a function with the buffers of this thread.
    fn with_buffers(function: impl FnOnce(&mut Buffers<Self>));
}

/// Keeps the buffers of a thread between calls: clearing them each time would take longer than a small array.
macro_rules! held {
    ($real:ty, $name:ident) => {
        thread_local! {
            static $name: RefCell<Box<Buffers<$real>>> = RefCell::default();
        }
        impl Held for $real {
            fn with_buffers(function: impl FnOnce(&mut Buffers<Self>)) {
                $name.with_borrow_mut(|buffers| function(buffers));
            }
        }
    };
}
held!(f32, F32_BUFFERS);
held!(f64, F64_BUFFERS);
