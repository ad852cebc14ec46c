//! Few dense elements, looked at without copying anything.

use castwise_core::Format;
use numpy::npyffi::{NPY_ORDER, PY_ARRAY_API, flags};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::dtypes;

const ORDERS: i32 = flags::NPY_ARRAY_C_CONTIGUOUS | flags::NPY_ARRAY_F_CONTIGUOUS;

/// A plain ndarray whose elements follow each other in C or Fortran order, in native byte order.
///
/// Its memory and number of elements are read together; they hold as long as the interpreter is not let go and nobody's
/// code runs.
pub(crate) struct Dense<'a, 'py> {
    pub(crate) object: &'a Bound<'py, PyUntypedArray>,
    pub(crate) pointer: *mut u8,
    pub(crate) count: usize,
    pub(crate) format: Format,
    flags: i32,
}

impl<'a, 'py> Dense<'a, 'py> {
    /// An object, if it is such an array.
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let Ok(object) = object.cast_exact::<PyUntypedArray>() else { return Ok(None) };
        let descr = object.dtype();
        let Some(format) = dtypes::format_of(&descr)? else { return Ok(None) };
        let dense = Self::known(object, format);
        let plain = dense.flags & ORDERS != 0 && descr.is_native_byteorder() != Some(false);
        Ok(plain.then_some(dense))
    }

    /// An array that is known to be such a one, of this format.
    pub(crate) fn known(object: &'a Bound<'py, PyUntypedArray>, format: Format) -> Self {
        // SAFETY: the object is an array and alive; these are reads of its fields.
        let (pointer, flags) = unsafe {
            let fields = &(*object.as_array_ptr()).fields;
            (fields.data.cast(), fields.flags)
        };
        Self { object, pointer, count: object.shape().iter().product(), format, flags }
    }

    /// Bytes of its elements.
    pub(crate) fn size(&self) -> usize {
        self.count * self.format.item_size()
    }

    /// Whether it may be written to from another, element by element in the order of memory.
    pub(crate) fn takes(&self, source: &Self) -> bool {
        let (start, other) = (self.pointer.addr(), source.pointer.addr());
        let apart = start >= other + source.size() || other >= start + self.size();
        let writeable = self.flags & flags::NPY_ARRAY_WRITEABLE != 0;
        let alike = self.flags & source.flags & ORDERS != 0;
        writeable && apart && alike && self.object.shape() == source.object.shape()
    }

    /// A new array of its shape and order.
    pub(crate) fn empty_like(&self, descr: Bound<'py, PyArrayDescr>) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = self.object.py();
        let prototype = self.object.as_array_ptr();
        // SAFETY: the prototype is an array; the call takes over the reference to the dtype and returns a new array,
        // or null with an exception set.
        unsafe {
            let order = NPY_ORDER::NPY_KEEPORDER;
            let new = PY_ARRAY_API.PyArray_NewLikeArray(py, prototype, order, descr.into_dtype_ptr(), 0);
            Ok(Bound::from_owned_ptr_or_err(py, new)?.cast_into_unchecked())
        }
    }
}
