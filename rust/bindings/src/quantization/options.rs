//! What a payload is decoded by, and a weight encoded by, as Python gives it: values with names.

use pyo3::prelude::*;

use crate::keywords::Keywords;
use crate::numpy::PyUntypedArray;

type Object<'py> = Bound<'py, PyAny>;

/// The keyword arguments of `decode_blocks`.
#[derive(Default)]
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
        let mut options = Self {
            layout: "dense".to_owned(),
            global_use: "multiply".to_owned(),
            arithmetic: "peer".to_owned(),
            ..Self::default()
        };
        keywords.require("element", &mut options.element)?;
        keywords.require("bits", &mut options.bits)?;
        keywords.require("block", &mut options.block)?;
        keywords.fill("layout", &mut options.layout)?;
        keywords.fill("high", &mut options.high)?;
        keywords.fill("scale_format", &mut options.scale_format)?;
        keywords.fill("scale_divides", &mut options.scale_divides)?;
        keywords.fill("global_scale", &mut options.global_scale)?;
        keywords.fill("global_use", &mut options.global_use)?;
        keywords.fill("offset", &mut options.offset)?;
        keywords.fill("zero_point", &mut options.zero_point)?;
        keywords.fill("bias", &mut options.bias)?;
        keywords.fill("group_index", &mut options.group_index)?;
        keywords.fill("divisor", &mut options.divisor)?;
        keywords.fill("code_map", &mut options.code_map)?;
        keywords.fill("arithmetic", &mut options.arithmetic)?;
        keywords.fill("threads", &mut options.threads)?;
        keywords.fill("shape", &mut options.shape)?;
        keywords.finish()?;
        Ok(options)
    }
}

/// The keyword arguments of `encode_blocks`.
#[derive(Default)]
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
        let mut options = Self {
            layout: "dense".to_owned(),
            scales: "amax".to_owned(),
            nonfinite: "raise".to_owned(),
            ..Self::default()
        };
        keywords.require("scheme", &mut options.scheme)?;
        keywords.fill("recipe", &mut options.recipe)?;
        keywords.fill("block", &mut options.block)?;
        keywords.fill("layout", &mut options.layout)?;
        keywords.fill("offset", &mut options.offset)?;
        keywords.fill("rule", &mut options.rule)?;
        keywords.fill("scale_format", &mut options.scale_format)?;
        keywords.fill("amax", &mut options.amax)?;
        keywords.fill("global_scale", &mut options.global_scale)?;
        keywords.fill("global_max", &mut options.global_max)?;
        keywords.fill("scales", &mut options.scales)?;
        keywords.fill("importance", &mut options.importance)?;
        keywords.fill("zero_point", &mut options.zero_point)?;
        keywords.fill("bias", &mut options.bias)?;
        keywords.fill("code_map", &mut options.code_map)?;
        keywords.fill("rounding", &mut options.rounding)?;
        keywords.fill("seed", &mut options.seed)?;
        keywords.fill("nonfinite", &mut options.nonfinite)?;
        keywords.fill("threads", &mut options.threads)?;
        keywords.fill("stored", &mut options.stored)?;
        keywords.finish()?;
        Ok(options)
    }
}
