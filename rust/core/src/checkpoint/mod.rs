//! Checkpoint files: what the bytes of a file claim, judged before any of them is believed.
//!
//! Only headers live here. The tensor data never passes through this module: a caller reads
//! the header, asks for the byte ranges, and reads one tensor at a time, so its memory is bounded
//! by the largest tensor.
//!
//! Files are untrusted. The rules of the safetensors format (known dtype codes, no overflow in
//! shapes, no overlap, no holes) are those of the `safetensors` crate, which is asked for every
//! verdict; this module adds the name of the tensor at fault, refuses duplicate names, and keeps
//! the order of the metadata so that the same content always gives the same bytes.

mod error;
mod header;
mod json;

pub use error::{HeaderError, MAX_HEADER_BYTES};
pub use header::{Header, TensorEntry, build, parse};
pub use json::Metadata;
