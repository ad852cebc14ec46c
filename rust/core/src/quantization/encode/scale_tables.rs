//! What finds the codes of bf16, and the tables of stored scales with all that they follow from.

#![deny(unsafe_code)]

use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::kernels::tables::e2m1_codes::Tables;
use crate::kernels::tables::e4m3_codes;
use crate::quantization::recipe::{Steps, Ties};

/// What codes of bf16 are found by, in place of quotients that are rounded twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByTables {
    /// Tables of the stored scales, to E2M1.
    OfScales,
    /// A table for each block, to E4M3.
    OfBlocks,
    /// None: quotients of two bf16 as they are rounded to integers.
    Integers,
}

/// All that the tables of stored scales follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cause {
    pub(super) steps: Steps,
    pub(super) ties: Ties,
    pub(super) rounding: Option<Rounding>,
    /// The name of the format of stored scales, and what zero is stored as.
    pub(super) scale: &'static str,
    pub(super) zero: f32,
    /// The global scale, and the recipe's factor of the whole array.
    pub(super) of_all: (f64, f64),
    pub(super) level: Level,
}

/// The tables of stored scales of a byte.
#[derive(Default)]
pub(super) struct ScaleTables {
    pub(super) cause: Option<Cause>,
    pub(super) of_codes: Tables,
    /// The smallest and the largest stored scale of those that have tables.
    pub(super) known: (u8, u8),
    /// Whether the table of scale 0 is for zeros only.
    pub(super) zeros_only: bool,
    /// The largest magnitude that tables have, which scales that saturate do not bound.
    pub(super) most: u16,
    /// How stored scales of E4M3 follow from the largest magnitudes of blocks.
    pub(super) of_amaxes: Option<e4m3_codes::Lookup>,
}
