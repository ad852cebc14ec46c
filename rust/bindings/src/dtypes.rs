//! numpy's dtype objects and the table's formats, each way.

use std::collections::HashMap;
use std::ffi::c_int;

use castwise_core::Format;
use castwise_core::format::Kind;
use castwise_core::parse::parse;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::error::to_python;

/// numpy's own dtypes have smaller type numbers; `ml_dtypes` are given theirs when it is imported.
pub(crate) const FIRST_USER_NUMBER: c_int = 256;

/// The dtype of each format, as found when the module is first used.
struct Table {
    descrs: Vec<Option<Py<PyArrayDescr>>>,
    user_numbers: HashMap<c_int, Format>,
}

impl Table {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static TABLE: PyOnceLock<Table> = PyOnceLock::new();
        TABLE.get_or_try_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let (numpy, ml_dtypes) = (py.import("numpy")?, py.import("ml_dtypes")?);
        let mut table = Self { descrs: Vec::new(), user_numbers: HashMap::new() };
        for format in Format::all() {
            let owner = [&ml_dtypes, &numpy].into_iter().find_map(|m| m.getattr(format.name()).ok());
            let descr = owner.map(|scalar| PyArrayDescr::new(py, scalar)).transpose()?;
            if let Some(descr) = &descr
                && descr.num() >= FIRST_USER_NUMBER
            {
                table.user_numbers.insert(descr.num(), format);
            }
            table.descrs.push(descr.map(Bound::unbind));
        }
        Ok(table)
    }
}

/// The dtype of a format, if numpy or the installed `ml_dtypes` has it.
pub(crate) fn descr_of(py: Python<'_>, format: Format) -> PyResult<Option<Bound<'_, PyArrayDescr>>> {
    Ok(Table::get(py)?.descrs[format.index()].as_ref().map(|descr| descr.bind(py).clone()))
}

/// The format of a dtype, if it has one.
pub(crate) fn format_of(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<Format>> {
    let number = descr.num();
    if number >= FIRST_USER_NUMBER {
        return Ok(Table::get(descr.py())?.user_numbers.get(&number).copied());
    }
    if descr.has_fields() || descr.has_subarray() {
        return Ok(None);
    }
    // Several numbers may share a width (long and long long), so numpy's own go by kind and size.
    let bits = 8 * descr.itemsize() as u32;
    Ok(Format::all().find(|format| match (descr.kind(), format.kind()) {
        (b'b', Kind::Bool) => true,
        (b'i', Kind::Integer { signed }) => signed && format.row().bits == bits,
        (b'u', Kind::Integer { signed }) => !signed && format.row().bits == bits,
        // Widths of 16, 32 and 64 bits have one format in numpy: the one with IEEE's exponent for that width.
        (b'f', Kind::Float(spec)) => {
            format.row().bits == bits && [(16, 5), (32, 8), (64, 11)].contains(&(bits, spec.exponent_bits))
        }
        (b'c', Kind::Complex { .. }) => format.row().bits == bits && bits >= 64,
        _ => false,
    }))
}

/// A dtype argument: a name or alias of the table, or anything `numpy.dtype` takes.
pub(crate) fn parse_argument<'py>(
    argument: &'static str,
    value: &Bound<'py, PyAny>,
) -> PyResult<(Format, Bound<'py, PyArrayDescr>)> {
    let py = value.py();
    if let Ok(descr) = value.cast::<PyArrayDescr>() {
        return known(argument, descr.clone());
    }
    let unknown = match value.cast::<PyString>() {
        Ok(name) => match parse(&name.to_cow()?) {
            Ok(format) => {
                let descr = descr_of(py, format)?.ok_or_else(|| {
                    PyTypeError::new_err(format!(
                        "{argument}={:?} has no dtype in the installed ml_dtypes; install a newer one.",
                        format.name()
                    ))
                })?;
                return Ok((format, descr));
            }
            Err(error) => to_python(error),
        },
        Err(_) => PyTypeError::new_err(format!(
            "{argument}={} is not a dtype; give a numpy or ml_dtypes dtype, or a name of castwise.formats().",
            value.repr()?
        )),
    };
    match PyArrayDescr::new(py, value) {
        Ok(descr) if !value.is_none() => known(argument, descr),
        _ => Err(unknown),
    }
}

fn known<'py>(
    argument: &'static str,
    descr: Bound<'py, PyArrayDescr>,
) -> PyResult<(Format, Bound<'py, PyArrayDescr>)> {
    match format_of(&descr)? {
        Some(format) => Ok((format, descr)),
        None => Err(PyTypeError::new_err(format!(
            "{argument}={descr} is not a format castwise knows; castwise.formats() lists all."
        ))),
    }
}
