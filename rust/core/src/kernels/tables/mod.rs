//! Lookup tables by source code, filled one code at a time by `codec`; piecewise ones of bf16 for blocks that share scales.

pub(crate) mod e2m1_codes;
pub(crate) mod e4m3_codes;
pub(crate) mod lookup;
pub(crate) mod rectangle;
#[cfg(target_arch = "x86_64")]
mod rows;
mod table;
