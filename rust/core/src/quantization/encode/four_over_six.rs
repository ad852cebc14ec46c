//! The better one of two scales of NVFP4 for each block.

use super::amaxes::BlockAmaxes;
use super::codes::{Codes, Operands, Values};
use super::operands::FourOverSix;
use super::scales::Scales;
use super::source::{Elements, Source};
use crate::codec::reference::worth;
use crate::quantization::arithmetic::{PIECE, Piece};
use crate::quantization::real::Real;
use crate::quantization::rounded::single;
use crate::quantization::scaled::Float;
use crate::quantization::steps::BlockScales;
use crate::quantization::work::{Columns, Place};

/// What blocks have with one of the scales, and the errors of their elements.
struct Candidate<T> {
    errors: Vec<f64>,
    scale: Vec<T>,
    factors: Vec<T>,
    reciprocals: Vec<f32>,
}

/// Chooses scales by the errors of elements.
pub(super) struct Comparison<'a, T> {
    pub(super) source: &'a Source<T>,
    pub(super) scales: &'a Scales<T>,
    pub(super) codes: &'a Codes<T>,
    pub(super) error: FourOverSix,
    /// Columns of a block.
    pub(super) width: usize,
}

impl<T: Real> Comparison<'_, T> {
    /// Finds two scales for each block of a band, with which its largest magnitude becomes 6 or 4, and takes the one with the
    /// smaller error, of two alike that of 6.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn choose(
        &self,
        place: Place,
        columns: Columns,
        elements: &mut Elements<T>,
        amaxes: &BlockAmaxes<T>,
        blocks: &mut BlockScales<T>,
    ) {
        let mut try_scale = |stretch, blocks: &mut BlockScales<T>| {
            self.scales.find(place.matrix, stretch, amaxes, blocks);
            self.scales.find_factors(place.matrix, amaxes, blocks);
            // SAFETY: the caller's promise.
            let errors = unsafe { self.errors(place, columns, elements, blocks) };
            let BlockScales { scale, factors, reciprocals, .. } = &*blocks;
            Candidate {
                errors,
                scale: scale.clone(),
                factors: factors.clone(),
                reciprocals: reciprocals.clone(),
            }
        };
        let [to_six, to_four] = [1.0, 1.5].map(|stretch| try_scale(stretch, blocks));
        let BlockScales { scale, factors, reciprocals, bytes, .. } = blocks;
        for block in 0..scale.len() {
            let better = if to_four.errors[block] < to_six.errors[block] { &to_four } else { &to_six };
            (scale[block], factors[block]) = (better.scale[block], better.factors[block]);
            if let (Some(place), Some(&reciprocal)) =
                (reciprocals.get_mut(block), better.reciprocals.get(block))
            {
                *place = reciprocal;
            }
        }
        self.scales.stored.round(scale, bytes);
    }

    /// Returns the error of each block under its scale.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn errors(
        &self,
        place: Place,
        columns: Columns,
        elements: &mut Elements<T>,
        blocks: &BlockScales<T>,
    ) -> Vec<f64> {
        let (mut room, mut codes) = (Box::<Piece<T>>::default(), Box::<Piece<u8>>::default());
        let divides = self.scales.recipe.steps.properties.divides_by_global;
        let global = self.scales.global.get(place.matrix).map_or(1.0, |global| global.to_f64());
        let spec = self.codes.element.float().unwrap_or_else(single);
        let of_codes: [f64; 16] = std::array::from_fn(|code| worth(&spec, code as u64));
        let mut errors = vec![0f64; blocks.scale.len()];
        let first = columns.start / self.width;
        let Elements { stored, values } = elements;
        for row in place.row..place.row + place.rows {
            for columns in columns.groups(PIECE) {
                let (in_blocks, places) = columns.in_blocks(self.width, first);
                let codes = &mut codes.0[..columns.count];
                let room = room.0.as_mut_ptr();
                let to = Values { first: values.0.as_mut_ptr(), float: Float::F32 };
                // SAFETY: the caller's promise; all buffers have room for a piece.
                let from = unsafe {
                    let area = self.source.load(Place { row, rows: 1, ..place }, columns, stored, room);
                    let operands =
                        Operands { area: area.cast(), float: Float::F32, blocks: in_blocks, places };
                    self.codes.quotients(&operands, to, blocks);
                    let values = Values { first: to.first.cast_const(), float: to.float };
                    self.codes.round(0, values, (codes.as_mut_ptr(), codes.len()));
                    area.first
                };
                for (index, code) in codes.iter().enumerate() {
                    let block = (columns.start + index) / self.width - first;
                    let scale = blocks.scale[block].to_f64();
                    let scale = if divides { scale / global } else { scale * global };
                    // SAFETY: as above.
                    let value = unsafe { from.add(index).read_unaligned() }.to_f64();
                    let off = (value - of_codes[usize::from(code & 15)] * scale).abs();
                    errors[block] = match self.error {
                        FourOverSix::Squares => errors[block] + off * off,
                        FourOverSix::Magnitudes => errors[block] + off,
                        FourOverSix::Largest => errors[block].max(off),
                    };
                }
            }
        }
        errors
    }
}
