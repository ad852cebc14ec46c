//! Tiles: as many elements as stay in the innermost cache.

#![deny(unsafe_code)]

/// Elements per tile: few enough for all their scratch memory to stay in the innermost cache.
pub(crate) const TILE: usize = 1024;

/// Aligned to a cache line, so that vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Tile<T>(pub(crate) [T; TILE]);

impl<T: Copy + Default> Default for Tile<T> {
    fn default() -> Self {
        Self([T::default(); TILE])
    }
}
