//! Exact casts between numeric formats, without Python.
//!
//! A room uses only rooms that stand above it:
//!
//! ```text
//! error, format, spelling, parse   THE table everything derives from; names; what goes wrong
//! tuning                           sizes at which one way becomes faster than another
//! cpu, memory                      levels as tokens, the floating-point environment; pages that are used again
//! codec                            what one element becomes: decode to a pivot, scale, round once, encode
//! simd                             one folder per instruction set
//! kernels                          loops over dense elements, compiled for each level
//! layout                           where elements lie; copies of bytes that are not interpreted
//! route                            (formats, options) -> the loops that elements pass through, tile by tile
//! report                           what was lost
//! plan                             everything that is decided about a cast, cached by the whole request
//! exec                             a plan over a layout: tiles, threads, stores past the caches
//! compare                          where two arrays differ, and by how much
//! survey                           where the magnitudes of an array lie
//! cast                             the cast of whole arrays
//! quantization                     block-scaled and packed weights: schemes, decoding, encoding
//! unscale                          many gradients divided by a scale in one call: checked, measured, written
//! ```
//!
//! ```
//! use castwise_core::{cast::{cast_slice, Settings}, parse::parse};
//! let settings = Settings { options: Default::default(), report: true, threads: 1 };
//! let source: Vec<u8> = [1.0f32, 500.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! let mut target = [0u8; 2];
//! let report = cast_slice(&source, parse("float32")?, &mut target, parse("float8_e4m3fn")?, &settings)?;
//! assert_eq!(target, [0x38, 0x7f]);
//! assert_eq!(report.unwrap().overflowed, 1);
//! # Ok::<(), castwise_core::Error>(())
//! ```

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
pub mod cast;
pub mod codec;
#[expect(unsafe_code, reason = "reads memory of a host, which no reference may name")]
pub mod compare;
#[expect(unsafe_code, reason = "asks for instructions that not every CPU has, and sets control registers")]
pub mod cpu;
pub mod error;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod exec;
pub mod format;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod kernels;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
pub mod layout;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "maps pages")]
pub mod memory;
pub mod parse;
#[expect(unsafe_code, reason = "says of which types any bits are a value")]
pub mod plain;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod plan;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
pub mod quantization;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
pub mod report;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
mod route;
#[expect(unsafe_code, reason = "instructions that not every CPU has")]
mod simd;
pub mod sort_few;
pub mod spelling;
#[expect(unsafe_code, reason = "reads memory of a host, which no reference may name")]
pub mod survey;
mod tuning;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
pub mod unscale;

pub use error::Error;
pub use format::Format;
