//! Lookup tables by source code, filled one code at a time by `codec`; piecewise ones of bf16 for blocks that share scales.
//!
//! An unsafe function of this room needs the features of its level, and at its pointers as many elements as it takes. Its body
//! is made of functions with the same needs, on these elements or parts of them; so the body is not marked again. A block of
//! its own is for what needs more, and says why that is so.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this room says"
)]

pub(crate) mod e2m1_codes;
pub(crate) mod e4m3_codes;
pub(crate) mod lookup;
pub(crate) mod rectangle;
#[cfg(target_arch = "x86_64")]
mod rows;
mod table;
