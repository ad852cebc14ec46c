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
    pub(crate) fn require<T: FromPyObjectOwned<'py>>(&self, name: &'static str, to: &mut T) -> PyResult<()> {
        if self.take(name, to)? { Ok(()) } else { Err(self.missing(name)) }
    }

    /// Reads an argument in place of its default, if it is given.
    pub(crate) fn fill<T: FromPyObjectOwned<'py>>(&self, name: &'static str, to: &mut T) -> PyResult<()> {
        self.take(name, to).map(|_| ())
    }

    /// Reads an argument, or returns its default.
    pub(crate) fn read<T: FromPyObjectOwned<'py>>(&self, name: &'static str, mut default: T) -> PyResult<T> {
        self.take(name, &mut default)?;
        Ok(default)
    }

    /// Refuses an argument that was not read.
    pub(crate) fn finish(self) -> PyResult<()> {
        self.arguments.keys().iter().next().map_or(Ok(()), |name| {
            let text = format!("{}() got an unexpected keyword argument '{name}'", self.function);
            Err(PyTypeError::new_err(text))
        })
    }

    /// Reads an argument, and returns whether it is given. (Once for each type: not inlined, as there are many arguments.)
    #[inline(never)]
    fn take<T: FromPyObjectOwned<'py>>(&self, name: &'static str, to: &mut T) -> PyResult<bool> {
        let Some(value) = self.take_object(name)? else { return Ok(false) };
        *to = value.extract().map_err(|error: T::Error| self.named(name, error.into()))?;
        Ok(true)
    }

    /// Takes an argument as it is.
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
