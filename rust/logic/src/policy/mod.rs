//! Dtype policies: which dtype a layer computes in, and which its variables have.
//!
//! ```text
//! dialect    what each system accepts as a name: data only
//! mode       the quantization modes and their parameters: data only
//! name       text -> Policy, in any dialect
//! value      what a policy is: dtypes, canonical name, config
//! assignment jmp's "params=float32,compute=half": three dtypes in one text
//! ```
//!
//! A policy is a value. Two policies that mean the same have the same canonical name, whatever spelling made them.
//!
//! ```
//! use castwise_logic::policy::{self, KERAS};
//! let policy = policy::parse("int4/+128_from_mixed_bfloat16", &KERAS)?;
//! assert_eq!(policy.name(), "int4/128_from_mixed_bfloat16");
//! assert_eq!((policy.compute_dtype(), policy.variable_dtype()), (Some("bfloat16"), Some("float32")));
//! # Ok::<(), policy::Refused>(())
//! ```

mod assignment;
mod dialect;
mod mode;
mod name;
mod value;

pub use assignment::{Assignment, parse_assignment};
pub use dialect::{Dialect, Exception, JMP, KERAS, TF_LAYER, TF2};
pub use mode::Class;
pub use name::{Refused, parse, parse_dtype, plain, quantized};
pub use value::Policy;
