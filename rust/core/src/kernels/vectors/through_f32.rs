//! Floats to float32, and from there to a target: two loops over a tile in the innermost cache, so that pairs need no
//! loops of their own.

use std::mem::MaybeUninit;

use super::float_source::Floats;
use super::to_f32;
use crate::cpu::Level;
use crate::format::Format;
use crate::kernels::stages::stage::{Span, Stage};
use crate::kernels::tile::{TILE, Tile};
use crate::simd::Vector;

/// Two stages with float32 between them.
struct ThroughF32 {
    decode: Box<dyn Stage>,
    encode: Box<dyn Stage>,
    /// Bytes of a source element, and of a target element.
    sizes: [usize; 2],
}

/// Makes the stage from floats, given the stage from float32 to the target.
pub(super) fn stage<V: Vector, F: Floats>(
    vectors: V,
    source: F,
    encode: Box<dyn Stage>,
    target: Format,
) -> Box<dyn Stage> {
    let (decode, sizes) = (to_f32::stage(vectors, source), [F::SIZE, target.item_size()]);
    Box::new(ThroughF32 { decode, encode, sizes })
}

// SAFETY: `encode` writes all results, tile by tile.
unsafe impl Stage for ThroughF32 {
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
