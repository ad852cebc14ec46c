//! Registers of 256 bits: AVX2 with F16C.

mod stochastic;
mod sums;
mod vector;
mod whole;

pub(crate) use vector::Avx2;
