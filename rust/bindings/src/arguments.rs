//! Arguments that are numbers or flags, of Python or another library; errors name the argument and the value.

use castwise_core::cpu::DefaultEnvironment;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

/// Reads a real number, of Python or another library; not text, which `float` would read, nor flags and arrays.
pub(crate) fn real(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(number.value());
    }
    let number = if is_no_real(value) || is_array(value) {
        None
    } else {
        // A numpy scalar of 32 bits is widened in the thread's environment.
        let _environment = DefaultEnvironment::enter();
        value.extract::<f64>().ok()
    };
    number.ok_or_else(|| match value.repr() {
        Ok(shown) => {
            PyTypeError::new_err(format!("{argument}={shown} is not valid; use a number, as a float."))
        }
        Err(error) => error,
    })
}

/// Returns whether a value is Python's True or False, which count as 1 and 0 where an int is read.
pub(crate) fn is_flag(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyBool>()
}

/// Returns whether a value is a flag or a complex number, which `float` would take, by the name of its dtype.
fn is_no_real(value: &Bound<'_, PyAny>) -> bool {
    let dtype = value.getattr("dtype").and_then(|dtype| Ok(dtype.str()?.to_string()));
    is_flag(value) || dtype.is_ok_and(|dtype| dtype.contains("bool") || dtype.contains("complex"))
}

/// Returns whether a value has axes.
fn is_array(value: &Bound<'_, PyAny>) -> bool {
    let axes = value.getattr("ndim").and_then(|axes| axes.extract::<usize>());
    axes.is_ok_and(|axes| axes > 0)
}

/// Reads an int of up to 64 bits.
pub(crate) fn whole(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    match value.extract::<i64>() {
        Ok(number) if !is_flag(value) => Ok(number),
        _ if value.is_instance_of::<PyInt>() && !is_flag(value) => Err(PyValueError::new_err(format!(
            "{argument}={value} is not valid; use an int of at most 64 bits."
        ))),
        _ => Err(PyTypeError::new_err(format!("{argument}={} is not valid; use an int.", value.repr()?))),
    }
}

/// Reads an int within a range.
pub(crate) fn whole_within<T>(
    argument: &str,
    value: &Bound<'_, PyAny>,
    range: std::ops::RangeInclusive<T>,
) -> PyResult<T>
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display,
{
    let py = value.py();
    let number = match whole(argument, value) {
        // An int of more bits is out of the range too.
        Err(error) if error.is_instance_of::<PyValueError>(py) => None,
        number => T::try_from(number?).ok().filter(|number| range.contains(number)),
    };
    number.ok_or_else(|| {
        let (low, high) = (range.start(), range.end());
        PyValueError::new_err(format!("{argument}={value} is not valid; use an int from {low} to {high}."))
    })
}

/// Reads a flag: Python's, numpy's, or a boolean scalar of another library (by its `item()`).
pub(crate) fn truth(finite: &Bound<'_, PyAny>) -> PyResult<bool> {
    let refusal = || {
        let shown = finite.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        PyTypeError::new_err(format!(
            "finite={shown} is not valid; use True or False, as unscale() and all_finite() return."
        ))
    };
    if let Ok(flag) = finite.extract::<bool>() {
        return Ok(flag);
    }
    let item = finite.call_method0("item").map_err(|_| refusal())?;
    item.extract::<bool>().map_err(|_| refusal())
}
