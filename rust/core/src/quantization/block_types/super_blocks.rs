//! Blocks of 256 elements: a scale of scales, which have few bits, and likewise of minima.

use std::ops::Range;

use super::half;
use super::layout::{BlockType, MOST_PARTS, Parts, Rule};
use super::search::{Affine, Columns, Found, LANES, LEAST, Symmetric, nearest, scale_of_scales};
use super::weights::{columns, importance_weights, mean_square, take_codes};

/// What a search finds for each part of a block.
#[derive(Default)]
struct PartsFound {
    scales: [f32; MOST_PARTS],
    minima: [f32; MOST_PARTS],
    /// Sums of the weights of errors.
    weights: [f32; MOST_PARTS],
}

pub(super) fn encode(row: &BlockType, elements: &[f32], codes: &mut [u8], block: &mut [u8]) {
    let length = part_length(row);
    let found = search(length, elements, codes, |_, x| match row.rule {
        Rule::Affine(rule) => (rule.search(x, &rule.weights(x)), [0.0; LANES]),
        Rule::Symmetric(rule) => (rule.search(x, &rule.weights(x)), [0.0; LANES]),
        _ => unreachable!("blocks without parts have another rule"),
    });
    let scales = &found.scales[..elements.len() / length];
    match row.rule {
        Rule::Affine(_) => store_affine(row, scales, &found.minima, block),
        _ if !store_symmetric(row, scales, block) => return codes.fill(0),
        _ => {}
    }
    encode_by_stored_scales(row, elements, codes, block);
}

/// Encodes a block whose elements have an importance, as llama.cpp does, or with no other weights of errors.
pub(super) fn encode_weighted(
    row: &BlockType,
    elements: &[f32],
    importance: &[f32],
    by_magnitude: bool,
    codes: &mut [u8],
    block: &mut [u8],
) {
    let length = part_length(row);
    let square = (by_magnitude && row.bits != 6).then(|| {
        // Once, of two bits, as in blocks of 32.
        mean_square(elements) * if row.bits == 2 { 1.0 } else { 2.0 }
    });
    let found = search(length, elements, codes, |range, x| {
        let numbers = columns(&importance[range], length);
        let weights = importance_weights(x, &numbers, square);
        let sums = weights[..length].iter().fold([0.0; LANES], |mut sums, column| {
            sums.iter_mut().zip(column).for_each(|(sum, weight)| *sum += weight);
            sums
        });
        let found = match row.rule {
            Rule::Affine(rule) => Affine::weighted(rule.bits, length).search(x, &weights),
            Rule::Symmetric(rule) => Symmetric { refines: false, ..rule }.search(x, &weights),
            _ => unreachable!("blocks without parts have another rule"),
        };
        (found, sums)
    });
    let count = elements.len() / length;
    let (scales, weights) = (&found.scales[..count], &found.weights[..count]);
    let mut stored = [[0u8; MOST_PARTS]; 2];
    match row.rule {
        Rule::Affine(_) => {
            let places = [row.scale].into_iter().chain(row.minimum);
            for ((numbers, stored), at) in
                [scales, &found.minima[..count]].into_iter().zip(&mut stored).zip(places)
            {
                let top = if row.bits == 2 { 15 } else { 63 };
                half::write(block, at, scale_of_scales(numbers, weights, &mut stored[..count], top));
            }
            pack_affine(row, &stored, block);
        }
        Rule::Symmetric(_) if row.bits == 3 => {
            let (mut x, mut numbers) = ([[0.0; LANES]; 32], [[0.0; LANES]; 32]);
            for part in 0..count {
                (x[part][0], numbers[part][0]) = (scales[part], weights[part]);
            }
            let rule = Symmetric { half: 32.0, length: count, refines: false };
            let found = rule.search(&x, &numbers);
            half::write(block, row.scale, found.scales[0]);
            (0..count).for_each(|part| pack_of_three(part, found.codes[part][0] as u8, block));
        }
        _ if !store_symmetric(row, scales, block) => return codes.fill(0),
        _ => {}
    }
    encode_by_stored_scales(row, elements, codes, block);
}

/// Searches eight parts of so many elements at a time, by a function of their place and their elements that also sums up
/// weights; makes their codes.
#[inline(always)]
fn search(
    length: usize,
    elements: &[f32],
    codes: &mut [u8],
    search: impl Fn(Range<usize>, &Columns) -> (Found, [f32; LANES]),
) -> PartsFound {
    let mut parts = PartsFound::default();
    let runs = elements.chunks_exact(length * LANES).zip(codes.chunks_exact_mut(length * LANES));
    for (index, (elements, codes)) in runs.enumerate() {
        let begin = index * length * LANES;
        let (found, weights) = search(begin..begin + length * LANES, &columns(elements, length));
        let lanes = index * LANES..(index + 1) * LANES;
        parts.scales[lanes.clone()].copy_from_slice(&found.scales);
        parts.minima[lanes.clone()].copy_from_slice(&found.minima);
        parts.weights[lanes].copy_from_slice(&weights);
        codes.chunks_exact_mut(length).enumerate().for_each(|(lane, part)| take_codes(&found, lane, part));
    }
    parts
}

pub(super) fn part_length(row: &BlockType) -> usize {
    match row.rule {
        Rule::Affine(rule) => rule.length,
        Rule::Symmetric(rule) => rule.length,
        _ => row.elements,
    }
}

/// Makes the codes of all parts whose stored scale is not zero.
pub(super) fn encode_by_stored_scales(row: &BlockType, elements: &[f32], codes: &mut [u8], block: &[u8]) {
    let parts = parts(row, block);
    let (least, most) = (-parts.offset, (1 << row.bits) - 1 - parts.offset);
    let runs = elements.chunks_exact(parts.length).zip(codes.chunks_exact_mut(parts.length));
    for (part, (elements, codes)) in runs.enumerate() {
        let (scale, minimum) = (parts.scales[part], parts.minima[part]);
        if scale == 0.0 {
            continue;
        }
        for (code, &element) in codes.iter_mut().zip(elements) {
            let number = nearest((element + minimum) / scale).max(least).min(most);
            *code = (number + parts.offset) as u8;
        }
    }
}

fn store_affine(row: &BlockType, scales: &[f32], minima: &[f32], block: &mut [u8]) {
    let (levels, cap) = if row.bits == 2 { (15.0, u8::MAX) } else { (63.0, 63) };
    let mut stored = [[0u8; MOST_PARTS]; 2];
    let places = [row.scale].into_iter().chain(row.minimum);
    for ((numbers, stored), at) in [scales, minima].into_iter().zip(&mut stored).zip(places) {
        let mut largest = 0.0;
        for &number in &numbers[..scales.len()] {
            largest = if number > largest { number } else { largest };
        }
        let inverse = if largest > 0.0 { levels / largest } else { 0.0 };
        for (stored, number) in stored.iter_mut().zip(&numbers[..scales.len()]) {
            *stored = (nearest(inverse * number) as u8).min(cap);
        }
        half::write(block, at, largest / levels);
    }
    pack_affine(row, &stored, block);
}

/// Stores the scales and minima of parts, which have few bits.
fn pack_affine(row: &BlockType, [scales, minima]: &[[u8; MOST_PARTS]; 2], block: &mut [u8]) {
    if row.bits == 2 {
        for part in 0..MOST_PARTS {
            block[part] = scales[part] | minima[part] << 4;
        }
        return;
    }
    // Six bits each: those of the last four have their high bits in the bytes of the others.
    let bytes = &mut block[4..16];
    for part in 0..4 {
        let (scale, minimum) = (scales[part + 4], minima[part + 4]);
        bytes[part] = scales[part] | (scale >> 4) << 6;
        bytes[part + 4] = minima[part] | (minimum >> 4) << 6;
        bytes[part + 8] = scale & 15 | (minimum & 15) << 4;
    }
}

/// Stores scales; returns false for a block of zeros.
fn store_symmetric(row: &BlockType, scales: &[f32], block: &mut [u8]) -> bool {
    let (mut amax, mut extreme) = (0.0, 0.0);
    for &scale in scales {
        if scale.abs() > amax {
            (amax, extreme) = (scale.abs(), scale);
        }
    }
    let is_three = row.bits == 3;
    if !is_three && amax < LEAST {
        return false;
    }
    if extreme == 0.0 {
        return true;
    }
    let inverse = (if is_three { -32.0 } else { -128.0 }) / extreme;
    half::write(block, row.scale, 1.0 / inverse);
    for (part, scale) in scales.iter().enumerate() {
        let number = nearest(inverse * scale);
        if !is_three {
            block[192 + part] = number.min(127) as u8;
            continue;
        }
        let stored = (i32::from(number as i8).clamp(-32, 31) + 32) as u8;
        pack_of_three(part, stored, block);
    }
    true
}

/// Stores the scale of a part of `Q3_K`.
fn pack_of_three(part: usize, stored: u8, block: &mut [u8]) {
    let bytes = &mut block[96..108];
    bytes[part % 8] |= (stored & 15) << (part / 8 * 4);
    bytes[part % 4 + 8] |= (stored >> 4) << (part / 4 * 2);
}

/// The scale of scales and that of minima, and the numbers of parts that are multiplied by them.
pub(super) struct Numbers {
    pub(super) scale: f32,
    pub(super) minimum: f32,
    pub(super) scales: [i32; MOST_PARTS],
    pub(super) minima: [i32; MOST_PARTS],
}

/// Returns the least and the largest number that a part may have.
pub(super) fn number_range(row: &BlockType) -> (i32, i32) {
    match row.bits {
        2 => (0, 15),
        3 => (-32, 31),
        6 => (-128, 127),
        _ => (0, 63),
    }
}

/// Stores what is multiplied by what; the block has only zeros.
pub(super) fn store_numbers(row: &BlockType, numbers: &Numbers, block: &mut [u8]) {
    half::write(block, row.scale, numbers.scale);
    if let Some(place) = row.minimum {
        half::write(block, place, numbers.minimum);
        return pack_affine(
            row,
            &[numbers.scales.map(|number| number as u8), numbers.minima.map(|number| number as u8)],
            block,
        );
    }
    for (part, &number) in numbers.scales.iter().enumerate() {
        if row.bits == 3 {
            pack_of_three(part, (number + 32) as u8, block);
        } else {
            block[192 + part] = number as u8;
        }
    }
}

pub(super) fn numbers(row: &BlockType, block: &[u8]) -> Numbers {
    let (mut scales, mut minima) = ([0; MOST_PARTS], [0; MOST_PARTS]);
    for part in 0..MOST_PARTS {
        let (number, minimum) = match row.bits {
            2 => (i32::from(block[part] & 15), block[part] >> 4),
            3 => {
                let bytes = &block[96..108];
                let (low, high) =
                    (bytes[part % 8] >> (part / 8 * 4) & 15, bytes[part % 4 + 8] >> (part / 4 * 2) & 3);
                (i32::from(low | high << 4) - 32, 0)
            }
            6 => (i32::from(block[192 + part] as i8), 0),
            _ => {
                let (bytes, at) = (&block[4..16], part % 4);
                let shared = bytes[at + 8];
                match part {
                    0..4 => (i32::from(bytes[at] & 63), bytes[at + 4] & 63),
                    4..8 => {
                        (i32::from(shared & 15 | bytes[at] >> 6 << 4), shared >> 4 | bytes[at + 4] >> 6 << 4)
                    }
                    _ => (0, 0),
                }
            }
        };
        (scales[part], minima[part]) = (number, i32::from(minimum));
    }
    let minimum = row.minimum.map_or(0.0, |at| half::read(block, at));
    Numbers { scale: half::read(block, row.scale), minimum, scales, minima }
}

pub(super) fn parts(row: &BlockType, block: &[u8]) -> Parts {
    let numbers = numbers(row, block);
    let offset = if row.minimum.is_none() { 1 << (row.bits - 1) } else { 0 };
    Parts {
        scales: numbers.scales.map(|number| numbers.scale * number as f32),
        minima: numbers.minima.map(|number| numbers.minimum * number as f32),
        length: part_length(row),
        offset,
    }
}
