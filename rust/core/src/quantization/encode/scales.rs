//! Scales of blocks, and what codes are computed with, by the steps of recipes.

use super::encoder::{Encoder, Limits};
use super::rounded::{GLOBAL_MAX, encode_scale};
use super::source::Buffers;
use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::quantization::arithmetic::{apply, limit, on_level, with_one};
use crate::quantization::element::names::{E8M0, INT8};
use crate::quantization::largest::Extremes;
use crate::quantization::real::Real;
use crate::quantization::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::recipe::{Family, Steps, ZeroScale};
use crate::quantization::scale_rule::{Largest, ScaleRule, addend, power, power_code};
use crate::quantization::scaled::reciprocals;

/// What bitsandbytes divides by at least.
const SMALLEST_AMAX: f32 = 1e-38;

impl<T: Real> Encoder<T> {
    /// Finds the scales of a band, and what codes are computed with: `factors`, and `shifts` for zero points and
    /// biases. `bytes` becomes the stored scales.
    #[expect(clippy::too_many_lines, reason = "a line or two for each of the recipes' steps")]
    pub(super) fn scales(&self, matrix: usize, stretch: f32, buffers: &mut Buffers<T>) {
        let recipe = self.recipe;
        let global = self.global.get(matrix).copied().unwrap_or(T::ONE);
        let Buffers { amax, extremes, scale, factors, shifts, constant, bytes, rounded, .. } = buffers;
        let found = &mut buffers.reciprocals;
        let blocks = amax.len();
        let mut to_weight = |values: &mut [T]| {
            if let Some(weight) = &self.weight {
                weight.round(values, rounded);
            }
        };
        let with = |values: &mut [T], operation: u8, number: T| self.with(values, operation, number);
        scale.clear();
        scale.extend_from_slice(amax);
        let six = T::from_f32(6.0);
        let encode_scale = T::from_f32(encode_scale(
            self.what.amax.unwrap_or(0.0) as f32,
            self.what.global_max.unwrap_or(GLOBAL_MAX) * 6.0,
        ));
        match recipe.steps {
            Steps::Quotient if self.zero_point.is_some() => {
                for (scale, extremes) in scale.iter_mut().zip(extremes.iter()) {
                    let Extremes { low, high } = extremes.with_zero();
                    *scale = high.combine::<SUBTRACT, false>(low);
                }
                to_weight(scale);
                with(scale, DIVIDE, self.max.combine::<ADD, false>(self.max));
                to_weight(scale);
            }
            Steps::Quotient | Steps::ThenReciprocal => {
                with(scale, DIVIDE, self.max);
                to_weight(scale);
            }
            Steps::Reciprocal | Steps::Amax => {
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, scale);
                with(factors, MULTIPLY, self.max);
                if recipe.steps == Steps::Reciprocal {
                    scale.fill(T::ONE);
                    self.combine(scale, DIVIDE, factors);
                }
            }
            Steps::Inverse => {
                with(scale, ADD, T::from_f32(1e-7));
                constant.clear();
                constant.extend_from_slice(scale);
                scale.fill(self.max);
                self.combine(scale, DIVIDE, constant);
            }
            Steps::Power => {
                let rule = self.what.rule.or(recipe.rule).unwrap_or(ScaleRule::Floor);
                powers(self.level, scale, addend(rule, &self.largest), &self.largest);
            }
            Steps::DividedGlobal => {
                with(scale, DIVIDE, six);
                to_weight(scale);
                with(scale, MULTIPLY, global);
            }
            Steps::ProductWithSix => with(scale, DIVIDE, six.combine::<MULTIPLY, false>(global)),
            Steps::ReciprocalGlobal | Steps::TwoQuotients => {
                with(scale, DIVIDE, six);
                with(scale, DIVIDE, global);
            }
            Steps::EncodeScale => {
                let sixth = T::ONE.combine::<DIVIDE, false>(six);
                with(scale, MULTIPLY, encode_scale.combine::<MULTIPLY, false>(sixth));
            }
            Steps::SingleLevel => with(scale, DIVIDE, six),
            Steps::Edge => self.edges(extremes, scale, shifts),
            Steps::Nearest => {}
        }
        if recipe.family == Family::TwoLevel {
            if stretch != 1.0 {
                with(scale, MULTIPLY, T::from_f32(stretch));
            }
            limit(self.level, scale, T::from_f32(recipe.least), T::from_f32(GLOBAL_MAX));
        }
        let as_powers = self.stored.format.name() == E8M0;
        if as_powers && recipe.steps != Steps::Power {
            let one = Largest { value: 1.0, mantissa_bits: 0, bits: 8 };
            powers(self.level, scale, addend(ScaleRule::Ceil, &one), &one);
        }
        let zero = match recipe.zero {
            ZeroScale::Value(code) if as_powers && recipe.steps == Steps::Power => power(code as i64) as f32,
            ZeroScale::Value(value) => value,
            ZeroScale::Epsilon => self.epsilon(),
        };
        let has_zero = !matches!(recipe.steps, Steps::Edge | Steps::Inverse);
        let (zero, nothing, nan) = (T::from_f32(zero), T::default(), T::from_f32(f32::NAN));
        // Loops that own what they need, and take no branches, are vectorised.
        let numbers = scale.iter_mut().zip(amax.iter());
        on_level::<T>(self.level, move || {
            for (scale, &amax) in numbers {
                let known = *scale;
                let finite = if (amax == nothing) & has_zero { zero } else { known };
                *scale = if amax.is_finite() { finite } else { nan };
            }
        });
        // Codes are computed with scales as they are stored, or as they were before.
        constant.clear();
        constant.extend_from_slice(scale);
        self.stored.round(constant, bytes);
        let replaces = matches!(recipe.steps, Steps::Quotient | Steps::DividedGlobal);
        if replaces && zero != nothing {
            let mut replaced = false;
            let (numbers, found) = (constant.iter_mut(), &mut replaced);
            on_level::<T>(self.level, move || {
                *found = numbers.fold(false, |found, scale| {
                    let (known, is_zero) = (*scale, *scale == nothing);
                    *scale = if is_zero { zero } else { known };
                    found | is_zero
                });
            });
            if replaced {
                self.stored.round(constant, bytes);
            }
        }
        if recipe.family == Family::Integer && matches!(recipe.steps, Steps::Edge | Steps::ThenReciprocal) {
            factors.clear();
            factors.extend_from_slice(scale);
        }
        scale.clear();
        scale.extend_from_slice(constant);
        let with = |values: &mut Vec<T>, start: &[T], operation: u8, number: T| {
            values.clear();
            values.extend_from_slice(start);
            self.with(values, operation, number);
        };
        match recipe.steps {
            Steps::Quotient | Steps::SingleLevel | Steps::Inverse => {
                factors.clear();
                factors.extend_from_slice(scale);
            }
            // 64 over the smallest scales is beyond float32.
            Steps::Power if !self.multiplies() => with(factors, scale, DIVIDE, T::from_f32(64.0)),
            Steps::Reciprocal if !as_powers => {}
            Steps::Amax | Steps::Edge => {}
            Steps::Power | Steps::Reciprocal => {
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, scale);
            }
            Steps::ThenReciprocal => {
                let before = if recipe.family == Family::Integer { factors.clone() } else { scale.clone() };
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, &before);
                to_weight(factors);
            }
            Steps::Nearest => {
                constant.clear();
                constant.extend(
                    scale
                        .iter()
                        .map(|scale| scale.limited(T::from_f32(SMALLEST_AMAX), T::from_f32(f32::INFINITY))),
                );
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, constant);
            }
            Steps::DividedGlobal => with(factors, scale, DIVIDE, global),
            Steps::ProductWithSix | Steps::TwoQuotients => with(factors, scale, MULTIPLY, global),
            Steps::ReciprocalGlobal => {
                factors.clear();
                factors.resize(blocks, T::ONE.combine::<DIVIDE, false>(global));
                self.combine(factors, DIVIDE, scale);
            }
            Steps::EncodeScale => {
                with(factors, scale, MULTIPLY, T::ONE.combine::<DIVIDE, false>(encode_scale));
                let product = factors.clone();
                factors.fill(T::ONE);
                self.combine(factors, DIVIDE, &product);
                limit(self.level, factors, T::default(), T::from_f32(f32::MAX));
            }
        }
        if self.zero_point.is_some() {
            shifts.clear();
            shifts.extend(extremes.iter().map(|extremes| extremes.with_zero().low));
            self.combine(shifts, DIVIDE, scale);
            to_weight(shifts);
            let limits = self.limits.unwrap_or(Limits { low: T::default(), high: T::default() });
            for shift in shifts.iter_mut() {
                *shift = limits.low.combine::<SUBTRACT, false>(*shift);
            }
            to_weight(shifts);
            for shift in shifts.iter_mut() {
                *shift = T::from_f64(shift.limited(limits.low, limits.high).to_f64().round_ties_even());
            }
            // 0 / 0, which torch turns into the integer 0.
            for (shift, _) in shifts.iter_mut().zip(amax.iter()).filter(|(_, amax)| amax.to_f64() == 0.0) {
                *shift = T::default();
            }
        }
        // Where there is no scale, or none that is a number, codes are 0.
        let none = if self.multiplies() { nothing } else { T::from_f32(f32::INFINITY) };
        let (is_edge, needs_scale) = (recipe.steps == Steps::Edge, recipe.steps != Steps::EncodeScale);
        let numbers = factors.iter_mut().zip(scale.iter().zip(amax.iter()));
        on_level::<T>(self.level, move || {
            for (factor, (&scale, &amax)) in numbers {
                let known = *factor;
                let is_zero = !is_edge & ((amax == nothing) | (needs_scale & (scale == nothing)));
                *factor = if is_zero | !amax.is_finite() { none } else { known };
            }
        });
        if let (false, Some(factors), Some(amax)) = (self.multiplies(), T::f32s(factors), T::f32s(amax)) {
            let level = if self.is_usual() { self.level } else { Level::PORTABLE };
            reciprocals(level, factors, amax, found);
        }
    }

    /// Whether the largest magnitudes are those of elements, and rounding does not tell from zero what underflows, as
    /// directions do. Of blocks under a global scale, it is not the caller's that bounds elements.
    pub(super) fn is_usual(&self) -> bool {
        let is_own = self.what.amax.is_none() || self.what.scheme.global_scale;
        let rounding = self.settings.options.rounding;
        is_own && matches!(rounding, Some(Rounding::NearestEven | Rounding::NearestAway))
    }

    /// Applies an operation to numbers and one other.
    fn with(&self, values: &mut [T], operation: u8, number: T) {
        match operation {
            SUBTRACT => with_one::<T, SUBTRACT>(self.level, values, number, self.odd),
            MULTIPLY => with_one::<T, MULTIPLY>(self.level, values, number, self.odd),
            DIVIDE => with_one::<T, DIVIDE>(self.level, values, number, self.odd),
            _ => with_one::<T, ADD>(self.level, values, number, self.odd),
        }
    }

    /// Whether codes are products with the factors; else they are quotients.
    pub(super) fn multiplies(&self) -> bool {
        matches!(
            self.recipe.steps,
            Steps::Reciprocal
                | Steps::Amax
                | Steps::Inverse
                | Steps::ThenReciprocal
                | Steps::ReciprocalGlobal
                | Steps::EncodeScale
                | Steps::Nearest
        ) || (self.recipe.steps == Steps::Power && self.element.name() != INT8)
    }

    /// Scales and biases of MLX: the edge of larger magnitude is a whole number of steps from zero.
    fn edges(&self, extremes: &[Extremes<T>], scale: &mut [T], bias: &mut Vec<T>) {
        bias.clear();
        let steps = T::from_f64((1u64 << self.what.scheme.bits) as f64 - 1.0);
        for (scale, &Extremes { low, high }) in scale.iter_mut().zip(extremes) {
            let range = high.combine::<SUBTRACT, false>(low).combine::<DIVIDE, false>(steps);
            let range = range.limited(T::from_f32(1e-7), T::from_f32(f32::INFINITY));
            let from_low = low.larger(T::default()) > high.larger(T::default());
            let (edge, step) =
                if from_low { (low, range) } else { (high, T::default().combine::<SUBTRACT, false>(range)) };
            let whole = T::from_f64(edge.combine::<DIVIDE, false>(step).to_f64().round_ties_even());
            if whole == T::default() {
                *scale = step;
                bias.push(T::default());
            } else {
                *scale = edge.combine::<DIVIDE, false>(whole);
                bias.push(edge);
            }
        }
    }

    /// The distance from 1 to the next value of the format of scales.
    fn epsilon(&self) -> f32 {
        let bits = self.stored.format.float().map_or(0, |spec| spec.mantissa_bits);
        2f32.powi(-(bits as i32))
    }

    /// Applies an operation that is known at run time. Of float64, results are rounded to odd, for they are rounded
    /// again.
    fn combine(&self, values: &mut [T], operation: u8, other: &[T]) {
        match operation {
            SUBTRACT => apply::<T, SUBTRACT>(self.level, values, other, self.odd),
            MULTIPLY => apply::<T, MULTIPLY>(self.level, values, other, self.odd),
            DIVIDE => apply::<T, DIVIDE>(self.level, values, other, self.odd),
            _ => apply::<T, ADD>(self.level, values, other, self.odd),
        }
    }
}

/// Replaces magnitudes by the powers of two of their blocks.
fn powers<T: Real>(level: Level, values: &mut [T], addend: u64, largest: &Largest) {
    on_level::<T>(level, || {
        for value in values {
            *value = T::from_f64(power(power_code(value.to_f64(), addend, largest)));
        }
    });
}
