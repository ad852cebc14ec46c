//! The core's errors as Python's, with arguments as Python writes them.

use castwise_core::Error;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};

create_exception!(
    castwise._core,
    UnfitError,
    PyValueError,
    "A scheme cannot hold an array of this shape, in such blocks, or with such an element."
);

/// The exception that a Python programmer would expect for each error.
#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub(crate) fn to_python(error: Error) -> PyErr {
    PyValueError::new_err(match &error {
        Error::Unsupported { source, target } => {
            return PyTypeError::new_err(format!(
                "cannot cast {source:?} to {target:?}: the imaginary part would be lost. Cast `x.real` (or `x.imag`, or \
                 `abs(x)`) instead."
            ));
        }
        Error::Unfit { .. } => return UnfitError::new_err(error.to_string()),
        Error::Overflow { scale, .. } => {
            let scale = if scale.is_some() { "another" } else { "a" };
            return PyOverflowError::new_err(format!(
                "{error:#} and overflow=\"raise\". Use overflow=\"saturate\" or \"ieee\", or {scale} scale."
            ));
        }
        Error::Nan { .. } => format!("{error:#} and nan=\"raise\". Use nan=\"keep\" or \"zero\"."),
        Error::NoZero { target } => {
            format!("nan=\"zero\" is not for {target:?}, which has no zero; use nan=\"keep\" or \"raise\".")
        }
        Error::InvalidNumber { argument, value, valid } => {
            format!("{argument}={value:?} is not valid; use {valid}.")
        }
        Error::UnknownOption { argument, value, valid } => {
            let valid: Vec<_> = valid.iter().map(|name| format!("{name:?}")).collect();
            format!("{argument}={value} is not valid; use one of {}.", valid.join(", "))
        }
        _ => error.to_string(),
    })
}
