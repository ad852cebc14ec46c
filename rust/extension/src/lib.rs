//! The library that Python loads. It is a crate of its own so that the bindings, which it only links, compile beside the core.

#![deny(unsafe_code)]

// Exports `PyInit__core`.
extern crate castwise_bindings as _;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "stands before functions of Python's C interface")]
mod endless_wait;
