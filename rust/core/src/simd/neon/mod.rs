//! Registers of 128 bits: NEON.

mod stochastic;
mod vector;
mod whole;

pub(crate) use vector::Neon;
