//! The machine: which instructions it has, and the floating-point environment a kernel runs in.

pub mod environment;
pub mod level;

pub use environment::DefaultEnvironment;
pub use level::{InstructionSet, Level};
pub(crate) use level::{Kernel, Owner, RawKernel};
