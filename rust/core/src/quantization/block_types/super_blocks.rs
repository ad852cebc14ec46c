//! Blocks of 256 elements: a scale of scales, which have few bits, and likewise of minima.

use super::half;
use super::layout::{BlockType, MOST_PARTS, Parts, Rule};
use super::search::{Columns, LANES, LEAST, Symmetric, nearest};

pub(super) fn encode(row: &BlockType, elements: &[f32], codes: &mut [u8], block: &mut [u8]) {
    let length = part_length(row);
    let (mut scales, mut minima) = ([0.0; MOST_PARTS], [0.0; MOST_PARTS]);
    let runs = elements.chunks_exact(length * LANES).zip(codes.chunks_exact_mut(length * LANES));
    for (index, (elements, codes)) in runs.enumerate() {
        let mut columns: Columns = [[0.0; LANES]; 32];
        for (lane, part) in elements.chunks_exact(length).enumerate() {
            columns.iter_mut().zip(part).for_each(|(column, &element)| column[lane] = element);
        }
        let found = match row.rule {
            Rule::Affine(rule) => rule.search(&columns),
            Rule::Symmetric(rule) => rule.search(&columns),
            _ => unreachable!("blocks without parts have another rule"),
        };
        let at = index * LANES;
        scales[at..at + LANES].copy_from_slice(&found.scales);
        minima[at..at + LANES].copy_from_slice(&found.minima);
        for (lane, part) in codes.chunks_exact_mut(length).enumerate() {
            part.iter_mut().zip(&found.codes).for_each(|(code, column)| *code = column[lane] as u8);
        }
    }
    let scales = &scales[..elements.len() / length];
    match row.rule {
        Rule::Affine(_) => store_affine(row, scales, &minima, block),
        _ if !store_symmetric(row, scales, block) => return codes.fill(0),
        _ => {}
    }
    encode_by_stored_scales(row, elements, codes, block);
}

fn part_length(row: &BlockType) -> usize {
    if let Rule::Affine(rule) = row.rule { rule.length } else { Symmetric::LENGTH }
}

/// Makes the codes of all parts whose stored scale is not zero.
fn encode_by_stored_scales(row: &BlockType, elements: &[f32], codes: &mut [u8], block: &[u8]) {
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
    let [scales, minima] = stored;
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
        let bytes = &mut block[96..108];
        bytes[part % 8] |= (stored & 15) << (part / 8 * 4);
        bytes[part % 4 + 8] |= (stored >> 4) << (part / 4 * 2);
    }
    true
}

pub(super) fn parts(row: &BlockType, block: &[u8]) -> Parts {
    let (mut scales, mut minima) = ([0.0; MOST_PARTS], [0.0; MOST_PARTS]);
    let scale = half::read(block, row.scale);
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
        scales[part] = scale * number as f32;
        minima[part] = row.minimum.map_or(0.0, |at| half::read(block, at) * f32::from(minimum));
    }
    let offset = if row.minimum.is_none() { 1 << (row.bits - 1) } else { 0 };
    Parts { scales, minima, length: part_length(row), offset }
}
