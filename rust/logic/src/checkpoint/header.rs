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
//! and the same content gives the same file whoever writes it.

use std::collections::HashSet;

use castwise_core::sort_few::sort_triples;
use safetensors::tensor::{Dtype, Metadata as Checked, SafeTensorError, TensorInfo};
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{Deserialize, IntoDeserializer};

use super::error::{HeaderError, MAX_HEADER_BYTES};
use super::json::{METADATA_KEY, Metadata, RawHeader};

/// The header is padded with spaces so that the data starts at a multiple of this many bytes.
const ALIGNMENT: usize = 8;

/// Entries that are judged together.
const JUDGED_TOGETHER: usize = 1000;

const OVERLAP: &str = "its bytes overlap those of another tensor or leave a hole";

/// One tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Unique name within the file.
    pub name: String,
    /// The format's dtype code, as the file spells it.
    pub dtype: String,
    /// Number of elements along each axis.
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the data.
    pub begin: usize,
    /// One past the last byte.
    pub end: usize,
}

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
    let offsets = tensors.iter().map(|(_, info)| info.data_offsets).zip(0..);
    let mut order: Vec<_> = offsets.map(|((begin, end), place)| (begin, end, place)).collect();
    sort_triples(&mut order);
    let mut unsorted: Vec<_> = tensors.into_iter().map(Some).collect();
    let tensors: Vec<_> = order.into_iter().filter_map(|(.., place)| unsorted[place].take()).collect();
    judge(&tensors)?;
    let declared = tensors.last().map_or(0, |(_, info)| info.data_offsets.1) as u64;
    if declared != data_len {
        return Err(HeaderError::DataLength { declared, actual: data_len });
    }
    Ok(Header { tensors: tensors.into_iter().map(entry).collect(), metadata })
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
        let dtype = dtype_of(&code).map_err(|error| wrong(&name, &error.to_string()))?;
        sorted.push((position, (name, TensorInfo { dtype, shape, data_offsets: (0, 0) })));
    }
    sorted.sort_unstable_by(|(_, (left_name, left)), (_, (right_name, right))| {
        right.dtype.cmp(&left.dtype).then_with(|| left_name.cmp(right_name))
    });
    let (positions, mut placed): (Vec<_>, Vec<_>) = sorted.into_iter().unzip();
    let mut offset = 0_usize;
    for (name, info) in &mut placed {
        let size =
            byte_size(info).ok_or_else(|| wrong(name, &describe(&SafeTensorError::ValidationOverflow)))?;
        let end = offset
            .checked_add(size)
            .ok_or_else(|| wrong(name, &describe(&SafeTensorError::ValidationOverflow)))?;
        info.data_offsets = (offset, end);
        offset = end;
    }
    judge(&placed)?;
    let raw = RawHeader { metadata, tensors: placed };
    let json = serde_json::to_vec(&raw).map_err(|error| HeaderError::Json(error.to_string()))?;
    let padded = json.len().next_multiple_of(ALIGNMENT);
    check_length(padded)?;
    let mut bytes = Vec::with_capacity(ALIGNMENT + padded);
    bytes.extend_from_slice(&(padded as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.resize(ALIGNMENT + padded, b' ');
    let begins = raw.tensors.iter().map(|(_, info)| info.data_offsets.0);
    Ok((bytes, positions.into_iter().zip(begins).collect()))
}

/// Asks the `safetensors` crate whether these entries make a valid file. It takes a copy, so it is given one part after
/// the other, each as if it were a whole file.
fn judge(tensors: &[(String, TensorInfo)]) -> Result<(), HeaderError> {
    let mut begin = 0;
    for part in tensors.chunks(JUDGED_TOGETHER) {
        let mut moved = Vec::with_capacity(part.len());
        for (name, info) in part {
            let (first, end) = info.data_offsets;
            let (Some(first), Some(end)) = (first.checked_sub(begin), end.checked_sub(begin)) else {
                return Err(wrong(name, OVERLAP));
            };
            moved.push(TensorInfo { data_offsets: (first, end), ..info.clone() });
        }
        judge_part(moved, part, begin)?;
        begin = part.last().map_or(begin, |(_, info)| info.data_offsets.1);
    }
    Ok(())
}

/// Asks about a part whose offsets were moved to begin at 0; `tensors` has the same entries with their names and their own
/// offsets, from `begin` on.
fn judge_part(
    moved: Vec<TensorInfo>,
    tensors: &[(String, TensorInfo)],
    begin: usize,
) -> Result<(), HeaderError> {
    // Names matter to the verdict's text only.
    match Checked::new(None, moved.into_iter().map(|info| (String::new(), info)).collect()) {
        Ok(_) => Ok(()),
        Err(SafeTensorError::InvalidOffset(_)) => Err(wrong(misplaced(tensors, begin), OVERLAP)),
        Err(error) => Err(wrong(culprit(tensors), &describe(&error))),
    }
}

/// The first tensor that does not begin at `begin`, or where the one before it ends; or that ends before it begins.
fn misplaced(tensors: &[(String, TensorInfo)], begin: usize) -> &str {
    let mut last = begin;
    let is_misplaced = |info: &TensorInfo| {
        let (first, end) = info.data_offsets;
        let begins_elsewhere = first != last;
        last = end;
        begins_elsewhere || end < first
    };
    name_of_first(tensors, is_misplaced)
}

/// The first tensor that is refused even alone: most verdicts do not say which one they are about.
fn culprit(tensors: &[(String, TensorInfo)]) -> &str {
    let refused = |info: &TensorInfo| {
        let (begin, end) = info.data_offsets;
        let data_offsets = (0, end.saturating_sub(begin));
        let alone = TensorInfo { data_offsets, ..info.clone() };
        Checked::new(None, vec![(String::new(), alone)]).is_err()
    };
    name_of_first(tensors, refused)
}

fn name_of_first(tensors: &[(String, TensorInfo)], mut is_it: impl FnMut(&TensorInfo) -> bool) -> &str {
    tensors.iter().find(|(_, info)| is_it(info)).map_or("", |(name, _)| name)
}

fn describe(error: &SafeTensorError) -> String {
    match error {
        SafeTensorError::TensorInvalidInfo => {
            "its shape and dtype need another number of bytes than its offsets span".into()
        }
        SafeTensorError::MisalignedSlice => "its elements do not fill a whole number of bytes".into(),
        SafeTensorError::ValidationOverflow => "its size in bytes does not fit 64 bits".into(),
        other => other.to_string(),
    }
}

fn byte_size(info: &TensorInfo) -> Option<usize> {
    let elements = info.shape.iter().try_fold(1_usize, |size, &axis| size.checked_mul(axis))?;
    // A last partial byte counts as none here: `judge` refuses it with its reason.
    Some(elements.checked_mul(info.dtype.bitsize())? / 8)
}

fn dtype_of(code: &str) -> Result<Dtype, ValueError> {
    let deserializer: StrDeserializer<'_, ValueError> = code.into_deserializer();
    Dtype::deserialize(deserializer)
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

fn entry((name, info): (String, TensorInfo)) -> TensorEntry {
    let (begin, end) = info.data_offsets;
    TensorEntry { name, dtype: info.dtype.to_string(), shape: info.shape, begin, end }
}
