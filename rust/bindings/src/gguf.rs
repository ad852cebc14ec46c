//! Headers of GGUF files, made of objects as the core reads them from what Python reads.

use castwise_logic::checkpoint::gguf::{
    ALIGNMENT_KEY, ALIGNMENT_UNIT, Error, Fault, MAX_AXES, Source, Tensor, Value, parse, parse_array,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

/// The values of a header, where its arrays begin, where its pairs begin and the last ends, where the data start, and the
/// alignment of tensors.
type Header<'py> = (Bound<'py, PyDict>, Bound<'py, PyDict>, (Bound<'py, PyDict>, u64), u64, u64);

/// Parse the header of a GGUF file.
///
/// `read` returns bytes of the file, which has the length `size`; `tensor` takes name, shape, type and offset of each; a
/// header that lies raises what `refusal` makes of the fault. Returns the values, the places of arrays and those of pairs
/// by key, with the end of the last, the start of the data and the alignment.
#[pyfunction]
pub(crate) fn parse_gguf_header<'py>(
    py: Python<'py>,
    read: Bound<'py, PyAny>,
    size: u64,
    tensor: &Bound<'py, PyAny>,
    refusal: &Bound<'py, PyAny>,
) -> PyResult<Header<'py>> {
    let (values, arrays, pairs) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
    let data = parse(
        File { read, size },
        |key, value, begin| {
            pairs.set_item(key, begin)?;
            match value {
                Value::Array(begin) => arrays.set_item(key, begin),
                value => values.set_item(key, object(py, value)?),
            }
        },
        |Tensor { name, shape, kind, offset }| {
            tensor.call1((name, PyTuple::new(py, shape)?, kind, offset)).map(drop)
        },
    )
    .map_err(|error| exception(refusal, error))?;
    Ok((values, arrays, (pairs, data.pairs_end), data.start, data.alignment))
}

/// Parse an array of the header of a GGUF file, which begins at a byte; the rest is as above.
#[pyfunction]
pub(crate) fn parse_gguf_array<'py>(
    py: Python<'py>,
    read: Bound<'py, PyAny>,
    size: u64,
    begin: u64,
    refusal: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let items = PyList::empty(py);
    parse_array(File { read, size }, begin, |value| items.append(object(py, value)?))
        .map_err(|error| exception(refusal, error))?;
    Ok(items)
}

/// What Python reads.
struct File<'py> {
    read: Bound<'py, PyAny>,
    size: u64,
}

impl Source for File<'_> {
    type Bytes = PyBackedBytes;
    type Error = PyErr;

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, begin: u64, count: usize) -> PyResult<PyBackedBytes> {
        Ok(self.read.call1((begin, count))?.extract()?)
    }
}

fn object<'py>(py: Python<'py>, value: Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Text(text) => PyString::new(py, text).into_any(),
        Value::Unsigned(number) | Value::Array(number) => number.into_pyobject(py)?.into_any(),
        Value::Signed(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
    })
}

/// The exception for an error: what was raised, or the refusal.
fn exception(refusal: &Bound<'_, PyAny>, error: Error<PyErr>) -> PyErr {
    match error {
        Error::Raised(error) => error,
        Error::Refused(fault) => refused(refusal, &fault).unwrap_or_else(|error| error),
    }
}

fn refused(refusal: &Bound<'_, PyAny>, fault: &Fault) -> PyResult<PyErr> {
    let py = refusal.py();
    let mut text = explanation(py, fault)?;
    let mut cause = None;
    if let Fault::NotUtf8(bytes) = fault
        && let Err(error) = PyBytes::new(py, bytes).call_method0("decode")
    {
        // Python's decoder says what is wrong with them.
        text = format!("{text}: {}", error.value(py).getattr("reason")?);
        cause = Some(error);
    }
    let error = PyErr::from_value(refusal.call1((text,))?);
    if cause.is_some() {
        error.set_cause(py, cause);
    }
    Ok(error)
}

fn explanation(py: Python<'_>, fault: &Fault) -> PyResult<String> {
    let shown = |name: &str| PyString::new(py, name).repr();
    Ok(match fault {
        Fault::Magic => "no GGUF file: it does not begin with GGUF".to_owned(),
        Fault::Version(version) => format!("GGUF of version {version}; versions 2 and 3 are read"),
        Fault::Truncated => "truncated in its header".to_owned(),
        Fault::LongText(count) => {
            let count = count.into_pyobject(py)?.call_method1("__format__", (",",))?;
            format!("a text of {count} bytes in its header")
        }
        Fault::NotUtf8(_) => "a text in its header is not UTF-8".to_owned(),
        Fault::UnknownType(kind) => format!("a value of the type {kind}, which GGUF does not have"),
        Fault::NestedArray => "an array of arrays in its header".to_owned(),
        Fault::RepeatedKey(key) => format!("key {} is there twice in its header", shown(key)?),
        Fault::Alignment => format!("{ALIGNMENT_KEY} is not a multiple of {ALIGNMENT_UNIT}"),
        Fault::Axes { name, axes } => {
            format!("tensor {} has {axes} axes; GGUF allows {MAX_AXES}", shown(name)?)
        }
        Fault::Shape { name, shape } => {
            let shape = PyTuple::new(py, shape)?.repr()?;
            format!("tensor {} has shape {shape}, too large for numpy", shown(name)?)
        }
    })
}
