//! The places where numpy looks cast functions up.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_New};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::legacy::CastFunction;
use super::method::MethodSlot;
use crate::numpy::{NUMBERS_IN_ARRAY, TypeFunctions};

/// The place of the function for one pair of type numbers.
pub(super) enum Slot {
    /// An element of an array of function pointers.
    Array { place: &'static AtomicPtr<c_void>, original: *mut c_void, ours: *mut c_void },
    /// A value of a dict, each a capsule of a function pointer.
    Dict { dict: Py<PyDict>, number: c_int, original: Py<PyAny>, ours: Py<PyAny> },
    /// A field of an array method.
    Method(MethodSlot),
}

// SAFETY: the pointers are those of functions.
unsafe impl Send for Slot {}
// SAFETY: as above; the array's element is atomic.
unsafe impl Sync for Slot {}

impl Slot {
    /// Returns the function that numpy now uses for a cast to a type number, with its slot.
    pub(super) fn find(
        py: Python<'_>,
        functions: *mut TypeFunctions,
        number: c_int,
    ) -> PyResult<Option<(Self, CastFunction)>> {
        let null = ptr::null_mut();
        let (slot, pointer) = if (number as usize) < NUMBERS_IN_ARRAY {
            // SAFETY: a dtype's functions are never freed; the element is a pointer, aligned as pointers are, that
            // numpy reads in one access.
            let place = unsafe {
                let array = (&raw mut (*functions).cast).cast::<*mut c_void>();
                AtomicPtr::from_ptr(array.add(number as usize))
            };
            let original = place.load(Ordering::Relaxed);
            (Self::Array { place, original, ours: null }, original)
        } else {
            // SAFETY: as above; the dict is null or an object that the dtype keeps alive.
            let dict = unsafe { Bound::from_borrowed_ptr_or_opt(py, (*functions).cast_dict) };
            let Some(dict) = dict.and_then(|dict| dict.cast_into::<PyDict>().ok()) else { return Ok(None) };
            let Some(original) = dict.get_item(number)? else { return Ok(None) };
            if !original.is_instance_of::<PyCapsule>() {
                return Ok(None);
            }
            // SAFETY: it is a capsule; numpy's have no name.
            let pointer = unsafe { PyCapsule_GetPointer(original.as_ptr(), ptr::null()) };
            if pointer.is_null() {
                return Err(PyErr::fetch(py));
            }
            let original = original.unbind();
            (Self::Dict { dict: dict.unbind(), number, original, ours: py.None() }, pointer)
        };
        // SAFETY: what numpy keeps there is null or a cast function.
        let function = unsafe { std::mem::transmute::<*mut c_void, Option<CastFunction>>(pointer) };
        Ok(function.map(|function| (slot, function)))
    }

    /// Returns the slot with the function that is to replace the original.
    pub(super) fn with(self, py: Python<'_>, function: CastFunction) -> PyResult<Self> {
        let pointer = function as *mut c_void;
        Ok(match self {
            Self::Array { place, original, .. } => Self::Array { place, original, ours: pointer },
            Self::Dict { dict, number, original, .. } => {
                // SAFETY: the pointer is not null; the call returns a new capsule, or null with an exception set.
                let ours =
                    unsafe { Bound::from_owned_ptr_or_err(py, PyCapsule_New(pointer, ptr::null(), None))? };
                Self::Dict { dict, number, original, ours: ours.unbind() }
            }
            Self::Method(_) => self,
        })
    }

    /// Exchanges the original function for ours, or back. A function from anyone else stays.
    pub(super) fn set(&self, py: Python<'_>, accelerated: bool) -> PyResult<()> {
        match self {
            Self::Method(slot) => slot.set(accelerated),
            Self::Array { place, original, ours } => {
                let (old, new) = if accelerated { (original, ours) } else { (ours, original) };
                // Release order: a thread that reads our function also sees its pair.
                let _ = place.compare_exchange(*old, *new, Ordering::AcqRel, Ordering::Relaxed);
            }
            Self::Dict { dict, number, original, ours } => {
                let (old, new) = if accelerated { (original, ours) } else { (ours, original) };
                let dict = dict.bind(py);
                if dict.get_item(*number)?.is_some_and(|here| here.is(old)) {
                    dict.set_item(*number, new)?;
                }
            }
        }
        Ok(())
    }
}
