//! The buffers of a route.

#![deny(unsafe_code)]

use crate::kernels::tile::Tile;

/// The buffers between the source and the target of a tile.
#[derive(Default)]
pub(crate) struct Work {
    pub(super) lanes: Box<Tile<u64>>,
    pub(crate) scales: Box<Tile<f64>>,
    pub(crate) draws: Box<Tile<u32>>,
    pub(crate) wide_draws: Box<Tile<u64>>,
    pub(crate) flags: Box<Tile<u8>>,
}
