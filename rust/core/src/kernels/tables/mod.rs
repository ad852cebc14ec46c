//! Pairs whose source or target is found by its code, in tables that single codes fill.

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
mod line;
pub(crate) mod lookup;
mod table;
