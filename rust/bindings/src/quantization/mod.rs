//! Weights in blocks: numpy arrays that the caller has made, to the core.

pub(crate) mod block_types;
mod options;

use std::ptr::with_exposed_provenance_mut;
use std::sync::Mutex;

use crate::array::{Array, Order, Plain, float32_values, shown, target_fault};
use crate::comparison::Comparison;
use crate::dtypes;
use crate::error::to_python;
use crate::keywords::Keywords;
use crate::numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods, empty};
use crate::report::CastReport;
use crate::runtime::{parse_threads, release};
use castwise_core::Format;
use castwise_core::cast::num_threads;
use castwise_core::codec::options::{Named, Rounding};
use castwise_core::quantization::{
    self as core, Decoding, Direction, Element, Encoded, Encoding, GlobalUse, Meaning, Packing, ScaleChoice,
    ScaleFormat, ScaleRule, Scheme, TABLE,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use smallvec::SmallVec;

use options::{DecodeOptions, EncodeOptions};

/// The addresses of an array's first byte and one past its last.
type Addresses = (usize, usize);

/// An array for the core, and its addresses.
struct Operand {
    array: core::Array,
    extent: Addresses,
}

impl Operand {
    fn of(array: &Array<'_>) -> Self {
        let (shape, strides) = (array.shape().into(), array.strides().into());
        let extent = array.extent();
        Self { array: core::Array { pointer: array.pointer(), shape, strides, format: array.format }, extent }
    }

    /// Reads an array that is read.
    fn source(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::of(&native(argument, object)?))
    }

    /// Reads an array that is written.
    fn target(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let array = native(argument, object)?;
        if target_fault(&array, None).is_some() {
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
            if format.item_size() != self.array.format.item_size() {
                return Err(PyValueError::new_err(format!(
                    "scale_format={name:?} is not valid for {argument} of dtype {}; use a format of as many bytes.",
                    self.array.format.name()
                )));
            }
            self.array.format = format;
        }
        Ok(self)
    }
}

fn native<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let array = Array::of_numpy(argument, object)?;
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
fn apart(written: &[Addresses], read: &[Addresses]) -> PyResult<()> {
    let pairs = |(index, &target)| written[..index].iter().chain(read).any(|&other| meet(target, other));
    if written.iter().enumerate().any(pairs) {
        return Err(PyValueError::new_err(
            "an array that is written shares memory with another argument; give one with memory of its own.",
        ));
    }
    Ok(())
}

/// Whether two extents have addresses in common.
fn meet(a: Addresses, b: Addresses) -> bool {
    a.0 < b.1 && b.0 < a.1
}

fn get(operand: Option<Operand>) -> Option<core::Array> {
    operand.map(|operand| operand.array)
}

fn map_of(map: Option<&Bound<'_, PyUntypedArray>>) -> PyResult<Option<Vec<f32>>> {
    let values = |map: &Bound<'_, PyUntypedArray>| {
        let array = Array::of_numpy("code_map", map.as_any())?;
        float32_values(&array).ok_or_else(|| {
            let (dtype, shape) = (map.dtype(), shown(array.shape()));
            PyTypeError::new_err(format!(
                "code_map has dtype {dtype} and shape {shape}; give float32 with one axis."
            ))
        })
    };
    map.map(values).transpose()
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
        row.set_item("unit", scheme.unit)?;
        row.set_item("block", scheme.block)?;
        row.set_item("scale", scale)?;
        row.set_item("rule", scheme.rule.map(Named::name))?;
        row.set_item("global_scale", scheme.global_scale)?;
        row.set_item("zero_point", scheme.zero_point)?;
        row.set_item("code_map", map)?;
        row.set_item("recipes", scheme.recipes().collect::<Vec<_>>())?;
        row.set_item("searched_recipes", scheme.searched_recipes().collect::<Vec<_>>())?;
        row.set_item("single_recipes", scheme.single_recipes().collect::<Vec<_>>())?;
        Ok(row)
    };
    PyList::new(py, TABLE.iter().map(row).collect::<PyResult<Vec<_>>>()?)
}

/// A decoding, and the extents of all arrays that it reads.
struct ReadDecoding {
    decoding: Decoding,
    extents: Vec<Addresses>,
}

impl ReadDecoding {
    fn of(
        data: &Bound<'_, PyAny>,
        scale: Option<&Bound<'_, PyAny>>,
        options: &DecodeOptions<'_>,
        out: &Operand,
    ) -> PyResult<Self> {
        let DecodeOptions { bits, block, scale_divides, offset, .. } = *options;
        let [high, global_scale, zero_point, bias, group_index, divisor] = [
            &options.high,
            &options.global_scale,
            &options.zero_point,
            &options.bias,
            &options.group_index,
            &options.divisor,
        ]
        .map(Option::as_ref);
        let (element, code_map) = (&*options.element, options.code_map.as_ref());
        let data = Operand::source("data", data)?;
        let scale_format = options.scale_format.as_deref();
        let scale =
            optional("scale", scale)?.map(|scale| scale.seen_as("scale", scale_format)).transpose()?;
        let (high, zero_point) = (optional("high", high)?, optional("zero_point", zero_point)?);
        let (bias, group_index) = (optional("bias", bias)?, optional("group_index", group_index)?);
        let divisor = optional("divisor", divisor)?;
        let global_scale = global_scale.map(|array| global("global_scale", array, out)).transpose()?;
        let global_use = choose(
            "global_use",
            &options.global_use,
            &[("multiply", GlobalUse::Multiply), ("divide", GlobalUse::Divide), ("after", GlobalUse::After)],
        )?;
        let (exact, narrow) = choose(
            "arithmetic",
            &options.arithmetic,
            &[("peer", (false, false)), ("exact", (true, false)), ("narrow", (false, true))],
        )?;
        let packing = Packing::parse(&options.layout, bits).map_err(to_python)?;
        let format = (element != "map").then(|| named("element", element)).transpose()?;
        let map = map_of(code_map)?;
        if format.is_none() != map.is_some() {
            return Err(PyValueError::new_err(
                "element=\"map\" and code_map are given together, or neither.",
            ));
        }
        let read = [&scale, &high, &zero_point, &bias, &group_index, &divisor, &global_scale];
        let extents = read.into_iter().flatten().chain([&data]).map(|read| read.extent).collect();
        let decoding = Decoding {
            data: data.array,
            high: get(high),
            meaning: match (format, map) {
                (Some(format), _) => Meaning::Format(format),
                (None, map) => Meaning::Map(map.unwrap_or_default()),
            },
            bits,
            packing,
            block,
            scale: get(scale),
            scale_divides,
            global_scale: get(global_scale).map(|array| (array, global_use)),
            offset,
            zero_point: get(zero_point),
            bias: get(bias),
            group_index: get(group_index),
            divisor: get(divisor),
            exact,
            narrow,
        };
        Ok(Self { decoding, extents })
    }
}

/// Decode packed codes with their scales.
#[pyfunction]
#[pyo3(
    signature = (data, scale, out, **options),
    text_signature = "(data, scale, out, *, element, bits, block, layout='dense', high=None, scale_format=None, scale_divides=False, global_scale=None, global_use='multiply', offset=0, zero_point=None, bias=None, group_index=None, divisor=None, code_map=None, arithmetic='peer', threads=None, shape=None)"
)]
pub(crate) fn decode_blocks<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    scale: Option<&Bound<'py, PyAny>>,
    out: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<BlockDecoder>> {
    let options = DecodeOptions::read(Keywords::new(py, "decode_blocks", options)?)?;
    let threads = options.threads.as_ref().map_or_else(|| Ok(num_threads()), parse_threads)?;
    // Before they are read for the core, so that a change meanwhile is seen; other objects are refused then.
    let others =
        [&options.high, &options.global_scale, &options.zero_point, &options.bias].map(Option::as_ref);
    let objects = [Some(data), scale].into_iter().chain(others).flatten();
    let parts = objects.filter_map(|part| part.cast().ok()).map(Part::of).collect();
    let first = out;
    let out = Operand::target("out", out)?;
    let ReadDecoding { decoding, extents } = ReadDecoding::of(data, scale, &options, &out)?;
    apart(&[out.extent], &extents)?;
    let map = options.code_map.map(Bound::unbind).zip(match &decoding.meaning {
        Meaning::Map(map) => Some(map.clone()),
        Meaning::Format(_) => None,
    });
    // SAFETY: numpy vouched for the memory (see `crate::array`), and the caller keeps the arrays alive. The target was
    // checked to be writeable and to share memory with nothing.
    let mut decoder = unsafe { core::BlockDecoder::new(decoding, &out.array) }.map_err(to_python)?;
    let to = out.array.pointer.expose_provenance();
    // SAFETY: as above.
    py.detach(|| unsafe { decoder.decode(with_exposed_provenance_mut(to), threads) }).map_err(to_python)?;
    let first = Plain::of(first)?.filter(|first| first.is_in_order(Order::C) && decoder.is_repeatable());
    let shape = options
        .shape
        .filter(|shape| first.as_ref().is_some_and(|first| shape.iter().product::<usize>() == first.count));
    Ok(first.map(|first| BlockDecoder {
        decoder: Mutex::new(decoder),
        parts,
        extents,
        map,
        shape: shape.unwrap_or_else(|| first.shape().to_vec()),
        format: first.format,
    }))
}

/// A decoding of the same parts, which reads them again.
#[pyclass(frozen, module = "castwise._core")]
pub(crate) struct BlockDecoder {
    decoder: Mutex<core::BlockDecoder>,
    parts: Vec<Part>,
    extents: Vec<Addresses>,
    /// The code map, and its values as they were read.
    map: Option<(Py<PyUntypedArray>, Vec<f32>)>,
    shape: Vec<usize>,
    format: Format,
}

#[pymethods]
impl BlockDecoder {
    /// Decode into another array of the same dtype and shape, in C order; return False where that is another decoding.
    #[pyo3(signature = (out, threads=None))]
    fn decode(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let Some(array) = steady(out, self.format, &self.shape)? else { return Ok(false) };
        let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
        let extent = (array.pointer.addr(), array.pointer.addr() + array.size());
        let changed = self.map.as_ref().is_some_and(|(map, known)| !has_values(map.bind(py), known));
        if changed
            || !self.parts.iter().all(|part| part.is_as_it_was(py))
            || !array.is_writeable()
            || self.extents.iter().any(|&part| meet(part, extent))
        {
            return Ok(false);
        }
        let to = array.pointer.expose_provenance();
        let call = || {
            let Ok(mut decoder) = self.decoder.try_lock() else { return Ok(false) };
            if !decoder.is_repeatable() {
                return Ok(false);
            }
            // SAFETY: as for `decode_blocks`: this array was checked likewise, and the parts are held and as they were.
            unsafe { decoder.decode(with_exposed_provenance_mut(to), threads) }.map(|()| true)
        };
        release(py, array.size(), call).map_err(to_python)
    }
}

/// An array that is read again, and its place and dtype: `ndarray.resize` and `__setstate__` move one in place.
struct Part {
    array: Py<PyUntypedArray>,
    pointer: usize,
    shape: SmallVec<[usize; 4]>,
    strides: SmallVec<[isize; 4]>,
    dtype: Py<PyArrayDescr>,
}

impl Part {
    fn of(array: &Bound<'_, PyUntypedArray>) -> Self {
        Self {
            array: array.clone().unbind(),
            pointer: first(array).addr(),
            shape: array.shape().into(),
            strides: array.strides().into(),
            dtype: array.dtype().unbind(),
        }
    }

    fn is_as_it_was(&self, py: Python<'_>) -> bool {
        let array = self.array.bind(py);
        first(array).addr() == self.pointer
            && array.shape() == &self.shape[..]
            && array.strides() == &self.strides[..]
            && array.dtype().is(&self.dtype)
    }
}

/// Whether an array has values of these bits.
fn has_values(array: &Bound<'_, PyUntypedArray>, known: &[f32]) -> bool {
    let bits = |value: &f32| value.to_bits();
    let are_known = |values: Vec<f32>| values.iter().map(bits).eq(known.iter().map(bits));
    Array::of("code_map", array.clone()).is_ok_and(|array| float32_values(&array).is_some_and(are_known))
}

/// Reads an array, if it is plain, in C order, and of such a format and shape.
fn steady<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
    format: Format,
    shape: &[usize],
) -> PyResult<Option<Plain<'a, 'py>>> {
    let is_like = |array: &Plain<'_, '_>| {
        array.format == format && array.shape() == shape && array.is_in_order(Order::C)
    };
    Ok(Plain::of(object)?.filter(is_like))
}

/// Reads a float32 for each matrix of a stack.
fn global(argument: &'static str, object: &Bound<'_, PyAny>, of: &Operand) -> PyResult<Operand> {
    let shape = &of.array.shape;
    like(argument, object, &shape[..shape.len().saturating_sub(2)])
}

/// Takes an array that is read with a number for each element of another, or of its stack.
fn like(argument: &'static str, object: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<Operand> {
    let array = native(argument, object)?;
    let broadcast = array.broadcast_to(shape).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{argument} has shape {:?}, which does not broadcast to {shape:?}.",
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

/// Quantize an array into arrays for scales and packed codes.
#[pyfunction]
#[pyo3(
    signature = (x, data, scale, **options),
    text_signature = "(x, data, scale, *, scheme, recipe=None, block=None, layout='dense', offset=0, rule=None, scale_format=None, amax=None, global_scale=None, global_max=None, scales='amax', importance=None, zero_point=None, bias=None, code_map=None, rounding=None, seed=0, nonfinite='raise', threads=None, stored=None)"
)]
pub(crate) fn encode_blocks<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<BlockEncoder>> {
    let options = EncodeOptions::read(Keywords::new(py, "encode_blocks", options)?)?;
    let global_scale = options.global_scale.as_ref();
    let threads = options.threads.as_ref().map_or_else(|| Ok(num_threads()), parse_threads)?;
    let objects: Vec<_> = [Some(x), Some(data), Some(scale), global_scale].into_iter().flatten().collect();
    let x = Operand::source("x", x)?;
    let data = Operand::target("data", data)?;
    let scale = Operand::target("scale", scale)?.seen_as("scale", options.scale_format.as_deref())?;
    let target = |argument, array: Option<_>| array.map(|array| Operand::target(argument, array)).transpose();
    let zero_point = target("zero_point", options.zero_point.as_ref())?;
    let bias = target("bias", options.bias.as_ref())?;
    let (encoding, operand_extents) = read_encoding(&x, &options)?;
    let targets = [Some(&data), Some(&scale), zero_point.as_ref(), bias.as_ref()];
    let written: SmallVec<[Addresses; 4]> =
        targets.into_iter().flatten().map(|target| target.extent).collect();
    let read: SmallVec<[Addresses; 4]> =
        [Some(x.extent)].into_iter().chain(operand_extents).flatten().collect();
    apart(&written, &read)?;
    let to = Encoded { data: data.array, scale: scale.array, zero_point: get(zero_point), bias: get(bias) };
    let stored = match options.stored {
        Some(stored) => alike(&stored, &objects)?.then_some(stored),
        None => None,
    };
    let format = encoding.x.format;
    // SAFETY: as for `decode_blocks`; the targets were checked likewise.
    let encoder = py.detach(|| unsafe { core::encode(encoding, &to, threads) }).map_err(to_python)?;
    let Some(stored) = stored else { return Ok(None) };
    let of = |array: &Bound<'_, PyUntypedArray>| (array.shape().to_vec(), array.dtype().unbind());
    let [x, made @ ..] = &stored[..] else { return Ok(None) };
    let (shape, made) = (x.shape().to_vec(), made.iter().map(of).collect());
    let is_repeatable = encoder.is_repeatable();
    let encoder = BlockEncoder { encoder: Mutex::new(encoder), shape, format, made };
    Ok(is_repeatable.then_some(encoder))
}

/// Reads an encoding of an array, and the extents of the global scale and of importance.
fn read_encoding(x: &Operand, options: &EncodeOptions<'_>) -> PyResult<(Encoding, [Option<Addresses>; 2])> {
    let scheme = Scheme::find(&options.scheme).map_err(to_python)?;
    let global_scale = options.global_scale.as_ref();
    let global_scale = global_scale.map(|array| global("global_scale", array, x)).transpose()?;
    let packing = Packing::parse(&options.layout, scheme.bits).map_err(to_python)?;
    let rule = options.rule.as_deref().map(ScaleRule::parse).transpose().map_err(to_python)?;
    let scales = ScaleChoice::parse(&options.scales).map_err(to_python)?;
    let rounding = options.rounding.as_deref().map(Rounding::parse).transpose().map_err(to_python)?;
    let nan_scales = choose("nonfinite", &options.nonfinite, &[("raise", false), ("nan", true)])?;
    let importance = options.importance.as_ref().map(|array| like("importance", array, &x.array.shape));
    let importance = importance.transpose()?;
    let extents = [&global_scale, &importance].map(|operand| operand.as_ref().map(|operand| operand.extent));
    let encoding = Encoding {
        recipe: options.recipe.clone(),
        block: options.block.unwrap_or(scheme.block),
        packing,
        offset: options.offset,
        rule,
        amax: options.amax,
        global_scale: get(global_scale),
        global_max: options.global_max,
        scales,
        importance: get(importance),
        code_map: map_of(options.code_map.as_ref())?,
        rounding,
        seed: options.seed,
        nan_scales,
        ..Encoding::new(x.array.clone(), scheme)
    };
    Ok((encoding, extents))
}

/// Compare a matrix with a stored one, decoded to a dtype; return how they differ, whether an encoding of the first has the
/// stored codes and scales, and the decoded elements where they differ most, by index.
#[pyfunction]
#[pyo3(signature = (x, data, scale, dtype, options, *, measure=false))]
pub(crate) fn compare_stored<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    options: (Bound<'py, PyDict>, Option<Bound<'py, PyDict>>),
    measure: bool,
) -> PyResult<(Comparison, bool, Bound<'py, PyDict>)> {
    let (format, _) = dtypes::parse_argument("dtype", dtype)?;
    let (decoding, encoding) = options;
    let decoding = DecodeOptions::read(Keywords::new(py, "compare_stored", Some(&decoding))?)?;
    let x = Operand::source("x", x)?;
    let ReadDecoding { decoding, .. } = ReadDecoding::of(data, Some(scale), &decoding, &x)?;
    let options =
        encoding.map(|options| EncodeOptions::read(Keywords::new(py, "compare_stored", Some(&options))?));
    // They hold the arrays, which another thread may take out of the dicts meanwhile.
    let options = options.transpose()?;
    let encoding = options.as_ref().map(|options| read_encoding(&x, options)).transpose()?;
    let encoding = encoding.map(|(encoding, _)| encoding);
    // SAFETY: as for `decode_blocks`; nothing is written.
    let call = || unsafe { core::compare_stored(&x.array, &decoding, format, encoding.as_ref(), measure) };
    let bytes = x.extent.1 - x.extent.0;
    let found = release(py, bytes, call).map_err(to_python)?;
    let values = PyDict::new(py);
    for (index, value) in found.values {
        values.set_item(index, value)?;
    }
    Ok((Comparison::new(found.comparison), found.is_encoded, values))
}

/// Return what a stored matrix, decoded to a dtype, lost of another one.
#[pyfunction]
pub(crate) fn report_stored<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    options: &Bound<'py, PyDict>,
) -> PyResult<CastReport> {
    let (format, _) = dtypes::parse_argument("dtype", dtype)?;
    let options = DecodeOptions::read(Keywords::new(py, "report_stored", Some(options))?)?;
    let x = Operand::source("x", x)?;
    let ReadDecoding { decoding, .. } = ReadDecoding::of(data, Some(scale), &options, &x)?;
    // SAFETY: as for `decode_blocks`; nothing is written.
    let call = || unsafe { core::report_stored(&x.array, &decoding, format) };
    let report = release(py, x.extent.1 - x.extent.0, call).map_err(to_python)?;
    Ok(CastReport::new(report))
}

/// Whether arrays and others are as many, and each is the same memory as the other, in C order.
fn alike(ones: &[Bound<'_, PyUntypedArray>], others: &[&Bound<'_, PyAny>]) -> PyResult<bool> {
    let memory = |array: &Bound<'_, PyAny>| {
        let plain = Plain::of(array)?.filter(|array| array.is_in_order(Order::C));
        Ok::<_, PyErr>(plain.map(|array| (array.pointer.addr(), array.size())))
    };
    let mut all = ones.len() == others.len();
    for (one, other) in ones.iter().zip(others) {
        let found = (memory(one.as_any())?, memory(other)?);
        all &= found.0.is_some() && found.0 == found.1;
    }
    Ok(all)
}

/// An encoding of other arrays of the same dtype and shape.
#[pyclass(frozen, module = "castwise._core")]
pub(crate) struct BlockEncoder {
    encoder: Mutex<core::BlockEncoder>,
    shape: Vec<usize>,
    format: Format,
    /// Of the payload, the scales, and a global scale.
    made: Vec<(Vec<usize>, Py<PyArrayDescr>)>,
}

#[pymethods]
impl BlockEncoder {
    /// Encode an array into new ones: the payload, the scales, and a global scale; return None where that is another
    /// encoding, or fails.
    #[pyo3(signature = (x, threads=None))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Vec<Bound<'py, PyUntypedArray>>>> {
        let Some(array) = steady(x, self.format, &self.shape)? else { return Ok(None) };
        let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
        let made = self.made.iter().map(|(shape, dtype)| empty(shape, dtype.bind(py).clone()));
        let made = made.collect::<PyResult<Vec<_>>>()?;
        let places: SmallVec<[usize; 4]> = [array.pointer]
            .into_iter()
            .chain(made.iter().map(first))
            .map(<*mut u8>::expose_provenance)
            .collect();
        let call = || {
            let Ok(mut encoder) = self.encoder.try_lock() else { return false };
            let place = |index: usize| with_exposed_provenance_mut(places[index]);
            let global = places.get(3).map(|&place| with_exposed_provenance_mut(place));
            let places = [place(0), place(1), place(2)];
            // SAFETY: as for `encode_blocks`: the array was checked likewise, and the others are new, and as the first were.
            unsafe { encoder.is_repeatable() && encoder.repeat(places, global, threads).is_ok() }
        };
        Ok(release(py, array.size(), call).then_some(made))
    }
}

/// Returns the address of an array's first element.
fn first(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    array.fields().data.cast()
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
    let x = Operand::source("x", x)?.array;
    // SAFETY: as for `decode_blocks`; nothing is written.
    py.detach(move || unsafe { core::block_amax(&x, threads) }).map_err(to_python)
}

/// Return NVFP4's second-level scale for a largest magnitude.
#[pyfunction]
#[pyo3(signature = (amax, *, recipe, dtype, global_max=None))]
pub(crate) fn global_scale(
    amax: f64,
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
) -> PyResult<(core::Array, core::Array)> {
    let (source, out) = (Operand::source(name, source)?, Operand::target("out", out)?);
    apart(&[out.extent], &[source.extent])?;
    Ok((source.array, out.array))
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
    codes: core::Array,
    packed: core::Array,
    (layout, bits): (&str, u32),
    direction: Direction,
) -> PyResult<()> {
    let packing = Packing::parse(layout, bits).map_err(to_python)?;
    let threads = num_threads();
    // SAFETY: as for `decode_blocks`.
    let call = move || unsafe { core::repack(&codes, &packed, (packing, bits), direction, threads) };
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
    py.detach(move || unsafe { core::swizzle(&scales, &out, false) }).map_err(to_python)
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
    py.detach(move || unsafe { core::swizzle(&out, &swizzled, true) }).map_err(to_python)
}
