//! Scales and codes of bf16 without arithmetic but for that of the tables, where these have all that a band needs.
//!
//! * `scale_tables`: of E2M1, a table for each stored scale; `block_tables`: of E4M3, one for each large block.
//! * `whole_quotients`: integers, by quotients as they are rounded to them. `trials`: the arithmetic that tables are made by.

mod block_tables;
mod scale_tables;
mod trials;
mod whole_quotients;

use self::block_tables::BlockTables;
use self::scale_tables::ScaleTables;
pub(super) use self::trials::Reference;
use self::trials::Trials;
use self::whole_quotients::{WholeQuotients, whole_quotients};
use super::codes::Operands;
use super::source::Source;
use crate::cpu::Level;
use crate::kernels::tables::e2m1_codes::{Form, ToE2m1, fits_e2m1, to_e2m1};
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece};
use crate::quantization::element::names::{E2M1, E4M3};
use crate::quantization::real::Real;
use crate::quantization::recipe::{Family, Ties};
use crate::quantization::scaled::Float;
use crate::quantization::steps::BlockScales;

/// What codes of bf16 are found by, in place of quotients that are rounded twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Tables of the stored scales, to E2M1.
    OfScales,
    /// A table for each block, to E4M3.
    OfBlocks,
    /// Quotients of two bf16 as they are rounded to integers.
    Integers,
}

/// Finds codes of bf16.
#[derive(Clone, Copy)]
pub(super) struct ByTables {
    way: Way,
    level: Level,
}

/// The tables of a thread.
#[derive(Default)]
pub(super) struct TableBuffers<T: Real> {
    /// Those of all stored scales that were made last, and whether they are those of the item in work.
    scales: Option<Box<ScaleTables>>,
    is_of_item: bool,
    /// Whether they have the codes of all blocks of the band.
    has_band: bool,
    blocks: BlockTables,
    trials: Trials<T>,
}

impl<T: Real> TableBuffers<T> {
    /// Whether there are tables of stored scales for the item in work.
    pub(super) fn has_item(&self) -> bool {
        self.is_of_item
    }

    /// Finds the stored scales of a band, of the largest magnitudes of its blocks as bf16.
    pub(super) fn find_scales(
        &mut self,
        reference: Reference<'_, T>,
        matrix: usize,
        shorts: &[u16],
        stored: &mut Vec<u8>,
    ) {
        let TableBuffers { scales, blocks, trials, .. } = self;
        stored.clear();
        stored.resize(shorts.len(), 0);
        if reference.scales.recipe.steps.properties.powers {
            scale_tables::find_powers(reference.scales, shorts, stored);
        } else {
            let table = scales.as_ref().and_then(|tables| tables.of_amaxes);
            scale_tables::find_e4m3(
                reference.scales,
                matrix,
                table,
                shorts,
                stored,
                (&mut blocks.left, trials),
            );
        }
    }

    /// Finds out whether tables have the codes of all blocks of a band, given the largest of their magnitudes, all of these,
    /// and their stored scales; without magnitudes they have none.
    pub(super) fn find_band(&mut self, level: Level, known: Option<(u16, &[u16])>, stored: &[u8]) -> bool {
        self.has_band = match (known, &self.scales) {
            (Some((most, shorts)), Some(tables)) => tables.have_all::<T>(level, most, shorts, stored),
            _ => false,
        };
        self.has_band
    }
}

impl ByTables {
    /// Returns the way for an encoding, given the columns of a block, if there is one.
    pub(super) fn new<T: Real>(
        source: &Source<T>,
        reference: Reference<'_, T>,
        width: usize,
    ) -> Option<Self> {
        let Reference { scales, codes } = reference;
        let plain = source.is_bf16()
            && codes.shift.is_none()
            && codes.map.is_none()
            && !codes.allows_nan
            && scales.is_usual;
        let way = match (codes.element.name(), scales.recipe.family) {
            _ if !plain => None,
            (E2M1, family @ (Family::Mx | Family::TwoLevel)) => {
                // The largest scale is that of the format, so larger elements have the largest code.
                let is_bounded = match family {
                    Family::TwoLevel => scales.stored.format.name() == E4M3,
                    _ => scales.numbers.has_powers,
                };
                let has_tables = is_bounded
                    && matches!(codes.ties, Ties::Even | Ties::TowardsZero)
                    && codes.offset == 0
                    && fits_e2m1(codes.level, width)
                    && PIECE.is_multiple_of(width);
                has_tables.then_some(Way::OfScales)
            }
            (E4M3, _) if codes.quotient.is_none() || codes.float == Float::Bf16 => Some(Way::OfBlocks),
            _ => {
                let is_whole = codes.float == Float::Bf16 && codes.limits.is_some() && !codes.multiplies;
                (is_whole && codes.rounds_to_even()).then_some(Way::Integers)
            }
        };
        way.map(|way| Self { way, level: codes.level })
    }

    /// Whether stored scales have tables: all that bands need is the largest magnitudes of blocks as bf16.
    pub(super) fn is_of_scales(self) -> bool {
        self.way == Way::OfScales
    }

    /// Begins an item of so many elements: makes the tables of all stored scales, if it is worth it.
    pub(super) fn begin_item<T: Real>(
        self,
        reference: Reference<'_, T>,
        matrix: usize,
        elements: usize,
        buffers: &mut TableBuffers<T>,
        room: &mut Piece<T>,
    ) {
        let TableBuffers { scales, is_of_item, trials, .. } = buffers;
        *is_of_item = self.way == Way::OfScales
            && scale_tables::prepare(reference, matrix, elements, scales, (trials, room));
    }

    /// Makes tables for the blocks of a band, of so many elements each, given their factors.
    pub(super) fn find_block_tables<T: Real>(
        self,
        reference: Reference<'_, T>,
        elements: usize,
        factors: &[T],
        buffers: &mut TableBuffers<T>,
        room: &mut Piece<T>,
    ) {
        let factors = if self.way == Way::OfBlocks { factors } else { &[] };
        buffers.blocks.fill(reference, elements, factors, (&mut buffers.trials, room));
    }

    /// Whether the codes of a piece may be stored in this form at once.
    pub(super) fn has_form<T: Real>(
        self,
        reference: Reference<'_, T>,
        form: Form,
        operands: &Operands,
    ) -> bool {
        let Blocks { width, begun } = operands.blocks;
        // The code of a zero, which would fill up an odd row, may be another nibble than 0.
        let has_pairs = [width, begun, operands.area.columns].iter().all(|count| count.is_multiple_of(2));
        match self.way {
            Way::OfScales => true,
            // The least integer is nibble 0.
            Way::Integers if form != Form::Bytes => {
                let codes = reference.codes;
                let least = codes.limits.map(|limits| limits.low.to_f64() as i32 + codes.offset);
                has_pairs && least.is_some_and(|least| least % 16 == 0)
            }
            _ => form == Form::Bytes,
        }
    }

    /// Finds the codes of a piece, without gaps from row to row, and returns whether it did.
    ///
    /// # Safety
    /// The elements are readable, and their codes writable in the form, which [`has_form`](Self::has_form) allows; so is the
    /// room, which has a piece, apart from them.
    pub(super) unsafe fn find_codes<T: Real>(
        self,
        reference: Reference<'_, T>,
        operands: &Operands,
        (to, form): (*mut u8, Form),
        scales: &BlockScales<T>,
        buffers: &mut TableBuffers<T>,
        room: *mut T,
    ) -> bool {
        let Operands { area, blocks, ref places, .. } = *operands;
        let (Area { rows, columns, .. }, Blocks { width, .. }) = (area, blocks);
        let codes = reference.codes;
        let pitch = form.bytes(columns);
        // SAFETY: the caller's promise.
        unsafe {
            match (self.way, &buffers.scales) {
                (Way::OfScales, Some(tables)) if buffers.has_band => {
                    for row in 0..rows {
                        let (from, to) = (area.row(row), to.add(row * pitch));
                        let (scales, tables) = (scales.bytes[places.clone()].as_ptr(), &tables.of_codes);
                        let piece = ToE2m1 { from, to, count: columns, width, scales, tables, form };
                        to_e2m1(self.level, piece, codes.ties == Ties::Even);
                    }
                    true
                }
                (Way::OfBlocks, _) if !buffers.blocks.is_empty() => {
                    buffers.blocks.find_codes(codes, operands, to, scales, room)
                }
                (Way::Integers, _) => {
                    let (Some(limits), Some(factors)) =
                        (codes.limits, T::f32s(&scales.factors[places.clone()]))
                    else {
                        return false;
                    };
                    let limits = (limits.low.to_f64() as i16, limits.high.to_f64() as i16);
                    let (reciprocals, added) = (&scales.reciprocals[places.clone()], codes.offset as u8);
                    let to = (to, pitch, form);
                    let quotients = WholeQuotients { area, to, blocks, factors, reciprocals, limits, added };
                    whole_quotients(self.level, quotients)
                }
                _ => false,
            }
        }
    }
}
