//! Sets the conditions of the Python that is built for, as `Py_GIL_DISABLED`, and has the linker put the functions of
//! `endless_wait` before those of Python.

use std::env::var;

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        const CALLS: &[&str] = &[$(stringify!($name)),*];
    };
}

include!("src/endless_wait/calls.rs");

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    println!("cargo::rerun-if-changed=src/endless_wait/calls.rs");
    let is = |key: &str, value: &str| var(key).is_ok_and(|target| target == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        for call in CALLS.iter().chain(&["PyObject_CallMethodObjArgs", "PyType_GetSlot"]) {
            println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={call}");
        }
    }
}
