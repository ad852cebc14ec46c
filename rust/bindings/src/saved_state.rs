//! Saved states: dicts whose keys are all known, and all there.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

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
        let state = state.cast::<PyDict>().map_err(|_| {
            let kind = state.get_type();
            PyTypeError::new_err(format!(
                "state is of type {kind}; give the dict that state_dict() returned."
            ))
        })?;
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
