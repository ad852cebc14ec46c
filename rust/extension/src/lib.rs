//! The extension module `castwise._core`, which is `castwise-bindings` as a shared library.
//!
//! Link-time optimisation runs the passes of the last crate: of this one, at level 3, so that loops of the core stay
//! vectorised, while the bindings are compiled for size (`Cargo.toml`).

pub use castwise_bindings::_core;
