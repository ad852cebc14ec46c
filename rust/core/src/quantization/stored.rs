//! A stored weight beside a plain one: some rows at a time are encoded, compared with what is stored, decoded once in cache, and
//! measured.

use std::ops::Range;

use super::decode::{BlockDecoder, Decoding};
use super::encode::{BlockEncoder, Encoded, Encoding, encode};
use super::rows::Array;
use super::work::Extent;
use crate::compare::{self, Asked, Comparison, Steps};
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::exec::buffers::with_buffers;
use crate::format::Format;
use crate::report::CastReport;
use crate::report::values::Values;

/// Elements that are decoded at a time, about: with what they are made of they stay in the second cache.
const CHUNK: usize = 1 << 16;

/// Elements for which a thread keeps the memory: those of a row of blocks of 128 rows and 16,384 columns.
const MOST_KEPT: usize = 1 << 21;

/// How a stored weight differs from a plain one.
#[derive(Clone, Debug, Default)]
pub struct StoredComparison {
    /// Of the plain weight and the decoded one.
    pub comparison: Comparison,
    /// Whether the plain weight is encoded to what is stored. False without an encoding.
    pub is_encoded: bool,
    /// The decoded elements at the indices of the comparison.
    pub values: Vec<(u64, f64)>,
}

/// The memory of a thread.
#[derive(Default)]
struct Room {
    values: Vec<u64>,
    codes: Vec<u64>,
    scales: Vec<u64>,
    columns: compare::Buffers,
}

/// Compares a plain matrix with a stored one, decoded to a format; and, if there is an encoding, what that makes of the plain one
/// with what is stored. With `measures` the losses too.
///
/// # Errors
/// As for [`decode`](super::decode::decode) and [`encode`](super::encode::encode), but of elements that are not finite.
///
/// # Safety
/// The elements of all arrays are readable.
pub unsafe fn compare_stored(
    x: &Array,
    decoding: &Decoding,
    format: Format,
    encoding: Option<&Encoding>,
    measures: bool,
) -> Result<StoredComparison, Error> {
    // SAFETY: passed on.
    unsafe { compare_in_parts(x, (decoding, format), encoding, Asked::of(measures)) }
}

/// Returns what a stored matrix, decoded to a format, lost of a plain one: the report of [`compare_stored`].
///
/// # Errors
/// As for [`decode`](super::decode::decode).
///
/// # Safety
/// As for [`compare_stored`].
pub unsafe fn report_stored(x: &Array, decoding: &Decoding, format: Format) -> Result<CastReport, Error> {
    // SAFETY: passed on.
    let StoredComparison { comparison, .. } =
        unsafe { compare_in_parts(x, (decoding, format), None, Asked::Report)? };
    Ok(comparison.losses.map(|losses| losses.report).unwrap_or_default())
}

/// # Errors
/// As for [`compare_stored`].
///
/// # Safety
/// As for [`compare_stored`].
unsafe fn compare_in_parts(
    x: &Array,
    (decoding, format): (&Decoding, Format),
    encoding: Option<&Encoding>,
    asked: Asked,
) -> Result<StoredComparison, Error> {
    let _environment = DefaultEnvironment::enter();
    let [rows, columns] = x.shape[..] else {
        let message = format!("x has shape {:?}; give a matrix, which has rows and columns.", x.shape);
        return Err(Error::InvalidOption { message });
    };
    let (step, part) = steps_of((rows, columns), decoding, encoding);
    if part < rows {
        let matrix = Extent::of("x", x, decoding.block)?;
        let Decoding { data, scale, zero_point, bias, .. } = decoding;
        matrix.check("data", data, rows)?;
        for (argument, array) in [("scale", scale), ("zero_point", zero_point), ("bias", bias)] {
            if let Some(array) = array {
                matrix.check(argument, array, matrix.row_blocks())?;
            }
        }
    }
    // Of arrays with strides of 0, whose elements share memory.
    let too_long = || Error::InvalidOption {
        message: format!(
            "x has shape {:?}, and there is no memory for its decoded rows; give fewer rows.",
            x.shape
        ),
    };
    let stored = |rows_of_part: Range<usize>| match rows_of_part.len() {
        count if count == rows => decoding.clone(),
        _ => some_rows(decoding, rows_of_part),
    };
    let (mut encoder, mut decoder): (_, Option<(usize, BlockDecoder)>) = (None, None);
    let mut is_made = encoding.is_some();
    let mut found = Vec::new();
    let compare = |room: &mut Room| -> Result<_, Error> {
        let mut steps = Steps::begin([x.format, format], asked, &mut room.columns);
        for start in (0..rows).step_by(step) {
            let end = rows.min(start + step);
            // Plans are for so many rows.
            encoder = encoder.filter(|_| end - start == step);
            if let (true, Some(encoding)) = (is_made, encoding) {
                let x = x.some_rows(start, end - start);
                // SAFETY: the caller's promise, for these rows; the room is of this thread.
                is_made = unsafe { is_encoded((&x, encoding), &stored(start..end), &mut encoder, room) };
            }
            for start in (start..end).step_by(part) {
                let count = part.min(end - start);
                let (x, decoding) = (x.some_rows(start, count), stored(start..start + count));
                decoder = decoder.filter(|(rows, _)| *rows == count);
                // SAFETY: the caller's promise, for these rows; the room is of this thread.
                unsafe {
                    let values =
                        Array::dense(&mut room.values, &[count, columns], format).ok_or_else(too_long)?;
                    let (_, decoder) = match &mut decoder {
                        Some(decoder) => decoder,
                        none => none.insert((count, BlockDecoder::new(decoding.clone(), &values)?)),
                    };
                    decoder.place(&decoding);
                    decoder.decode(values.pointer, 1)?;
                    let first = start * columns;
                    steps.add(&x.shape, [x.source(), values.source()], first, &mut room.columns);
                    for index in indices(&steps.comparison).filter(|&index| index >= first as u64) {
                        let place = (index as usize - first) * format.item_size();
                        let place = values.pointer.wrapping_add(place);
                        let mut value = [0.0];
                        Values::new(format).read(Level::active(), place, &mut value, &mut [0.0]);
                        found.push((index, value[0]));
                    }
                }
            }
        }
        let known: Vec<u64> = indices(&steps.comparison).collect();
        found.retain(|(index, _)| known.contains(index));
        Ok(StoredComparison { comparison: steps.comparison, is_encoded: is_made, values: found })
    };
    let most = if encoding.is_some() { step } else { part };
    if most.min(rows).saturating_mul(columns) <= MOST_KEPT {
        with_buffers(compare)
    } else {
        compare(&mut Room::default())
    }
}

/// Returns how many rows are encoded at a time, and how many of these are decoded at a time: whole blocks, or rows of one block.
fn steps_of(
    (rows, columns): (usize, usize),
    decoding: &Decoding,
    encoding: Option<&Encoding>,
) -> (usize, usize) {
    let rows = rows.max(1);
    let height = |height: usize| if height == 0 { rows } else { height };
    let (own, other) = (height(decoding.block.0), encoding.map_or(1, |encoding| height(encoding.block.0)));
    let (tall, fitting) = (own.max(other), (CHUNK / columns.max(1)).max(1));
    let rest = [&decoding.group_index, &decoding.divisor, &decoding.high];
    let is_cut = tall.is_multiple_of(own) && tall.is_multiple_of(other);
    if !is_cut || rest.iter().any(|array| array.is_some()) {
        return (rows, rows);
    }
    if fitting >= tall {
        let step = fitting / tall * tall;
        return (step, step);
    }
    let part = 1 << fitting.ilog2();
    let is_within = own >= rows || own.is_multiple_of(part) || part.is_multiple_of(own);
    (tall, if is_within { part } else { tall })
}

/// Returns rows of what is stored, which are whole blocks, or within one.
fn some_rows(decoding: &Decoding, rows: Range<usize>) -> Decoding {
    let blocks = |array: &Array| match decoding.block.0 {
        0 => array.clone(),
        tall => array.some_rows(rows.start / tall, rows.len().div_ceil(tall)),
    };
    Decoding {
        data: decoding.data.some_rows(rows.start, rows.len()),
        scale: decoding.scale.as_ref().map(blocks),
        zero_point: decoding.zero_point.as_ref().map(blocks),
        bias: decoding.bias.as_ref().map(blocks),
        ..decoding.clone()
    }
}

/// Returns where elements differ most.
fn indices(comparison: &Comparison) -> impl Iterator<Item = u64> + use<> {
    let relative = comparison.losses.as_deref().and_then(|losses| losses.largest_relative);
    let difference = comparison.largest_difference;
    [difference.map(|pair| pair.1), comparison.first_special, relative.map(|pair| pair.1)]
        .into_iter()
        .flatten()
}

/// Whether a matrix is encoded to the codes and scales that are stored. An encoder is that of another matrix of this shape.
///
/// # Safety
/// As for [`compare_stored`].
unsafe fn is_encoded(
    (x, encoding): (&Array, &Encoding),
    stored: &Decoding,
    encoder: &mut Option<BlockEncoder>,
    room: &mut Room,
) -> bool {
    // Importance is of the whole array, and not of these rows.
    let Some(scale) = stored.scale.as_ref().filter(|_| encoding.importance.is_none()) else { return false };
    let data = Array::dense(&mut room.codes, &stored.data.shape, stored.data.format);
    let scales = Array::dense(&mut room.scales, &scale.shape, scale.format);
    let (Some(data), Some(scales)) = (data, scales) else { return false };
    let to = Encoded { data, scale: scales, zero_point: None, bias: None };
    // SAFETY: the caller's promise; the rooms are of this thread.
    unsafe {
        let is_same =
            |one: &Array, other: &Array| compare::have_same_bits(&one.shape, one.source(), other.source(), 1);
        let is_done = if let Some(encoder) = encoder {
            encoder.repeat([x.pointer, to.data.pointer, to.scale.pointer], None, 1).is_ok()
        } else {
            *encoder = encode(Encoding { x: x.clone(), ..encoding.clone() }, &to, 1).ok();
            encoder.is_some()
        };
        is_done && is_same(&to.scale, scale) && is_same(&to.data, &stored.data)
    }
}
