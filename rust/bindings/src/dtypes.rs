//! numpy's dtype objects and the table's formats, each way.

use std::ffi::c_int;

use castwise_core::Format;
use castwise_core::format::Kind;
use castwise_core::parse::find;
use pyo3::exceptions::{PyAttributeError, PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use crate::foreign;
use crate::names::unknown_format;
use crate::numpy::{HALF, PyArrayDescr, PyArrayDescrMethods};

/// numpy's own dtypes have smaller type numbers; `ml_dtypes` are given theirs when it is imported.
pub(crate) const FIRST_USER_NUMBER: c_int = 256;

/// The dtype of each format, found on first use, and the format of each type number.
struct Table {
    descrs: Vec<Option<Py<PyArrayDescr>>>,
    formats: Vec<Option<Format>>,
}

impl Table {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static TABLE: PyOnceLock<Table> = PyOnceLock::new();
        TABLE.get_or_try_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let (numpy, ml_dtypes) = (py.import("numpy")?, py.import("ml_dtypes")?);
        let mut table = Self { descrs: Vec::new(), formats: Vec::new() };
        for number in 0..=HALF {
            table.formats.push(numpys_own(&PyArrayDescr::of_number(py, number)?));
        }
        for format in Format::all() {
            let owner = [&ml_dtypes, &numpy].into_iter().find_map(|m| m.getattr(format.name()).ok());
            let descr = owner.map(|scalar| PyArrayDescr::new(&scalar)).transpose()?;
            if let Some(descr) = &descr
                && descr.num() >= FIRST_USER_NUMBER
            {
                let number = usize::try_from(descr.num())?;
                table.formats.resize(table.formats.len().max(number + 1), None);
                table.formats[number] = Some(format);
            }
            table.descrs.push(descr.map(Bound::unbind));
        }
        Ok(table)
    }
}

/// Returns the dtype of a format, if numpy or the installed `ml_dtypes` has it.
#[inline(always)]
pub(crate) fn descr_of(py: Python<'_>, format: Format) -> PyResult<Option<Bound<'_, PyArrayDescr>>> {
    Ok(Table::get(py)?.descrs[format.index()].as_ref().map(|descr| descr.bind(py).clone()))
}

/// Returns the format of a dtype, if it has one.
#[inline(always)]
pub(crate) fn format_of(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<Format>> {
    let formats = &Table::get(descr.py())?.formats;
    // New kinds of dtypes have negative numbers, or one beyond the table.
    Ok(usize::try_from(descr.num()).ok().and_then(|number| formats.get(number).copied().flatten()))
}

/// Returns the format of a dtype of numpy's own, by kind and size: several type numbers may share these (long and long
/// long).
fn numpys_own(descr: &Bound<'_, PyArrayDescr>) -> Option<Format> {
    let bits = 8 * descr.itemsize() as u32;
    Format::all().find(|format| match (descr.kind(), format.kind()) {
        (b'b', Kind::Bool) => true,
        (b'i', Kind::Integer { signed }) => signed && format.row().bits == bits,
        (b'u', Kind::Integer { signed }) => !signed && format.row().bits == bits,
        // Widths of 16, 32 and 64 bits have one format in numpy: the one with IEEE's exponent for that width.
        (b'f', Kind::Float(spec)) => {
            format.row().bits == bits && [(16, 5), (32, 8), (64, 11)].contains(&(bits, spec.exponent_bits))
        }
        (b'c', Kind::Complex { .. }) => format.row().bits == bits && bits >= 64,
        _ => false,
    })
}

/// Reads a dtype argument: a name or alias of the table, anything `numpy.dtype` takes, or a dtype of torch.
pub(crate) fn parse_argument<'py>(
    argument: &'static str,
    value: &Bound<'py, PyAny>,
) -> PyResult<(Format, Bound<'py, PyArrayDescr>)> {
    let py = value.py();
    if let Ok(descr) = value.cast::<PyArrayDescr>() {
        return known(argument, descr.clone());
    }
    let name = value.cast::<PyString>().ok();
    if let Some(name) = name
        && let Some(format) = find(&name.to_cow()?)
    {
        return with_descr(argument, py, format);
    }
    refuse_class(argument, value)?;
    let mut cause = None;
    if !value.is_none() {
        let descr = PyArrayDescr::new(value);
        // numpy makes a dtype of objects of any class.
        let is_known =
            descr.as_ref().is_ok_and(|descr| format_of(descr).is_ok_and(|format| format.is_some()));
        if !is_known && let Some(name) = foreign::format_name(value)? {
            let format = find(&name).ok_or_else(|| unknown(argument, value))?;
            return with_descr(argument, py, format);
        }
        match descr {
            Ok(descr) => return known(argument, descr),
            Err(error) => cause = raised_by(value, error)?,
        }
    }
    if let Some(name) = name {
        return Err(unknown_format(argument, &name.to_cow()?));
    }
    if let Some(name) = torch_name(value)? {
        let format = find(&name).ok_or_else(|| unknown(argument, value))?;
        return with_descr(argument, py, format);
    }
    let error = PyTypeError::new_err(format!(
        "{argument}={} is not a dtype; give a dtype of numpy, ml_dtypes, jax or torch, or a name of \
         castwise.formats().",
        value.repr()?
    ));
    error.set_cause(py, cause);
    Err(error)
}

/// Returns what the `dtype` of an object raised when numpy read it, as the cause of the error about it; `None` if numpy
/// only found it not to be a dtype. What means something else than that, such as an interrupt, is raised itself.
fn raised_by(value: &Bound<'_, PyAny>, mut error: PyErr) -> PyResult<Option<PyErr>> {
    let py = value.py();
    if error.value(py).to_string().starts_with("Cannot interpret") {
        // numpy 2.0 says so where a property raised, too.
        match value.getattr("dtype") {
            Err(raised) if !raised.is_instance_of::<PyAttributeError>(py) => error = raised,
            _ => return Ok(None),
        }
    }
    if !error.is_instance_of::<PyException>(py) {
        return Err(error);
    }
    // numpy's own errors, about what these hold.
    let is_plain = value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyDict>();
    if is_plain {
        return Ok(None);
    }
    let is_about_type = error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyValueError>(py);
    if is_about_type { Ok(Some(error)) } else { Err(error) }
}

/// Refuses a class of dtypes, such as `numpy.dtypes.Float32DType`, which numpy takes for one of objects.
fn refuse_class(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let Ok(class) = value.cast::<PyType>() else { return Ok(()) };
    if !class.is_subclass_of::<PyArrayDescr>()? {
        return Ok(());
    }
    let name = class.fully_qualified_name()?;
    Err(PyTypeError::new_err(format!(
        "{argument}={value} is a class of dtypes; give the dtype, as {name}()."
    )))
}

/// The name of a dtype of torch, as "bfloat16" of `torch.bfloat16`; torch is not imported for it.
fn torch_name(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let class = value.get_type();
    if class.name()? != "dtype" || class.module()? != "torch" {
        return Ok(None);
    }
    Ok(value.str()?.to_cow()?.strip_prefix("torch.").map(str::to_owned))
}

fn with_descr<'py>(
    argument: &'static str,
    py: Python<'py>,
    format: Format,
) -> PyResult<(Format, Bound<'py, PyArrayDescr>)> {
    let descr = descr_of(py, format)?.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{argument}={:?} has no dtype in the installed ml_dtypes; install a newer one.",
            format.name()
        ))
    })?;
    Ok((format, descr))
}

fn known<'py>(
    argument: &'static str,
    descr: Bound<'py, PyArrayDescr>,
) -> PyResult<(Format, Bound<'py, PyArrayDescr>)> {
    let format = format_of(&descr)?.ok_or_else(|| unknown(argument, &descr))?;
    Ok((format, descr))
}

/// Makes the error for a dtype without a format.
fn unknown(argument: &str, value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "{argument}={value} is not a format castwise knows; castwise.formats() lists all."
    ))
}
