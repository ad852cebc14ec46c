//! Weights in blocks: numpy arrays that the caller has made, to the core.

use castwise_core::Format;
use castwise_core::cast::num_threads;
use castwise_core::codec::options::{Named, Rounding};
use castwise_core::quantization::{
    self as core, Decoding, Direction, Element, Encoded, Encoding, FourOverSix, GlobalUse, Meaning, Packing,
    ScaleFormat, ScaleRule, Scheme, TABLE,
};
use numpy::{PyReadonlyArray1, PyUntypedArray};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use smallvec::SmallVec;

use crate::array::{Array, INLINE};
use crate::dtypes;
use crate::error::to_python;
use crate::runtime::parse_threads;

/// An array for the core, as numbers: pointers are not `Send`.
struct Operand {
    address: usize,
    shape: SmallVec<[usize; INLINE]>,
    strides: SmallVec<[isize; INLINE]>,
    format: Format,
    extent: (usize, usize),
}

impl Operand {
    fn of(array: &Array<'_>) -> Self {
        Self {
            address: array.pointer().expose_provenance(),
            shape: SmallVec::from_slice(array.shape()),
            strides: SmallVec::from_slice(array.strides()),
            format: array.format,
            extent: array.extent(),
        }
    }

    /// Reads an array that is read.
    fn source(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::of(&native(argument, object)?))
    }

    /// Reads an array that is written.
    fn target(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let array = native(argument, object)?;
        if !array.is_writeable() || array.overlaps_itself() {
            return Err(PyValueError::new_err(format!(
                "{argument} is read-only or has elements that share memory; give a writeable array with its own elements."
            )));
        }
        Ok(Self::of(&array))
    }

    /// Sees its elements as a format of the same size.
    fn seen_as(mut self, argument: &str, name: Option<&str>) -> PyResult<Self> {
        if let Some(name) = name {
            let format = named("scale_format", name)?;
            if format.item_size() != self.format.item_size() {
                return Err(PyValueError::new_err(format!(
                    "scale_format={name:?} is not valid for {argument} of dtype {}; use a format of as many bytes.",
                    self.format.name()
                )));
            }
            self.format = format;
        }
        Ok(self)
    }

    fn get(&self) -> core::Array<'_> {
        core::Array {
            pointer: std::ptr::with_exposed_provenance_mut(self.address),
            shape: &self.shape,
            strides: &self.strides,
            format: self.format,
        }
    }
}

fn native<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if !object.is_instance_of::<PyUntypedArray>() {
        let name = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{argument} is of type {name}; give a numpy array.")));
    }
    let array = Array::from_argument(argument, object)?;
    if array.swapped {
        return Err(PyTypeError::new_err(format!(
            "{argument} is not in the machine's byte order; give a copy that is."
        )));
    }
    Ok(array)
}

fn optional(argument: &'static str, object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Operand>> {
    object.map(|object| Operand::source(argument, object)).transpose()
}

fn named(argument: &str, name: &str) -> PyResult<Format> {
    Format::named(name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{argument}={name:?} is not a format castwise knows; castwise.formats() lists all."
        ))
    })
}

/// Checks that no written array shares memory with another.
fn apart<'a>(written: &[&Operand], read: impl Iterator<Item = &'a Operand>) -> PyResult<()> {
    let meets = |a: &Operand, b: &Operand| a.extent.0 < b.extent.1 && b.extent.0 < a.extent.1;
    let among = written.iter().enumerate().any(|(index, a)| written[..index].iter().any(|b| meets(a, b)));
    if among || read.into_iter().any(|a| written.iter().any(|b| meets(a, b))) {
        return Err(PyValueError::new_err(
            "an array that is written shares memory with another argument; give one with memory of its own.",
        ));
    }
    Ok(())
}

fn get(operand: Option<&Operand>) -> Option<core::Array<'_>> {
    operand.map(Operand::get)
}

fn map_of(map: Option<PyReadonlyArray1<'_, f32>>) -> Option<Vec<f32>> {
    map.map(|map| map.as_array().to_vec())
}

/// Return the table of schemes.
#[pyfunction]
pub(crate) fn schemes(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let row = |scheme: &Scheme| {
        let (element, map) = match scheme.element {
            Element::Format(name) => (name, None),
            Element::Map(bits) => ("map", Some(bits.map(f32::from_bits))),
        };
        let scale = match scheme.scale {
            ScaleFormat::Format(name) => name,
            ScaleFormat::Weight => "weight",
        };
        let row = PyDict::new(py);
        row.set_item("name", scheme.name)?;
        row.set_item("element", element)?;
        row.set_item("bits", scheme.bits)?;
        row.set_item("block", scheme.block)?;
        row.set_item("scale", scale)?;
        row.set_item("rule", scheme.rule.map(Named::name))?;
        row.set_item("global_scale", scheme.global_scale)?;
        row.set_item("zero_point", scheme.zero_point)?;
        row.set_item("code_map", map)?;
        row.set_item("recipes", scheme.recipes().collect::<Vec<_>>())?;
        Ok(row)
    };
    PyList::new(py, TABLE.iter().map(row).collect::<PyResult<Vec<_>>>()?)
}

/// Decode packed codes with their scales.
#[pyfunction]
#[pyo3(signature = (data, scale, out, *, element, bits, block, layout="dense", high=None, scale_format=None,
    scale_divides=false, global_scale=None, global_use="multiply", offset=0, zero_point=None, bias=None,
    group_index=None, divisor=None, code_map=None, arithmetic="peer", threads=None))]
#[expect(clippy::too_many_arguments, reason = "one call for a payload and all beside it")]
pub(crate) fn decode_blocks(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    scale: Option<&Bound<'_, PyAny>>,
    out: &Bound<'_, PyAny>,
    element: &str,
    bits: u32,
    block: (usize, usize),
    layout: &str,
    high: Option<&Bound<'_, PyAny>>,
    scale_format: Option<&str>,
    scale_divides: bool,
    global_scale: Option<&Bound<'_, PyAny>>,
    global_use: &str,
    offset: i32,
    zero_point: Option<&Bound<'_, PyAny>>,
    bias: Option<&Bound<'_, PyAny>>,
    group_index: Option<&Bound<'_, PyAny>>,
    divisor: Option<&Bound<'_, PyAny>>,
    code_map: Option<PyReadonlyArray1<'_, f32>>,
    arithmetic: &str,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
    let out = Operand::target("out", out)?;
    let data = Operand::source("data", data)?;
    let scale = optional("scale", scale)?.map(|scale| scale.seen_as("scale", scale_format)).transpose()?;
    let (high, zero_point) = (optional("high", high)?, optional("zero_point", zero_point)?);
    let (bias, group_index) = (optional("bias", bias)?, optional("group_index", group_index)?);
    let divisor = optional("divisor", divisor)?;
    let global_scale = global_scale.map(|array| global("global_scale", array, &out)).transpose()?;
    let global_use = choose(
        "global_use",
        global_use,
        &[("multiply", GlobalUse::Multiply), ("divide", GlobalUse::Divide), ("after", GlobalUse::After)],
    )?;
    let (exact, narrow) = choose(
        "arithmetic",
        arithmetic,
        &[("peer", (false, false)), ("exact", (true, false)), ("narrow", (false, true))],
    )?;
    let packing = Packing::parse(layout, bits).map_err(to_python)?;
    let format = (element != "map").then(|| named("element", element)).transpose()?;
    let map = map_of(code_map);
    if format.is_none() != map.is_some() {
        return Err(PyValueError::new_err("element=\"map\" and code_map are given together, or neither."));
    }
    let read = [&scale, &high, &zero_point, &bias, &group_index, &divisor, &global_scale];
    apart(&[&out], read.into_iter().flatten().chain([&data]))?;
    let call = || {
        let decoding = Decoding {
            data: data.get(),
            high: get(high.as_ref()),
            meaning: format.map_or(Meaning::Map(map.as_deref().unwrap_or_default()), Meaning::Format),
            bits,
            packing,
            block,
            scale: get(scale.as_ref()),
            scale_divides,
            global_scale: get(global_scale.as_ref()).map(|array| (array, global_use)),
            offset,
            zero_point: get(zero_point.as_ref()),
            bias: get(bias.as_ref()),
            group_index: get(group_index.as_ref()),
            divisor: get(divisor.as_ref()),
            exact,
            narrow,
        };
        // SAFETY: numpy vouched for pointers, shapes and strides when they were copied, and the caller keeps the arrays
        // alive. The target was checked to be writeable and to share memory with nothing. Another thread of the host may
        // write to the same arrays meanwhile, as with any numpy function: which value is read is then open.
        unsafe { core::decode(&decoding, out.get(), threads) }
    };
    py.detach(call).map_err(to_python)
}

/// Reads a float32 for each matrix of a stack.
fn global(argument: &'static str, object: &Bound<'_, PyAny>, like: &Operand) -> PyResult<Operand> {
    let array = native(argument, object)?;
    let stack = &like.shape[..like.shape.len().saturating_sub(2)];
    let broadcast = array.broadcast_to(stack).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{argument} has shape {:?}, which does not broadcast to the stack {stack:?}.",
            array.shape()
        ))
    })?;
    Ok(Operand { extent: array.extent(), ..Operand::of(&broadcast) })
}

fn choose<T: Copy>(argument: &str, name: &str, values: &[(&str, T)]) -> PyResult<T> {
    values.iter().find(|known| known.0 == name).map(|known| known.1).ok_or_else(|| {
        let names: Vec<_> = values.iter().map(|known| format!("{:?}", known.0)).collect();
        PyValueError::new_err(format!("{argument}={name:?} is not valid; use one of {}.", names.join(", ")))
    })
}

/// Quantise an array into arrays for scales and packed codes.
#[pyfunction]
#[pyo3(signature = (x, data, scale, *, scheme, recipe=None, block=None, layout="dense", offset=0, rule=None,
    scale_format=None, amax=None, global_scale=None, global_max=None, four_over_six=None, zero_point=None, bias=None,
    code_map=None, rounding=None, seed=0, nonfinite="raise", threads=None))]
#[expect(clippy::too_many_arguments, reason = "one call for a weight and all about it")]
pub(crate) fn encode_blocks(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    data: &Bound<'_, PyAny>,
    scale: &Bound<'_, PyAny>,
    scheme: &str,
    recipe: Option<&str>,
    block: Option<(usize, usize)>,
    layout: &str,
    offset: i32,
    rule: Option<&str>,
    scale_format: Option<&str>,
    amax: Option<f64>,
    global_scale: Option<&Bound<'_, PyAny>>,
    global_max: Option<f32>,
    four_over_six: Option<&str>,
    zero_point: Option<&Bound<'_, PyAny>>,
    bias: Option<&Bound<'_, PyAny>>,
    code_map: Option<PyReadonlyArray1<'_, f32>>,
    rounding: Option<&str>,
    seed: u64,
    nonfinite: &str,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
    let scheme = Scheme::find(scheme).map_err(to_python)?;
    let x = Operand::source("x", x)?;
    let data = Operand::target("data", data)?;
    let scale = Operand::target("scale", scale)?.seen_as("scale", scale_format)?;
    let zero_point = zero_point.map(|array| Operand::target("zero_point", array)).transpose()?;
    let bias = bias.map(|array| Operand::target("bias", array)).transpose()?;
    let global_scale = global_scale.map(|array| global("global_scale", array, &x)).transpose()?;
    let packing = Packing::parse(layout, scheme.bits).map_err(to_python)?;
    let rule = rule.map(ScaleRule::parse).transpose().map_err(to_python)?;
    let four_over_six = four_over_six.map(FourOverSix::parse).transpose().map_err(to_python)?;
    let rounding = rounding.map(Rounding::parse).transpose().map_err(to_python)?;
    let nan_scales = choose("nonfinite", nonfinite, &[("raise", false), ("nan", true)])?;
    let map = map_of(code_map);
    {
        let written: Vec<_> =
            [Some(&data), Some(&scale), zero_point.as_ref(), bias.as_ref()].into_iter().flatten().collect();
        apart(&written, [Some(&x), global_scale.as_ref()].into_iter().flatten())?;
    }
    let call = || {
        let encoding = Encoding {
            x: x.get(),
            scheme,
            recipe,
            block: block.unwrap_or(scheme.block),
            packing,
            offset,
            rule,
            amax,
            global_scale: get(global_scale.as_ref()),
            global_max,
            four_over_six,
            code_map: map.as_deref(),
            rounding,
            seed,
            nan_scales,
        };
        let to = Encoded {
            data: data.get(),
            scale: scale.get(),
            zero_point: get(zero_point.as_ref()),
            bias: get(bias.as_ref()),
        };
        // SAFETY: as for `decode_blocks`; the targets were checked likewise.
        unsafe { core::encode(&encoding, &to, threads) }
    };
    py.detach(call).map_err(to_python)
}

/// Return the largest magnitude of an array.
#[pyfunction]
#[pyo3(signature = (x, *, threads=None))]
pub(crate) fn block_amax(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<f64> {
    let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
    let x = Operand::source("x", x)?;
    // SAFETY: as for `decode_blocks`; nothing is written.
    py.detach(move || unsafe { core::block_amax(&x.get(), threads) }).map_err(to_python)
}

/// Return NVFP4's second-level scale for a largest magnitude.
#[pyfunction]
#[pyo3(signature = (amax, *, recipe, dtype, global_max=None))]
pub(crate) fn global_scale(
    amax: f32,
    recipe: &str,
    dtype: &Bound<'_, PyAny>,
    global_max: Option<f32>,
) -> PyResult<f32> {
    let (format, _) = dtypes::parse_argument("dtype", dtype)?;
    core::global_scale(amax, recipe, format, global_max).map_err(to_python)
}

/// Takes a source, by the name of its argument, and a target apart from it.
fn ends(
    (name, source): (&'static str, &Bound<'_, PyAny>),
    out: &Bound<'_, PyAny>,
) -> PyResult<(Operand, Operand)> {
    let (source, out) = (Operand::source(name, source)?, Operand::target("out", out)?);
    apart(&[&out], [&source].into_iter())?;
    Ok((source, out))
}

/// Pack codes into containers.
#[pyfunction]
#[pyo3(signature = (codes, out, *, bits, layout="dense", offset=0))]
pub(crate) fn pack_codes(
    py: Python<'_>,
    codes: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    bits: u32,
    layout: &str,
    offset: i32,
) -> PyResult<()> {
    let (codes, out) = ends(("codes", codes), out)?;
    repack(py, codes, out, (layout, bits), Direction::Pack(offset))
}

/// Unpack codes from containers.
#[pyfunction]
#[pyo3(signature = (packed, out, *, bits, layout="dense", add=0))]
pub(crate) fn unpack_codes(
    py: Python<'_>,
    packed: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    bits: u32,
    layout: &str,
    add: i32,
) -> PyResult<()> {
    let (packed, out) = ends(("packed", packed), out)?;
    repack(py, out, packed, (layout, bits), Direction::Unpack(add))
}

fn repack(
    py: Python<'_>,
    codes: Operand,
    packed: Operand,
    (layout, bits): (&str, u32),
    direction: Direction,
) -> PyResult<()> {
    let packing = Packing::parse(layout, bits).map_err(to_python)?;
    let threads = num_threads();
    // SAFETY: as for `decode_blocks`.
    let call =
        move || unsafe { core::repack(&codes.get(), &packed.get(), (packing, bits), direction, threads) };
    py.detach(call).map_err(to_python)
}

/// Reorder scales into tiles of 128x4.
#[pyfunction]
pub(crate) fn swizzle_scales(
    py: Python<'_>,
    scales: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (scales, out) = ends(("scales", scales), out)?;
    // SAFETY: as for `decode_blocks`.
    py.detach(move || unsafe { core::swizzle(&scales.get(), &out.get(), false) }).map_err(to_python)
}

/// Undo `swizzle_scales`.
#[pyfunction]
pub(crate) fn unswizzle_scales(
    py: Python<'_>,
    swizzled: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (swizzled, out) = ends(("swizzled", swizzled), out)?;
    // SAFETY: as for `decode_blocks`.
    py.detach(move || unsafe { core::swizzle(&out.get(), &swizzled.get(), true) }).map_err(to_python)
}
