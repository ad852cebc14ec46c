//! The core's errors as Python's.

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
    let message = error.to_string();
    match error {
        Error::Unsupported { source, target } => PyTypeError::new_err(format!(
            "cannot cast {source:?} to {target:?}: the imaginary part would be lost. Cast `x.real` (or `x.imag`, or \
             `abs(x)`) instead."
        )),
        Error::Unfit { .. } => UnfitError::new_err(message),
        Error::Overflow { .. } => PyOverflowError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}
