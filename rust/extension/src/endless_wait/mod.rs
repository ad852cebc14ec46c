//! Threads that Python ends while they run Rust code wait for the end of the process, as in Python 3.14.
//!
//! Before 3.14, a thread that asks for the lock of an interpreter that is finalized is ended by `pthread_exit`. With glibc
//! that unwinds its stack, which aborts the process where a Rust function stands in it. The crate `pyo3` stops it only in
//! functions that take the lock (rust-lang/rust#135929); Python code under a Rust function takes it too.
//!
//! The linker puts a function of this module before each of `calls.rs` (`--wrap`), whoever calls it: unwinding ends there,
//! below all other Rust functions. `PyO3` calls two more by pointers that `PyType_GetSlot` returns, and that allocate: in
//! 3.11, the garbage collector runs then, and `__del__` with it. `get_slot` returns functions that stand before those.

#![expect(non_snake_case, reason = "Python's names")]

use std::ffi::{c_double, c_int, c_long, c_ulonglong, c_void};
use std::mem::transmute;

use pyo3::ffi::{Py_TYPE, Py_tp_descr_get, Py_tp_new, PyBaseObject_Type};

type Pointer = *mut c_void;

/// Never lets the thread go on when it is dropped. Nothing but unwinding drops it.
struct EndlessWait;

impl Drop for EndlessWait {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        mod real {
            use super::{Pointer, c_double, c_int, c_long, c_ulonglong};

            unsafe extern "C-unwind" {
                $(
                    #[link_name = concat!("__real_", stringify!($name))]
                    pub(super) fn $name($($argument: $type),*) $(-> $result)?;
                )*
            }
        }
        $(
            #[unsafe(export_name = concat!("__wrap_", stringify!($name)))]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                let wait = EndlessWait;
                // SAFETY: the linker sends calls of the function here, and no others; `calls.rs` has its signature from the
                // stable ABI. So the arguments are those of a caller that keeps the function's contract.
                let result = unsafe { real::$name($($argument),*) };
                std::mem::forget(wait);
                result
            }
        )*
    };
}

include!("calls.rs");

unsafe extern "C-unwind" {
    #[link_name = "__real_PyObject_CallMethodObjArgs"]
    fn call_method(object: Pointer, name: Pointer, ...) -> Pointer;
}

/// The crate `pyo3` calls it without arguments only: with the null that ends them.
#[unsafe(export_name = "__wrap_PyObject_CallMethodObjArgs")]
unsafe extern "C-unwind" fn call_method_without_arguments(
    object: Pointer,
    name: Pointer,
    end: Pointer,
) -> Pointer {
    let wait = EndlessWait;
    // SAFETY: as above, and PyO3 0.30, which the manifest asks for, makes the only calls: each ends with a null here.
    let result = unsafe { call_method(object, name, end) };
    std::mem::forget(wait);
    result
}

type OfThree = unsafe extern "C-unwind" fn(Pointer, Pointer, Pointer) -> Pointer;

unsafe extern "C-unwind" {
    #[link_name = "__real_PyType_GetSlot"]
    fn slot_of(class: Pointer, slot: c_int) -> Pointer;
}

/// `PyO3` asks for the `tp_new` of the class that a class of the bindings extends, which is `object`, and for the
/// `tp_descr_get` of `__bool__`. Its other slots, as `tp_free`, run no Python code.
#[unsafe(export_name = "__wrap_PyType_GetSlot")]
unsafe extern "C-unwind" fn get_slot(class: Pointer, slot: c_int) -> Pointer {
    // SAFETY: the linker sends calls of the function here, with the arguments of a caller that keeps its contract.
    let function = unsafe { slot_of(class, slot) };
    if slot == Py_tp_new && class == (&raw mut PyBaseObject_Type).cast() {
        return new_object as Pointer;
    }
    if slot == Py_tp_descr_get && !function.is_null() {
        return bind_descriptor as Pointer;
    }
    function
}

unsafe extern "C-unwind" fn new_object(class: Pointer, arguments: Pointer, named: Pointer) -> Pointer {
    // SAFETY: `object` has a `tp_new`, for which this function stands, so that the arguments are for it.
    unsafe { call_slot((&raw mut PyBaseObject_Type).cast(), Py_tp_new, [class, arguments, named]) }
}

unsafe extern "C-unwind" fn bind_descriptor(descriptor: Pointer, object: Pointer, class: Pointer) -> Pointer {
    // SAFETY: PyO3 calls it for a descriptor whose class has the slot: it asked that class.
    unsafe { call_slot(Py_TYPE(descriptor.cast()).cast(), Py_tp_descr_get, [descriptor, object, class]) }
}

/// Calls a slot of a class.
///
/// # Safety
/// The class has the slot, which takes these three arguments.
unsafe fn call_slot(class: Pointer, slot: c_int, [first, second, third]: [Pointer; 3]) -> Pointer {
    let wait = EndlessWait;
    // SAFETY: the caller's promise.
    let result = unsafe { transmute::<Pointer, OfThree>(slot_of(class, slot))(first, second, third) };
    std::mem::forget(wait);
    result
}
