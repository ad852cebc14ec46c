//! Registers of 512 bits: AVX-512.

mod cells;
mod conversions;
mod nibble_tables;
mod stochastic;
mod vector;

pub(crate) use vector::Avx512;
