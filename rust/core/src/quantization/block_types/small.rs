//! Blocks of 32 elements: one scale, and one minimum or none.

use super::half;
use super::layout::{BlockType, MOST_PARTS, Parts, Rule};

/// Rounds half away from zero, below 2**22: what is added is the largest number below one half.
#[inline(always)]
fn round(value: f32) -> f32 {
    value + 0.499_999_97f32.copysign(value)
}

/// Truncates to a byte as x86 does: what no int32 holds becomes its lowest byte, 0.
#[inline(always)]
fn truncate(value: f32) -> i32 {
    let is_held = value.abs() < 2f32.powi(31);
    let value = if is_held { value } else { 0.0 };
    // SAFETY: an int32 holds the integers below 2**31. (A conversion that saturates takes several times as long.)
    i32::from(unsafe { value.to_int_unchecked::<i32>() } as i8)
}

/// Returns the reciprocal of a scale, 0 of zero.
fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Returns the largest of numbers that are made of elements.
#[inline(always)]
fn largest(elements: &[f32], number: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [-f32::MAX; 8];
    for chunk in elements.chunks_exact(8) {
        for (lane, &element) in lanes.iter_mut().zip(chunk) {
            let number = number(element);
            *lane = if number > *lane { number } else { *lane };
        }
    }
    lanes.into_iter().fold(-f32::MAX, |most, lane| if lane > most { lane } else { most })
}

pub(super) fn encode(row: &BlockType, elements: &[f32], codes: &mut [u8], block: &mut [u8]) {
    let pairs = codes.iter_mut().zip(elements);
    let top = (1i32 << row.bits) - 1;
    if let Rule::Range = row.rule {
        let least = largest(elements, |element| -element);
        let most = largest(elements, |element| element);
        // The first of both zeros.
        let least = elements.iter().find(|&&element| element == -least).map_or(0.0, |&element| element);
        let scale = (most - least) / top as f32;
        let inverse = reciprocal(scale);
        half::write(block, row.scale, scale);
        half::write(block, row.scale + 2, least);
        pairs.for_each(|(code, &element)| {
            *code = truncate((element - least) * inverse + 0.5).min(top) as u8;
        });
        return;
    }
    let amax = largest(elements, f32::abs);
    if let Rule::Magnitude = row.rule {
        let scale = amax / (top / 2) as f32;
        let inverse = reciprocal(scale);
        half::write(block, row.scale, scale);
        pairs.for_each(|(code, &element)| *code = truncate(round(element * inverse)) as u8);
        return;
    }
    let middle = (1 << (row.bits - 1)) as f32;
    let extreme = elements.iter().find(|element| element.abs() == amax);
    let scale = extreme.filter(|_| amax > 0.0).map_or(0.0, |&element| element) / -middle;
    let inverse = reciprocal(scale);
    half::write(block, row.scale, scale);
    pairs.for_each(|(code, &element)| {
        *code = truncate(element * inverse + (middle + 0.5)).min(top) as u8;
    });
}

pub(super) fn parts(row: &BlockType, block: &[u8]) -> Parts {
    let scales = [half::read(block, row.scale); MOST_PARTS];
    // The stored one is added.
    let minima = [row.minimum.map_or(0.0, |at| -half::read(block, at)); MOST_PARTS];
    let offset = if let Rule::Extreme = row.rule { 1 << (row.bits - 1) } else { 0 };
    Parts { scales, minima, length: row.elements, offset }
}
