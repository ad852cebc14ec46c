//! Arrays whose memory is reused: the core's memory as a handler of numpy's (NEP 49).
//!
//! numpy keeps the handler with each array, and calls it when the array is freed or resized. So these arrays own their
//! data like all others.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};

use castwise_core::memory;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;

use crate::numpy_table::{self, DEFAULT_HANDLER, GET_HANDLER, SET_HANDLER};

/// numpy's `PyDataMem_Handler`, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

// SAFETY: nothing in it changes, and its functions may be called from any thread.
unsafe impl Sync for Handler {}

/// The name that numpy requires of a handler's capsule.
const CAPSULE: &CStr = c"mem_handler";

static HANDLER: Handler =
    Handler { name: named(b"castwise"), version: 1, context: ptr::null_mut(), malloc, calloc, realloc, free };

const fn named(name: &[u8]) -> [c_char; 127] {
    let mut field = [0; 127];
    let mut i = 0;
    while i < name.len() {
        field[i] = name[i] as c_char;
        i += 1;
    }
    field
}

fn to_c(pointer: Option<NonNull<u8>>) -> *mut c_void {
    pointer.map_or(ptr::null_mut(), |pointer| pointer.as_ptr().cast())
}

extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut c_void {
    to_c(memory::allocate(size))
}

extern "C" fn calloc(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    to_c(count.checked_mul(size).and_then(memory::allocate_zeroed))
}

/// # Safety
/// The pointer is null or came from this handler, and is not used any more.
unsafe extern "C" fn realloc(_: *mut c_void, pointer: *mut c_void, size: usize) -> *mut c_void {
    to_c(match NonNull::new(pointer.cast()) {
        // SAFETY: the caller's promise.
        Some(pointer) => unsafe { memory::resize(pointer, size) },
        None => memory::allocate(size),
    })
}

/// # Safety
/// As for [`realloc`].
unsafe extern "C" fn free(_: *mut c_void, pointer: *mut c_void, _: usize) {
    if let Some(pointer) = NonNull::new(pointer.cast()) {
        // SAFETY: the caller's promise.
        unsafe { memory::free(pointer) };
    }
}

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
type GetHandler = unsafe extern "C" fn() -> *mut ffi::PyObject;

/// numpy's functions for handlers, from its table of C functions.
struct Numpy {
    set: SetHandler,
    get: GetHandler,
    /// Its own handler.
    default: usize,
    ours: Py<PyCapsule>,
}

impl Numpy {
    fn of(py: Python<'_>) -> PyResult<&'static Self> {
        static FOUND: PyOnceLock<Numpy> = PyOnceLock::new();
        FOUND.get_or_try_init(py, || {
            let entries = numpy_table::entries(py)?;
            let handler = NonNull::from(&HANDLER).cast();
            // SAFETY: the table of this ABI has two functions of these types and a variable at these places. The handler
            // is static.
            unsafe {
                Ok(Self {
                    set: entries.add(SET_HANDLER).cast::<SetHandler>().read(),
                    get: entries.add(GET_HANDLER).cast::<GetHandler>().read(),
                    default: entries.add(DEFAULT_HANDLER).cast::<*const usize>().read().read(),
                    ours: PyCapsule::new_with_pointer(py, handler, CAPSULE)?.unbind(),
                })
            }
        })
    }
}

/// Calls `make`, which makes one new array of so many bytes: in memory of ours, if they are many and numpy has its own
/// default handler. If there is no memory left, kept memory is released and `make` called again.
pub(super) fn with_handler<T>(py: Python<'_>, bytes: usize, make: impl Fn() -> PyResult<T>) -> PyResult<T> {
    match in_memory(py, bytes, &make) {
        Err(error) if error.is_instance_of::<PyMemoryError>(py) && memory::release() => {
            in_memory(py, bytes, &make)
        }
        made => made,
    }
}

fn in_memory<T>(py: Python<'_>, bytes: usize, make: &impl Fn() -> PyResult<T>) -> PyResult<T> {
    if !memory::is_for(bytes) {
        return make();
    }
    let numpy = Numpy::of(py)?;
    // SAFETY: numpy's functions, called as it says: both return a new reference, or null with an exception set. The
    // handler that was in force is so again before any other code runs.
    unsafe {
        let current = Bound::from_owned_ptr_or_err(py, (numpy.get)())?;
        if current.as_ptr().addr() != numpy.default {
            return make();
        }
        drop(Bound::from_owned_ptr_or_err(py, (numpy.set)(numpy.ours.as_ptr()))?);
        let made = make();
        drop(Bound::from_owned_ptr_or_err(py, (numpy.set)(current.as_ptr()))?);
        made
    }
}
