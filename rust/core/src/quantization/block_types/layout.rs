//! Where scales and codes are in a block, and what makes them.

use std::ops::Range;

use super::search::{Affine, Symmetric};

/// The most elements of a block.
pub(super) const MOST_ELEMENTS: usize = 256;
/// The most bytes of a block.
pub(super) const MOST_BYTES: usize = 210;
/// The most parts of a block, each of which has a scale.
pub(super) const MOST_PARTS: usize = 16;

/// No type has codes and scales for this magnitude, and sums of products may overflow, so that searches find zeros.
pub(super) const MOST_MAGNITUDE: f32 = 68_719_476_736.0;

/// Some bits of the codes of a block: code `i` has them in byte `distance * (i / (distance * n)) + i % distance`, at bit
/// `width * (i / distance % n)`, where `n` codes share a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// The first byte.
    pub(super) offset: usize,
    /// Bits of each code.
    pub(super) width: usize,
    pub(super) distance: usize,
    /// The lowest of these bits in a code.
    pub(super) shift: usize,
}

impl Field {
    /// Calls a function with runs of codes, and the bytes and the bit where they have their bits.
    #[inline(always)]
    pub(super) fn runs(&self, codes: usize, mut run: impl FnMut(Range<usize>, Range<usize>, usize)) {
        let shared = 8 / self.width;
        for (index, begin) in (0..codes).step_by(self.distance).enumerate() {
            let byte = self.offset + index / shared * self.distance;
            run(begin..begin + self.distance, byte..byte + self.distance, self.width * (index % shared));
        }
    }
}

/// How scales and codes of a block follow from its elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
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
    pub scale: usize,
    /// Where the minimum of a block is, or the scale of minima.
    pub(super) minimum: Option<usize>,
    pub(super) codes: &'static [Field],
    pub(super) rule: Rule,
}

/// The scales and minima of the parts of a block: an element is `scale * (code - offset) - minimum`.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) scales: [f32; MOST_PARTS],
    pub(super) minima: [f32; MOST_PARTS],
    /// Elements of a part.
    pub(super) length: usize,
    pub(super) offset: i32,
}
