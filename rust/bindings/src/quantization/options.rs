//! What a payload is decoded by, and a weight encoded by, as Python gives it: values with names.

use pyo3::prelude::*;

use crate::keywords::Keywords;
use crate::numpy::PyUntypedArray;

type Object<'py> = Bound<'py, PyAny>;

/// The keyword arguments of `decode_blocks`.
pub(super) struct DecodeOptions<'py> {
    pub(super) element: String,
    pub(super) bits: u32,
    pub(super) block: (usize, usize),
    pub(super) layout: String,
    pub(super) high: Option<Object<'py>>,
    pub(super) scale_format: Option<String>,
    pub(super) scale_divides: bool,
    pub(super) global_scale: Option<Object<'py>>,
    pub(super) global_use: String,
    pub(super) offset: i32,
    pub(super) zero_point: Option<Object<'py>>,
    pub(super) bias: Option<Object<'py>>,
    pub(super) group_index: Option<Object<'py>>,
    pub(super) divisor: Option<Object<'py>>,
    pub(super) code_map: Option<Bound<'py, PyUntypedArray>>,
    pub(super) arithmetic: String,
    pub(super) threads: Option<Object<'py>>,
    pub(super) shape: Option<Vec<usize>>,
}

impl<'py> DecodeOptions<'py> {
    pub(super) fn read(keywords: Keywords<'py>) -> PyResult<Self> {
        let options = Self {
            element: keywords.require("element")?,
            bits: keywords.require("bits")?,
            block: keywords.require("block")?,
            layout: keywords.read("layout", "dense".to_owned())?,
            high: keywords.read("high", None)?,
            scale_format: keywords.read("scale_format", None)?,
            scale_divides: keywords.read("scale_divides", false)?,
            global_scale: keywords.read("global_scale", None)?,
            global_use: keywords.read("global_use", "multiply".to_owned())?,
            offset: keywords.read("offset", 0)?,
            zero_point: keywords.read("zero_point", None)?,
            bias: keywords.read("bias", None)?,
            group_index: keywords.read("group_index", None)?,
            divisor: keywords.read("divisor", None)?,
            code_map: keywords.read("code_map", None)?,
            arithmetic: keywords.read("arithmetic", "peer".to_owned())?,
            threads: keywords.read("threads", None)?,
            shape: keywords.read("shape", None)?,
        };
        keywords.finish()?;
        Ok(options)
    }
}

/// The keyword arguments of `encode_blocks`.
pub(super) struct EncodeOptions<'py> {
    pub(super) scheme: String,
    pub(super) recipe: Option<String>,
    pub(super) block: Option<(usize, usize)>,
    pub(super) layout: String,
    pub(super) offset: i32,
    pub(super) rule: Option<String>,
    pub(super) scale_format: Option<String>,
    pub(super) amax: Option<f64>,
    pub(super) global_scale: Option<Object<'py>>,
    pub(super) global_max: Option<f32>,
    pub(super) scales: String,
    pub(super) importance: Option<Object<'py>>,
    pub(super) zero_point: Option<Object<'py>>,
    pub(super) bias: Option<Object<'py>>,
    pub(super) code_map: Option<Bound<'py, PyUntypedArray>>,
    pub(super) rounding: Option<String>,
    pub(super) seed: u64,
    pub(super) nonfinite: String,
    pub(super) threads: Option<Object<'py>>,
    /// The arrays whose memory the others are seen in, where the encoding is to be repeated for others like them.
    pub(super) stored: Option<Vec<Bound<'py, PyUntypedArray>>>,
}

impl<'py> EncodeOptions<'py> {
    pub(super) fn read(keywords: Keywords<'py>) -> PyResult<Self> {
        let options = Self {
            scheme: keywords.require("scheme")?,
            recipe: keywords.read("recipe", None)?,
            block: keywords.read("block", None)?,
            layout: keywords.read("layout", "dense".to_owned())?,
            offset: keywords.read("offset", 0)?,
            rule: keywords.read("rule", None)?,
            scale_format: keywords.read("scale_format", None)?,
            amax: keywords.read("amax", None)?,
            global_scale: keywords.read("global_scale", None)?,
            global_max: keywords.read("global_max", None)?,
            scales: keywords.read("scales", "amax".to_owned())?,
            importance: keywords.read("importance", None)?,
            zero_point: keywords.read("zero_point", None)?,
            bias: keywords.read("bias", None)?,
            code_map: keywords.read("code_map", None)?,
            rounding: keywords.read("rounding", None)?,
            seed: keywords.read("seed", 0)?,
            nonfinite: keywords.read("nonfinite", "raise".to_owned())?,
            threads: keywords.read("threads", None)?,
            stored: keywords.read("stored", None)?,
        };
        keywords.finish()?;
        Ok(options)
    }
}
