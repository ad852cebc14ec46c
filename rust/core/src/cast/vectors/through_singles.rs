//! Floats to float32, and from there to a target: two loops over a tile that stays in the innermost cache, where a loop of
//! their own would be compiled for each pair.

use std::mem::MaybeUninit;

use crate::cast::TILE;
use crate::cast::run::tile::Tile;
use crate::cast::stages::stage::{Span, Stage};
use crate::cpu::Level;

/// Two stages, of which the first has results of float32.
pub(super) struct ThroughSingles {
    pub(super) decode: Box<dyn Stage>,
    pub(super) encode: Box<dyn Stage>,
    /// Bytes of a source element, and of a target element.
    pub(super) sizes: [usize; 2],
}

impl Stage for ThroughSingles {
    unsafe fn run(&self, level: Level, span: Span) {
        let mut tile = MaybeUninit::<Tile<f32>>::uninit();
        let lanes = tile.as_mut_ptr().cast::<u8>();
        for start in (0..span.count).step_by(TILE) {
            let count = TILE.min(span.count - start);
            let source = span.source.wrapping_add(start * self.sizes[0]);
            let target = span.target.wrapping_add(start * self.sizes[1]);
            // SAFETY: the caller's promise, for some of the elements; the tile has room for as many lanes, which the
            // first stage writes and the second reads.
            unsafe {
                self.decode.run(level, Span { source, target: lanes, count, ..span });
                self.encode.run(level, Span { source: lanes, target, count, ..span });
            }
        }
    }
}
