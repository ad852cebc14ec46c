//! Saved states: dicts whose keys are all known, and all there.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

/// Reads the dict that a method returned.
fn dict<'a, 'py>(
    argument: &str,
    object: &'a Bound<'py, PyAny>,
    method: &str,
) -> PyResult<&'a Bound<'py, PyDict>> {
    object.cast::<PyDict>().map_err(|_| {
        let kind = object.get_type();
        PyTypeError::new_err(format!("{argument} is of type {kind}; give the dict that {method} returned."))
    })
}

/// Makes a value of a class of the dict that `get_config()` returned.
pub(crate) fn from_config<'py>(
    class: &Bound<'py, PyType>,
    config: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    class.call((), Some(dict("config", config, "get_config()")?))
}

/// A dict that `state_dict()` returned, and what is to be in it.
pub(crate) struct SavedState<'a, 'py> {
    state: &'a Bound<'py, PyDict>,
    /// Whose state it is to be, in errors.
    owner: String,
    keys: &'a [&'static str],
}

impl<'a, 'py> SavedState<'a, 'py> {
    /// The dict, which has no keys but these.
    pub(crate) fn new(
        owner: String,
        keys: &'a [&'static str],
        state: &'a Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        let state = dict("state", state, "state_dict()")?;
        let saved = Self { state, owner, keys };
        for key in state.keys() {
            if !keys.iter().any(|known| key.eq(known).unwrap_or(false)) {
                return Err(saved.unlike("has the unknown key", &key));
            }
        }
        Ok(saved)
    }

    /// What is saved under a key.
    pub(crate) fn get(&self, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let found = self.state.get_item(key)?;
        found.ok_or_else(|| self.unlike("lacks the key", &PyString::new(self.state.py(), key)))
    }

    fn unlike(&self, what: &str, key: &Bound<'_, PyAny>) -> PyErr {
        let Self { owner, keys, .. } = self;
        let keys: Vec<_> = keys.iter().map(|key| format!("'{key}'")).collect();
        let keys = if keys.is_empty() { "no state".to_owned() } else { keys.join(", ") };
        let key = key.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        PyValueError::new_err(format!(
            "state {what} {key}; a {owner} has {keys}. Load it into the class and preset that saved it."
        ))
    }
}
