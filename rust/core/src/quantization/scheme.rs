//! THE table of schemes: one row per way to store a weight as codes that share scales.
//!
//! Sources: OCP MX 1.0 (`mx…`), the E4M3 block formats of DeepSeek-V3 and compressed-tensors (`fp8_…`), NVIDIA's
//! NVFP4, compressed-tensors, GPTQ and MLX (integers), bitsandbytes (`bnb_…`).

#![deny(unsafe_code)]

use super::element::Element;
use super::element::names::{E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT8};
use super::recipe::{self, Family};
use super::scale_rule::ScaleRule;
use crate::error::Error;

/// The format of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleFormat {
    /// The format of this name.
    Format(&'static str),
    /// The dtype of the weight.
    Weight,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Its name.
    pub name: &'static str,
    /// What a code means.
    pub element: Element,
    /// Bits of a stored code.
    pub bits: u32,
    /// What elements are multiplied with beside their scale: fixed-point codes are integers in units of it.
    pub unit: f32,
    /// Rows and columns that share a scale; 0: a whole axis.
    pub block: (usize, usize),
    /// The format of stored scales.
    pub scale: ScaleFormat,
    /// How scales that are powers of two are found by default.
    pub rule: Option<ScaleRule>,
    /// Whether scales are relative to one of the whole array.
    pub global_scale: bool,
    /// Whether blocks may have zero points.
    pub zero_point: bool,
    /// Which recipes there are for it.
    pub family: Family,
}

impl Scheme {
    /// Returns the row of a name.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing all names.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        TABLE.iter().find(|row| row.name == name).ok_or_else(|| Error::UnknownOption {
            argument: "scheme",
            value: format!("{name:?}"),
            valid: TABLE.iter().map(|row| row.name).collect(),
        })
    }

    /// Returns the names of the recipes for it, the default one first.
    pub fn recipes(&self) -> impl Iterator<Item = &'static str> {
        recipe::of(self.family, self.name)
    }

    /// Returns the names of those under which each block may have the stored scale of least squared error.
    pub fn searched_recipes(&self) -> impl Iterator<Item = &'static str> {
        let is_whole = self.block == TENSOR;
        recipe::searched(self.family, self.name).filter(move |_| !is_whole)
    }

    /// Returns the names of those that need the largest magnitude of the array beside its global scale, so that matrices of
    /// a stack cannot be encoded at once.
    pub fn single_recipes(&self) -> impl Iterator<Item = &'static str> {
        recipe::with_array_amax(self.family, self.name)
    }
}

const TENSOR: (usize, usize) = (0, 0);
const CHANNEL: (usize, usize) = (1, 0);

/// A row without what few schemes have.
const fn row(
    name: &'static str,
    family: Family,
    element: Element,
    bits: u32,
    block: (usize, usize),
    scale: ScaleFormat,
) -> Scheme {
    let (unit, rule) = (1.0, None);
    Scheme { name, element, bits, unit, block, scale, rule, global_scale: false, zero_point: false, family }
}

const FLOAT32: ScaleFormat = ScaleFormat::Format("float32");

const fn fp8(name: &'static str, block: (usize, usize)) -> Scheme {
    row(name, Family::Fp8, Element::Format(E4M3), 8, block, FLOAT32)
}

const fn mx(name: &'static str, element: &'static str, bits: u32) -> Scheme {
    let (element, scale) = (Element::Format(element), ScaleFormat::Format(E8M0));
    Scheme { rule: Some(ScaleRule::Floor), ..row(name, Family::Mx, element, bits, (1, 32), scale) }
}

const fn int(name: &'static str, bits: u32, block: (usize, usize)) -> Scheme {
    let (element, scale) = (Element::Format(INT8), ScaleFormat::Weight);
    Scheme { zero_point: true, ..row(name, Family::Integer, element, bits, block, scale) }
}

const fn bnb(name: &'static str, map: &'static [u32; 16]) -> Scheme {
    row(name, Family::Map, Element::Map(map), 4, (1, 64), FLOAT32)
}

/// Quantiles of the normal distribution (Dettmers et al., "`QLoRA`"), as bitsandbytes has them.
static NF4: [u32; 16] = [
    0xbf80_0000,
    0xbf32_39b1,
    0xbf06_6b30,
    0xbeca_32a0,
    0xbe91_a24d,
    0xbe3d_353f,
    0xbdba_7871,
    0x0000_0000,
    0x3da2_faff,
    0x3e24_cae3,
    0x3e7c_04dd,
    0x3ead_033a,
    0x3ee1_a4b8,
    0x3f10_07ab,
    0x3f39_13b3,
    0x3f80_0000,
];

/// {0, 1/16, 8, 12, 4, 6, 2, 3} / 12 and their negatives, as bitsandbytes has them (both zeros are positive).
static FP4: [u32; 16] = [
    0x0000_0000,
    0x3baa_aaab,
    0x3f2a_aaab,
    0x3f80_0000,
    0x3eaa_aaab,
    0x3f00_0000,
    0x3e2a_aaab,
    0x3e80_0000,
    0x0000_0000,
    0xbbaa_aaab,
    0xbf2a_aaab,
    0xbf80_0000,
    0xbeaa_aaab,
    0xbf00_0000,
    0xbe2a_aaab,
    0xbe80_0000,
];

/// The table.
#[rustfmt::skip]
pub static TABLE: &[Scheme] = &[
    fp8("fp8_tensor",  TENSOR),
    fp8("fp8_channel", CHANNEL),
    fp8("fp8_block",   (128, 128)),
    mx("mxfp8_e4m3", E4M3, 8),
    mx("mxfp8_e5m2", E5M2,   8),
    mx("mxfp6_e2m3", E2M3, 6),
    mx("mxfp6_e3m2", E3M2, 6),
    mx("mxfp4",      E2M1, 4),
    // OCP MX 1.0 puts the binary point before the last six bits.
    Scheme { unit: 1.0 / 64.0, ..mx("mxint8", INT8, 8) },
    Scheme { global_scale: true, ..row("nvfp4", Family::TwoLevel, Element::Format(E2M1), 4, (1, 16), ScaleFormat::Format(E4M3)) },
    int("int8_tensor",  8, TENSOR),
    int("int8_channel", 8, CHANNEL),
    int("int8_group",   8, (1, 128)),
    int("int2_channel", 2, CHANNEL),
    int("int2_group",   2, (1, 128)),
    int("int3_channel", 3, CHANNEL),
    int("int3_group",   3, (1, 128)),
    int("int4_channel", 4, CHANNEL),
    int("int4_group",   4, (1, 128)),
    int("int5_channel", 5, CHANNEL),
    int("int5_group",   5, (1, 128)),
    int("int6_channel", 6, CHANNEL),
    int("int6_group",   6, (1, 128)),
    bnb("bnb_nf4", &NF4),
    bnb("bnb_fp4", &FP4),
];
