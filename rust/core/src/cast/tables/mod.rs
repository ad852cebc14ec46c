//! Pairs whose source or target is found by its code, in tables that are filled by a plan for any source.

pub(super) mod general;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
pub(super) mod line;
pub(super) mod lookup;
pub(super) mod table;
