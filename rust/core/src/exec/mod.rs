//! Carries a plan out over a layout: positions per thread, in tiles.
//!
//! * `job`: a range of positions, tile by tile; `long_rows`: long rows, without copies to tiles; `dense`: dense arrays,
//!   without tiles.
//! * `parallel`, `workers`: threads. `broadcast`: results that are copied to many places.
//! * `small`: casts too small for threads and blocks.
//! * `pass`: two arrays that are only read, tile by tile.
//! * `draws`: random numbers. `scratch`: the buffers of a thread.

pub(crate) mod broadcast;
mod dense;
mod draws;
pub(crate) mod job;
mod long_rows;
pub(crate) mod parallel;
pub(crate) mod pass;
mod scratch;
pub(crate) mod small;
pub(crate) mod workers;
