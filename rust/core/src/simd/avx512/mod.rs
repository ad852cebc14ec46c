//! Registers of 512 bits: AVX-512.

mod stochastic;
mod vector;
mod whole;

pub(crate) use vector::Avx512;
