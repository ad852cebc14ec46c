//! Registers of 512 bits: AVX-512.

mod conversions;
mod stochastic;
mod vector;

pub(crate) use vector::Avx512;
