//! Everything that is decided before an element is read, and the buffers of a thread.

use super::operands::{Decoding, GlobalUse, Meaning, PerBlock, group_index, per_row, refuse};
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::kernels::tables::rectangle;
use crate::kernels::tile::{TILE, Tile};
use crate::kernels::vectors::shapes::{Shape, shape_of};
use crate::quantization::arithmetic::{LANES, PIECE, Piece, with_one};
use crate::quantization::lookup::{self, HALF};
use crate::quantization::nearest::look_up;
use crate::quantization::packing::Packing;
use crate::quantization::real::operation::SUBTRACT;
use crate::quantization::real::{Real, bf16, format};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::work::{Extent, Item};

/// The buffers of a thread for what is read from the host and written to it, and for tables: pointers to them outlive a
/// use of the other buffers.
#[derive(Default)]
pub(super) struct Ends {
    pub(super) packed: Room,
    pub(super) high: Room,
    pub(super) codes: Piece<u8>,
    pub(super) bits: Piece<u8>,
    pub(super) tables: Tables,
    pub(super) out: OutRoom,
}

/// The other buffers of a thread.
#[derive(Default)]
pub(super) struct Buffers<T: Real> {
    pub(super) values: Piece<T>,
    pub(super) raw: Piece<u32>,
    pub(super) f32s: Piece<f32>,
    pub(super) constant: T,
    pub(super) scale: Piece<T>,
    pub(super) zero: Piece<T>,
    pub(super) bias: Piece<T>,
    pub(super) narrow: Piece<u64>,
    pub(super) all: Vec<f32>,
}

/// Every byte.
pub(super) static NUMBERS: [u8; 256] = {
    let mut numbers = [0; 256];
    let mut i = 0;
    while i < 256 {
        numbers[i] = i as u8;
        i += 1;
    }
    numbers
};

/// More half groups of one block than there are.
pub(super) const ONE_BLOCK: u32 = usize::BITS - 1;

/// Codes of a byte of one block that are worth a table.
pub(super) const PAYS_FROM: usize = 1 << 11;

/// Rows of a piece whose operands are not dense.
pub(super) const TALL: usize = 16;

/// Columns of such a piece.
pub(super) const NARROW: usize = PIECE / TALL;

/// Elements from which on shorter pieces are faster: the caches fetch the next one meanwhile.
const LONG: usize = 1 << 21;

/// Room for the tables of 512 blocks, or of 256 scales.
pub(super) type Tables = Tile<[u64; 2]>;

/// Room for the containers of a piece.
pub(super) type Room = Piece<u32>;

/// Room for the results of a piece.
pub(super) type OutRoom = Piece<u64>;

/// A decoding with everything that is decided before an element is read.
pub(super) struct Decoder<T> {
    pub(super) what: Decoding,
    pub(super) extent: Extent,
    pub(super) data: Rows,
    pub(super) high: Option<Rows>,
    pub(super) scale: Option<PerBlock>,
    pub(super) zero_point: Option<PerBlock>,
    pub(super) bias: Option<PerBlock>,
    pub(super) global: Vec<T>,
    pub(super) groups: Option<Vec<u32>>,
    pub(super) divisors: Option<Vec<T>>,
    pub(super) map: Option<Box<[f32; 256]>>,
    pub(super) elements: Option<Prepared>,
    /// The same to bf16, where results are products of values that it holds and scales.
    pub(super) bf16_elements: Option<Prepared>,
    pub(super) results: Prepared,
    pub(super) out_shape: Option<Shape>,
    /// From results back, where products are rounded to their format.
    pub(super) back: Option<Prepared>,
    pub(super) out: Rows,
    pub(super) offset: T,
    pub(super) level: Level,
    /// Rounds to odd, because results are rounded once more.
    pub(super) odd: bool,
    /// Columns of a piece, and its rows, or 1 if it may have more.
    pub(super) piece: (usize, usize),
    pub(super) way: Way,
    /// The elements of the codes of a table, several times for nibbles.
    pub(super) pattern: Vec<T>,
    /// They have the offset, and results are their products with scales, in bf16; biases are added to these.
    pub(super) products: bool,
}

/// How the codes of an item become results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Piece by piece.
    Pieces,
    /// Nibbles by a table for each value of a scale of one byte, given half groups of a block as a power of two.
    NibblesByScale(u32),
    /// Nibbles by a table for each block.
    NibblesByBlock(u32),
    /// Bytes by a table for each block.
    Bytes,
}

impl<T: Real> Decoder<T> {
    /// # Safety
    /// As for [`decode`].
    pub(super) unsafe fn new(what: Decoding, out: &Array) -> Result<Self, Error> {
        if out.format.float().is_none() {
            return refuse(format!("out has dtype {}; use a real float.", out.format.name()));
        }
        let extent = Extent::of("out", out, what.block)?;
        let stack = extent.stack.len();
        let containers = |argument: &str, array: &Array, packing: Packing, bits| {
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
        let high = what.high.as_ref().map(|high| containers("high", high, Packing::Dense, 1)).transpose()?;
        let bits = what.bits + u32::from(high.is_some());
        let (elements, map) = match &what.meaning {
            &Meaning::Format(format) if format.row().bits <= 8 && bits <= 8 => {
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
        let per_block = |argument: &str, array: &Option<Array>| {
            array.as_ref().map(|array| PerBlock::new(argument, array, &extent, grouped)).transpose()
        };
        let scale = per_block("scale", &what.scale)?;
        let zero_point = per_block("zero_point", &what.zero_point)?;
        let bias = per_block("bias", &what.bias)?;
        let widths =
            [&scale, &zero_point, &bias].map(|found| found.as_ref().map(|found| found.items.width()));
        // SAFETY: the caller's promise.
        let (global, groups, divisors) = unsafe {
            (
                extent.per_matrix(what.global_scale.as_ref().map(|(array, _)| array))?,
                what.group_index.as_ref().map(|array| group_index(array, &extent, widths)).transpose()?,
                what.divisor.as_ref().map(|array| per_row(array, &extent)).transpose()?,
            )
        };
        let results = Prepared::new(format::<T>(), None, out.format)?;
        let narrow = what.narrow && what.bias.is_some() && out.format != format::<T>();
        let back = narrow.then(|| Prepared::new(out.format, None, format::<T>())).transpose()?;
        let out_rows = Rows::new(out, stack);
        let unit = what.packing.unit(what.bits);
        let dense = data.is_in_runs() && out_rows.is_dense() && high.as_ref().is_none_or(Rows::is_in_runs);
        let (widest, tall) = if dense { (widest(&extent), 1) } else { (NARROW, TALL) };
        Ok(Self {
            data,
            high,
            scale,
            zero_point,
            bias,
            global: global.into_iter().map(T::from_f32).collect(),
            groups,
            divisors: divisors.map(|values| values.into_iter().map(T::from_f32).collect()),
            map,
            elements,
            bf16_elements: bf16_elements(&what, &extent)?,
            out_shape: out.format.float().and_then(|spec| shape_of(&spec)),
            results,
            back,
            out: out_rows,
            offset: T::from_f32(what.offset as f32),
            level: Level::active(),
            odd: what.exact && out.format != format::<T>(),
            piece: (widest / unit * unit, tall),
            way: Way::Pieces,
            pattern: Vec::new(),
            products: false,
            extent,
            what,
        }
        .with_way(out.format))
    }

    /// Returns an item as one row, if each row goes on where the one before it ends in every array, and they share nothing.
    pub(super) fn joined(&self, item: &Item) -> Option<Item> {
        let Extent { columns, block, .. } = self.extent;
        let (packing, bits) = (self.what.packing, self.what.bits);
        let is_plain = (packing, bits) == (Packing::Dense, u8::BITS) && self.high.is_none();
        // Rows end with whole containers.
        let unit = if is_plain { self.data.size() } else { packing.unit(bits) };
        let per_block = [&self.scale, &self.zero_point, &self.bias];
        let joins = item.columns == (0..columns)
            && block.0 == 1
            && columns % block.1 == 0
            && columns % unit == 0
            && self.groups.is_none()
            && self.divisors.is_none()
            && [Some(&self.data), self.high.as_ref()].into_iter().flatten().all(Rows::goes_on)
            && self.out.is_gapless(columns)
            && per_block.into_iter().flatten().all(|found| found.items.goes_on());
        let (start, columns) = (item.rows.start, 0..item.rows.len() * columns);
        joins.then(|| Item { rows: start..start + 1, columns, ..item.clone() })
    }

    /// Chooses the fastest way.
    fn with_way(mut self, out: Format) -> Self {
        let (what, extent, level) = (&self.what, &self.extent, self.level);
        let dense = self.data.is_dense() && self.out.is_dense() && out.item_size() == 2;
        let nibbles = what.bits == 4 && what.packing == Packing::HighFirst;
        let plain = (what.packing == Packing::Dense || nibbles) && what.high.is_none();
        if !dense || !plain || self.groups.is_some() || self.divisors.is_some() {
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
        let is_float = matches!(what.meaning, Meaning::Format(format) if format.float().is_some());
        match (what.bits, shift) {
            (4, Some(shift)) if lookup::has_tables(level) => {
                let by_scale = only_scale && self.scale.as_ref().is_some_and(is_byte);
                self.way = if by_scale { Way::NibblesByScale(shift) } else { Way::NibblesByBlock(shift) };
            }
            (8, _) if rectangle::pays(level, is_float) && elements >= PAYS_FROM => self.way = Way::Bytes,
            _ => return self,
        }
        // One table of bytes is made at a time, many of nibbles.
        let (entries, all) =
            if self.way == Way::Bytes { (NUMBERS.len(), NUMBERS.len()) } else { (HALF, TILE) };
        self.pattern.resize(all, T::default());
        let (first, rest) = self.pattern.split_at_mut(entries);
        if let Some(map) = &self.map {
            // SAFETY: there are as many numbers.
            unsafe { look_up(level, map, NUMBERS.as_ptr(), first) };
        } else if let Some(elements) = &self.elements {
            // SAFETY: as many codes as values.
            unsafe { elements.run(NUMBERS.as_ptr(), first.as_mut_ptr().cast(), entries) };
        }
        let narrow = self.bias.is_none() || self.back.is_some();
        self.products = only_scales(&self.what) && narrow && self.out_shape == Some(Shape::Bf16);
        if self.products && self.what.offset != 0 {
            with_one::<T, SUBTRACT>(level, first, self.offset, false);
        }
        for values in rest.chunks_exact_mut(entries) {
            values.copy_from_slice(first);
        }
        self
    }
}

/// Returns the columns of a piece of dense rows.
fn widest(extent: &Extent) -> usize {
    if extent.matrices() * extent.rows * extent.columns > LONG { PIECE / 2 } else { PIECE }
}

/// Whether values are products with scales, and all else but biases is in these.
fn only_scales(what: &Decoding) -> bool {
    let others = [&what.zero_point, &what.group_index, &what.divisor];
    what.scale.is_some()
        && others.iter().all(|other| other.is_none())
        && !what.exact
        && !what.scale_divides
        && what.global_scale.as_ref().is_none_or(|(_, how)| *how != GlobalUse::After)
}

/// Returns the cast of codes to bf16, if results are products of values that it holds and scales of blocks that are not
/// short.
fn bf16_elements(what: &Decoding, extent: &Extent) -> Result<Option<Prepared>, Error> {
    let pays = only_scales(what) && what.bias.is_none() && what.offset == 0 && extent.block.1 >= LANES;
    match &what.meaning {
        &Meaning::Format(format) if pays && format.kind() != Kind::Bool => {
            Prepared::new(format, None, bf16()).map(Some)
        }
        _ => Ok(None),
    }
}
