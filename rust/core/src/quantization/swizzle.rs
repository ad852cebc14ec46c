//! Scales in the tiles of 128x4 that cuBLAS reads, and `TransformerEngine` and `ComfyUI` store.
//!
//! Rows are padded to 128, columns to 4. The scale of row r and column c of a tile is at `(r % 32) * 16 + (r / 32) * 4 + c`.

use super::rows::{Array, Rows};
use super::work::Extent;
use crate::error::Error;

const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 4;

/// Reorders scales of one byte into tiles, or back; padding becomes 0.
///
/// # Errors
/// [`Error::InvalidOption`] for items of several bytes, and shapes that are not each other's.
///
/// # Safety
/// The elements of both are readable, those that are written to writable, and they do not overlap.
pub unsafe fn swizzle(plain: &Array, tiled: &Array, back: bool) -> Result<(), Error> {
    let extent = Extent::of("scales", plain, (0, 0))?;
    let (tall, wide) =
        (extent.rows.next_multiple_of(TILE_ROWS), extent.columns.next_multiple_of(TILE_COLUMNS));
    let one_byte = plain.format.item_size() == 1 && tiled.format.item_size() == 1;
    if !one_byte || extent.check("swizzled", tiled, tall)? != wide {
        return Err(Error::InvalidOption {
            message: format!(
                "scales of shape {:?} and {} bytes do not fit swizzled ones of shape {:?} and {} bytes; use items of 1 \
                 byte, and rows rounded up to {TILE_ROWS}, columns to {TILE_COLUMNS}.",
                plain.shape,
                plain.format.item_size(),
                tiled.shape,
                tiled.format.item_size()
            ),
        });
    }
    let stack = extent.stack.len();
    let (plain, tiled) = (Rows::new(plain, stack), Rows::new(tiled, stack));
    for matrix in 0..extent.matrices() {
        for row in 0..tall {
            for column in 0..wide {
                let tile = (row / TILE_ROWS) * (wide / TILE_COLUMNS) + column / TILE_COLUMNS;
                let within = row % TILE_ROWS;
                let place = tile * TILE_ROWS * TILE_COLUMNS
                    + (within % 32) * 16
                    + (within / 32) * TILE_COLUMNS
                    + column % TILE_COLUMNS;
                let there = tiled.item(matrix, place / wide, place % wide);
                let padding = row >= extent.rows || column >= extent.columns;
                // SAFETY: the caller's promise; all places are within the arrays.
                unsafe {
                    match (padding, back) {
                        (true, true) => {}
                        (true, false) => *there = 0,
                        (false, true) => *plain.item(matrix, row, column) = *there,
                        (false, false) => *there = *plain.item(matrix, row, column),
                    }
                }
            }
        }
    }
    Ok(())
}
