//! Scratch memory of one tile.

use super::TILE;

/// Aligned to a cache line, so that vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Tile<T>(pub(super) [T; TILE]);

impl<T: Copy + Default> Default for Tile<T> {
    fn default() -> Self {
        Self([T::default(); TILE])
    }
}
