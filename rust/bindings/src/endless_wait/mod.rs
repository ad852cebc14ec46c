//! Threads that Python ends while they run Rust code wait for the end of the process, as in Python 3.14.
//!
//! Before 3.14, a thread that asks for the lock of an interpreter that is finalised is ended by `pthread_exit`. With glibc
//! that unwinds its stack, which aborts the process where a Rust function stands in it. The crate `pyo3` stops it only in
//! functions that take the lock (rust-lang/rust#135929); Python code under a Rust function takes it too.
//!
//! The linker puts a function of this module before each of `calls.rs` (`--wrap`), whoever calls it: unwinding ends there,
//! below all other Rust functions. Functions called by a pointer are left out: in 3.11, `__del__` that the garbage
//! collector calls while a new object of a class of the bindings is allocated.

#![expect(non_snake_case, reason = "Python's names")]

use std::ffi::{c_double, c_int, c_long, c_ulonglong, c_void};

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
