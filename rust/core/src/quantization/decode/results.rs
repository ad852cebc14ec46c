//! Values to results, and products that are results by way of bf16.

use super::block_arithmetic::BlockOperands;
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::kernels::vectors::shapes::Shape;
use crate::quantization::arithmetic::{Area, Blocks, Piece};
use crate::quantization::real::Real;
use crate::quantization::rows::Rows;
use crate::quantization::scaled::{self, Float, Scaling};

/// Where results go.
pub(super) struct Results {
    pub(super) out: Rows,
    /// From values.
    pub(super) cast: Prepared,
    pub(super) shape: Option<Shape>,
}

/// Rows of results in memory: the first one, and the bytes from row to row.
#[derive(Clone, Copy)]
pub(super) struct ResultRows {
    pub(super) first: *mut u8,
    pub(super) pitch: isize,
}

/// Products of values that bf16 holds and scales.
pub(super) struct Bf16Products {
    /// From codes to bf16.
    pub(super) cast: Prepared,
    /// Codes are int8: their own values.
    pub(super) is_int8: bool,
    /// Exponents of values.
    pub(super) exponents: (i32, i32),
    pub(super) level: Level,
}

impl Bf16Products {
    /// Turns the codes of a piece into results.
    ///
    /// # Safety
    /// The codes are readable, and as many results writable.
    pub(super) unsafe fn fill<T: Real>(
        &self,
        codes: Area<*const u8>,
        blocks: Blocks,
        results: &Results,
        to: ResultRows,
        operands: &mut BlockOperands<T>,
        values: &mut Piece<T>,
    ) {
        let BlockOperands { narrow, scale, .. } = operands;
        let Area { rows, columns, .. } = codes;
        let Some(numbers) = T::f32s(&scale.0[..(blocks.begun + columns).div_ceil(blocks.width)]) else {
            return;
        };
        let from = narrow.0.as_mut_ptr().cast::<u8>();
        let values = values.0.as_mut_ptr().cast::<u8>();
        let target = match results.shape {
            Some(Shape::Bf16) => (to.first, Float::Bf16, to.pitch),
            Some(Shape::F32) => (to.first, Float::F32, to.pitch),
            _ => (values, Float::F32, (columns * size_of::<f32>()) as isize),
        };
        // SAFETY: the caller's promise; the buffers have room for a piece.
        unsafe {
            let from = if self.is_int8 {
                (codes, Float::Int8)
            } else {
                if codes.is_gapless(1) {
                    self.cast.convert(codes.first, from, rows * columns);
                } else {
                    for row in 0..rows {
                        self.cast.convert(
                            codes.row(row),
                            from.add(row * columns * size_of::<u16>()),
                            columns,
                        );
                    }
                }
                let pitch = (columns * size_of::<u16>()) as isize;
                (Area { first: from.cast_const(), pitch, rows, columns }, Float::Bf16)
            };
            let exponents = self.exponents;
            let scaling = Scaling { from, to: target, blocks, numbers, reciprocals: &[], exponents };
            scaled::scale(self.level, scaling);
            if target.0 == values {
                for row in 0..rows as isize {
                    let (from, to) = (values.offset(row * target.2), to.first.offset(row * to.pitch));
                    results.cast.convert(from, to, columns);
                }
            }
        }
    }
}
