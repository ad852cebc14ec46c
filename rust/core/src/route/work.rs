//! Carries a route out over the elements of one tile.

use crate::kernels::stages::stage::Span;
use crate::kernels::tile::Tile;
use crate::route::Route;

/// The buffers between the source and the target of a tile.
#[derive(Default)]
pub(crate) struct Work {
    lanes: Tile<u64>,
    pub(crate) scales: Tile<f64>,
    pub(crate) draws: Tile<u32>,
    pub(crate) wide_draws: Tile<u64>,
    pub(crate) flags: Tile<u8>,
}

impl Route {
    /// Runs the stages from dense source elements to dense target elements.
    ///
    /// # Safety
    /// `count` elements are readable at the source and writable at the target; `count` is at most
    /// [`TILE`](crate::kernels::tile::TILE). Where the route reads scales or draws, as many are in `work`.
    pub(crate) unsafe fn convert(
        &self,
        (source, target): (*const u8, *mut u8),
        count: usize,
        work: &mut Work,
    ) {
        let level = self.level;
        let lanes = work.lanes.0.as_mut_ptr().cast::<u8>();
        let mut span = Span {
            source,
            target: lanes,
            count,
            scales: work.scales.0.as_ptr(),
            draws: if self.lane_size == size_of::<u64>() {
                work.wide_draws.0.as_ptr().cast()
            } else {
                work.draws.0.as_ptr().cast()
            },
            flags: work.flags.0.as_mut_ptr(),
        };
        // SAFETY: every tile has room for `count` elements of up to 8 bytes.
        unsafe {
            match (&self.decode, &self.encode) {
                (Some(decode), Some(_)) => {
                    decode.run(level, span);
                    span.source = lanes;
                }
                (Some(decode), None) => decode.run(level, Span { target, ..span }),
                (None, None) => {
                    span.source.copy_to(target, count * self.source_size);
                    work.flags.0[..count].fill(0);
                }
                (None, Some(_)) => {}
            }
            if let Some(scale) = &self.scale {
                if span.source != lanes.cast_const() {
                    span.source.copy_to_nonoverlapping(lanes, count * self.lane_size);
                    span.source = lanes;
                }
                scale.run(level, span);
            }
            if let Some(encode) = &self.encode {
                encode.run(level, Span { target, ..span });
            }
        }
    }
}
