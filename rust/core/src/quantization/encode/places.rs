//! What codes of bf16 are found by, and where the cells of magnitudes begin that have them.

use crate::kernels::tables::cells::{Place, Sums};

/// What codes are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByCells {
    /// Tables for the stored scales, of so many elements in a step.
    E2m1(usize),
    /// A table for each block.
    E4m3,
}

/// Where the cells of all stored scales of a byte begin, under a global scale.
pub(super) struct Places {
    pub(super) global: f64,
    pub(super) of_scales: [Place; 1 << u8::BITS],
    pub(super) tables: Vec<Sums>,
}
