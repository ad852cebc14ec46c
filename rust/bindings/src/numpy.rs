//! numpy's arrays and dtypes, as far as castwise reads and makes them: their fields, and the functions of
//! [`numpy_table`]. (The crate `numpy` would bring `ndarray` and more, for these few.)
//!
//! The layouts are those of numpy's ABI 2, on every interpreter that has `PyObject`'s fields.

use std::ffi::{c_char, c_int, c_void};
use std::{ptr, slice};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::DerefToPyAny;
use pyo3::{PyTypeInfo, intern};

use crate::numpy_table::{self, ARRAY_TYPE, DESCR_CONVERTER, DESCR_FROM_TYPE, DESCR_TYPE, EMPTY};
use crate::numpy_table::{EQUIVALENT_TYPES, NEW_LIKE_ARRAY};

#[cfg(all(Py_LIMITED_API, Py_GIL_DISABLED))]
compile_error!("objects have no known layout in this Python's C interface");

/// The type number of float32.
pub(crate) const FLOAT: c_int = 11;
/// The type number of float64.
pub(crate) const DOUBLE: c_int = 12;
/// The type number of float16, the last one of numpy's own.
pub(crate) const HALF: c_int = 23;
/// Smaller type numbers have their cast functions in an array.
pub(crate) const NUMBERS_IN_ARRAY: usize = 21;

/// Bits of an array's flags.
pub(crate) mod flags {
    pub(crate) const C_CONTIGUOUS: i32 = 1;
    pub(crate) const F_CONTIGUOUS: i32 = 2;
    pub(crate) const WRITEABLE: i32 = 0x400;
}

/// A memory order, as numpy's functions take it.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum MemoryOrder {
    Any = -1,
    C = 0,
    Fortran = 1,
    Keep = 2,
}

/// `PyArrayObject_fields`.
#[repr(C)]
pub(crate) struct ArrayFields {
    object: ffi::PyObject,
    pub(crate) data: *mut c_char,
    axes: c_int,
    lengths: *mut usize,
    strides: *mut isize,
    base: *mut ffi::PyObject,
    pub(crate) descr: *mut ffi::PyObject,
    pub(crate) flags: c_int,
}

/// `_PyArray_LegacyDescr`, whose first fields all dtypes have.
#[repr(C)]
struct DescrFields {
    object: ffi::PyObject,
    class: *mut ffi::PyTypeObject,
    kind: c_char,
    letter: c_char,
    byte_order: c_char,
    former_flags: c_char,
    number: c_int,
    flags: u64,
    size: isize,
}

/// The functions of a dtype: `PyArray_ArrFuncs`.
#[repr(C)]
pub(crate) struct TypeFunctions {
    pub(crate) cast: [*mut c_void; NUMBERS_IN_ARRAY],
    /// Twelve functions, and three kinds each of sorting values and indices.
    others: [*mut c_void; 12 + 2 * 3],
    pub(crate) cast_dict: *mut ffi::PyObject,
}

/// `numpy.ndarray`, of any dtype.
#[repr(transparent)]
pub(crate) struct PyUntypedArray(PyAny);

/// `numpy.dtype`.
#[repr(transparent)]
pub(crate) struct PyArrayDescr(PyAny);

impl DerefToPyAny for PyUntypedArray {}
impl DerefToPyAny for PyArrayDescr {}

/// Returns the place of an entry of the table.
#[inline(always)]
fn entry(py: Python<'_>, number: usize) -> *const *const c_void {
    // The module's initialization fails where there is no table.
    let Ok(entries) = numpy_table::entries(py) else { unreachable!("numpy was imported with the module") };
    // SAFETY: the table of this ABI has the entries that `numpy_table` names.
    unsafe { entries.add(number) }
}

/// Reads a class of the table.
#[inline(always)]
fn class(py: Python<'_>, number: usize) -> *mut ffi::PyTypeObject {
    // SAFETY: the entry is readable.
    unsafe { entry(py, number).read().cast_mut().cast() }
}

/// Reads a function of the table.
///
/// # Safety
/// `F` is the type of the function at that place.
#[inline]
unsafe fn function<F: Copy>(py: Python<'_>, number: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>(), "a function is a pointer") };
    // SAFETY: the caller's promise.
    unsafe { entry(py, number).cast::<F>().read() }
}

// SAFETY: the class is that of these objects.
unsafe impl PyTypeInfo for PyUntypedArray {
    #[inline(always)]
    fn type_object_raw(py: Python<'_>) -> *mut ffi::PyTypeObject {
        class(py, ARRAY_TYPE)
    }
}

// SAFETY: as above.
unsafe impl PyTypeInfo for PyArrayDescr {
    #[inline(always)]
    fn type_object_raw(py: Python<'_>) -> *mut ffi::PyTypeObject {
        class(py, DESCR_TYPE)
    }
}

/// What is read of an array. Shape and strides are valid until other code may change the array.
pub(crate) trait PyUntypedArrayMethods<'py> {
    fn fields(&self) -> &ArrayFields;
    fn dtype(&self) -> Bound<'py, PyArrayDescr>;
    fn shape(&self) -> &[usize];
    fn strides(&self) -> &[isize];
}

/// Returns the numbers of all axes. (Without axes, the pointer may be null.)
///
/// # Safety
/// As many numbers are readable there.
#[inline]
unsafe fn numbers<'a, T>(pointer: *const T, axes: c_int) -> &'a [T] {
    // SAFETY: the caller's promise.
    if axes > 0 { unsafe { slice::from_raw_parts(pointer, axes as usize) } } else { &[] }
}

impl<'py> PyUntypedArrayMethods<'py> for Bound<'py, PyUntypedArray> {
    #[inline]
    fn fields(&self) -> &ArrayFields {
        // SAFETY: the object is an array, and alive.
        unsafe { &*self.as_ptr().cast() }
    }

    #[inline]
    fn dtype(&self) -> Bound<'py, PyArrayDescr> {
        // SAFETY: every array has a dtype.
        unsafe { Bound::from_borrowed_ptr(self.py(), self.fields().descr).cast_into_unchecked() }
    }

    #[inline]
    fn shape(&self) -> &[usize] {
        let fields = self.fields();
        // SAFETY: numpy keeps a length for each axis, none negative.
        unsafe { numbers(fields.lengths, fields.axes) }
    }

    #[inline]
    fn strides(&self) -> &[isize] {
        let fields = self.fields();
        // SAFETY: numpy keeps a stride for each axis.
        unsafe { numbers(fields.strides, fields.axes) }
    }
}

impl PyArrayDescr {
    /// Makes the dtype that numpy makes of an object; None is no dtype here.
    pub(crate) fn new<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        type Convert = unsafe extern "C" fn(*mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;
        let (py, mut descr) = (object.py(), ptr::null_mut());
        // SAFETY: the entry is this function, which makes a new reference, or leaves null with an exception set.
        unsafe {
            function::<Convert>(py, DESCR_CONVERTER)(object.as_ptr(), &raw mut descr);
            Ok(Bound::from_owned_ptr_or_err(py, descr)?.cast_into_unchecked())
        }
    }

    /// Returns numpy's own dtype with a type number.
    pub(crate) fn of_number(py: Python<'_>, number: c_int) -> PyResult<Bound<'_, Self>> {
        type Find = unsafe extern "C" fn(c_int) -> *mut ffi::PyObject;
        // SAFETY: the entry is this function, which returns a new reference, or null with an exception set.
        unsafe {
            let descr = function::<Find>(py, DESCR_FROM_TYPE)(number);
            Ok(Bound::from_owned_ptr_or_err(py, descr)?.cast_into_unchecked())
        }
    }
}

/// What is read of a dtype.
pub(crate) trait PyArrayDescrMethods {
    /// Returns the type number.
    fn num(&self) -> c_int;
    /// Returns the letter of the kind.
    fn kind(&self) -> u8;
    /// Returns the bytes of an element.
    fn itemsize(&self) -> usize;
    /// Returns whether the byte order is the machine's; `None` where there is no order.
    fn is_native_byteorder(&self) -> Option<bool>;
    /// Returns whether numpy takes it and another for the same.
    fn is_equiv_to(&self, other: &Self) -> bool;
    /// Returns whether it is a record, or an array in each element.
    fn has_parts(&self) -> bool;
}

#[inline]
fn descr_fields<'a>(descr: &'a Bound<'_, PyArrayDescr>) -> &'a DescrFields {
    // SAFETY: the object is a dtype, and alive.
    unsafe { &*descr.as_ptr().cast() }
}

impl PyArrayDescrMethods for Bound<'_, PyArrayDescr> {
    #[inline]
    fn num(&self) -> c_int {
        descr_fields(self).number
    }

    #[inline]
    fn kind(&self) -> u8 {
        descr_fields(self).kind as u8
    }

    fn itemsize(&self) -> usize {
        descr_fields(self).size.max(0) as usize
    }

    #[inline]
    fn is_native_byteorder(&self) -> Option<bool> {
        match descr_fields(self).byte_order as u8 {
            b'=' => Some(true),
            b'|' => None,
            order => Some(order == if cfg!(target_endian = "little") { b'<' } else { b'>' }),
        }
    }

    fn is_equiv_to(&self, other: &Self) -> bool {
        type Compare = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> u8;
        // SAFETY: the entry is this function, which reads two dtypes.
        let are_equal = || unsafe {
            function::<Compare>(self.py(), EQUIVALENT_TYPES)(self.as_ptr(), other.as_ptr()) != 0
        };
        self.is(other) || are_equal()
    }

    fn has_parts(&self) -> bool {
        let is_none = |name| self.getattr(name).map_or(true, |value| value.is_none());
        !is_none(intern!(self.py(), "names")) || !is_none(intern!(self.py(), "subdtype"))
    }
}

/// Makes an uninitialized array of the shape of another, which is plain.
#[inline]
pub(crate) fn new_like<'py>(
    prototype: &Bound<'py, PyUntypedArray>,
    order: MemoryOrder,
    descr: Bound<'py, PyArrayDescr>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    type Make = unsafe extern "C" fn(
        *mut ffi::PyObject,
        MemoryOrder,
        *mut ffi::PyObject,
        c_int,
    ) -> *mut ffi::PyObject;
    let py = prototype.py();
    // SAFETY: the entry is this function. It takes over the reference to the dtype, and returns a new array, or null with
    // an exception set.
    unsafe {
        let make = function::<Make>(py, NEW_LIKE_ARRAY);
        let new = make(prototype.as_ptr(), order, descr.into_ptr(), 0);
        Bound::from_owned_ptr_or_err(py, new).map(|new| new.cast_into_unchecked())
    }
}

/// Makes an uninitialized array in C order. The lengths are those of arrays, or of what is in memory.
pub(crate) fn empty<'py>(
    shape: &[usize],
    descr: Bound<'py, PyArrayDescr>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    type Make = unsafe extern "C" fn(c_int, *const usize, *mut ffi::PyObject, c_int) -> *mut ffi::PyObject;
    let py = descr.py();
    // SAFETY: the entry is this function. It reads the shape, takes over the reference to the dtype, and returns a new
    // array, or null with an exception set.
    unsafe {
        let make = function::<Make>(py, EMPTY);
        let new = make(shape.len() as c_int, shape.as_ptr(), descr.into_ptr(), 0);
        Bound::from_owned_ptr_or_err(py, new).map(|new| new.cast_into_unchecked())
    }
}
