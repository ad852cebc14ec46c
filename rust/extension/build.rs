//! Has the linker put the functions of `endless_wait` before those of Python, keep one of functions with the same
//! instructions, and write relocations in few bytes.

use std::env::{var, var_os};
use std::io::Write as _;
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

/// Addresses that the loader adds the library's own to take a bit each, not 24 bytes: 2.5 % of the library. glibc reads
/// them from 2.36 on.
const PACKS: &str = "-Wl,-z,pack-relative-relocs";

fn main() {
    println!("cargo::rerun-if-changed=src/endless_wait/calls.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| var(key).is_ok_and(|target| target == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        for call in CALLS.iter().chain(&["PyObject_CallMethodObjArgs", "PyType_GetSlot"]) {
            println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={call}");
        }
        if links("cdylib", FOLDS) {
            println!("cargo::rustc-link-arg-cdylib={FOLDS}");
        }
        // A linker by name is for other machines too, as zig is for wheels.
        let names_linker = var_os("RUSTC_LINKER").is_some()
            || var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("linker="));
        if var("HOST") == var("TARGET")
            && !names_linker
            && links("bin", PACKS)
            && Command::new(output()).status().is_ok_and(|status| status.success())
        {
            println!("cargo::rustc-link-arg-cdylib={PACKS}");
        }
    }
}

/// Where [`links`] writes.
fn output() -> PathBuf {
    PathBuf::from(var_os("OUT_DIR").unwrap_or_default()).join("empty")
}

/// Whether the linker in use, LLD or another, links an empty crate of a type with an option.
fn links(crate_type: &str, option: &str) -> bool {
    let (Some(rustc), Ok(target)) = (var_os("RUSTC"), var("TARGET")) else {
        return false;
    };
    let linker = var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}"));
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let Ok(mut compiler) = Command::new(rustc)
        .args(["--crate-name=empty", "--crate-type", crate_type, "--target", &target])
        .arg(format!("-Clink-arg={option}"))
        .args(linker.ok())
        .args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()))
        .arg("-o")
        .args([output().as_os_str(), "-".as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
    else {
        return false;
    };
    let is_read = compiler.stdin.take().is_some_and(|mut source| source.write_all(b"fn main() {}").is_ok());
    compiler.wait().is_ok_and(|status| is_read && status.success())
}
