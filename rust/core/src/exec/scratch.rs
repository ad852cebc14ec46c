//! The buffers of a thread, for the elements of a tile.

use std::cell::RefCell;

use crate::cpu::DefaultEnvironment;
use crate::kernels::tile::Tile;
use crate::layout::Run;
use crate::report::collector::CollectorScratch;
use crate::route::Route;
use crate::route::work::Work;

/// The scratch of one thread. Its parts are lent one by one: pointers into one tile stay valid while the work on
/// another goes on.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) source: Tile<u64>,
    pub(super) target: Tile<u64>,
    pub(super) runs: Vec<Run>,
    pub(super) work: Work,
    pub(super) collector: CollectorScratch,
}

thread_local! {
    /// Kept between calls: clearing it each time would take longer than a small cast.
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::default();
}

/// Calls a function with the scratch of this thread.
pub(super) fn with_scratch<R>(function: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| function(scratch))
}

/// Calls a function with the part of it that routes use.
pub(super) fn with_work<R>(function: impl FnOnce(&mut Work) -> R) -> R {
    with_scratch(|scratch| function(&mut scratch.work))
}

/// Casts up to a tile of dense elements, times one factor for all.
///
/// # Safety
/// As for [`Route::convert`].
pub(crate) unsafe fn run_scaled(route: &Route, ends: (*const u8, *mut u8), count: usize, factor: f64) {
    let _environment = DefaultEnvironment::enter();
    with_work(|work| {
        work.scales.0[..count].fill(factor);
        // SAFETY: the caller's promise; there are as many scales.
        unsafe { route.convert(ends, count, work) };
    });
}
