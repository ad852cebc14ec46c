//! Registers of 128 bits: NEON.

mod conversions;
mod intervals;
mod nibble_tables;
mod stochastic;
mod vector;

pub(crate) use vector::Neon;
