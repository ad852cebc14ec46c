//! Scratch memory of one tile.

use crate::cast::TILE;

/// Aligned to a cache line, so that vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(in crate::cast) struct Tile<T>(pub(in crate::cast) [T; TILE]);

impl<T: Copy + Default> Default for Tile<T> {
    fn default() -> Self {
        Self([T::default(); TILE])
    }
}
