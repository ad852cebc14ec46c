//! Registers of 128 bits: NEON.

mod cells;
mod conversions;
mod nibble_tables;
mod stochastic;
mod vector;

pub(crate) use vector::Neon;
