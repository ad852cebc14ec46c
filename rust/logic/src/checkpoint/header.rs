//! Parse and build the header of a safetensors file.
//!
//! ```text
//! file   = length of header (u64, little-endian) ++ header (JSON) ++ data
//! parse  : header, length of data -> entries in the order of their data, metadata
//! build  : (name, code, shape)*, metadata -> length ++ header, the tensors in the order of their data
//! ```
//!
//! Offsets are relative to the start of the data, in bytes. `build` places tensors as the
//! `safetensors` crate does, widest dtype first and then by name, so that every tensor is aligned
//! and the same content gives the same file whoever writes it. What is refused is what that crate
//! refuses, and two forms that nobody writes: fields as an array, and a dtype as an object.

use std::collections::HashSet;

use castwise_core::sort_few::sort_triples;
use serde_core::de::value::Error as ValueError;

use super::entry::{Dtype, TensorEntry};
use super::error::{HeaderError, MAX_HEADER_BYTES};
use super::json::{METADATA_KEY, Metadata, RawHeader};

/// The header is padded with spaces so that the data starts at a multiple of this many bytes.
const ALIGNMENT: usize = 8;

const OVERFLOW: &str = "its size in bytes does not fit 64 bits";

/// A header that holds what it promises: entries are adjacent, in order, and fill the data exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their data.
    pub tensors: Vec<TensorEntry>,
    /// The file's metadata, if it has any.
    pub metadata: Option<Metadata>,
}

/// The positions of tensors in a list, in the order of their data, each with its first byte counted from the start of the
/// data.
pub type Places = Vec<(usize, usize)>;

/// Reads the JSON text of a header (without the eight bytes of its length).
///
/// `data_len` is the number of bytes that follow the header in the file.
///
/// # Errors
/// [`HeaderError`] if the header is not UTF-8 or not JSON of the right form, names a tensor twice,
/// has an unknown dtype, a shape that overflows or does not fit its bytes, bytes that overlap or
/// leave a hole, or does not account for exactly `data_len` bytes.
pub fn parse(header: &[u8], data_len: u64) -> Result<Header, HeaderError> {
    check_length(header.len())?;
    let text =
        core::str::from_utf8(header).map_err(|error| HeaderError::NotUtf8 { offset: error.valid_up_to() })?;
    let raw: RawHeader = serde_json::from_str(text).map_err(|error| HeaderError::Json(error.to_string()))?;
    let RawHeader { metadata, tensors } = raw;
    // Empty tensors, which share an offset, keep the order of the file.
    let offsets = tensors.iter().zip(0..);
    let mut order: Vec<_> = offsets.map(|(entry, place)| (entry.begin, entry.end, place)).collect();
    sort_triples(&mut order);
    let mut unsorted: Vec<_> = tensors.into_iter().map(Some).collect();
    let tensors: Vec<_> = order.into_iter().filter_map(|(.., place)| unsorted[place].take()).collect();
    let mut declared = 0;
    for entry in &tensors {
        check(entry, declared).map_err(|reason| wrong(&entry.name, reason))?;
        declared = entry.end;
    }
    let declared = declared as u64;
    if declared != data_len {
        return Err(HeaderError::DataLength { declared, actual: data_len });
    }
    Ok(Header { tensors, metadata })
}

/// Checks the entry of a tensor whose data is to begin at a place; the error is a reason without the name.
fn check(entry: &TensorEntry, begin: usize) -> Result<(), &'static str> {
    if entry.begin != begin || entry.end < begin {
        return Err("its bytes overlap those of another tensor or leave a hole");
    }
    if byte_size(entry.dtype, &entry.shape)? != entry.end - begin {
        return Err("its shape and dtype need another number of bytes than its offsets span");
    }
    Ok(())
}

/// Counts the bytes of a tensor; the error is a reason without the name.
fn byte_size(dtype: Dtype, shape: &[usize]) -> Result<usize, &'static str> {
    let bits = shape.iter().try_fold(1, |size: usize, &axis| size.checked_mul(axis));
    let bits = bits.and_then(|elements| elements.checked_mul(dtype.bits())).ok_or(OVERFLOW)?;
    if bits % 8 != 0 {
        return Err("its elements do not fill a whole number of bytes");
    }
    Ok(bits / 8)
}

/// Lays out the tensors `(name, dtype code, shape)` and writes their header.
///
/// Returns the first bytes of the file (length and header, padded), and the places of the data.
///
/// # Errors
/// [`HeaderError`] for an unknown code, a name used twice or reserved, a shape whose size overflows
/// or is not a whole number of bytes, or a header longer than [`MAX_HEADER_BYTES`].
pub fn build(
    tensors: Vec<(String, String, Vec<usize>)>,
    metadata: Option<Metadata>,
) -> Result<(Vec<u8>, Places), HeaderError> {
    let mut seen = HashSet::new();
    if let Some((name, ..)) = tensors.iter().find(|(name, ..)| name == METADATA_KEY || !seen.insert(name)) {
        return Err(wrong(name, "this name is reserved or used twice; rename the tensor"));
    }
    drop(seen);
    let mut sorted = Vec::with_capacity(tensors.len());
    for (position, (name, code, shape)) in tensors.into_iter().enumerate() {
        let dtype = Dtype::with_code(&code).map_err(|error: ValueError| wrong(&name, &error.to_string()))?;
        sorted.push((position, TensorEntry { name, dtype, shape, begin: 0, end: 0 }));
    }
    sorted.sort_unstable_by(|(_, left), (_, right)| {
        right.dtype.cmp(&left.dtype).then_with(|| left.name.cmp(&right.name))
    });
    let (positions, mut placed): (Vec<_>, Vec<_>) = sorted.into_iter().unzip();
    let mut offset = 0_usize;
    for entry in &mut placed {
        let size = byte_size(entry.dtype, &entry.shape);
        let end = size.and_then(|size| offset.checked_add(size).ok_or(OVERFLOW));
        entry.begin = offset;
        entry.end = end.map_err(|reason| wrong(&entry.name, reason))?;
        offset = entry.end;
    }
    let raw = RawHeader { metadata, tensors: placed };
    let json = serde_json::to_vec(&raw).map_err(|error| HeaderError::Json(error.to_string()))?;
    let padded = json.len().next_multiple_of(ALIGNMENT);
    check_length(padded)?;
    let mut bytes = Vec::with_capacity(ALIGNMENT + padded);
    bytes.extend_from_slice(&(padded as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.resize(ALIGNMENT + padded, b' ');
    let begins = raw.tensors.iter().map(|entry| entry.begin);
    Ok((bytes, positions.into_iter().zip(begins).collect()))
}

fn check_length(bytes: usize) -> Result<(), HeaderError> {
    if bytes > MAX_HEADER_BYTES {
        return Err(HeaderError::TooLarge { bytes });
    }
    Ok(())
}

fn wrong(name: &str, reason: &str) -> HeaderError {
    HeaderError::Tensor { name: name.to_owned(), reason: reason.to_owned() }
}
