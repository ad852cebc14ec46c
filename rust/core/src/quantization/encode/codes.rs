//! Codes of pieces: quotients of elements and scales, rounded.

use super::scales::{Limits, Scales};
use crate::cast::{PlannedCast, Settings, Source, Target, cast_from};
use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::quantization::arithmetic::{Area, Blocks, by_block, limit};
use crate::quantization::nearest::{Bounds, e2m1_towards_zero, limit_codes, nearest, whole};
use crate::quantization::real::Real;
use crate::quantization::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::recipe::Ties;
use crate::quantization::rounded::Rounded;
use crate::quantization::scaled::{Float, MOST_EXPONENT, NO_EXPONENTS, Scaling, scale};
use crate::quantization::steps::{BlockScales, ODD};

/// Elements of a piece, how they lie in their blocks, and which of a band these are.
#[derive(Clone)]
pub(super) struct Operands {
    pub(super) area: Area<*const u8>,
    pub(super) float: Float,
    pub(super) blocks: Blocks,
    pub(super) places: std::ops::Range<usize>,
}

/// Values in memory without gaps, as floats of a kind.
#[derive(Clone, Copy)]
pub(super) struct Values<P> {
    pub(super) first: P,
    pub(super) float: Float,
}

/// What shifts of blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    /// Subtracted from elements.
    Bias,
    /// Added to quotients.
    ZeroPoint,
}

/// Finds codes.
pub(super) struct Codes<T> {
    pub(super) cast: PlannedCast,
    /// The format that it is from.
    pub(super) real: Format,
    /// From bf16, and this format, if quotients are rounded to it.
    pub(super) bf16_cast: Option<(PlannedCast, Format)>,
    /// What quotients are rounded to as they are computed.
    pub(super) float: Float,
    /// To the dtype of the weight and back, if quotients are rounded to it.
    pub(super) quotient: Option<Rounded>,
    pub(super) element: Format,
    /// Of codes of the element's format.
    pub(super) ties: Ties,
    pub(super) map: Option<Bounds>,
    pub(super) limits: Option<Limits<T>>,
    /// The limits as codes, if there are codes beyond them.
    pub(super) code_limits: Option<(u8, u8)>,
    /// Added to codes.
    pub(super) offset: i32,
    /// Elements may be NaN.
    pub(super) allows_nan: bool,
    pub(super) shift: Option<Shift>,
    /// Codes are products with factors; else they are quotients.
    pub(super) multiplies: bool,
    /// Factors are powers of two which leave the largest magnitude near the largest element.
    pub(super) by_powers: bool,
    pub(super) settings: Settings,
    pub(super) level: Level,
}

impl<T: Real> Codes<T> {
    /// Multiplies elements by the factors of their blocks, or divides them.
    ///
    /// # Safety
    /// As for [`scale`].
    pub(super) unsafe fn quotients(&self, operands: &Operands, to: Values<*mut T>, scales: &BlockScales<T>) {
        let Operands { area, float, blocks, ref places } = *operands;
        let factors = &scales.factors[places.clone()];
        let Area { rows, columns, .. } = area;
        // SAFETY: passed on.
        unsafe {
            if let Some(numbers) = T::f32s(factors) {
                // Products take no reciprocals.
                let reciprocals = scales.reciprocals.get(places.clone()).filter(|_| !self.multiplies);
                let exponents = if self.by_powers { (0, MOST_EXPONENT) } else { NO_EXPONENTS };
                let scaling = Scaling {
                    from: (area, float),
                    to: (to.first.cast(), to.float, (columns * to.float.size()) as isize),
                    blocks,
                    numbers,
                    reciprocals: reciprocals.unwrap_or_default(),
                    exponents,
                };
                return scale(self.level, scaling);
            }
            for row in 0..rows {
                let ends = (area.row(row).cast(), to.first.add(row * columns), columns);
                if self.multiplies {
                    by_block::<T, MULTIPLY>(self.level, ends, blocks, factors, ODD);
                } else {
                    by_block::<T, DIVIDE>(self.level, ends, blocks, factors, ODD);
                }
            }
        }
    }

    /// Turns the elements of a piece into what is rounded to codes.
    ///
    /// # Safety
    /// The elements are readable, and there is room for as many values, where the elements may be.
    pub(super) unsafe fn values(
        &self,
        mut operands: Operands,
        room: *mut T,
        of_scales: &Scales<T>,
        scales: &mut BlockScales<T>,
    ) {
        let Area { rows, columns, .. } = operands.area;
        let blocks = operands.blocks;
        let places = operands.places.clone();
        // SAFETY: the caller's promise.
        let values = unsafe {
            if self.shift == Some(Shift::Bias) {
                let shifts = &scales.shifts[places.clone()];
                for row in 0..rows {
                    let ends = (operands.area.row(row).cast(), room.add(row * columns), columns);
                    by_block::<T, SUBTRACT>(self.level, ends, blocks, shifts, ODD);
                }
                let pitch = (columns * size_of::<T>()) as isize;
                let area = Area { first: room.cast_const().cast(), pitch, rows, columns };
                operands = Operands { area, float: Float::F32, ..operands };
            }
            self.quotients(&operands, Values { first: room, float: self.float }, scales);
            std::slice::from_raw_parts_mut(room, rows * columns)
        };
        if let (Some(quotient), Float::F32) = (&self.quotient, self.float) {
            quotient.round(values, &mut scales.rounded);
        }
        if self.shift == Some(Shift::ZeroPoint) {
            let shifts = &scales.shifts[places];
            for values in values.chunks_exact_mut(columns) {
                let to = values.as_mut_ptr();
                // SAFETY: these are the elements of the slice.
                unsafe { by_block::<T, ADD>(self.level, (to, to, columns), blocks, shifts, ODD) };
            }
            // Those of a search are the nearest.
            if self.quotient.is_some() {
                of_scales.numbers.to_weight(values, &mut scales.rounded);
            }
        }
        // Codes saturate, and are limited after they are rounded; but NaN takes the lower limit.
        if let (Some(limits), true) = (self.limits, self.allows_nan) {
            limit(self.level, values, limits.low, limits.high);
        }
    }

    /// Rounds values to so many codes, the first of which has this flat index, and adds the offset. No code is read before
    /// it is written.
    ///
    /// # Safety
    /// There are as many values as codes, in memory for as many reals; the codes are writable, apart from the values.
    pub(super) unsafe fn round(
        &self,
        index: u64,
        values: Values<*const T>,
        (codes, count): (*mut u8, usize),
    ) {
        let Values { first, float } = values;
        if T::IS_SINGLE
            && let (Float::Bf16, Some(Limits { low, high }), true) =
                (float, self.limits, self.rounds_to_even())
        {
            let limits = (low.to_f64() as f32, high.to_f64() as f32);
            // SAFETY: so many values of 16 bits are readable, and as many codes writable.
            return unsafe {
                let values = std::slice::from_raw_parts(first.cast(), count);
                whole(self.level, values, limits, self.offset as u8, codes);
            };
        }
        // SAFETY: so many reals are readable, and as many codes writable. Each of three ways writes all codes.
        unsafe {
            if let Some(bounds) = &self.map {
                nearest(self.level, std::slice::from_raw_parts(first, count), bounds, codes);
            } else if self.ties != Ties::Even {
                self.towards_zero(std::slice::from_raw_parts(first, count), codes);
            } else {
                self.round_to_element(index, values, (codes, count));
            }
        }
        if self.code_limits.is_some() || self.offset != 0 {
            let signed = self.element.kind() == (Kind::Integer { signed: true });
            let limits =
                self.code_limits.unwrap_or(if signed { (1 << 7, i8::MAX as u8) } else { (0, u8::MAX) });
            // SAFETY: the codes were written above.
            unsafe { limit_codes(self.level, (codes, count), limits, signed, self.offset as u8) };
        }
    }

    pub(super) fn rounds_to_even(&self) -> bool {
        self.settings.options.rounding == Some(Rounding::NearestEven)
    }

    /// Whether codes are drawn.
    pub(super) fn draws(&self) -> bool {
        self.settings.options.rounding == Some(Rounding::Stochastic)
    }

    /// Rounds to codes of E2M1, ties towards zero.
    ///
    /// # Safety
    /// As many codes as values are writable.
    unsafe fn towards_zero(&self, values: &[T], codes: *mut u8) {
        // SAFETY: as many codes as values are writable, and written before any is read.
        unsafe {
            e2m1_towards_zero(self.level, values, codes);
            let negative_zeros = self.ties == Ties::TowardsZeroNegative;
            for (index, value) in values.iter().enumerate() {
                let code = codes.add(index);
                if (*code).trailing_zeros() >= 3 {
                    let is_zero = value.to_f64() == 0.0;
                    *code = if negative_zeros && (is_zero || *code == 8) { 8 } else { 0 };
                }
            }
        }
    }

    /// Rounds to codes of the element's format.
    ///
    /// # Safety
    /// As for [`round`](Self::round).
    unsafe fn round_to_element(
        &self,
        index: u64,
        Values { first, float }: Values<*const T>,
        (codes, count): (*mut u8, usize),
    ) {
        let (cast, format) = match (&self.bf16_cast, float) {
            (Some((cast, bf16)), Float::Bf16 | Float::OddBf16) => (cast, *bf16),
            _ => (&self.cast, self.real),
        };
        let strides = ([format.item_size() as isize], [1]);
        // SAFETY: so many values of the format are readable, and as many codes, of a byte each, writable elsewhere.
        unsafe {
            if self.draws() || !cast.convert(first.cast(), codes, count) {
                let pointer = first.cast();
                let source = Source { pointer, strides: &strides.0, format, swapped: false };
                let (strides, format) = (&strides.1, self.element);
                let target = Target { pointer: codes, strides, format, swapped: false, fresh: true };
                // Nothing is refused with these options, so every code is written.
                let result = cast_from(index, &[count], source, target, None, &self.settings);
                debug_assert!(result.is_ok(), "by the settings");
            }
        }
    }
}
