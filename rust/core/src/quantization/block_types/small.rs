//! Blocks of 32 elements: one scale, and one minimum or none.

use super::half;
use super::layout::{BlockType, MOST_PARTS, Parts, Rule};
use super::search::{Affine, Symmetric};
use super::weights::{columns, importance_weights, take_codes};

/// Elements of a block.
pub(super) const ELEMENTS: usize = 32;

/// Rounds half away from zero, below 2**22: what is added is the largest number below one half.
#[inline(always)]
fn round(value: f32) -> f32 {
    value + 0.499_999_97f32.copysign(value)
}

/// Truncates to a byte as x86 does: what no int32 holds becomes 0.
#[inline(always)]
fn truncate(value: f32) -> u8 {
    let is_held = value.abs() < 2f32.powi(31);
    let value = if is_held { value } else { 0.0 };
    // SAFETY: an int32 holds the integers below 2**31. (A conversion that saturates takes several times as long.)
    unsafe { value.to_int_unchecked::<i32>() as u8 }
}

/// Returns the reciprocal of a scale, 0 of zero.
fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Returns the least and the largest element.
#[inline(always)]
fn range(elements: &[f32; ELEMENTS]) -> (f32, f32) {
    let chunks = elements.as_chunks::<8>().0;
    let (mut least, mut most) = (chunks[0], chunks[0]);
    for chunk in &chunks[1..] {
        for lane in 0..8 {
            least[lane] = if chunk[lane] < least[lane] { chunk[lane] } else { least[lane] };
            most[lane] = if chunk[lane] > most[lane] { chunk[lane] } else { most[lane] };
        }
    }
    for half in [4, 2, 1] {
        for lane in 0..half {
            let (low, high) = (least[lane + half], most[lane + half]);
            least[lane] = if low < least[lane] { low } else { least[lane] };
            most[lane] = if high > most[lane] { high } else { most[lane] };
        }
    }
    (least[0], most[0])
}

/// Stores codes. None of four bits or five is above 2**bits: the largest quotient has an error of some units in the last
/// place.
#[inline(always)]
pub(super) fn store(row: &BlockType, codes: [u8; ELEMENTS], block: &mut [u8]) {
    if row.bits == 8 {
        return block[row.codes[0].offset..].copy_from_slice(&codes);
    }
    let codes = codes.map(|code| code.min((1 << row.bits) - 1));
    let (first, second) = codes.split_at(ELEMENTS / 2);
    let place = row.codes[0].offset;
    for ((byte, low), high) in block[place..place + ELEMENTS / 2].iter_mut().zip(first).zip(second) {
        *byte = low & 15 | high << 4;
    }
    if let Some(fifth) = row.codes.get(1) {
        for (byte, codes) in block[fifth.offset..fifth.offset + 4].iter_mut().zip(codes.as_chunks::<8>().0) {
            let bits = u64::from_le_bytes(*codes) >> 4 & 0x0101_0101_0101_0101;
            // The product has bit 8 * i at bit 56 + i.
            *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
        }
    }
}

/// Encodes by [`Rule::Extreme`].
#[inline(always)]
pub(super) fn encode_by_extreme(row: &BlockType, elements: &[f32; ELEMENTS], block: &mut [u8]) {
    let (least, most) = range(elements);
    let extreme = if most == -least {
        // The first one of both; zeros have no sign.
        elements.iter().find(|element| element.abs() == most && most > 0.0).map_or(0.0, |&element| element)
    } else if most > -least {
        most
    } else {
        least
    };
    let middle = (1 << (row.bits - 1)) as f32;
    let scale = extreme / -middle;
    let inverse = reciprocal(scale);
    half::write(block, row.scale, scale);
    store(row, elements.map(|element| truncate(element * inverse + (middle + 0.5))), block);
}

/// Encodes by [`Rule::Range`].
#[inline(always)]
pub(super) fn encode_by_range(row: &BlockType, elements: &[f32; ELEMENTS], block: &mut [u8]) {
    let (mut least, most) = range(elements);
    if least == 0.0 {
        // The first of both zeros.
        least = elements.iter().find(|&&element| element == 0.0).map_or(0.0, |&element| element);
    }
    let scale = (most - least) / ((1 << row.bits) - 1) as f32;
    let inverse = reciprocal(scale);
    half::write(block, row.scale, scale);
    if let Some(place) = row.minimum {
        half::write(block, place, least);
    }
    store(row, elements.map(|element| truncate((element - least) * inverse + 0.5)), block);
}

/// Encodes by [`Rule::Magnitude`].
#[inline(always)]
pub(super) fn encode_by_magnitude(row: &BlockType, elements: &[f32; ELEMENTS], block: &mut [u8]) {
    let (least, most) = range(elements);
    // Of zeros, which may have signs, too.
    let amax = if most > -least { most } else { least }.abs();
    let scale = amax / ((1 << (row.bits - 1)) - 1) as f32;
    let inverse = reciprocal(scale);
    half::write(block, row.scale, scale);
    store(row, elements.map(|element| truncate(round(element * inverse))), block);
}

/// Encodes up to eight blocks of a row whose elements have an importance; `square` is the mean square of the row, if
/// magnitudes weight errors, too.
pub(super) fn encode_weighted(
    row: &BlockType,
    elements: &[f32],
    importance: &[f32],
    square: Option<f32>,
    blocks: &mut [u8],
) {
    let x = columns(elements, ELEMENTS);
    let weights = importance_weights(&x, &columns(importance, ELEMENTS), square);
    let found = if row.minimum.is_some() {
        Affine::weighted(row.bits, ELEMENTS).search(&x, &weights)
    } else {
        let half = (1 << (row.bits - 1)) as f32;
        Symmetric { half, length: ELEMENTS, refines: false }.search(&x, &weights)
    };
    for (lane, block) in blocks.chunks_exact_mut(row.bytes).enumerate() {
        let mut codes = [0; ELEMENTS];
        take_codes(&found, lane, &mut codes);
        half::write(block, row.scale, found.scales[lane]);
        if let Some(place) = row.minimum {
            half::write(block, place, -found.minima[lane]);
        }
        store(row, codes, block);
    }
}

pub(super) fn parts(row: &BlockType, block: &[u8]) -> Parts {
    let scales = [half::read(block, row.scale); MOST_PARTS];
    // The stored one is added.
    let minima = [row.minimum.map_or(0.0, |at| -half::read(block, at)); MOST_PARTS];
    let offset = if let Rule::Extreme = row.rule { 1 << (row.bits - 1) } else { 0 };
    Parts { scales, minima, length: row.elements, offset }
}
