//! What codes of bf16 are found by, and where the cells of magnitudes begin that have them.

use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::kernels::tables::cells::{Place, Sums};
use crate::quantization::recipe::{Steps, Ties};

/// What codes are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByCells {
    /// Tables for the stored scales, of so many elements in a step.
    E2m1(usize),
    /// A table for each block.
    E4m3,
}

/// All that the places of stored scales follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cause {
    pub(super) steps: Steps,
    pub(super) ties: Ties,
    pub(super) rounding: Option<Rounding>,
    /// The name of the format of stored scales.
    pub(super) scale: &'static str,
    /// The global scale, and the recipe's factor of the whole array.
    pub(super) of_all: (f64, f64),
    pub(super) level: Level,
}

/// Where the cells of all stored scales of a byte begin.
pub(super) struct Places {
    pub(super) cause: Cause,
    pub(super) of_scales: [Place; 1 << u8::BITS],
    pub(super) tables: Vec<Sums>,
}
