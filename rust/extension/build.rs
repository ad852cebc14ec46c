//! Has the linker put the functions of `endless_wait` before those of Python, and keep one of functions with the
//! same instructions.

use std::env::{var, var_os};
use std::path::PathBuf;
use std::process::{Command, Stdio};

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        const CALLS: &[&str] = &[$(stringify!($name)),*];
    };
}

include!("src/endless_wait/calls.rs");

/// Instances of generic functions are often the same instructions. Nothing here compares addresses of functions, which Rust does
/// not promise to differ.
const FOLDS: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=src/endless_wait/calls.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| var(key).is_ok_and(|target| target == value);
    println!("cargo::rerun-if-env-changed=CASTWISE_UNWINDER");
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        // The functions of `endless_wait` end what libgcc_s unwinds, which `.ci/wheels` links in place of zig's unwinder.
        if let Ok(library) = var("CASTWISE_UNWINDER") {
            println!("cargo::rustc-link-arg-cdylib={library}");
        }
        for call in CALLS.iter().chain(&["PyObject_CallMethodObjArgs", "PyType_GetSlot"]) {
            println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={call}");
        }
        if links(FOLDS) {
            println!("cargo::rustc-link-arg-cdylib={FOLDS}");
        }
    }
}

/// Whether the linker in use, LLD or another, links an empty library with an option.
fn links(option: &str) -> bool {
    let (Some(rustc), Some(folder), Ok(target)) = (var_os("RUSTC"), var_os("OUT_DIR"), var("TARGET")) else {
        return false;
    };
    let linker = var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}"));
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let output = PathBuf::from(folder).join("empty.so");
    Command::new(rustc)
        .args(["--crate-name=empty", "--crate-type=cdylib", "--target", &target])
        .arg(format!("-Clink-arg={option}"))
        .args(linker.ok())
        .args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()))
        .arg("-o")
        .args([output.as_os_str(), "-".as_ref()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
