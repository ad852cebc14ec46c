//! Runs passes over arrays: positions per thread, in tiles.
//!
//! * `pass`: the executor, and what a pass is. `parallel`, `workers`: its threads. `buffers`: what threads keep.
//! * `operand`: the elements of an array, tile by tile.
//! * `job`: the pass of a cast; `long_rows`: long rows, without copies to tiles; `dense`: dense arrays, without tiles;
//!   `draws`: random numbers; `scratch`: its buffers.
//! * `broadcast`: results that are copied to many places. `small`: casts too small for threads and blocks.

pub(crate) mod broadcast;
pub(crate) mod buffers;
mod dense;
mod draws;
pub(crate) mod job;
mod long_rows;
pub(crate) mod operand;
pub(crate) mod parallel;
pub(crate) mod pass;
mod scratch;
pub(crate) mod small;
pub(crate) mod workers;
