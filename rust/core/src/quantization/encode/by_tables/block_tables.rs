//! Tables that find the codes of E4M3 of bf16, one for each large block.

use super::trials::{Parts, Reference, Trials, find_codes, parts};
use crate::codec::odd_bf16::MANTISSA;
use crate::kernels::tables::e4m3_codes::{Left, Lookup, ToE4m3, to_e4m3};
use crate::quantization::arithmetic::{Area, Blocks, Piece};
use crate::quantization::encode::codes::{Codes, Operands, Values};
use crate::quantization::real::Real;
use crate::quantization::steps::BlockScales;

/// Elements of a block for which a table is made.
const LARGE_BLOCK: usize = 1 << 11;

/// Of elements that are left to quotients, this part is too much.
const MOST_LEFT: usize = 8;

/// The tables of the blocks of a band, or none.
#[derive(Default)]
pub(super) struct BlockTables {
    lookups: Vec<Lookup>,
    /// What tables leave to quotients.
    pub(super) left: Vec<Left>,
}

impl BlockTables {
    pub(super) fn is_empty(&self) -> bool {
        self.lookups.is_empty()
    }

    /// Makes tables for blocks of so many elements, given their factors.
    pub(super) fn fill<T: Real>(
        &mut self,
        reference: Reference<'_, T>,
        elements: usize,
        factors: &[T],
        (trials, room): (&mut Trials<T>, &mut Piece<T>),
    ) {
        self.lookups.clear();
        if elements >= LARGE_BLOCK {
            self.lookups.extend(factors.iter().map(|factor| {
                let parts = parts(factor.to_f64() as f32);
                let table =
                    parts.and_then(|parts| block_table(reference.codes, parts, (&mut trials.scales, room)));
                table.unwrap_or(Lookup::NONE)
            }));
        }
    }

    /// Finds the codes of a piece by the tables of its blocks, and those that are left by quotients. Returns whether it did.
    ///
    /// # Safety
    /// The elements are readable, their codes writable, and so is the room, which has a piece, apart from them.
    pub(super) unsafe fn find_codes<T: Real>(
        &mut self,
        codes: &Codes<T>,
        operands: &Operands,
        to: *mut u8,
        scales: &BlockScales<T>,
        room: *mut T,
    ) -> bool {
        let Operands { area, blocks: Blocks { width, begun }, ref places, float } = *operands;
        let Area { first: from, pitch, rows, columns } = area;
        let Self { lookups, left } = self;
        let blocks = &lookups[places.clone()];
        let (to_pitch, first) = (columns as isize, width - begun);
        left.clear();
        // SAFETY: the caller's promise; there is room for the values of a piece.
        unsafe {
            let piece = ToE4m3 { from, pitch, to, to_pitch, rows, columns, first, width, blocks };
            let done = to_e4m3(codes.level, piece, left);
            if !done || left.iter().map(|left| left.count).sum::<usize>() > rows * columns / MOST_LEFT {
                return false;
            }
            for &Left { row, start, count } in left.iter() {
                let first = area.row(row).add(start * size_of::<u16>());
                let (begin, end) = (begun + start, begun + start + count);
                let operands = Operands {
                    area: Area { first, pitch: 0, rows: 1, columns: count },
                    float,
                    blocks: Blocks { width, begun: begin % width },
                    places: places.start + begin / width..places.start + end.div_ceil(width),
                };
                let (first, float) = (room, codes.float);
                codes.quotients(&operands, Values { first, float }, scales);
                let to = to.add(row * columns + start);
                codes.round(0, Values { first: first.cast_const(), float }, (to, count));
            }
        }
        true
    }
}

/// Returns the table of a block, given its factor.
fn block_table<T: Real>(
    codes: &Codes<T>,
    Parts { fraction, exponent }: Parts,
    buffers: (&mut BlockScales<T>, &mut Piece<T>),
) -> Option<Lookup> {
    const ONE: u16 = (1f32.to_bits() >> u16::BITS) as u16;
    let magnitudes: [u16; 1 << MANTISSA] = std::array::from_fn(|place| ONE + place as u16);
    let mut of_magnitudes = [0; 1 << MANTISSA];
    find_codes(codes, &magnitudes, &[fraction], &mut of_magnitudes, buffers);
    let exponent = if codes.multiplies { -exponent } else { exponent };
    Lookup::new(i32::from(ONE >> MANTISSA) + exponent, &of_magnitudes)
}
