//! THE table of recipes: one row per producer and family of schemes, saying in which steps it computes scales and codes.
//!
//! `D(…)` is a step that is rounded to the dtype of the weight; all others are in float32 (float64 of a float64). What
//! float16 does not have as a normal number stays float32.
//! Sources: compressed-tensors 0.20, `ModelOpt` 0.47, torchao 0.18, transformers 5.23, comfy-kitchen 0.2.40, bitsandbytes
//! 0.50, MLX 0.32, gguf 0.19, Keras 3.15 and `TransformerEngine` (`core_nvfp4.cuh`).

#![deny(unsafe_code)]

use super::scale_rule::ScaleRule;
use super::steps::{
    Amax, DividedGlobal, Edge, EncodeScale, Inverse, Nearest, Power, ProductWithSix, Quotient, Reciprocal,
    ReciprocalGlobal, SingleLevel, Steps, StoredReciprocal, TwoQuotients, UnstoredReciprocal, steps,
};
use crate::cpu::DefaultEnvironment;
use crate::error::Error;
use crate::format::Format;

/// Schemes that share recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// float8 with scales of any value.
    Fp8,
    /// OCP MX: scales are powers of two.
    Mx,
    /// NVFP4: float8 scales, relative to one of the whole array.
    TwoLevel,
    /// Integers.
    Integer,
    /// Indices into a code map.
    Map,
}

/// The scale of a block of zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ZeroScale {
    /// This value, of scales or of E8M0 codes.
    Value(f32),
    /// The distance from 1 to the next value of the format of scales.
    Epsilon,
    /// The smallest power of two, or 1 for weights of a dtype that does not have it.
    Power,
}

/// Which codes of zero of E2M1 and E4M3 are positive, whatever the sign of their elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PositiveZeros {
    None,
    /// Those of elements that are zero.
    Exact,
    /// Those of blocks whose scale is stored as zero, or that are zeros.
    OfZeroBlocks,
}

/// Which scales of integers a search may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signs {
    /// None: elements are not products of codes and scales.
    None,
    /// Positive ones: it is not known that all decoders take others.
    Positive,
    /// Negative ones as well: all known decoders multiply.
    Both,
}

/// What becomes of ties and zeros in codes of E2M1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ties {
    /// To the even code; zeros keep their sign.
    Even,
    /// Towards zero; zeros are positive.
    TowardsZero,
    /// Towards zero; an exact zero is negative, others keep their sign.
    TowardsZeroNegative,
    /// Of integers: away from zero.
    Away,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "columns of a table")]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    pub(super) family: Family,
    /// How scale and codes follow from the largest magnitude of a block.
    pub(super) steps: Steps,
    /// Steps are rounded to the dtype of the weight.
    pub(super) in_weight_dtype: bool,
    /// Quotients by the scale of a whole tensor are rounded to the dtype of the weight: torch's scalars do not widen.
    pub(super) whole_in_weight_dtype: bool,
    /// How powers of two are found.
    pub(super) rule: Option<ScaleRule>,
    pub(super) zero: ZeroScale,
    /// For codes of E2M1, and of integers.
    pub(super) ties: Ties,
    pub(super) positive_zeros: PositiveZeros,
    /// The schemes that it is for; all of the family if none is named.
    pub(super) only: &'static [&'static str],
    /// The smallest scale of blocks that are not zero.
    pub(super) least: f32,
    /// `max` of integers is half of their range, 127.5 of 8 bits; and -128 is a code.
    pub(super) whole_range: bool,
    /// Largest magnitudes of parts of a weight that are not zero are at least the smallest normal number of its dtype.
    pub(super) normal: bool,
    /// For integers whose scales are searched.
    pub(super) signs: Signs,
}

const fn row(name: &'static str, family: Family, steps: Steps) -> Recipe {
    Recipe {
        name,
        family,
        steps,
        in_weight_dtype: false,
        whole_in_weight_dtype: false,
        rule: None,
        zero: ZeroScale::Value(1.0),
        ties: Ties::Even,
        positive_zeros: PositiveZeros::None,
        only: &[],
        least: 0.0,
        whole_range: false,
        normal: false,
        signs: Signs::None,
    }
}

const fn mx(name: &'static str, rule: ScaleRule) -> Recipe {
    Recipe { rule: Some(rule), zero: ZeroScale::Value(0.0), ..row(name, Family::Mx, steps::<Power>()) }
}

/// Half of the smallest subnormal of E4M3 rounds up to it; the smallest, and the smallest normal number.
const E4M3_LEAST: f32 = 1.0 / 512.0;
const E4M3_NORMAL: f32 = 1.0 / 64.0;

use Family::{Fp8, Integer, Map, TwoLevel};
use PositiveZeros::{Exact, OfZeroBlocks};
use ScaleRule::{CompressedTensors, Floor, Rceil};
use ZeroScale::{Epsilon, Value};

/// The table; the first row of a family is its default.
#[rustfmt::skip]
static TABLE: &[Recipe] = &[
    row("deepseek", Fp8, steps::<Quotient>()),
    Recipe { whole_in_weight_dtype: true, normal: true, ..row("modelopt", Fp8, steps::<Quotient>()) },
    Recipe { in_weight_dtype: true, ..row("comfy", Fp8, steps::<StoredReciprocal>()) },
    row("transformers", Fp8, steps::<Reciprocal>()),
    Recipe { in_weight_dtype: true, zero: Epsilon, ..row("compressed-tensors", Fp8, steps::<Quotient>()) },

    mx("torchao", Floor),
    Recipe { only: &["mxfp4"], zero: ZeroScale::Power, positive_zeros: Exact, ..mx("compressed-tensors", CompressedTensors) },
    Recipe { zero: ZeroScale::Power, ..mx("compressed-tensors", CompressedTensors) },
    Recipe { only: &["mxfp4"], ties: Ties::TowardsZeroNegative, ..mx("modelopt", Rceil) },
    mx("modelopt", Rceil),
    mx("transformer-engine", Rceil),
    Recipe { positive_zeros: OfZeroBlocks, ..mx("comfy", Rceil) },
    mx("gpt-oss", Rceil),
    Recipe { ties: Ties::TowardsZero, zero: Value(127.0), ..mx("mlx", Rceil) },
    Recipe { ties: Ties::TowardsZero, only: &["mxfp4"], ..mx("gguf", Floor) },

    Recipe { least: E4M3_LEAST, positive_zeros: Exact, ..row("modelopt", TwoLevel, steps::<ProductWithSix>()) },
    Recipe { in_weight_dtype: true, zero: Value(0.125), positive_zeros: Exact, ..row("compressed-tensors", TwoLevel, steps::<DividedGlobal>()) },
    Recipe { least: E4M3_NORMAL, zero: Value(E4M3_NORMAL), ..row("torchao", TwoLevel, steps::<ReciprocalGlobal>()) },
    Recipe { zero: Value(0.0), ..row("transformer-engine", TwoLevel, steps::<EncodeScale>()) },
    Recipe { zero: Value(0.0), positive_zeros: OfZeroBlocks, ..row("comfy", TwoLevel, steps::<TwoQuotients>()) },
    Recipe { zero: Value(0.0), ties: Ties::TowardsZero, ..row("mlx", TwoLevel, steps::<SingleLevel>()) },

    // Negative scales: `_dequantize` of compressed-tensors 0.20 (`quantization/lifecycle/forward_helpers.py`) multiplies, which a
    // test runs; so do the kernels of vLLM, whose `marlin_permute_scales` (`marlin_utils.py`) changes no more than the order.
    Recipe { in_weight_dtype: true, zero: Epsilon, whole_range: true, signs: Signs::Both, ..row("compressed-tensors", Integer, steps::<Quotient>()) },
    row("mlx", Integer, steps::<Edge>()),
    Recipe { normal: true, only: &["int8_channel", "int4_group"], signs: Signs::Positive, ..row("modelopt", Integer, steps::<Quotient>()) },
    Recipe { zero: Value(0.0), only: &["int8_channel"], ..row("bitsandbytes", Integer, steps::<Amax>()) },
    Recipe { only: &["int8_tensor", "int8_channel", "int4_channel"], ..row("keras", Integer, steps::<Inverse>()) },
    Recipe { zero: Value(0.0), ties: Ties::Away, only: &["int8_group"], signs: Signs::Positive, ..row("gguf", Integer, steps::<UnstoredReciprocal>()) },

    Recipe { zero: Value(0.0), ..row("bitsandbytes", Map, steps::<Nearest>()) },
];

/// Returns the rows for a scheme of a family.
fn rows(family: Family, scheme: &'static str) -> impl Iterator<Item = &'static Recipe> {
    let fits =
        move |row: &&Recipe| row.family == family && (row.only.is_empty() || row.only.contains(&scheme));
    TABLE.iter().filter(fits)
}

/// Returns the names of the recipes for a scheme of a family, the default one first.
pub(super) fn of(family: Family, scheme: &'static str) -> impl Iterator<Item = &'static str> {
    names(rows(family, scheme))
}

/// Returns the names of the recipes whose scales may be searched for a scheme of a family.
pub(super) fn searched(family: Family, scheme: &'static str) -> impl Iterator<Item = &'static str> {
    names(rows(family, scheme).filter(|row| row.is_searched()))
}

/// Returns the names of the recipes by which codes follow from the largest magnitude of the array.
pub(super) fn with_array_amax(family: Family, scheme: &'static str) -> impl Iterator<Item = &'static str> {
    names(rows(family, scheme).filter(|row| row.steps.properties.needs_array_amax))
}

/// Returns the names of rows, those of neighbors once.
fn names(rows: impl Iterator<Item = &'static Recipe>) -> impl Iterator<Item = &'static str> {
    let mut last = "";
    rows.map(|row| row.name).filter(move |&name| std::mem::replace(&mut last, name) != name)
}

impl Recipe {
    /// Whether scales of blocks may be those of least squared error.
    pub(super) fn is_searched(&self) -> bool {
        matches!(self.family, Family::TwoLevel | Family::Mx) || self.signs != Signs::None
    }

    /// Returns the row of a name, or the default one.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing the names of those for the scheme.
    pub(super) fn find(
        name: Option<&str>,
        family: Family,
        scheme: &'static str,
    ) -> Result<&'static Self, Error> {
        let is_named = |row: &&'static Self| name.is_none_or(|name| row.name == name);
        rows(family, scheme).find(is_named).ok_or_else(|| Error::UnknownOption {
            argument: "recipe",
            value: format!("{:?}", name.unwrap_or_default()),
            valid: of(family, scheme).collect(),
        })
    }
}

/// The largest value of E4M3, the format of NVFP4's block scales.
pub(super) const GLOBAL_MAX: f32 = 448.0;

/// Returns the second-level scale of NVFP4 for the largest magnitude of a weight, as a recipe computes it: the factor
/// of block scales, or what compressed-tensors divides them by. The magnitude is rounded to float32.
///
/// # Errors
/// [`Error::UnknownOption`] for a recipe without one.
pub fn global_scale(amax: f64, recipe: &str, weight: Format, global_max: Option<f32>) -> Result<f32, Error> {
    DefaultEnvironment::compute((amax, global_max.unwrap_or(GLOBAL_MAX)), |(amax, global_max)| {
        let recipe = Recipe::find(Some(recipe), Family::TwoLevel, "nvfp4")?;
        (recipe.steps.global_scale)(amax as f32, global_max * 6.0, weight)
    })
}
