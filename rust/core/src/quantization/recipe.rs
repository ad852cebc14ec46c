//! THE table of recipes: one row per producer and family of schemes, saying in which steps it computes scales and codes.
//!
//! `D(…)` is a step that is rounded to the dtype of the weight; all others are in float32 (float64 of a float64).
//! Sources: compressed-tensors 0.20, `ModelOpt` 0.47, torchao 0.18, transformers 5.23, comfy-kitchen 0.2.40, bitsandbytes
//! 0.50, MLX 0.32, gguf 0.19, Keras 3.15 and `TransformerEngine` (`core_nvfp4.cuh`).

#![deny(unsafe_code)]

use super::scale_rule::ScaleRule;
use crate::error::Error;

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

/// How scale and codes follow from the largest magnitude of a block; `max` is the largest element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    /// `scale = D(amax / max)`, `code = D(x / scale)`.
    Quotient,
    /// `t = (1 / amax) * max`, `scale = 1 / t`, `code = x * t`.
    Reciprocal,
    /// `scale = max / (amax + 1e-7)`, `code = x * scale`: scales divide.
    Inverse,
    /// `scale = amax`, `code = x * ((1 / amax) * max)`.
    Amax,
    /// `scale = D(amax / max)`, `code = D(x * D(1 / scale))`; of integers, with the scale before it is stored.
    ThenReciprocal,
    /// `scale = 2^k`, `code = x / scale`.
    Power,
    /// `scale = e4m3(D(amax / 6) * global)`, `code = x / (scale / global)`.
    DividedGlobal,
    /// `scale = e4m3(amax / (6 * global))`, `code = x / (scale * global)`.
    ProductWithSix,
    /// `scale = e4m3(amax / 6 / global)`, `code = x * (1 / global / scale)`.
    ReciprocalGlobal,
    /// `scale = e4m3(amax * ((max / amax of all) * (1 / 6)))`, `code = x * (1 / (scale * (1 / (max / amax of all))))`.
    EncodeScale,
    /// `scale = e4m3(amax / 6 / global)`, `code = x / (scale * global)`.
    TwoQuotients,
    /// `scale = e4m3(amax / 6)`, `code = x / scale`.
    SingleLevel,
    /// An affine map whose edge of larger magnitude is exact.
    Edge,
    /// `scale = amax`, the code of the value nearest to `x * (1 / scale)`.
    Nearest,
}

/// The scale of a block of zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ZeroScale {
    /// This value, of scales or of E8M0 codes.
    Value(f32),
    /// The distance from 1 to the next value of the format of scales.
    Epsilon,
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
    /// The schemes that it is for; all of the family if none is named.
    pub(super) only: &'static [&'static str],
    /// The smallest scale of blocks that are not zero.
    pub(super) least: f32,
    /// `max` of integers is half of their range, 127.5 of 8 bits; and -128 is a code.
    pub(super) whole_range: bool,
    /// Largest magnitudes of parts of a weight that are not zero are at least the smallest normal number of its dtype.
    pub(super) normal: bool,
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
        only: &[],
        least: 0.0,
        whole_range: false,
        normal: false,
    }
}

const fn mx(name: &'static str, rule: ScaleRule) -> Recipe {
    Recipe { rule: Some(rule), zero: ZeroScale::Value(0.0), ..row(name, Family::Mx, Steps::Power) }
}

/// Half of the smallest subnormal of E4M3 rounds up to it; the smallest, and the smallest normal number.
const E4M3_LEAST: f32 = 1.0 / 512.0;
const E4M3_NORMAL: f32 = 1.0 / 64.0;

use Family::{Fp8, Integer, Map, TwoLevel};
use ScaleRule::{CompressedTensors, Floor, Rceil};
use ZeroScale::{Epsilon, Value};

/// The table; the first row of a family is its default.
#[rustfmt::skip]
static TABLE: &[Recipe] = &[
    row("deepseek", Fp8, Steps::Quotient),
    Recipe { whole_in_weight_dtype: true, normal: true, ..row("modelopt", Fp8, Steps::Quotient) },
    Recipe { in_weight_dtype: true, ..row("comfy", Fp8, Steps::ThenReciprocal) },
    row("transformers", Fp8, Steps::Reciprocal),
    Recipe { in_weight_dtype: true, zero: Epsilon, ..row("compressed-tensors", Fp8, Steps::Quotient) },

    mx("torchao", Floor),
    mx("compressed-tensors", CompressedTensors),
    Recipe { only: &["mxfp4"], ties: Ties::TowardsZeroNegative, ..mx("modelopt", Rceil) },
    mx("modelopt", Rceil),
    mx("transformer-engine", Rceil),
    mx("comfy", Rceil),
    mx("gpt-oss", Rceil),
    Recipe { ties: Ties::TowardsZero, zero: Value(127.0), ..mx("mlx", Rceil) },
    Recipe { ties: Ties::TowardsZero, only: &["mxfp4"], ..mx("gguf", Floor) },

    Recipe { least: E4M3_LEAST, ..row("modelopt", TwoLevel, Steps::ProductWithSix) },
    Recipe { in_weight_dtype: true, zero: Value(0.125), ..row("compressed-tensors", TwoLevel, Steps::DividedGlobal) },
    Recipe { least: E4M3_NORMAL, zero: Value(E4M3_NORMAL), ..row("torchao", TwoLevel, Steps::ReciprocalGlobal) },
    Recipe { zero: Value(0.0), ..row("transformer-engine", TwoLevel, Steps::EncodeScale) },
    Recipe { zero: Value(0.0), ..row("comfy", TwoLevel, Steps::TwoQuotients) },
    Recipe { zero: Value(0.0), ties: Ties::TowardsZero, ..row("mlx", TwoLevel, Steps::SingleLevel) },

    Recipe { in_weight_dtype: true, zero: Epsilon, whole_range: true, ..row("compressed-tensors", Integer, Steps::Quotient) },
    row("mlx", Integer, Steps::Edge),
    Recipe { normal: true, only: &["int8_channel", "int4_group"], ..row("modelopt", Integer, Steps::Quotient) },
    Recipe { zero: Value(0.0), only: &["int8_channel"], ..row("bitsandbytes", Integer, Steps::Amax) },
    Recipe { only: &["int8_tensor", "int8_channel", "int4_channel"], ..row("keras", Integer, Steps::Inverse) },
    Recipe { zero: Value(0.0), ties: Ties::Away, only: &["int8_group"], ..row("gguf", Integer, Steps::ThenReciprocal) },

    Recipe { zero: Value(0.0), ..row("bitsandbytes", Map, Steps::Nearest) },
];

/// Returns the rows for a scheme of a family.
fn rows(family: Family, scheme: &'static str) -> impl Iterator<Item = &'static Recipe> {
    let fits =
        move |row: &&Recipe| row.family == family && (row.only.is_empty() || row.only.contains(&scheme));
    TABLE.iter().filter(fits)
}

/// Returns the names of the recipes for a scheme of a family, the default one first.
pub(super) fn of(family: Family, scheme: &'static str) -> impl Iterator<Item = &'static str> {
    let mut last = "";
    rows(family, scheme).map(|row| row.name).filter(move |&name| std::mem::replace(&mut last, name) != name)
}

impl Recipe {
    /// Returns the row of a name, or the default one.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing the names of those for the scheme.
    pub(super) fn find(
        name: Option<&str>,
        family: Family,
        scheme: &'static str,
    ) -> Result<&'static Self, Error> {
        let wanted = |row: &&'static Self| name.is_none_or(|name| row.name == name);
        rows(family, scheme).find(wanted).ok_or_else(|| Error::UnknownOption {
            argument: "recipe",
            value: format!("{:?}", name.unwrap_or_default()),
            valid: of(family, scheme).collect(),
        })
    }
}
