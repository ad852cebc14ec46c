//! What is encoded, and what is written.

use crate::codec::options::{Named, Rounding};
use crate::error::Error;
use crate::quantization::packing::Packing;
use crate::quantization::rows::Array;
use crate::quantization::scale_rule::ScaleRule;
use crate::quantization::scheme::Scheme;

/// The smallest error of two ways to scale a block of NVFP4: to 6 or to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourOverSix {
    /// The mean square.
    Squares,
    /// The mean magnitude.
    Magnitudes,
    /// The largest magnitude.
    Largest,
}

impl Named for FourOverSix {
    const ARGUMENT: &'static str = "four_over_six";
    const NAMES: &'static [(&'static str, Self)] =
        &[("mse", Self::Squares), ("mae", Self::Magnitudes), ("abs_max", Self::Largest)];
}

/// The operands of an encoding. Each array has the axes of the stack, then rows, then those of a row's items.
#[derive(Clone, Copy, Debug)]
pub struct Encoding<'a> {
    /// The weight.
    pub x: Array<'a>,
    /// What is stored.
    pub scheme: &'static Scheme,
    /// Whose arithmetic; `None`: the first of the scheme's.
    pub recipe: Option<&'a str>,
    /// Rows and columns that share a scale; 0: a whole axis.
    pub block: (usize, usize),
    /// Where codes go in their containers.
    pub packing: Packing,
    /// Added to codes before they are packed.
    pub offset: i32,
    /// In place of the recipe's rule.
    pub rule: Option<ScaleRule>,
    /// In place of the largest magnitude of each block, or of the array where there is a scale for it.
    pub amax: Option<f64>,
    /// A float32 for each matrix, as [`global_scale`] returns it.
    pub global_scale: Option<Array<'a>>,
    /// The largest scale of blocks under it; `None`: 448.
    pub global_max: Option<f32>,
    /// Each block takes the better one of two scales.
    pub four_over_six: Option<FourOverSix>,
    /// In place of the scheme's.
    pub code_map: Option<&'a [f32]>,
    /// Of codes; `None`: the recipe's.
    pub rounding: Option<Rounding>,
    /// Of stochastic rounding.
    pub seed: u64,
    /// Blocks with infinities or NaN get NaN as their scale; else they are refused.
    pub nan_scales: bool,
}

/// What an encoding writes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    /// Containers of packed codes, of 1 or 4 bytes.
    pub data: Array<'a>,
    /// A scale for each block.
    pub scale: Array<'a>,
    /// A zero point for each block, of one byte.
    pub zero_point: Option<Array<'a>>,
    /// A bias for each block.
    pub bias: Option<Array<'a>>,
}

pub(super) fn refuse<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidOption { message })
}
