//! Attributes that are objects which a frozen class keeps, read as quickly as a namedtuple's fields.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use pyo3::ffi::{PyDescr_NewGetSet, PyGetSetDef, PyObject};
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::sync::PyOnceLock;

/// An attribute that a getter of PyO3's makes at first.
pub(crate) trait KeptAttribute {
    /// The class that keeps it.
    type Class: pyo3::PyClass<Frozen = True> + Sync;
    /// Its name, that of the getter.
    const NAME: &'static str;

    /// Returns what is kept, if it has been made.
    fn kept<'a>(object: &'a Self::Class, py: Python<'_>) -> Option<&'a Py<PyAny>>;

    /// Where the descriptor of PyO3's getter is kept.
    fn getter() -> &'static PyOnceLock<Py<PyAny>>;
}

/// Puts the quick way before the getter of the class.
pub(crate) fn keep<A: KeptAttribute>(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<A::Class>();
    let getter = class.getattr(A::NAME)?;
    let documentation: String = getter.getattr("__doc__")?.extract()?;
    let _ = A::getter().set(py, getter.unbind());
    let definition = Box::leak(Box::new(PyGetSetDef {
        name: CString::new(A::NAME)?.into_raw(),
        get: Some(get::<A>),
        set: None,
        doc: CString::new(documentation)?.into_raw(),
        closure: null_mut(),
    }));
    // SAFETY: the definition is never freed; the call returns a new reference, or null with an exception set.
    let made =
        unsafe { Bound::from_owned_ptr_or_err(py, PyDescr_NewGetSet(class.as_type_ptr(), definition))? };
    class.setattr(A::NAME, made)
}

/// # Safety
/// As Python calls a getter: attached, with an instance of the class.
unsafe extern "C" fn get<A: KeptAttribute>(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: the caller's promise.
    let (py, this) = unsafe {
        let py = Python::assume_attached();
        (py, Borrowed::from_ptr(py, object).cast_unchecked::<A::Class>())
    };
    if let Some(kept) = A::kept(this.get(), py) {
        return kept.bind(py).clone().into_ptr();
    }
    Python::attach(|py| {
        let make = || {
            let getter =
                A::getter().get(py).ok_or_else(|| pyo3::exceptions::PyAttributeError::new_err(A::NAME))?;
            getter.bind(py).call_method1("__get__", (this.to_owned(),))
        };
        make().map_or_else(
            |error| {
                error.restore(py);
                null_mut()
            },
            Bound::into_ptr,
        )
    })
}
