//! Makes the error for an element that the options refuse.

use crate::codec::reference;
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::plan::operands::{Parts, Scales, Source, Target};

/// The error for an element that the options refuse.
///
/// # Safety
/// As for [`super::cast`].
pub(crate) unsafe fn refusal(
    (index, is_nan): (u64, bool),
    shape: &[usize],
    source: &Source<'_>,
    scales: Option<&Scales<'_>>,
    parts: &Parts,
    target: &Target<'_>,
) -> Error {
    let components = parts.components as u64;
    let (element, component) = (index / components, index % components);
    if is_nan {
        return Error::Nan { index: element };
    }
    let offset_along = |strides: &[isize]| {
        let mut rest = element as usize;
        shape.iter().zip(strides).rev().fold(0, |offset, (&length, &stride)| {
            let coordinate = (rest % length) as isize;
            rest /= length;
            offset + coordinate * stride
        })
    };
    let offset = component as isize * parts.source.item_size() as isize + offset_along(source.strides);
    // SAFETY: the element's factor is one of the scales'.
    let scale = scales.map(|scales| unsafe {
        scales.pointer.offset(offset_along(scales.strides)).cast::<f64>().read_unaligned()
    });
    let size = parts.source.item_size();
    let mut bytes = [0u8; 8];
    // SAFETY: the element is one of the source's.
    unsafe { source.pointer.offset(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), size) };
    if source.swapped != cfg!(target_endian = "big") {
        bytes[..size].reverse();
    }
    let value = display(parts.source, u64::from_le_bytes(bytes));
    Error::Overflow { index: element, value, scale, target: target.format }
}

/// Returns the value of a code of a real format, as text.
fn display(format: Format, code: u64) -> String {
    match format.kind() {
        Kind::Float(spec) => format!("{:?}", reference::value_of(&spec, code)),
        Kind::Integer { signed: true } => {
            let unused = 64 - format.row().bits;
            format!("{}", ((code << unused) as i64) >> unused)
        }
        Kind::Bool => format!("{}", code != 0),
        _ => format!("{}", code & (u64::MAX >> (64 - format.row().bits))),
    }
}
