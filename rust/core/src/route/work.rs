//! The buffers of a route.

#![deny(unsafe_code)]

use crate::kernels::tile::Tile;

/// The buffers between the source and the target of a tile.
#[derive(Default)]
pub(crate) struct Work {
    pub(super) lanes: Tile<u64>,
    pub(crate) scales: Tile<f64>,
    pub(crate) draws: Tile<u32>,
    pub(crate) wide_draws: Tile<u64>,
    pub(crate) flags: Tile<u8>,
}
