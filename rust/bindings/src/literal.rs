//! Literals of Python, made of objects as the core reads them.

use castwise_logic::checkpoint::literal::{Build, Fault, Group, MAX_DEPTH, parse};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

/// Return the value of a literal of tuples, lists, dicts, strings, whole numbers and booleans.
///
/// Python 2's `3L` is a whole number, too. Raises `ValueError`, `TypeError` or `SyntaxError` for another expression, an
/// incomplete one, or one of brackets that are nested more than 200 deep.
#[pyfunction]
pub(crate) fn parse_literal<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    parse(text, &mut Objects(py))
}

/// Makes objects.
struct Objects<'py>(Python<'py>);

impl<'py> Build for Objects<'py> {
    type Value = Bound<'py, PyAny>;
    type Error = PyErr;

    fn text(&mut self, literal: &str) -> PyResult<Bound<'py, PyAny>> {
        if literal.contains('\\') {
            // Escapes are Python's.
            return self.0.import("ast")?.call_method1("literal_eval", (literal,));
        }
        Ok(PyString::new(self.0, &literal[1..literal.len() - 1]).into_any())
    }

    fn truth(&mut self, value: bool) -> PyResult<Bound<'py, PyAny>> {
        Ok(value.into_pyobject(self.0)?.to_owned().into_any())
    }

    fn whole(&mut self, value: u128) -> PyResult<Bound<'py, PyAny>> {
        Ok(value.into_pyobject(self.0)?.into_any())
    }

    fn group(&mut self, kind: Group, items: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        match kind {
            Group::Tuple => Ok(PyTuple::new(self.0, items)?.into_any()),
            Group::List => Ok(PyList::new(self.0, items)?.into_any()),
            Group::Dict => {
                let (pairs, _) = items.as_chunks::<2>();
                let pairs = PyList::new(self.0, pairs.iter().map(|[key, value]| (key, value)))?;
                Ok(PyDict::from_sequence(pairs.as_any())?.into_any())
            }
        }
    }

    fn refuse(&mut self, fault: Fault<'_, Bound<'py, PyAny>>) -> PyErr {
        let shown = |text: &str| PyString::new(self.0, text).repr().map(|text| text.to_string());
        let text = match fault {
            Fault::Foreign(text) => shown(&text).map(|text| format!("{text} is not a part of a literal")),
            Fault::After => Ok("there is text after the literal".to_owned()),
            Fault::Deep => Ok(format!("brackets are nested more than {MAX_DEPTH} deep")),
            Fault::Unexpected(word) => {
                shown(word).map(|word| format!("invalid literal for int() with base 10: {word}"))
            }
            Fault::Key(key) => key.repr().map(|key| format!("key {key} has no value")),
            Fault::Comma(group) => Ok(format!("a comma or '{}' is missing", group.closing())),
        };
        text.map_or_else(|error| error, PyValueError::new_err)
    }
}
