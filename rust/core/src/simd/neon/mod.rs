//! Registers of 128 bits: NEON.

mod chance;
mod vector;
mod whole;

pub(crate) use vector::Neon;
