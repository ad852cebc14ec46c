//! Packed codes, a piece at a time, as bytes.

use crate::cpu::Level;
use crate::quantization::arithmetic::{Area, Piece};
use crate::quantization::packing::{Packing, add_high_bits, unpack};
use crate::quantization::rows::Rows;
use crate::quantization::work::{Columns, Place};

/// The containers of codes, and those of one more bit for each.
pub(super) struct Containers {
    pub(super) data: Rows,
    pub(super) high: Option<Rows>,
    pub(super) packing: Packing,
    /// Of a code in `data`.
    pub(super) bits: u32,
    pub(super) level: Level,
}

/// Room for the containers of a piece, and for its codes.
#[derive(Default)]
pub(super) struct ContainerBuffers {
    packed: Box<Piece<u32>>,
    high: Box<Piece<u32>>,
    codes: Box<Piece<u8>>,
    bits: Box<Piece<u8>>,
}

impl Containers {
    /// Whether each container has a code of a byte, whole.
    pub(super) fn is_plain(&self) -> bool {
        (self.packing, self.bits) == (Packing::Dense, u8::BITS) && self.high.is_none()
    }

    /// Returns the codes of a piece: where they are, or in the room for them.
    ///
    /// # Safety
    /// The containers are readable.
    pub(super) unsafe fn codes(
        &self,
        place: Place,
        columns: Columns,
        buffers: &mut ContainerBuffers,
    ) -> Area<*const u8> {
        let (level, form, count) = (self.level, (self.packing, self.bits), columns.count);
        let ContainerBuffers { packed, high, codes: unpacked, bits } = buffers;
        // SAFETY: the caller's promise; the rooms are large enough for a piece.
        unsafe {
            let codes = self.read(&self.data, form, place, columns, packed);
            let high = self
                .high
                .as_ref()
                .map(|containers| self.read(containers, (Packing::Dense, 1), place, columns, high));
            if self.bits == 8 && self.packing == Packing::Dense {
                return codes;
            }
            let unpacked = unpacked.0.as_mut_ptr();
            for row in 0..place.rows {
                let to = unpacked.add(row * count);
                unpack(level, form, codes.row(row), to, count);
                if let Some(high) = &high {
                    add_high_bits(level, self.bits, high.row(row), (to, bits.0.as_mut_ptr()), count);
                }
            }
            Area { first: unpacked, pitch: count as isize, rows: place.rows, columns: count }
        }
    }

    /// Returns the containers of a piece: where they are, or in the room for them.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn read(
        &self,
        containers: &Rows,
        (packing, bits): (Packing, u32),
        Place { matrix, row, rows }: Place,
        Columns { start, count }: Columns,
        room: &mut Piece<u32>,
    ) -> Area<*const u8> {
        let first = packing.bytes(bits, start) / containers.size();
        let last = packing.bytes(bits, start + count).div_ceil(containers.size());
        let room = room.0.as_mut_ptr().cast();
        // SAFETY: the caller's promise; the room is large enough for a piece.
        unsafe {
            let items = (rows, first, last - first);
            let (first, pitch) = containers.read(self.level, containers.row(matrix, row), items, room);
            Area { first, pitch, rows, columns: count }
        }
    }
}
