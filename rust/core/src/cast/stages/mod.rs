//! Loops over elements, one number at a time: from bytes to pivot lanes and back, and the shorter ways between formats
//! that the machine converts itself. `assemble` finds the loops for a format; `from_float`, `from_integer`, `integer` and
//! `cut` are the shorter ways.

pub(super) mod assemble;
pub(super) mod cut;
pub(super) mod from_float;
pub(super) mod from_integer;
pub(super) mod integer;
pub(super) mod stage;
