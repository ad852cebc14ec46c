//! Registers of 512 bits: AVX-512.

mod conversions;
mod intervals;
mod nibble_tables;
mod stochastic;
mod vector;

pub(crate) use vector::Avx512;
