//! Headers of checkpoint files: converts bytes and lists of tuples for the core, which checks them.

use std::collections::HashMap;

use castwise_core::checkpoint::{self, HeaderError, Metadata, TensorEntry};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// `(name, dtype code, shape, begin, end)`; the offsets count bytes from the start of the data.
type Entry = (String, String, Vec<usize>, usize, usize);

fn entries(tensors: Vec<TensorEntry>) -> Vec<Entry> {
    let fields = |entry: TensorEntry| (entry.name, entry.dtype, entry.shape, entry.begin, entry.end);
    tensors.into_iter().map(fields).collect()
}

fn refused(error: &HeaderError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Parse the JSON of a safetensors header that is followed by `data_len` bytes of tensor data.
///
/// Returns the tensors in the order of their data, and the metadata as pairs, or None.
#[pyfunction]
pub(crate) fn parse_safetensors_header(
    py: Python<'_>,
    header: &[u8],
    data_len: u64,
) -> PyResult<(Vec<Entry>, Option<Metadata>)> {
    let parsed = py.detach(|| checkpoint::parse(header, data_len)).map_err(|error| refused(&error))?;
    Ok((entries(parsed.tensors), parsed.metadata))
}

/// Lay out tensors `(name, dtype code, shape)` and write the header of their file.
///
/// Returns the first bytes of the file (length and header), and names with the offset at which each tensor's data goes,
/// counted from the start of the data, in that order.
#[pyfunction]
pub(crate) fn build_safetensors_header<'py>(
    py: Python<'py>,
    tensors: &Bound<'py, PyAny>,
    metadata: Option<Metadata>,
) -> PyResult<(Bound<'py, PyBytes>, Vec<(Bound<'py, PyString>, usize)>)> {
    let (mut list, mut names) = (Vec::new(), HashMap::new());
    for tensor in tensors.try_iter()? {
        let (name, code, shape): (Bound<'py, PyString>, String, Vec<usize>) = tensor?.extract()?;
        let text = name.to_cow()?.into_owned();
        names.insert(text.clone(), name);
        list.push((text, code, shape));
    }
    let (bytes, placed) = py.detach(|| checkpoint::build(list, metadata)).map_err(|error| refused(&error))?;
    let begins = placed.into_iter().filter_map(|entry| Some((names.remove(&entry.name)?, entry.begin)));
    Ok((PyBytes::new(py, &bytes), begins.collect()))
}
