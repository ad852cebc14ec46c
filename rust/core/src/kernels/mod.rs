//! The loops over dense elements. They know formats and options; they know no layout and no thread.
//!
//! * [`request`]: what a conversion of elements is asked for.
//! * [`stages`]: one number at a time, as the compiler takes them into vectors.
//! * [`vectors`]: a register at a time, over [`crate::simd`].
//! * [`tables`]: sources of a byte, by their code.
//! * [`code_bounds`]: whether all codes lie within bounds.

pub(crate) mod code_bounds;
pub(crate) mod request;
pub(crate) mod stages;
pub(crate) mod tables;
pub(crate) mod tile;
pub(crate) mod vectors;
