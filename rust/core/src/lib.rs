//! Exact casts between numeric formats, at memory speed: bfloat16, float16, all float8, float6 and float4 formats of OCP MX
//! and of machine learning, integers and complex numbers.
//!
//! Each value is rounded once. Results never depend on the CPU, on threads, or on how an array lies in memory.
//!
//! * [`cast()`] and [`cast_and_report`] cast slices of Rust types; [`Element`] lists the types.
//! * [`Tensor`] views memory of any format, shape and strides: it is cast, compared and surveyed.
//! * [`quantize`] makes a [`Quantized`] of it, the codes and scales of a weight: NVFP4, OCP MX, float8 and integers in blocks.
//!
//! ```
//! use castwise_core::{Bf16, F8E4M3Fn, Options, Overflow, cast, cast_and_report};
//! let weights = [1.0f32, 500.0, -0.0001];
//! let mut halves = [Bf16(0); 3];
//! cast(&weights, &mut halves, Options::default())?;
//! let mut codes = [F8E4M3Fn(0); 3];
//! let report = cast_and_report(&halves, &mut codes, Options { overflow: Overflow::Saturate, ..Options::default() })?;
//! assert_eq!(codes, [F8E4M3Fn(0x38), F8E4M3Fn(0x7e), F8E4M3Fn(0x80)]);
//! assert_eq!((report.saturated, report.underflowed), (1, 1));
//! # Ok::<(), castwise_core::Error>(())
//! ```
//!
//! # Features
//!
//! * `half`: [`Element`] for the types of the crate `half`.
//! * `float8`: [`Element`] for the types of the crate `float8`.
//! * `unstable`: the documentation of what Python's bindings use, which may change in every release.
//!
//! The crate needs Rust 1.89. It depends on `smallvec` and `num-traits`, and on Linux on `libc`.

// A room uses only rooms that stand above it:
//
//   error, format, spelling, parse   THE table everything derives from; names; what goes wrong
//   tuning                           sizes at which one way becomes faster than another
//   cpu, memory                      levels as tokens, the floating-point environment; pages that are used again
//   codec                            what one element becomes: decode to a pivot, scale, round once, encode
//   simd                             one folder per instruction set
//   kernels                          loops over dense elements, compiled for each level
//   layout                           where elements lie; copies of bytes that are not interpreted
//   route                            (formats, options) -> the loops that elements pass through, tile by tile
//   report                           what was lost
//   plan                             everything that is decided about a cast, cached by the whole request
//   exec                             a plan over a layout: tiles, threads, stores past the caches
//   compare                          where two arrays differ, and by how much
//   survey                           where the magnitudes of an array lie
//   cast                             the cast of whole arrays
//   quantization                     block-scaled and packed weights: schemes, decoding, encoding
//   unscale                          many gradients divided by a scale in one call: checked, measured, written
//   elements, slices, tensor, quantized   the safe entrance, over all of these

#![deny(unsafe_code)]
// Loops in whole vectors are compiled everywhere, and without vectors are not called.
#![cfg_attr(
    not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        unused_unsafe,
        unused_variables,
        reason = "no level has vectors"
    )
)]

#[expect(unsafe_code, reason = "what is never freed, by its address")]
mod cached_once;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod cast;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod codec;
#[expect(unsafe_code, reason = "reads memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod compare;
#[expect(unsafe_code, reason = "asks for instructions that not every CPU has, and sets control registers")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod cpu;
mod elements;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod error;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod exec;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod format;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod kernels;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod layout;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "maps pages")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod memory;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod parse;
#[expect(unsafe_code, reason = "says of which types any bits are a value")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod plain;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod plan;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod quantization;
mod quantized;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod report;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod route;
#[expect(unsafe_code, reason = "instructions that not every CPU has")]
mod simd;
mod slices;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod sort_few;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod spelling;
#[expect(unsafe_code, reason = "reads memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod survey;
mod tensor;
mod tuning;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod unscale;

pub use codec::options::{NanRule, Options, Overflow, Rounding};
pub use compare::Comparison;
pub use elements::{
    Bf16, Element, F4E2M1Fn, F6E2M3Fn, F6E3M2Fn, F8E3M4, F8E4M3, F8E4M3B11Fnuz, F8E4M3Fn, F8E4M3Fnuz, F8E5M2,
    F8E5M2Fnuz, F8E5M3Fnu, F8E8M0Fnu, F16,
};
pub use error::Error;
pub use format::Format;
pub use plan::operands::Settings;
pub use quantized::{Quantized, quantize, schemes};
pub use report::Report;
pub use slices::{cast, cast_and_report};
pub use survey::{Magnitudes, Survey};
pub use tensor::Tensor;

/// The examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
