//! Lookup tables by source code, filled one code at a time by `codec`.

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
mod line;
pub(crate) mod lookup;
mod table;
