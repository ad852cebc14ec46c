//! Checkpoint files: headers, validated before they are used, and the engine that casts tensors.
//!
//! ```text
//! entry     a tensor in the header of a safetensors file
//! header    JSON of a safetensors file <-> tensors and metadata
//! convert   bytes of one tensor -> bytes of the result, a piece at a time
//! jobs      what is to be done, and the pieces that this is cut into
//! engine    all tensors of a file: read, converted and written in pieces, several at a time
//! items     items of any size copied from one order to another
//! rearrange the items of a tensor in another order, from file to file
//! literal   a literal of Python, as headers of `.npy` files hold one
//! gguf      the header of a GGUF file
//! ```
//!
//! Files are untrusted. The rules of the safetensors format (known dtype codes, no overflow in
//! shapes, no overlap, no holes) are those of the `safetensors` crate, which the tests ask too;
//! beyond them, a refusal names the tensor at fault, and names are unique. The order of the
//! metadata stays, so that the same content always gives the same bytes.

mod convert;
mod engine;
mod entry;
mod error;
pub mod gguf;
mod header;
mod items;
mod jobs;
mod json;
pub mod literal;
mod packing;
mod positioned;
mod rearrange;

pub use convert::{ElementCast, Elements, Scratch};
pub use engine::{Failure, Tuning, convert_tensors};
pub use entry::{Dtype, TensorEntry};
pub use error::{HeaderError, MAX_HEADER_BYTES};
pub use header::{Header, Places, build, parse};
pub use jobs::Job;
pub use json::Metadata;
#[cfg(windows)]
pub use positioned::reopened;
pub use positioned::write_at;
pub use rearrange::{Items, Rearranging, rearrange};
