//! Registers of 512 bits: AVX-512.

mod chance;
mod vector;
mod whole;

pub(crate) use vector::Avx512;
