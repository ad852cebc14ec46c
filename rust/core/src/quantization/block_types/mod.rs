//! Blocks of bytes that hold scales and codes, as llama.cpp stores them: the table of those that are written.
//!
//! Blocks are what the reference functions of llama.cpp make, without an importance matrix and with one, bit for bit: each
//! operation is rounded to float32, in their order. Blocks of 32 have a scale, and some a minimum. Those of 256 (K-quants)
//! have a scale of scales, and for each 8 or 16 parts of a block a search over candidates (`search`).

mod best;
mod half;
mod layout;
mod search;
mod small;
mod super_blocks;
mod weights;

use crate::cpu::DefaultEnvironment;
use crate::error::Error;
pub use layout::BlockType;
use layout::{Field, MOST_BYTES, MOST_ELEMENTS, MOST_MAGNITUDE, Parts, Rule};
use search::{Affine, Symmetric};

const fn field(offset: usize, width: usize, distance: usize, shift: usize) -> Field {
    Field { offset, width, distance, shift }
}

const Q2: Affine = Affine { bits: 2, length: 16, first: -0.5, delta: 0.1, steps: 15, is_absolute: true };
const Q3: Symmetric = Symmetric { half: 4.0, length: 16, refines: true };
const Q4: Affine = Affine { bits: 4, length: 32, first: -1.0, delta: 0.1, steps: 20, is_absolute: false };
const Q5: Affine = Affine { bits: 5, length: 32, first: -0.5, delta: 0.1, steps: 15, is_absolute: false };
const Q6: Symmetric = Symmetric { half: 32.0, length: 16, refines: false };

/// The table.
#[rustfmt::skip]
pub static BLOCK_TYPES: &[BlockType] = &[
    BlockType { name: "Q4_0", elements: 32, bytes: 18, bits: 4, scale: 0, minimum: None, rule: Rule::Extreme, codes: &[field(2, 4, 16, 0)] },
    BlockType { name: "Q4_1", elements: 32, bytes: 20, bits: 4, scale: 0, minimum: Some(2), rule: Rule::Range, codes: &[field(4, 4, 16, 0)] },
    BlockType { name: "Q5_0", elements: 32, bytes: 22, bits: 5, scale: 0, minimum: None, rule: Rule::Extreme, codes: &[field(6, 4, 16, 0), field(2, 1, 1, 4)] },
    BlockType { name: "Q5_1", elements: 32, bytes: 24, bits: 5, scale: 0, minimum: Some(2), rule: Rule::Range, codes: &[field(8, 4, 16, 0), field(4, 1, 1, 4)] },
    BlockType { name: "Q8_0", elements: 32, bytes: 34, bits: 8, scale: 0, minimum: None, rule: Rule::Magnitude, codes: &[field(2, 8, 32, 0)] },
    BlockType { name: "Q2_K", elements: 256, bytes: 84, bits: 2, scale: 80, minimum: Some(82), rule: Rule::Affine(Q2), codes: &[field(16, 2, 32, 0)] },
    BlockType { name: "Q3_K", elements: 256, bytes: 110, bits: 3, scale: 108, minimum: None, rule: Rule::Symmetric(Q3), codes: &[field(32, 2, 32, 0), field(0, 1, 32, 2)] },
    BlockType { name: "Q4_K", elements: 256, bytes: 144, bits: 4, scale: 0, minimum: Some(2), rule: Rule::Affine(Q4), codes: &[field(16, 4, 32, 0)] },
    BlockType { name: "Q5_K", elements: 256, bytes: 176, bits: 5, scale: 0, minimum: Some(2), rule: Rule::Affine(Q5), codes: &[field(48, 4, 32, 0), field(16, 1, 32, 4)] },
    BlockType { name: "Q6_K", elements: 256, bytes: 210, bits: 6, scale: 208, minimum: None, rule: Rule::Symmetric(Q6), codes: &[field(0, 4, 64, 0), field(128, 2, 32, 4)] },
];

/// Blocks that are encoded before their bytes are copied.
const BATCH: usize = 8;

/// Returns the row of a name.
///
/// # Errors
/// [`Error::UnknownOption`] listing all names.
pub fn find_block_type(name: &str) -> Result<&'static BlockType, Error> {
    BLOCK_TYPES.iter().find(|row| row.name == name).ok_or_else(|| Error::UnknownOption {
        argument: "type",
        value: format!("{name:?}"),
        valid: BLOCK_TYPES.iter().map(|row| row.name).collect(),
    })
}

/// Quantizes `count` blocks of rows; returns the first block whose scale or minimum no float16 holds, or which has NaN or an
/// element above `MOST_MAGNITUDE`.
///
/// Errors of elements are weighted by their importance, that of a row; blocks are those of llama.cpp, or the best ones.
///
/// # Safety
/// `elements` can be read for so many blocks, `blocks` written, and they do not overlap.
///
/// # Panics
/// The rows are no whole blocks, or not whole themselves.
pub unsafe fn encode_block_type(
    row: &BlockType,
    elements: *const f32,
    blocks: *mut u8,
    count: usize,
    request: &BlockRequest<'_>,
) -> Option<usize> {
    DefaultEnvironment::compute((elements, blocks), |(elements, blocks)| {
        // SAFETY: the caller's promise.
        unsafe {
            if request.is_best || request.importance.is_some() && !matches!(row.rule, Rule::Magnitude) {
                return encode_rows(row, elements, blocks, count, request);
            }
            match row.rule {
                Rule::Extreme => encode_blocks(row, elements, blocks, count, small::encode_by_extreme),
                Rule::Range => encode_blocks(row, elements, blocks, count, small::encode_by_range),
                Rule::Magnitude => encode_blocks(row, elements, blocks, count, small::encode_by_magnitude),
                _ => encode_blocks(row, elements, blocks, count, encode_super_block),
            }
        }
    })
}

/// How blocks are chosen.
#[derive(Clone, Copy, Debug)]
pub struct BlockRequest<'a> {
    /// Elements of a row.
    pub columns: usize,
    /// Of each element of a row.
    pub importance: Option<&'a [f32]>,
    /// Scales are searched for those of least squared error.
    pub is_best: bool,
}

/// Quantizes rows whose elements have an importance, or whose blocks are the best ones.
///
/// # Safety
/// As for [`encode_block_type`].
unsafe fn encode_rows(
    row: &BlockType,
    elements: *const f32,
    blocks: *mut u8,
    count: usize,
    request: &BlockRequest<'_>,
) -> Option<usize> {
    let columns = request.columns;
    let ones = if request.importance.is_none() { vec![1f32; columns] } else { Vec::new() };
    let usual = request.importance.and_then(weights::brought_to_usual);
    let importance = usual.as_deref().or(request.importance).unwrap_or(&ones);
    let blocks_of_row = (columns / row.elements).max(1);
    assert!(columns.is_multiple_of(row.elements) && importance.len() == columns, "rows are of whole blocks");
    assert!(count.is_multiple_of(blocks_of_row), "there are whole rows");
    let (mut x, mut bytes) = (vec![0f32; columns], [0u8; BATCH * MOST_BYTES]);
    let mut overflow = None;
    for begin in (0..count).step_by(blocks_of_row) {
        // SAFETY: the caller's promise, of the blocks of this row; the local ones are as long.
        unsafe {
            let source = elements.add(begin * row.elements).cast::<u8>();
            source.copy_to_nonoverlapping(x.as_mut_ptr().cast(), columns * 4);
        }
        let square = weights::mean_square(&x);
        for first in (0..blocks_of_row).step_by(BATCH) {
            let bytes = &mut bytes[..BATCH.min(blocks_of_row - first) * row.bytes];
            let run = first * row.elements..(first * row.elements + bytes.len() / row.bytes * row.elements);
            let (tiles, numbers) = (&x[run.clone()], &importance[run]);
            if request.is_best {
                encode_best(row, tiles, numbers, request.importance.map(|_| square), bytes);
            } else {
                encode_weighted(row, tiles, numbers, Some(square), bytes);
            }
            for (index, block) in bytes.chunks_exact(row.bytes).enumerate() {
                let tile = &tiles[index * row.elements..(index + 1) * row.elements];
                if overflow.is_none() && !is_held(row, tile, block) {
                    overflow = Some(begin + first + index);
                }
            }
            // SAFETY: as above.
            unsafe {
                let target = blocks.add((begin + first) * row.bytes);
                bytes.as_ptr().copy_to_nonoverlapping(target, bytes.len());
            }
        }
    }
    overflow
}

/// Encodes up to eight blocks of a row whose elements have an importance; without `square`, that of the row, magnitudes do
/// not weight errors.
fn encode_weighted(row: &BlockType, x: &[f32], importance: &[f32], square: Option<f32>, blocks: &mut [u8]) {
    if row.elements == small::ELEMENTS {
        return small::encode_weighted(row, x, importance, square, blocks);
    }
    let tiles = x.as_chunks::<MOST_ELEMENTS>().0.iter().zip(importance.chunks_exact(MOST_ELEMENTS));
    for ((x, importance), block) in tiles.zip(blocks.chunks_exact_mut(row.bytes)) {
        encode_block(row, block, |codes, block| {
            super_blocks::encode_weighted(row, x, importance, square.is_some(), codes, block);
        });
    }
}

/// Encodes up to eight blocks of a row by the best of what llama.cpp makes, and what is better than that. With `square`, that
/// of the row, elements have an importance.
fn encode_best(row: &BlockType, x: &[f32], importance: &[f32], square: Option<f32>, blocks: &mut [u8]) {
    let mut found: [best::Best; BATCH] = std::array::from_fn(|_| best::Best::new());
    let mut plain = [0u8; BATCH * MOST_BYTES];
    let plain = &mut plain[..blocks.len()];
    let count = blocks.len() / row.bytes;
    let starts = if let Rule::Magnitude = row.rule { 1 } else { 3 };
    for start in 0..starts {
        match start {
            0 => {
                encode_plain(row, x, blocks);
                plain.copy_from_slice(blocks);
            }
            1 if square.is_some() => encode_weighted(row, x, importance, square, blocks),
            1 => continue,
            _ => encode_weighted(row, x, importance, None, blocks),
        }
        for (index, block) in blocks.chunks_exact(row.bytes).enumerate() {
            let run = index * row.elements..(index + 1) * row.elements;
            found[index].offer(row, &x[run.clone()], &importance[run], block);
        }
    }
    if row.elements == small::ELEMENTS {
        best::improve_small(row, x, importance, &mut found[..count]);
    } else {
        let tiles = x.as_chunks::<MOST_ELEMENTS>().0.iter().zip(importance.chunks_exact(MOST_ELEMENTS));
        for ((x, importance), best) in tiles.zip(&mut found) {
            best::improve_super_block(row, x, importance, best);
        }
    }
    let elements = x.chunks_exact(row.elements);
    let plain = plain.chunks_exact(row.bytes);
    for (((block, best), x), plain) in blocks.chunks_exact_mut(row.bytes).zip(&found).zip(elements).zip(plain)
    {
        // What llama.cpp's scales cannot hold is refused by them: other scales would limit the largest elements.
        block.copy_from_slice(if is_held(row, x, plain) { best.block(row) } else { plain });
    }
}

/// Encodes blocks as llama.cpp does without importance.
fn encode_plain(row: &BlockType, x: &[f32], blocks: &mut [u8]) {
    for (x, block) in x.chunks_exact(row.elements).zip(blocks.chunks_exact_mut(row.bytes)) {
        match (row.rule, x.try_into(), x.try_into()) {
            (Rule::Extreme, Ok(x), _) => small::encode_by_extreme(row, x, block),
            (Rule::Range, Ok(x), _) => small::encode_by_range(row, x, block),
            (Rule::Magnitude, Ok(x), _) => small::encode_by_magnitude(row, x, block),
            (_, _, Ok(x)) => encode_super_block(row, x, block),
            _ => unreachable!("a chunk is a block"),
        }
    }
}

/// Returns false for a block whose scale or minimum no float16 holds, or with NaN or an element above `MOST_MAGNITUDE`.
#[inline(always)]
fn is_held(row: &BlockType, elements: &[f32], block: &[u8]) -> bool {
    // Scales do not show NaN, nor those of 256 elements all magnitudes. (Without a branch for each element.)
    half::is_finite(block, row.scale)
        && row.minimum.is_none_or(|place| half::is_finite(block, place))
        && elements.iter().fold(true, |is_held, element| is_held & (element.abs() <= MOST_MAGNITUDE))
}

/// Quantizes blocks by a function.
///
/// # Safety
/// As for [`encode_block_type`].
#[inline(always)]
unsafe fn encode_blocks<const N: usize>(
    row: &BlockType,
    elements: *const f32,
    blocks: *mut u8,
    count: usize,
    encode: impl Fn(&BlockType, &[f32; N], &mut [u8]),
) -> Option<usize> {
    assert_eq!(N, row.elements, "the function encodes blocks of this type");
    // Bytes are copied some blocks later: to read what was just stored with another width has to wait for it.
    let mut bytes = [0u8; BATCH * MOST_BYTES];
    let mut overflow = None;
    for first in (0..count).step_by(BATCH) {
        let bytes = &mut bytes[..BATCH.min(count - first) * row.bytes];
        for (index, block) in bytes.chunks_exact_mut(row.bytes).enumerate() {
            // SAFETY: the caller's promise, of the block of this index.
            let tile = unsafe { elements.cast::<[f32; N]>().add(first + index).read_unaligned() };
            encode(row, &tile, block);
            if overflow.is_none() && !is_held(row, &tile, block) {
                overflow = Some(first + index);
            }
        }
        // SAFETY: as above; the local ones are as long.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(blocks.add(first * row.bytes), bytes.len()) };
    }
    overflow
}

/// Decodes `count` blocks, as llama.cpp does.
///
/// # Safety
/// `blocks` can be read for so many blocks, `elements` written, and they do not overlap.
pub unsafe fn decode_block_type(row: &BlockType, blocks: *const u8, elements: *mut f32, count: usize) {
    DefaultEnvironment::compute((blocks, elements), |(blocks, elements)| {
        let (mut tile, mut bytes) = ([0f32; MOST_ELEMENTS], [0u8; MOST_BYTES]);
        let (tile, bytes) = (&mut tile[..row.elements], &mut bytes[..row.bytes]);
        for index in 0..count {
            // SAFETY: the caller's promise, of the block of this index; the local ones are as long.
            unsafe {
                let source = blocks.add(index * row.bytes);
                source.copy_to_nonoverlapping(bytes.as_mut_ptr(), row.bytes);
            }
            decode_block(row, bytes, tile);
            // SAFETY: as above.
            unsafe {
                let target = elements.add(index * row.elements).cast::<u8>();
                target.copy_from_nonoverlapping(tile.as_ptr().cast(), size_of_val(tile));
            }
        }
    });
}

fn encode_super_block(row: &BlockType, elements: &[f32; MOST_ELEMENTS], block: &mut [u8]) {
    encode_block(row, block, |codes, block| super_blocks::encode(row, elements, codes, block));
}

/// Encodes a block by a function that makes codes, and stores the scales of parts.
fn encode_block(row: &BlockType, block: &mut [u8], encode: impl FnOnce(&mut [u8; MOST_ELEMENTS], &mut [u8])) {
    let mut codes = [0; MOST_ELEMENTS];
    block.fill(0);
    encode(&mut codes, block);
    pack_codes(row, &codes, block);
}

/// Stores the codes of a block, which has zeros in their place.
fn pack_codes(row: &BlockType, codes: &[u8; MOST_ELEMENTS], block: &mut [u8]) {
    for part in row.codes {
        let mask = u8::MAX >> (8 - part.width);
        part.runs(codes.len(), |codes_of_run, bytes, bit| {
            for (byte, code) in block[bytes].iter_mut().zip(&codes[codes_of_run]) {
                *byte |= (code >> part.shift & mask) << bit;
            }
        });
    }
}

fn decode_block(row: &BlockType, block: &[u8], elements: &mut [f32]) {
    let mut codes = [0u8; MOST_ELEMENTS];
    for part in row.codes {
        let mask = u8::MAX >> (8 - part.width);
        part.runs(row.elements, |codes_of_run, bytes, bit| {
            for (code, byte) in codes[codes_of_run].iter_mut().zip(&block[bytes]) {
                *code |= (byte >> bit & mask) << part.shift;
            }
        });
    }
    let parts = parts(row, block);
    let runs = elements.chunks_exact_mut(parts.length).zip(codes.chunks_exact(parts.length));
    for (part, (elements, codes)) in runs.enumerate() {
        let (scale, minimum) = (parts.scales[part], parts.minima[part]);
        for (element, &code) in elements.iter_mut().zip(codes) {
            let code = if row.bits == 8 { i32::from(code as i8) } else { i32::from(code) - parts.offset };
            *element = scale * code as f32 - minimum;
        }
    }
}

/// Returns the scales and minima of a block.
fn parts(row: &BlockType, block: &[u8]) -> Parts {
    match row.rule {
        Rule::Extreme | Rule::Magnitude | Rule::Range => small::parts(row, block),
        Rule::Affine(_) | Rule::Symmetric(_) => super_blocks::parts(row, block),
    }
}
