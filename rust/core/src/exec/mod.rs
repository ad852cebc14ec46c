//! A plan over a layout: positions per thread, in tiles.
//!
//! * `job`: a range of positions, tile by tile; `long_rows`: without a stop in tiles; `dense`: without tiles.
//! * `parallel`, `workers`: threads. `broadcast`: results that stand in many places.
//! * `small`: casts that are too small for any of that.
//! * `draws`: random numbers. `scratch`: what a thread has for the insides of tiles.

pub(crate) mod broadcast;
mod dense;
mod draws;
pub(crate) mod job;
mod long_rows;
pub(crate) mod parallel;
mod scratch;
pub(crate) mod small;
pub(crate) mod workers;
