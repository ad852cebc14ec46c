//! Attributes that are objects which a frozen class keeps, read as quickly as a namedtuple's fields.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use pyo3::ffi::{PyDescr_NewGetSet, PyGetSetDef, PyObject};
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;

/// Returns what an object keeps for an attribute, if it has been made.
type Kept<C> = for<'a> fn(&'a C, Python<'_>) -> Option<&'a Py<PyAny>>;

/// Puts a quick way before a getter of a class, which makes what is kept at first.
pub(crate) fn keep<C>(py: Python<'_>, name: &str, kept: Kept<C>) -> PyResult<()>
where
    C: pyo3::PyClass<Frozen = True> + Sync,
{
    let class = py.get_type::<C>();
    let getter = class.getattr(name)?;
    let documentation: String = getter.getattr("__doc__")?.extract()?;
    let definition = Box::leak(Box::new(PyGetSetDef {
        name: CString::new(name)?.into_raw(),
        get: Some(get::<C>),
        set: None,
        doc: CString::new(documentation)?.into_raw(),
        closure: Box::into_raw(Box::new((kept, getter.unbind()))).cast(),
    }));
    // SAFETY: the definition is never freed; the call returns a new reference, or null with an exception set.
    let made =
        unsafe { Bound::from_owned_ptr_or_err(py, PyDescr_NewGetSet(class.as_type_ptr(), definition))? };
    class.setattr(name, made)
}

/// # Safety
/// As Python calls a getter that [`keep`] made for the class: attached, with an instance of it.
unsafe extern "C" fn get<C>(object: *mut PyObject, closure: *mut c_void) -> *mut PyObject
where
    C: pyo3::PyClass<Frozen = True> + Sync,
{
    // SAFETY: the caller's promise; what `keep` made is never freed.
    let (py, this, (kept, getter)) = unsafe {
        let py = Python::assume_attached();
        let this = Borrowed::from_ptr(py, object).cast_unchecked::<C>();
        (py, this, &*closure.cast::<(Kept<C>, Py<PyAny>)>())
    };
    if let Some(kept) = kept(this.get(), py) {
        return kept.bind(py).clone().into_ptr();
    }
    Python::attach(|py| {
        getter.bind(py).call_method1("__get__", (this.to_owned(),)).map_or_else(
            |error| {
                error.restore(py);
                null_mut()
            },
            Bound::into_ptr,
        )
    })
}
