//! The buffers of a cast, for the elements of a tile.

use super::buffers::with_buffers;
use crate::cpu::DefaultEnvironment;
use crate::kernels::tile::Tile;
use crate::layout::Run;
use crate::report::collector::CollectorScratch;
use crate::route::Route;
use crate::route::work::Work;

/// The buffers of one thread. Their parts are lent one by one: pointers into one tile stay valid while the work on
/// another goes on.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) source: Box<Tile<u64>>,
    pub(super) target: Box<Tile<u64>>,
    pub(super) runs: Vec<Run>,
    pub(super) work: Work,
    pub(super) collector: CollectorScratch,
}

/// Casts up to a tile of dense elements, times one factor for all.
///
/// # Safety
/// As for [`Route::convert`].
pub(crate) unsafe fn run_scaled(route: &Route, ends: (*const u8, *mut u8), count: usize, factor: f64) {
    let _environment = DefaultEnvironment::enter();
    with_buffers(|Scratch { work, .. }: &mut Scratch| {
        work.scales.0[..count].fill(factor);
        // SAFETY: the caller's promise; there are as many scales.
        unsafe { route.convert(ends, count, work) };
    });
}
