//! Exact casts between numeric formats, without Python.
//!
//! ```text
//! cast::cast      shape, pointers, strides, formats, options
//!   plan          (source, target, options) -> one route of stages; no loops
//!   run           positions per thread, in tiles of 1,024 elements: gather, stages, scatter, report
//!   stages        the loops over elements, compiled once per cpu::Level; vectors: those in whole registers, over simd
//!     codec       what one element becomes: decode to a pivot, scale, round once, encode
//! format          THE table everything derives from; parse reads names, report counts losses
//!
//! cast::gradients many gradients over a scale in one call: checked, measured, written
//! loss_scale      which scale, step by step; delayed_scaling: the same for each narrow tensor
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
    allow(dead_code, unused_imports, unused_macros, reason = "no level has vectors")
)]

#[expect(unsafe_code, reason = "what is never freed, by its address")]
mod cached_once;
#[expect(unsafe_code, reason = "reads and writes memory of a host, which no reference may name")]
pub mod cast;
pub mod checkpoint;
pub mod codec;
#[expect(unsafe_code, reason = "asks for instructions that not every CPU has, and sets control registers")]
pub mod cpu;
pub mod delayed_scaling;
pub mod error;
pub mod format;
pub mod loss_scale;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "maps pages")]
pub mod memory;
pub mod parse;
#[expect(unsafe_code, reason = "says of which types any bits are a value")]
pub mod plain;
pub mod policy;
pub mod policy_map;
pub mod report;
#[expect(unsafe_code, reason = "instructions that not every CPU has")]
mod simd;
pub mod spelling;
mod square_sum;

pub use error::Error;
pub use format::Format;
