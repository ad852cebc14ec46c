//! Loops over dense elements. They know formats and options, but neither layouts nor threads.
//!
//! * [`request`]: what a conversion of elements is to do.
//! * [`stages`]: loops over single elements, which the compiler vectorizes.
//! * [`vectors`]: loops over registers, written over [`crate::simd`].
//! * [`tables`]: lookup tables for sources of one byte.
//! * [`code_bounds`]: checks that all codes lie within bounds.

pub(crate) mod code_bounds;
pub(crate) mod request;
pub(crate) mod stages;
pub(crate) mod tables;
pub(crate) mod tile;
pub(crate) mod vectors;
