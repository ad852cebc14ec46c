//! Arrays of other libraries: found here, cast by their adapter (`castwise.arrays.adapter_registry` knows it); and casts as other
//! libraries make them.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::numpy::PyUntypedArray;

/// The adapter of the library that an object comes from; None for numpy's and Python's own objects, and for libraries
/// without one.
pub(crate) fn adapter_of<'py>(x: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // The cheapest test first: numpy's arrays.
    if x.is_instance_of::<PyUntypedArray>() || is_builtin(x) {
        return Ok(None);
    }
    let py = x.py();
    static SCALAR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if x.is_instance(SCALAR.import(py, "numpy", "generic")?.as_any())? {
        return Ok(None);
    }
    static FIND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let adapter = FIND.import(py, "castwise.arrays.adapter_registry", "array_adapter")?.call1((x,))?;
    Ok(Some(adapter).filter(|adapter| !adapter.is_none()))
}

/// The name of the format that a dtype of a library with an adapter means, or its class as a dtype.
pub(crate) fn format_name(dtype: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    static FORMAT_NAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FORMAT_NAME
        .import(dtype.py(), "castwise.arrays.adapter_registry", "format_name")?
        .call1((dtype,))?
        .extract()
}

/// The name of the format of an adapter's array; None if no format describes it.
pub(crate) fn format_of_array(adapter: &Bound<'_, PyAny>, x: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    static ARRAY_FORMAT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ARRAY_FORMAT
        .import(x.py(), "castwise.arrays.adapter_registry", "array_format")?
        .call1((adapter, x))?
        .extract()
}

fn is_builtin(x: &Bound<'_, PyAny>) -> bool {
    x.is_exact_instance_of::<PyFloat>()
        || x.is_exact_instance_of::<PyInt>()
        || x.is_exact_instance_of::<PyList>()
        || x.is_exact_instance_of::<PyTuple>()
        || x.is_exact_instance_of::<PyBool>()
        || x.is_exact_instance_of::<PyComplex>()
        || x.is_exact_instance_of::<PyString>()
}

/// Options as they were given, for the adapter to pass on.
pub(crate) struct Given<'py>(Bound<'py, PyDict>);

impl<'py> Given<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self(PyDict::new(py))
    }

    /// Adds an option, unless it was left out.
    pub(crate) fn with(self, name: &str, value: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        if let Some(value) = value {
            self.0.set_item(name, value)?;
        }
        Ok(self)
    }

    /// Adds a flag, unless it has its default.
    pub(crate) fn with_flag(self, name: &str, value: bool, default: bool) -> PyResult<Self> {
        if value != default {
            self.0.set_item(name, value)?;
        }
        Ok(self)
    }

    /// Returns what a method of an adapter makes of an array: of its library, or to be written to one of these.
    pub(crate) fn cast_by(
        self,
        method: &str,
        adapter: &Bound<'py, PyAny>,
        x: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let result = adapter.call_method(method, (x, dtype), Some(&self.0))?;
        if result.is_none() {
            let class = adapter.get_type().name()?;
            return Err(PyTypeError::new_err(format!("{class}.{method} returned None; return the array.")));
        }
        Ok(result)
    }

    /// Returns what the library of "like" makes of an array, whose format and target are named.
    pub(crate) fn cast_like(
        self,
        source: (Bound<'py, PyAny>, &str),
        target: (Option<&Bound<'py, PyAny>>, &str),
    ) -> PyResult<Bound<'py, PyAny>> {
        static CAST_LIKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let cast = CAST_LIKE.import(self.0.py(), "castwise.arrays.library_casts", "cast_like")?;
        cast.call((source.0, source.1, target.0, target.1), Some(&self.0))
    }
}
