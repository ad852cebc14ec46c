//! The arithmetic of a recipe for a few magnitudes, which tables are made by.

use crate::codec::pivot::{Binary32, FloatPivot};
use crate::quantization::arithmetic::{Area, Blocks, Piece};
use crate::quantization::encode::amaxes::BlockAmaxes;
use crate::quantization::encode::codes::{Codes, Operands, Values};
use crate::quantization::encode::scales::Scales;
use crate::quantization::real::Real;
use crate::quantization::scaled::{Float, reciprocals};
use crate::quantization::steps::BlockScales;

/// How scales and codes are found without tables.
#[derive(Clone, Copy)]
pub(in crate::quantization::encode) struct Reference<'a, T> {
    pub(in crate::quantization::encode) scales: &'a Scales<T>,
    pub(in crate::quantization::encode) codes: &'a Codes<T>,
}

/// The blocks that tables are made of.
#[derive(Default)]
pub(super) struct Trials<T> {
    pub(super) amaxes: BlockAmaxes<T>,
    pub(super) scales: BlockScales<T>,
}

/// Finds the codes of bf16 as the recipe does, of which as many belong to each number that they are multiplied with, or
/// divided by. The room has the values.
pub(super) fn find_codes<T: Real>(
    codes_of: &Codes<T>,
    magnitudes: &[u16],
    factors: &[f32],
    codes: &mut [u8],
    (scales, room): (&mut BlockScales<T>, &mut Piece<T>),
) {
    reciprocals(codes_of.level, factors, factors, &mut scales.reciprocals);
    scales.factors.clear();
    scales.factors.extend(factors.iter().map(|&factor| T::from_f32(factor)));
    let (first, columns) = (magnitudes.as_ptr().cast(), magnitudes.len());
    let operands = Operands {
        area: Area { first, pitch: 0, rows: 1, columns },
        float: Float::Bf16,
        blocks: Blocks { width: columns / factors.len(), begun: 0 },
        places: 0..factors.len(),
    };
    let (first, float) = (room.0.as_mut_ptr(), codes_of.float);
    // SAFETY: these are the elements of the slice, and there is room for a piece, which is more.
    unsafe {
        codes_of.quotients(&operands, Values { first, float }, scales);
        let to = (codes.as_mut_ptr(), codes.len());
        codes_of.round(0, Values { first: first.cast_const(), float }, to);
    }
}

/// A positive normal number: one between 1 and 2 times a power of two.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) fraction: f32,
    pub(super) exponent: i32,
}

/// Takes a number apart, if it is positive and normal.
pub(super) fn parts(number: f32) -> Option<Parts> {
    let bits = number.to_bits();
    let normal = number.is_normal() && number > 0.0;
    let exponent = (bits >> Binary32::MANTISSA) as i32 - Binary32::BIAS as i32;
    let mantissa = bits & ((1 << Binary32::MANTISSA) - 1);
    let fraction = f32::from_bits(1f32.to_bits() | mantissa);
    normal.then_some(Parts { fraction, exponent })
}
