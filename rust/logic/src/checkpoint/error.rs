//! Why a safetensors header was refused.

use core::fmt;

/// The longest header that the format allows, in bytes.
pub const MAX_HEADER_BYTES: usize = 100_000_000;

/// A header that must not be used, with what is wrong in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is longer than the format allows.
    TooLarge {
        /// Length of the header in bytes.
        bytes: usize,
    },
    /// The header is not text in UTF-8.
    NotUtf8 {
        /// Offset of the first wrong byte within the header.
        offset: usize,
    },
    /// The header is not JSON, or JSON of another form; the text has line and column.
    Json(String),
    /// The entry of one tensor is wrong; the text says how.
    Tensor {
        /// Name of the tensor, as in the header.
        name: String,
        /// What is wrong, without the name.
        reason: String,
    },
    /// The tensors do not fill the data part of the file exactly.
    DataLength {
        /// Bytes that the header accounts for.
        declared: u64,
        /// Bytes that follow the header in the file.
        actual: u64,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes } => write!(
                formatter,
                "the header is {bytes} bytes long, the limit is {MAX_HEADER_BYTES}; \
                 split the checkpoint into shards"
            ),
            Self::NotUtf8 { offset } => write!(
                formatter,
                "the header is not UTF-8 text at byte {offset}; this is not a safetensors file"
            ),
            Self::Json(reason) => {
                write!(formatter, "the header is not safetensors JSON: {reason}")
            }
            Self::Tensor { name, reason } => write!(formatter, "tensor {name:?}: {reason}"),
            Self::DataLength { declared, actual } if declared > actual => write!(
                formatter,
                "the file is truncated: the header accounts for {declared} bytes of tensors, \
                 {actual} follow it"
            ),
            Self::DataLength { declared, actual } => write!(
                formatter,
                "the header accounts for {declared} bytes of tensors, but {actual} follow it; \
                 bytes that belong to no tensor are not allowed"
            ),
        }
    }
}

impl core::error::Error for HeaderError {}
