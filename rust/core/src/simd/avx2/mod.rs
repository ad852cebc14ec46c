//! Registers of 256 bits: AVX2 with F16C.

mod conversions;
mod intervals;
mod nibble_tables;
pub(crate) mod short_tables;
mod stochastic;
mod vector;

pub(crate) use vector::Avx2;
