//! Lookup tables by source code, filled one code at a time by `codec`; piecewise ones of bf16 for blocks that share scales.

pub(crate) mod e2m1_codes;
pub(crate) mod e4m3_codes;
pub(crate) mod lookup;
pub(crate) mod rectangle;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
mod rows;
mod table;
