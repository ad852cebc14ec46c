//! Scales of blocks, of their largest magnitudes by the steps of recipes, and what codes are computed with.

use super::amaxes::BlockAmaxes;
use crate::cpu::Level;
use crate::format::Format;
use crate::quantization::arithmetic::{apply, limit, on_level};
use crate::quantization::largest::Extremes;
use crate::quantization::real::Real;
use crate::quantization::real::operation::{DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::recipe::{Family, GLOBAL_MAX, Recipe, ZeroScale};
use crate::quantization::rounded::Rounded;
use crate::quantization::scale_rule::{Largest, ScaleRule, addend, exponent, power};
use crate::quantization::scaled::reciprocals;
use crate::quantization::steps::{
    ArrayScale, BlockScales, Functions, Numbers, ODD, encode_scale, powers, refill,
};

/// The integers that codes may be.
#[derive(Clone, Copy)]
pub(super) struct Limits<T> {
    pub(super) low: T,
    pub(super) high: T,
}

/// Finds scales of blocks, and what codes are computed with.
pub(super) struct Scales<T> {
    pub(super) recipe: &'static Recipe,
    pub(super) steps: Functions<T>,
    pub(super) numbers: Numbers<T>,
    /// To stored scales and back.
    pub(super) stored: Rounded,
    /// A scale for each matrix, or none.
    pub(super) global: Vec<T>,
    /// The largest product of a code and the scale of a block, and the largest magnitude of the array, if it is known.
    pub(super) whole: f32,
    pub(super) array_amax: Option<f64>,
    /// Zero points are among them.
    pub(super) limits: Option<Limits<T>>,
    /// The largest magnitudes are those of elements, and rounding does not tell from zero what underflows, as directions
    /// do.
    pub(super) is_usual: bool,
}

impl<T: Real> Scales<T> {
    /// Finds the scales of a band, and shifts: zero points or biases. `bytes` becomes the stored scales.
    pub(super) fn find(
        &self,
        matrix: usize,
        stretch: f32,
        amaxes: &BlockAmaxes<T>,
        blocks: &mut BlockScales<T>,
    ) {
        self.compute(self.of_array(matrix), amaxes, blocks);
        self.fit(stretch, &mut blocks.scale);
        self.store(&amaxes.amax, blocks);
        if self.numbers.is_asymmetric {
            self.find_shifts(amaxes, blocks);
        }
    }

    /// Finds what codes are computed with, of the scales of a band.
    pub(super) fn find_factors(&self, matrix: usize, amaxes: &BlockAmaxes<T>, blocks: &mut BlockScales<T>) {
        let numbers = &self.numbers;
        (self.steps.factors)(numbers, self.of_array(matrix), blocks);
        self.leave_out(&amaxes.amax, blocks);
        let BlockScales { factors, reciprocals: to, .. } = blocks;
        if let (false, Some(factors), Some(amax)) =
            (numbers.multiplies, T::f32s(factors), T::f32s(&amaxes.amax))
        {
            let level = if self.is_usual { numbers.level } else { Level::PORTABLE };
            reciprocals(level, factors, amax, to);
        }
    }

    /// Returns the scales of the whole array for a matrix.
    pub(super) fn of_array(&self, matrix: usize) -> ArrayScale<T> {
        let global = self.global.get(matrix).copied().unwrap_or(T::ONE);
        let amax = self.array_amax.unwrap_or(0.0) as f32;
        ArrayScale { global, encode: T::from_f32(encode_scale(amax, self.whole)) }
    }

    /// Returns the exponent of the largest element.
    pub(super) fn element_exponent(&self) -> i64 {
        exponent(self.numbers.largest.value)
    }

    /// Returns the scale of a block of zeros, or its code of E8M0.
    pub(super) fn zero_scale(&self) -> f32 {
        match self.recipe.zero {
            ZeroScale::Value(value) => value,
            ZeroScale::Epsilon => epsilon(self.stored.format),
            ZeroScale::Power => {
                if self.numbers.narrow.is_some() {
                    127.0
                } else {
                    0.0
                }
            }
        }
    }

    /// Computes scales of the largest magnitudes, as the recipe does; some find factors first, or shifts with them.
    pub(super) fn compute(&self, array: ArrayScale<T>, amaxes: &BlockAmaxes<T>, blocks: &mut BlockScales<T>) {
        refill(&mut blocks.scale, &amaxes.amax);
        (self.steps.scales)(&self.numbers, array, &amaxes.extremes, blocks);
    }

    /// Brings scales into the range of their format, and rounds those up that it has only as powers of two.
    fn fit(&self, stretch: f32, scale: &mut [T]) {
        let Numbers { level, has_powers, .. } = self.numbers;
        if self.recipe.family == Family::TwoLevel {
            if stretch != 1.0 {
                self.numbers.with::<MULTIPLY>(scale, T::from_f32(stretch));
            }
            limit(level, scale, T::from_f32(self.recipe.least), T::from_f32(GLOBAL_MAX));
        }
        if has_powers && !self.recipe.steps.properties.powers {
            let unity = Largest { value: 1.0, mantissa_bits: 0, bits: 8 };
            powers(level, scale, addend(ScaleRule::Ceil, &unity), &unity);
        }
    }

    /// Rounds scales to their format, and gives blocks of zeros theirs, and those that are not finite NaN. What codes are
    /// computed with may be what scales were before.
    fn store(&self, amax: &[T], blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, bytes, .. } = blocks;
        let (properties, level) = (self.recipe.steps.properties, self.numbers.level);
        let zero = self.zero_scale();
        let is_power = self.numbers.has_powers && properties.powers;
        let zero = T::from_f32(if is_power { power(zero as i64) as f32 } else { zero });
        let has_zero = properties.has_zero_scale;
        let (nothing, nan) = (T::default(), T::from_f32(f32::NAN));
        // Loops that own what they need, and take no branches, are vectorized.
        on_level!(level, <T: Real>, scale: &'a mut [T] = scale, amax: &'a [T] = amax,
            numbers: (T, T, T) = (nothing, zero, nan), has_zero: bool = has_zero; {
            let (nothing, zero, nan) = numbers;
            for (scale, &amax) in scale.iter_mut().zip(amax) {
                let known = *scale;
                let finite = if (amax == nothing) & has_zero { zero } else { known };
                *scale = if amax.is_finite() { finite } else { nan };
            }
        });
        if properties.of_unstored {
            refill(factors, scale);
        }
        self.stored.round(scale, bytes);
        if zero != nothing && properties.replaces_zeros {
            let mut has_zeros = false;
            on_level!(level, <T: Real>, scale: &'a mut [T] = scale, zero: T = zero, nothing: T = nothing,
                result: &'a mut bool = &mut has_zeros; {
                *result = scale.iter_mut().fold(false, |has_zeros, scale| {
                    let (known, is_zero) = (*scale, *scale == nothing);
                    *scale = if is_zero { zero } else { known };
                    has_zeros | is_zero
                });
            });
            if has_zeros {
                self.stored.round(scale, bytes);
            }
        }
    }

    /// Finds zero points, of the smallest elements and scales.
    fn find_shifts(&self, amaxes: &BlockAmaxes<T>, blocks: &mut BlockScales<T>) {
        let BlockScales { scale, shifts, rounded, .. } = blocks;
        let numbers = &self.numbers;
        shifts.clear();
        shifts.extend(amaxes.extremes.iter().map(|extremes: &Extremes<T>| extremes.with_zero().low));
        apply::<T, DIVIDE>(numbers.level, shifts, scale, ODD);
        numbers.to_weight(shifts, rounded);
        let limits = self.limits.unwrap_or(Limits { low: T::default(), high: T::default() });
        for shift in shifts.iter_mut() {
            *shift = limits.low.combine::<SUBTRACT, false>(*shift);
        }
        numbers.to_weight(shifts, rounded);
        for ((shift, &scale), extremes) in shifts.iter_mut().zip(scale.iter()).zip(&amaxes.extremes) {
            let whole = T::from_f64(shift.limited(limits.low, limits.high).to_f64().round_ties_even());
            let Extremes { low, high } = extremes.with_zero();
            // A scale that was 0, in whose place there is one larger than the range, made this -x / 0, or 0 / 0, which torch
            // transposes into the integer 0.
            let of_zero = if low < T::default() { limits.high } else { T::default() };
            let is_zero = high.combine::<SUBTRACT, false>(low) < scale;
            *shift = if is_zero { of_zero } else { whole };
        }
    }

    /// Makes codes 0 where there is no scale, or none that is a number.
    fn leave_out(&self, amax: &[T], blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, .. } = blocks;
        let nothing = T::default();
        let none = if self.numbers.multiplies { nothing } else { T::from_f32(f32::INFINITY) };
        let properties = self.recipe.steps.properties;
        let (is_affine, needs_scale) = (properties.affine, !properties.outlasts_zeros);
        on_level!(self.numbers.level, <T: Real>, factors: &'a mut [T] = factors, scale: &'a [T] = scale, amax: &'a [T] = amax,
            none: T = none, properties: (bool, bool) = (is_affine, needs_scale); {
            let (nothing, (is_affine, needs_scale)) = (T::default(), properties);
            for (factor, (&scale, &amax)) in factors.iter_mut().zip(scale.iter().zip(amax)) {
                let known = *factor;
                let is_zero = !is_affine & ((amax == nothing) | (needs_scale & (scale == nothing)));
                *factor = if is_zero | !amax.is_finite() { none } else { known };
            }
        });
    }
}

/// The distance from 1 to the next value of a format.
fn epsilon(format: Format) -> f32 {
    let bits = format.float().map_or(0, |spec| spec.mantissa_bits);
    2f32.powi(-(bits as i32))
}
