//! Keyword arguments of functions that take many, read by name into a value.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The keyword arguments of a call that are not read yet.
pub(crate) struct Keywords<'py> {
    function: &'static str,
    arguments: Bound<'py, PyDict>,
}

impl<'py> Keywords<'py> {
    /// Takes the dict that Python makes for a call.
    pub(crate) fn new(
        py: Python<'py>,
        function: &'static str,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let arguments = arguments.map_or_else(|| Ok(PyDict::new(py)), PyDictMethods::copy)?;
        Ok(Self { function, arguments })
    }

    /// Reads an argument that has to be given.
    pub(crate) fn require<T: FromPyObjectOwned<'py>>(&self, name: &'static str) -> PyResult<T> {
        self.take(name)?.ok_or_else(|| self.missing(name))
    }

    /// Reads an argument, or returns its default.
    pub(crate) fn read<T: FromPyObjectOwned<'py>>(&self, name: &'static str, default: T) -> PyResult<T> {
        Ok(self.take(name)?.unwrap_or(default))
    }

    /// Refuses an argument that was not read.
    pub(crate) fn finish(self) -> PyResult<()> {
        self.arguments.keys().iter().next().map_or(Ok(()), |name| {
            let text = format!("{}() got an unexpected keyword argument '{name}'", self.function);
            Err(PyTypeError::new_err(text))
        })
    }

    fn take<T: FromPyObjectOwned<'py>>(&self, name: &'static str) -> PyResult<Option<T>> {
        let Some(value) = self.take_object(name)? else { return Ok(None) };
        value.extract().map(Some).map_err(|error: T::Error| self.named(name, error.into()))
    }

    /// Takes an argument as it is. (Not inlined, as there are many arguments; nor is what follows.)
    #[inline(never)]
    fn take_object(&self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = PyString::intern(self.arguments.py(), name);
        let Some(value) = self.arguments.get_item(&key)? else { return Ok(None) };
        self.arguments.del_item(&key)?;
        Ok(Some(value))
    }

    /// Names the argument in an error, as PyO3 names one of another type.
    #[inline(never)]
    fn named(&self, name: &'static str, error: PyErr) -> PyErr {
        let py = self.arguments.py();
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        let named = PyTypeError::new_err(format!("argument '{name}': {}", error.value(py)));
        named.set_cause(py, error.cause(py));
        named
    }

    #[inline(never)]
    fn missing(&self, name: &'static str) -> PyErr {
        PyTypeError::new_err(format!("{}() missing 1 required keyword argument: '{name}'", self.function))
    }
}
