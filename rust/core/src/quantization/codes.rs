//! Codes, a byte each, and packed ones: the two directions of a packing, without scales.

use super::packing::{Packing, pack, unpack};
use super::rows::{Array, Rows};
use super::work::{Extent, Item, ItemPass, run_items};
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Kind;
use crate::kernels::tile::{TILE, Tile};

/// The direction, and what is added to a code on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Codes plus a number are packed; the bits that no code fills become 0.
    Pack(i32),
    /// Codes are unpacked, and keep their low bits after a number is added; signed codes are sign-extended.
    Unpack(i32),
}

/// Packs or unpacks codes along the last axis.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes that do not fit each other, and codes of several bytes.
///
/// # Safety
/// The elements of both are readable, those that are written to writable, and they do not overlap.
pub unsafe fn repack(
    codes: &Array,
    packed: &Array,
    (packing, bits): (Packing, u32),
    direction: Direction,
    threads: usize,
) -> Result<(), Error> {
    let extent = Extent::of("codes", codes, (0, 0))?;
    let (size, level) = (packed.format.item_size(), Level::active());
    let found = extent.check("packed", packed, extent.rows)?;
    let needed = packing.bytes(bits, extent.columns).div_ceil(size);
    if codes.format.item_size() != 1 || (size != 1 && size != 4) || found != needed {
        return Err(Error::InvalidOption {
            message: format!(
                "codes of {} bytes, {} per row, do not fit {found} containers of {size} bytes; use codes of 1 byte, and \
                 {needed} containers of 1 or 4.",
                codes.format.item_size(),
                extent.columns
            ),
        });
    }
    let signed = codes.format.kind() == Kind::Integer { signed: true };
    let stack = extent.stack.len();
    let (codes, packed) = (Rows::new(codes, stack), Rows::new(packed, stack));
    let unit = packing.unit(bits);
    let tile = TILE / unit * unit;
    let pass = Repack { codes, signed, packed, packing: (packing, bits), direction, tile, level };
    // SAFETY: the caller's promise.
    unsafe { run_items(&pass, &extent, (tile, 1), 2 * extent.columns, threads) };
    Ok(())
}

/// The pass of a direction.
struct Repack {
    codes: Rows,
    /// Whether codes are sign-extended.
    signed: bool,
    packed: Rows,
    packing: (Packing, u32),
    direction: Direction,
    /// Codes that are moved at once, at most: whole units of the packing.
    tile: usize,
    level: Level,
}

/// The buffers of a thread.
#[derive(Default)]
struct Buffers {
    codes: Box<Tile<u8>>,
    shifted: Box<Tile<u8>>,
    packed: Box<Tile<u32>>,
}

impl ItemPass for Repack {
    type Buffers = Buffers;
    type Outcome = ();

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers, (): &mut ()) {
        let Self { codes, signed, packed, packing, direction, tile, level } = self;
        let ((packing, bits), size) = (*packing, packed.size());
        let room = buffers.packed.0.as_mut_ptr().cast::<u8>();
        for row in item.rows.clone() {
            for start in item.columns.clone().step_by(*tile) {
                let count = (*tile).min(item.columns.end - start);
                let first = packing.bytes(bits, start) / size;
                let last = packing.bytes(bits, start + count).div_ceil(size);
                let (items, containers) = ((1, start, count), (1, first, last - first));
                let (from, to) = (codes.row(item.matrix, row), packed.row(item.matrix, row));
                let Buffers { codes: unpacked, shifted, .. } = &mut *buffers;
                // SAFETY: the caller's promise; there is room for a tile.
                unsafe {
                    match *direction {
                        Direction::Pack(offset) => {
                            let (found, _) = codes.read(*level, from, items, unpacked.0.as_mut_ptr());
                            for (index, code) in shifted.0[..count].iter_mut().enumerate() {
                                *code = (*found.add(index)).wrapping_add(offset as u8);
                            }
                            room.write_bytes(0, (last - first) * size);
                            pack(*level, (packing, bits), shifted.0.as_ptr(), room, count);
                            packed.write(*level, to, containers, room);
                        }
                        Direction::Unpack(added) => {
                            let (found, _) = packed.read(*level, to, containers, room);
                            unpack(*level, (packing, bits), found, unpacked.0.as_mut_ptr(), count);
                            let shift = 8 - bits;
                            for code in &mut unpacked.0[..count] {
                                let high = code.wrapping_add(added as u8) << shift;
                                *code = if *signed { (high as i8 >> shift) as u8 } else { high >> shift };
                            }
                            codes.write(*level, from, items, unpacked.0.as_ptr());
                        }
                    }
                }
            }
        }
    }

    fn merge((): &mut (), (): ()) {}
}
