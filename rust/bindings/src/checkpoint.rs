//! Headers of checkpoint files: converts bytes and lists of tuples for the core, which checks them.

use castwise_logic::checkpoint::{self, HeaderError, Metadata, TensorEntry};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

/// `(name, dtype code, shape, begin, end)` of each; the offsets count bytes from the start of the data. Codes are the
/// same objects, and all is immutable, so that the garbage collector has nothing to visit.
fn entries(py: Python<'_>, tensors: Vec<TensorEntry>) -> PyResult<Bound<'_, PyList>> {
    let fields = |entry: TensorEntry| {
        let shape = PyTuple::new(py, entry.shape)?;
        (entry.name, PyString::intern(py, entry.dtype.code()), shape, entry.begin, entry.end)
            .into_pyobject(py)
    };
    let all = tensors.into_iter().map(fields).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, all)
}

/// For headers of more tensors than this, memory that was freed on the way is given back to the system.
const MANY: usize = 10_000;

/// Gives back the memory that a header of so many tensors took on the way.
fn give_back(tensors: usize) {
    #[cfg(target_os = "linux")]
    if tensors > MANY {
        castwise_core::memory::trim();
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (tensors, MANY);
}

fn refused(error: &HeaderError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Parse the JSON of a safetensors header that is followed by `data_len` bytes of tensor data.
///
/// Returns the tensors in the order of their data, and the metadata as pairs, or None.
#[pyfunction]
pub(crate) fn parse_safetensors_header<'py>(
    py: Python<'py>,
    header: &[u8],
    data_len: u64,
) -> PyResult<(Bound<'py, PyList>, Option<Metadata>)> {
    let parsed = py.detach(|| checkpoint::parse(header, data_len)).map_err(|error| refused(&error))?;
    // As objects of Python before what they are made of is given back.
    let result = entries(py, parsed.tensors)?;
    give_back(result.len());
    Ok((result, parsed.metadata))
}

/// Lay out tensors `(name, dtype code, shape)` and write the header of their file.
///
/// Returns the first bytes of the file (length and header), and a dict from name to the offset in the file at which each
/// tensor's data goes, in that order.
#[pyfunction]
pub(crate) fn build_safetensors_header<'py>(
    py: Python<'py>,
    tensors: &Bound<'py, PyAny>,
    metadata: Option<Metadata>,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyDict>)> {
    let (mut list, mut names) = (Vec::new(), Vec::new());
    for tensor in tensors.try_iter()? {
        let (name, code, shape): (Bound<'py, PyString>, String, Vec<usize>) = tensor?.extract()?;
        list.push((name.to_str()?.to_owned(), code, shape));
        names.push(name);
    }
    let (bytes, placed) = py.detach(|| checkpoint::build(list, metadata)).map_err(|error| refused(&error))?;
    let places = PyDict::new(py);
    for (position, begin) in placed {
        places.set_item(&names[position], bytes.len() + begin)?;
    }
    let header = PyBytes::new(py, &bytes);
    drop(bytes);
    give_back(names.len());
    Ok((header, places))
}
