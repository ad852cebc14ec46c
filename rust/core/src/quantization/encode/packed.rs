//! Codes in their containers, and where these go.

use crate::cpu::Level;
use crate::kernels::tables::e2m1_codes::Form;
use crate::quantization::arithmetic::Piece;
use crate::quantization::packing::{Packing, pack};
use crate::quantization::rows::Rows;
use crate::quantization::transposed::TransposedItem;
use crate::quantization::work::{Columns, Place};

/// The containers of codes.
pub(super) struct Packed {
    pub(super) rows: Rows,
    pub(super) packing: Packing,
    /// Of a code.
    pub(super) bits: u32,
    /// Of the matrix.
    pub(super) columns: usize,
    /// Rows are not dense, and are moved there item by item.
    pub(super) transposes: bool,
    pub(super) level: Level,
}

/// Codes of a piece, packed ones that are not dense, and an item of these.
#[derive(Default)]
pub(super) struct PackBuffers {
    pub(super) codes: Box<Piece<u8>>,
    containers: Box<Piece<u32>>,
    pub(super) item: TransposedItem,
}

/// Where the codes of a piece go.
pub(super) struct Target {
    place: Place,
    columns: usize,
    /// The first container, and how many a row has.
    from: usize,
    items: usize,
    /// Where the first container is.
    pub(super) first: *mut u8,
    /// Rows follow each other without gaps.
    is_direct: bool,
    /// Each code is a byte.
    is_plain: bool,
    /// How pairs of codes are stored at once, if they can be.
    pub(super) nibbles: Option<Form>,
}

impl Target {
    /// Returns where codes of a byte go in the end, if they need no packing.
    pub(super) fn bytes(&self) -> Option<*mut u8> {
        (self.is_direct && self.is_plain).then_some(self.first)
    }
}

impl Packed {
    /// Returns the bytes of the codes of so many columns.
    fn bytes(&self, columns: usize) -> usize {
        self.packing.bytes(self.bits, columns)
    }

    /// Returns the containers of some columns: the first one and how many.
    pub(super) fn containers(&self, columns: Columns) -> Columns {
        let (start, end) = (self.bytes(columns.start), self.bytes(columns.start + columns.count));
        let (start, end) = (start / self.rows.size(), end.div_ceil(self.rows.size()));
        Columns { start, count: end - start }
    }

    /// Returns how many codes fill whole containers, whose rows may be joined.
    pub(super) fn unit(&self) -> usize {
        if self.is_plain() { self.rows.size() } else { self.packing.unit(self.bits) }
    }

    /// Whether each code is a byte.
    fn is_plain(&self) -> bool {
        (self.packing, self.bits) == (Packing::Dense, u8::BITS)
    }

    /// Returns where the codes of a piece go.
    pub(super) fn target(&self, place: Place, columns: Columns, item: &TransposedItem) -> Target {
        let (rows, size, is_plain) = (item.of(&self.rows), self.rows.size(), self.is_plain());
        let (from, to) = (self.bytes(columns.start), self.bytes(columns.start + columns.count));
        let items = to.div_ceil(size) - from / size;
        let unit = if is_plain { 1 } else { self.packing.unit(self.bits) };
        // Rows that fill their containers and follow each other are as good as one.
        let is_joined =
            columns.count == self.columns && columns.count.is_multiple_of(unit) && rows.is_gapless(items);
        let is_direct = rows.is_dense() && items * size == to - from && (place.rows == 1 || is_joined);
        let nibbles = match self.packing {
            Packing::Dense if self.bits == 4 => Some(Form::LowFirst),
            Packing::HighFirst => Some(Form::HighFirst),
            _ => None,
        };
        Target {
            place,
            columns: columns.count,
            from: from / size,
            items,
            first: rows.row(place.matrix, place.row).wrapping_add(from),
            is_direct,
            is_plain,
            nibbles: nibbles.filter(|_| is_direct),
        }
    }

    /// Packs the codes of a piece into their containers, but for those that are there already.
    ///
    /// # Safety
    /// The containers are writable.
    pub(super) unsafe fn write(&self, target: &Target, buffers: &mut PackBuffers) {
        let Target { place: Place { matrix, row, rows }, columns, items, .. } = *target;
        let (level, form, size) = (self.level, (self.packing, self.bits), self.rows.size());
        let PackBuffers { codes, containers, item } = buffers;
        let codes = &codes.0[..rows * columns];
        // SAFETY: the caller's promise; there is room for the containers of a piece, at most 4 bytes for each code.
        unsafe {
            if target.is_direct {
                if !target.is_plain {
                    pack(level, form, codes.as_ptr(), target.first, codes.len());
                }
                return;
            }
            let room = containers.0.as_mut_ptr().cast::<u8>();
            room.write_bytes(0, rows * items * size);
            for (row, codes) in codes.chunks_exact(columns).enumerate() {
                pack(level, form, codes.as_ptr(), room.add(row * items * size), columns);
            }
            let to = item.of(&self.rows);
            to.write(level, to.row(matrix, row), (rows, target.from, items), room);
        }
    }
}
