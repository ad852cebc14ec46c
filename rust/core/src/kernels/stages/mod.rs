//! Loops over elements, one number at a time: from bytes to pivot lanes and back, and the shorter ways between formats
//! that the machine converts itself. `assemble` finds the loops for a format; `from_float`, `from_integer`, `integer` and
//! `wrap` are the shorter ways.

pub(crate) mod assemble;
pub(crate) mod from_float;
pub(crate) mod from_integer;
pub(crate) mod integer;
pub(crate) mod stage;
pub(crate) mod wrap;
