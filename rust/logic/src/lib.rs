//! What castwise decides about the arrays of a model, and what it reads of their files, without Python.
//!
//! ```text
//! policy           names of dtypes and of policies, in every dialect; modes of quantization
//! policy_map       which policy a path gets
//! loss_scale       which loss scale, step by step
//! delayed_scaling  which scale of float8, step by step
//! checkpoint       headers of files, and their tensors cast piece by piece
//! ```

#![deny(unsafe_code)]

pub mod checkpoint;
pub mod delayed_scaling;
pub mod loss_scale;
pub mod policy;
pub mod policy_map;
