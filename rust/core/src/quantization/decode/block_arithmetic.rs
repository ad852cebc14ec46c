//! What blocks have, and its operations on values: minus zero point, times scale, plus bias.

use super::operands::{GlobalUse, PerBlock};
use super::values::NUMBERS;
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::quantization::arithmetic::{Blocks, PIECE, Piece, apply, by_block, with_one};
use crate::quantization::real::Real;
use crate::quantization::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::work::Columns;

/// To the format of results and back, where products are rounded to it.
pub(super) struct Narrowing {
    pub(super) to_narrow: Prepared,
    pub(super) to_real: Prepared,
}

/// What blocks have, and how values are computed with it.
pub(super) struct BlockArithmetic<T> {
    pub(super) scale: Option<PerBlock>,
    pub(super) zero_point: Option<PerBlock>,
    pub(super) bias: Option<PerBlock>,
    /// A scale for each matrix, or none, and its use.
    pub(super) global: Vec<T>,
    pub(super) global_use: Option<GlobalUse>,
    /// The block of each column.
    pub(super) groups: Option<Vec<u32>>,
    /// Subtracted from values.
    pub(super) offset: T,
    /// Values are divided by scales.
    pub(super) scale_divides: bool,
    /// The real value is rounded once.
    pub(super) exact: bool,
    pub(super) narrowing: Option<Narrowing>,
    pub(super) level: Level,
    /// Rounds to odd, because results are rounded once more.
    pub(super) is_odd: bool,
}

/// Room for the bytes of the operands of blocks, and for these as float32.
#[derive(Default)]
struct ReadBuffers {
    raw: Box<Piece<u32>>,
    f32s: Box<Piece<f32>>,
    all: Vec<f32>,
}

/// What the blocks of a piece have.
#[derive(Default)]
pub(super) struct BlockOperands<T: Real> {
    pub(super) scale: Box<Piece<T>>,
    zero: Box<Piece<T>>,
    bias: Box<Piece<T>>,
    /// The scale of the matrix, or its reciprocal.
    global: T,
    /// Values in the format of results, or in bf16.
    pub(super) narrow: Box<Piece<u64>>,
    read: ReadBuffers,
}

/// A row of blocks of a matrix.
#[derive(Clone, Copy)]
pub(super) struct BlockRow {
    pub(super) matrix: usize,
    /// Without it, the bytes of scales are their own numbers.
    pub(super) row: Option<usize>,
    /// Columns of a block.
    pub(super) width: usize,
}

impl<T: Real> BlockArithmetic<T> {
    /// Reads what the blocks of a row of blocks have for the columns of a piece.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    pub(super) unsafe fn prepare(
        &self,
        row: BlockRow,
        columns: Columns,
        operands: &mut BlockOperands<T>,
    ) -> Blocks {
        let level = self.level;
        let BlockOperands { scale, zero, bias, global: constant, read, .. } = operands;
        let global = self.global.get(row.matrix).copied().unwrap_or(T::ONE);
        *constant = if self.global_use == Some(GlobalUse::After) && !self.exact {
            T::ONE.combine::<DIVIDE, false>(global)
        } else {
            global
        };
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(items) = &self.zero_point {
                let zeros = self.read_blocks(items, row, columns, read, zero);
                // Sums of small integers are exact.
                with_one::<T, ADD>(level, zeros, self.offset, false);
            }
            if let Some(items) = &self.bias {
                self.read_blocks(items, row, columns, read, bias);
            }
            let scales = if let Some(items) = &self.scale {
                self.read_blocks(items, row, columns, read, scale)
            } else {
                scale.0[0] = T::ONE;
                &mut scale.0[..1]
            };
            // The exact product of two float32 is a float64; their quotient is not.
            match self.global_use {
                Some(GlobalUse::Multiply) => with_one::<T, MULTIPLY>(level, scales, global, false),
                Some(GlobalUse::Divide) if !self.exact => {
                    with_one::<T, DIVIDE>(level, scales, global, false);
                }
                _ => {}
            }
        }
        if self.groups.is_some() {
            Blocks { width: 1, begun: 0 }
        } else {
            Blocks { width: row.width, begun: columns.start % row.width }
        }
    }

    /// Applies to values what their blocks have.
    pub(super) fn apply(&self, values: &mut [T], blocks: Blocks, operands: &mut BlockOperands<T>) {
        let (level, odd) = (self.level, self.is_odd);
        let BlockOperands { zero, scale, narrow, global, .. } = operands;
        if self.zero_point.is_some() {
            self.each::<SUBTRACT>(values, blocks, zero);
        } else if self.offset != T::default() {
            with_one::<T, SUBTRACT>(level, values, self.offset, odd);
        }
        let exactly_after = self.exact && self.global_use != Some(GlobalUse::Multiply);
        if self.scale_divides {
            self.each::<DIVIDE>(values, blocks, scale);
        } else if self.scale.is_some() {
            self.each::<MULTIPLY>(values, blocks, scale);
        } else if !self.global.is_empty() && !exactly_after {
            with_one::<T, MULTIPLY>(level, values, scale.0[0], odd);
        }
        if !self.global.is_empty() {
            if exactly_after {
                with_one::<T, DIVIDE>(level, values, *global, odd);
            } else if self.global_use == Some(GlobalUse::After) {
                with_one::<T, MULTIPLY>(level, values, *global, odd);
            }
        }
        if let Some(narrowing) = &self.narrowing {
            let to = narrow.0.as_mut_ptr().cast();
            // SAFETY: the buffer has room for so many elements.
            unsafe { narrowing.to_narrow.convert(values.as_ptr().cast(), to, values.len()) };
        }
        if self.bias.is_some() {
            self.add_biases(values, blocks, operands);
        }
    }

    /// Adds to values what their blocks have: to narrow ones, if they are rounded before.
    pub(super) fn add_biases(&self, values: &mut [T], blocks: Blocks, operands: &BlockOperands<T>) {
        if let Some(narrowing) = &self.narrowing {
            let from = operands.narrow.0.as_ptr().cast();
            // SAFETY: both buffers have room for so many elements, and are apart.
            unsafe { narrowing.to_real.convert(from, values.as_mut_ptr().cast(), values.len()) };
        }
        self.each::<ADD>(values, blocks, &operands.bias);
    }

    /// Applies an operation to values and the operands of their blocks.
    fn each<const OPERATION: u8>(&self, values: &mut [T], blocks: Blocks, operands: &Piece<T>) {
        if blocks.width == 1 {
            return apply::<T, OPERATION>(self.level, values, &operands.0, self.is_odd);
        }
        let (to, count) = (values.as_mut_ptr(), values.len());
        let operands = &operands.0[..(blocks.begun + count).div_ceil(blocks.width)];
        // SAFETY: these are the elements of the slice.
        unsafe { by_block::<T, OPERATION>(self.level, (to, to, count), blocks, operands, self.is_odd) };
    }

    /// Reads an item for each block of a piece, or for each column of groups.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    unsafe fn read_blocks<'b>(
        &self,
        items: &PerBlock,
        row: BlockRow,
        columns: Columns,
        ReadBuffers { raw, f32s, all }: &mut ReadBuffers,
        to: &'b mut Piece<T>,
    ) -> &'b mut [T] {
        let first = row.row.map(|block| items.items.row(row.matrix, block).cast_const());
        // SAFETY: the caller's promise; a piece has no more blocks than columns.
        unsafe {
            let count = if let Some(groups) = &self.groups {
                let width = items.items.width();
                all.resize(width, 0.0);
                for items_of in (Columns { start: 0, count: width }).groups(PIECE) {
                    let Columns { start, count } = items_of;
                    read(self.level, items, first, items_of, raw, &mut all[start..start + count]);
                }
                let Columns { start, count } = columns;
                for (place, &group) in f32s.0.iter_mut().zip(&groups[start..start + count]) {
                    *place = all[group as usize];
                }
                count
            } else {
                let span = columns.blocks(row.width);
                let items_of = Columns { start: span.first, count: span.count };
                read(self.level, items, first, items_of, raw, &mut f32s.0[..span.count]);
                span.count
            };
            let to = &mut to.0[..count];
            for (place, &value) in to.iter_mut().zip(&f32s.0) {
                *place = T::from_f32(value);
            }
            to
        }
    }
}

/// Reads items of a row as float32; without a row, their bytes are numbers.
///
/// # Safety
/// As for [`decode`](super::decode); there are as many items.
unsafe fn read(
    level: Level,
    items: &PerBlock,
    first: Option<*const u8>,
    Columns { start, count }: Columns,
    raw: &mut Piece<u32>,
    to: &mut [f32],
) {
    // SAFETY: the caller's promise; items have up to 4 bytes.
    unsafe {
        let room = raw.0.as_mut_ptr().cast();
        let bytes = match first {
            Some(first) => items.items.read(level, first, (1, start, count), room).0,
            None => NUMBERS.as_ptr().add(start),
        };
        items.cast.convert(bytes, to.as_mut_ptr().cast(), count);
    }
}
