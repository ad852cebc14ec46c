//! Blocks of bytes that hold scales and codes, as llama.cpp stores them: the table of those that are written.
//!
//! Blocks are what the reference functions of llama.cpp make without an importance matrix, bit for bit: each operation is
//! rounded to float32, in their order. Blocks of 32 have a scale, and some a minimum. Those of 256 (K-quants) have a scale
//! of scales, and for each 8 or 16 parts of a block a search over candidates (`search`).

mod half;
mod search;
mod small;
mod super_blocks;

use std::ops::Range;

use crate::cpu::DefaultEnvironment;
use crate::error::Error;
use search::{Affine, Symmetric};

/// The most elements of a block.
const MOST_ELEMENTS: usize = 256;
/// The most bytes of a block.
const MOST_BYTES: usize = 210;
/// The most parts of a block, each of which has a scale.
const MOST_PARTS: usize = 16;

/// No type has codes and scales for this magnitude, and sums of products may overflow, so that searches find zeros.
const MOST_MAGNITUDE: f32 = 68_719_476_736.0;

/// Some bits of the codes of a block: code `i` has them in byte `distance * (i / (distance * n)) + i % distance`, at bit
/// `width * (i / distance % n)`, where `n` codes share a byte.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// The first byte.
    offset: usize,
    /// Bits of each code.
    width: usize,
    distance: usize,
    /// The lowest of these bits in a code.
    shift: usize,
}

impl Field {
    /// Calls a function with runs of codes, and the bytes and the bit where they have their bits.
    #[inline(always)]
    fn runs(&self, codes: usize, mut run: impl FnMut(Range<usize>, Range<usize>, usize)) {
        let shared = 8 / self.width;
        for (index, begin) in (0..codes).step_by(self.distance).enumerate() {
            let byte = self.offset + index / shared * self.distance;
            run(begin..begin + self.distance, byte..byte + self.distance, self.width * (index % shared));
        }
    }
}

/// How scales and codes of a block follow from its elements.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// Codes from 0 on, half of which are below zero; the largest magnitude becomes the code 0.
    Extreme,
    /// Codes of the largest magnitude and of its negative.
    Magnitude,
    /// Codes from the least element to the largest.
    Range,
    /// Parts with a scale and a minimum each.
    Affine(Affine),
    /// Parts with a scale each.
    Symmetric(Symmetric),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct BlockType {
    /// What llama.cpp calls it.
    pub name: &'static str,
    /// Elements of a block.
    pub elements: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Bits of a code.
    pub bits: u32,
    /// Where the scale of a block is, a float16.
    scale: usize,
    /// Where the minimum of a block is, or the scale of minima.
    minimum: Option<usize>,
    codes: &'static [Field],
    rule: Rule,
}

const fn field(offset: usize, width: usize, distance: usize, shift: usize) -> Field {
    Field { offset, width, distance, shift }
}

const Q2: Affine = Affine { bits: 2, length: 16, first: -0.5, steps: 15, is_absolute: true };
const Q4: Affine = Affine { bits: 4, length: 32, first: -1.0, steps: 20, is_absolute: false };
const Q5: Affine = Affine { bits: 5, length: 32, first: -0.5, steps: 15, is_absolute: false };

/// The table.
#[rustfmt::skip]
pub static BLOCK_TYPES: &[BlockType] = &[
    BlockType { name: "Q4_0", elements: 32, bytes: 18, bits: 4, scale: 0, minimum: None, rule: Rule::Extreme, codes: &[field(2, 4, 16, 0)] },
    BlockType { name: "Q4_1", elements: 32, bytes: 20, bits: 4, scale: 0, minimum: Some(2), rule: Rule::Range, codes: &[field(4, 4, 16, 0)] },
    BlockType { name: "Q5_0", elements: 32, bytes: 22, bits: 5, scale: 0, minimum: None, rule: Rule::Extreme, codes: &[field(6, 4, 16, 0), field(2, 1, 1, 4)] },
    BlockType { name: "Q5_1", elements: 32, bytes: 24, bits: 5, scale: 0, minimum: Some(2), rule: Rule::Range, codes: &[field(8, 4, 16, 0), field(4, 1, 1, 4)] },
    BlockType { name: "Q8_0", elements: 32, bytes: 34, bits: 8, scale: 0, minimum: None, rule: Rule::Magnitude, codes: &[field(2, 8, 32, 0)] },
    BlockType { name: "Q2_K", elements: 256, bytes: 84, bits: 2, scale: 80, minimum: Some(82), rule: Rule::Affine(Q2), codes: &[field(16, 2, 32, 0)] },
    BlockType { name: "Q3_K", elements: 256, bytes: 110, bits: 3, scale: 108, minimum: None, rule: Rule::Symmetric(Symmetric::Three), codes: &[field(32, 2, 32, 0), field(0, 1, 32, 2)] },
    BlockType { name: "Q4_K", elements: 256, bytes: 144, bits: 4, scale: 0, minimum: Some(2), rule: Rule::Affine(Q4), codes: &[field(16, 4, 32, 0)] },
    BlockType { name: "Q5_K", elements: 256, bytes: 176, bits: 5, scale: 0, minimum: Some(2), rule: Rule::Affine(Q5), codes: &[field(48, 4, 32, 0), field(16, 1, 32, 4)] },
    BlockType { name: "Q6_K", elements: 256, bytes: 210, bits: 6, scale: 208, minimum: None, rule: Rule::Symmetric(Symmetric::Six), codes: &[field(0, 4, 64, 0), field(128, 2, 32, 4)] },
];

/// The scales and minima of the parts of a block: an element is `scale * (code - offset) - minimum`.
#[derive(Debug)]
struct Parts {
    scales: [f32; MOST_PARTS],
    minima: [f32; MOST_PARTS],
    /// Elements of a part.
    length: usize,
    offset: i32,
}

impl BlockType {
    /// Returns the row of a name.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing all names.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        BLOCK_TYPES.iter().find(|row| row.name == name).ok_or_else(|| Error::UnknownOption {
            argument: "type",
            value: format!("{name:?}"),
            valid: BLOCK_TYPES.iter().map(|row| row.name).collect(),
        })
    }

    /// Quantizes `count` blocks of finite elements; returns the first block whose scale or minimum no float16 holds.
    ///
    /// # Safety
    /// `elements` can be read for so many blocks, `blocks` written, and they do not overlap.
    pub unsafe fn encode(&self, elements: *const f32, blocks: *mut u8, count: usize) -> Option<usize> {
        DefaultEnvironment::compute((elements, blocks), |(elements, blocks)| {
            let (mut tile, mut bytes) = ([0f32; MOST_ELEMENTS], [0u8; MOST_BYTES]);
            let (tile, bytes) = (&mut tile[..self.elements], &mut bytes[..self.bytes]);
            let mut overflow = None;
            for index in 0..count {
                // SAFETY: the caller's promise, of the block of this index; the local ones are as long.
                unsafe {
                    let source = elements.add(index * self.elements).cast::<u8>();
                    source.copy_to_nonoverlapping(tile.as_mut_ptr().cast(), size_of_val(tile));
                }
                self.encode_block(tile, bytes);
                // SAFETY: as above.
                unsafe { bytes.as_ptr().copy_to_nonoverlapping(blocks.add(index * self.bytes), self.bytes) };
                let halves = [self.scale, self.minimum.unwrap_or(self.scale)];
                let is_held = halves.iter().all(|&at| half::read(bytes, at).is_finite())
                    && tile.iter().all(|element| element.abs() <= MOST_MAGNITUDE);
                if overflow.is_none() && !is_held {
                    overflow = Some(index);
                }
            }
            overflow
        })
    }

    /// Decodes `count` blocks, as llama.cpp does.
    ///
    /// # Safety
    /// `blocks` can be read for so many blocks, `elements` written, and they do not overlap.
    pub unsafe fn decode(&self, blocks: *const u8, elements: *mut f32, count: usize) {
        DefaultEnvironment::compute((blocks, elements), |(blocks, elements)| {
            let (mut tile, mut bytes) = ([0f32; MOST_ELEMENTS], [0u8; MOST_BYTES]);
            let (tile, bytes) = (&mut tile[..self.elements], &mut bytes[..self.bytes]);
            for index in 0..count {
                // SAFETY: the caller's promise, of the block of this index; the local ones are as long.
                unsafe {
                    let source = blocks.add(index * self.bytes);
                    source.copy_to_nonoverlapping(bytes.as_mut_ptr(), self.bytes);
                };
                self.decode_block(bytes, tile);
                // SAFETY: as above.
                unsafe {
                    let target = elements.add(index * self.elements).cast::<u8>();
                    target.copy_from_nonoverlapping(tile.as_ptr().cast(), size_of_val(tile));
                }
            }
        });
    }

    fn encode_block(&self, elements: &[f32], block: &mut [u8]) {
        let mut codes = [0; MOST_ELEMENTS];
        let codes = &mut codes[..self.elements];
        block.fill(0);
        match self.rule {
            Rule::Extreme | Rule::Magnitude | Rule::Range => self.encode_small(elements, codes, block),
            Rule::Affine(_) | Rule::Symmetric(_) => self.encode_super_block(elements, codes, block),
        }
        for part in self.codes {
            let mask = u8::MAX >> (8 - part.width);
            if part.distance == 1 {
                let shared = codes.chunks_exact(8 / part.width);
                for (byte, codes) in block[part.offset..].iter_mut().zip(shared) {
                    let bits = codes.iter().rev().map(|code| code >> part.shift & mask);
                    *byte = bits.fold(0, |byte, bits| byte << part.width | bits);
                }
                continue;
            }
            part.runs(codes.len(), |codes_of_run, bytes, bit| {
                for (byte, code) in block[bytes].iter_mut().zip(&codes[codes_of_run]) {
                    *byte |= (code >> part.shift & mask) << bit;
                }
            });
        }
    }

    fn decode_block(&self, block: &[u8], elements: &mut [f32]) {
        let mut codes = [0u8; MOST_ELEMENTS];
        for part in self.codes {
            let mask = u8::MAX >> (8 - part.width);
            part.runs(self.elements, |codes_of_run, bytes, bit| {
                for (code, byte) in codes[codes_of_run].iter_mut().zip(&block[bytes]) {
                    *code |= (byte >> bit & mask) << part.shift;
                }
            });
        }
        let parts = self.parts(block);
        let runs = elements.chunks_exact_mut(parts.length).zip(codes.chunks_exact(parts.length));
        for (part, (elements, codes)) in runs.enumerate() {
            let (scale, minimum) = (parts.scales[part], parts.minima[part]);
            for (element, &code) in elements.iter_mut().zip(codes) {
                let code =
                    if self.bits == 8 { i32::from(code as i8) } else { i32::from(code) - parts.offset };
                *element = scale * code as f32 - minimum;
            }
        }
    }

    /// Returns the scales and minima of a block.
    fn parts(&self, block: &[u8]) -> Parts {
        match self.rule {
            Rule::Extreme | Rule::Magnitude | Rule::Range => self.small_parts(block),
            Rule::Affine(_) | Rule::Symmetric(_) => self.super_block_parts(block),
        }
    }
}
