//! A plan over a layout: positions per thread, in tiles.
//!
//! * `job`: a range of positions, tile by tile; `long_rows`: without a stop in tiles; `dense`: without tiles.
//! * `parallel`, `workers`: threads. `repeat`: results that stand in many places.
//! * `few`: casts that are too small for any of that.
//! * `draws`: random numbers. `scratch`: what a thread has for the insides of tiles.

mod dense;
mod draws;
pub(crate) mod few;
pub(crate) mod job;
mod long_rows;
pub(crate) mod parallel;
pub(crate) mod repeat;
mod scratch;
pub(crate) mod workers;
