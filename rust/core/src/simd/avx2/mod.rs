//! Registers of 256 bits: AVX2 with F16C.

mod conversions;
mod intervals;
mod magic_addition;
mod nibble_tables;
mod stochastic;
mod vector;

pub(crate) use vector::Avx2;
