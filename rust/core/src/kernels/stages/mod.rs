//! Loops over single elements: from bytes to pivot lanes and back (`assemble` chooses them for a format), and direct
//! ones between formats that the machine converts itself: `from_float`, `from_integer`, `integer` and `wrap`.

pub(crate) mod assemble;
pub(crate) mod from_float;
pub(crate) mod from_integer;
pub(crate) mod integer;
pub(crate) mod stage;
pub(crate) mod wrap;
