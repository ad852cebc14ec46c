//! Scales of blocks, and what codes are computed with, by the steps of recipes.

use super::encoder::{Encoder, Limits};
use super::rounded::{GLOBAL_MAX, encode_scale};
use super::source::Buffers;
use crate::codec::options::Rounding;
use crate::codec::reference::worth;
use crate::cpu::Level;
use crate::quantization::arithmetic::{apply, limit, on_level, with_one};
use crate::quantization::element::names::{E8M0, INT8};
use crate::quantization::largest::Extremes;
use crate::quantization::real::Real;
use crate::quantization::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::recipe::{Family, Steps, ZeroScale};
use crate::quantization::scale_rule::{Largest, ScaleRule, addend, exponent, power, power_code};
use crate::quantization::scaled::reciprocals;

/// What bitsandbytes divides by at least.
const SMALLEST_AMAX: f32 = 1e-38;

impl<T: Real> Encoder<T> {
    /// Finds the scales of a band, and shifts for biases. `bytes` becomes the stored scales.
    pub(super) fn scales(&self, matrix: usize, stretch: f32, buffers: &mut Buffers<T>) {
        self.compute(self.of_all(matrix), buffers);
        self.fit(stretch, &mut buffers.scale);
        self.store(buffers);
    }

    /// Finds what codes are computed with, of the scales of a band: `factors`, and `shifts` for zero points.
    pub(super) fn factors(&self, matrix: usize, buffers: &mut Buffers<T>) {
        self.find_factors(self.of_all(matrix), buffers);
        if self.zero_point.is_some() {
            self.find_shifts(buffers);
        }
        self.leave_out(buffers);
        let Buffers { factors, amax, reciprocals: found, .. } = buffers;
        if let (false, Some(factors), Some(amax)) = (self.multiplies(), T::f32s(factors), T::f32s(amax)) {
            let level = if self.is_usual() { self.level } else { Level::PORTABLE };
            reciprocals(level, factors, amax, found);
        }
    }

    /// The global scale of a matrix, and `TransformerEngine`'s factor of the whole array.
    pub(super) fn of_all(&self, matrix: usize) -> (T, T) {
        let global = self.global.get(matrix).copied().unwrap_or(T::ONE);
        let most = self.what.global_max.unwrap_or(GLOBAL_MAX) * 6.0;
        (global, T::from_f32(encode_scale(self.what.amax.unwrap_or(0.0) as f32, most)))
    }

    /// Returns what rules for powers of two add to magnitudes, and the exponent of the largest element.
    pub(super) fn power_steps(&self) -> (u64, i64) {
        let rule = self.what.rule.or(self.recipe.rule).unwrap_or(ScaleRule::Floor);
        (addend(rule, &self.largest), exponent(self.largest.value))
    }

    /// Returns the scale of a block of zeros, or its code of E8M0.
    pub(super) fn zero_scale(&self) -> f32 {
        match self.recipe.zero {
            ZeroScale::Value(value) => value,
            ZeroScale::Epsilon => self.epsilon(),
        }
    }

    /// Computes scales of the largest magnitudes, as the recipe does; some find factors first, or shifts with them.
    pub(super) fn compute(&self, (global, encode_scale): (T, T), buffers: &mut Buffers<T>) {
        let Buffers { amax, extremes, scale, factors, shifts, constant, rounded, .. } = buffers;
        let six = T::from_f32(6.0);
        refill(scale, amax);
        match self.recipe.steps {
            Steps::Quotient if self.zero_point.is_some() => {
                for (scale, extremes) in scale.iter_mut().zip(extremes.iter()) {
                    let Extremes { low, high } = extremes.with_zero();
                    *scale = high.combine::<SUBTRACT, false>(low);
                }
                self.to_weight(scale, rounded);
                self.with::<DIVIDE>(scale, self.max.combine::<ADD, false>(self.max));
                self.to_weight(scale, rounded);
            }
            Steps::Quotient | Steps::ThenReciprocal => {
                let of_parts = self.recipe.normal && self.what.block != (0, 0);
                if let (true, Some(spec)) = (of_parts, self.what.x.format.float()) {
                    let smallest = T::from_f64(worth(&spec, 1 << spec.mantissa_bits));
                    limit(self.level, scale, smallest, T::from_f32(f32::INFINITY));
                }
                self.with::<DIVIDE>(scale, self.max);
                self.to_weight(scale, rounded);
            }
            Steps::Reciprocal | Steps::Amax => {
                self.over(factors, T::ONE, scale);
                self.with::<MULTIPLY>(factors, self.max);
                if self.recipe.steps == Steps::Reciprocal {
                    self.over(scale, T::ONE, factors);
                }
            }
            Steps::Inverse => {
                self.with::<ADD>(scale, T::from_f32(1e-7));
                refill(constant, scale);
                self.over(scale, self.max, constant);
            }
            Steps::Power => {
                powers(self.level, scale, self.power_steps().0, &self.largest);
            }
            Steps::DividedGlobal => {
                self.with::<DIVIDE>(scale, six);
                self.to_weight(scale, rounded);
                self.with::<MULTIPLY>(scale, global);
            }
            Steps::ProductWithSix => self.with::<DIVIDE>(scale, six.combine::<MULTIPLY, false>(global)),
            Steps::ReciprocalGlobal | Steps::TwoQuotients => {
                self.with::<DIVIDE>(scale, six);
                self.with::<DIVIDE>(scale, global);
            }
            Steps::EncodeScale => {
                let sixth = T::ONE.combine::<DIVIDE, false>(six);
                self.with::<MULTIPLY>(scale, encode_scale.combine::<MULTIPLY, false>(sixth));
            }
            Steps::SingleLevel => self.with::<DIVIDE>(scale, six),
            Steps::Edge => self.edges(extremes, scale, shifts),
            Steps::Nearest => {}
        }
    }

    /// Brings scales into the range of their format, and rounds those up that it has only as powers of two.
    fn fit(&self, stretch: f32, scale: &mut [T]) {
        if self.recipe.family == Family::TwoLevel {
            if stretch != 1.0 {
                self.with::<MULTIPLY>(scale, T::from_f32(stretch));
            }
            limit(self.level, scale, T::from_f32(self.recipe.least), T::from_f32(GLOBAL_MAX));
        }
        if self.has_powers() && self.recipe.steps != Steps::Power {
            let one = Largest { value: 1.0, mantissa_bits: 0, bits: 8 };
            powers(self.level, scale, addend(ScaleRule::Ceil, &one), &one);
        }
    }

    /// Rounds scales to their format, and gives blocks of zeros theirs, and those that are not finite NaN. What codes are
    /// computed with may be what scales were before.
    fn store(&self, buffers: &mut Buffers<T>) {
        let Buffers { amax, scale, factors, bytes, .. } = buffers;
        let steps = self.recipe.steps;
        let zero = self.zero_scale();
        let is_power = self.has_powers() && steps == Steps::Power;
        let zero = T::from_f32(if is_power { power(zero as i64) as f32 } else { zero });
        let has_zero = !matches!(steps, Steps::Edge | Steps::Inverse);
        let (nothing, nan) = (T::default(), T::from_f32(f32::NAN));
        // Loops that own what they need, and take no branches, are vectorised.
        let numbers = scale.iter_mut().zip(amax.iter());
        on_level::<T>(self.level, move || {
            for (scale, &amax) in numbers {
                let known = *scale;
                let finite = if (amax == nothing) & has_zero { zero } else { known };
                *scale = if amax.is_finite() { finite } else { nan };
            }
        });
        if self.recipe.family == Family::Integer && matches!(steps, Steps::Edge | Steps::ThenReciprocal) {
            refill(factors, scale);
        }
        self.stored.round(scale, bytes);
        if zero != nothing && matches!(steps, Steps::Quotient | Steps::DividedGlobal) {
            let mut replaced = false;
            let (numbers, found) = (scale.iter_mut(), &mut replaced);
            on_level::<T>(self.level, move || {
                *found = numbers.fold(false, |found, scale| {
                    let (known, is_zero) = (*scale, *scale == nothing);
                    *scale = if is_zero { zero } else { known };
                    found | is_zero
                });
            });
            if replaced {
                self.stored.round(scale, bytes);
            }
        }
    }

    /// Finds what codes are multiplied with, or divided by, of scales as they are stored.
    pub(super) fn find_factors(&self, (global, encode_scale): (T, T), buffers: &mut Buffers<T>) {
        let Buffers { scale, factors, constant, rounded, .. } = buffers;
        match self.recipe.steps {
            Steps::Quotient | Steps::SingleLevel | Steps::Inverse => refill(factors, scale),
            // 64 over the smallest scales is beyond float32.
            Steps::Power if !self.multiplies() => self.scaled::<DIVIDE>(factors, scale, T::from_f32(64.0)),
            Steps::Reciprocal if !self.has_powers() => {}
            Steps::Amax | Steps::Edge => {}
            Steps::Power | Steps::Reciprocal => self.over(factors, T::ONE, scale),
            Steps::ThenReciprocal => {
                refill(constant, if self.recipe.family == Family::Integer { &*factors } else { &*scale });
                self.over(factors, T::ONE, constant);
                self.to_weight(factors, rounded);
            }
            Steps::Nearest => {
                refill(constant, scale);
                limit(self.level, constant, T::from_f32(SMALLEST_AMAX), T::from_f32(f32::INFINITY));
                self.over(factors, T::ONE, constant);
            }
            Steps::DividedGlobal => self.scaled::<DIVIDE>(factors, scale, global),
            Steps::ProductWithSix | Steps::TwoQuotients => self.scaled::<MULTIPLY>(factors, scale, global),
            Steps::ReciprocalGlobal => self.over(factors, T::ONE.combine::<DIVIDE, false>(global), scale),
            Steps::EncodeScale => {
                self.scaled::<MULTIPLY>(constant, scale, T::ONE.combine::<DIVIDE, false>(encode_scale));
                self.over(factors, T::ONE, constant);
                limit(self.level, factors, T::default(), T::from_f32(f32::MAX));
            }
        }
    }

    /// Finds zero points, of the smallest elements and scales.
    fn find_shifts(&self, buffers: &mut Buffers<T>) {
        let Buffers { amax, extremes, scale, shifts, rounded, .. } = buffers;
        shifts.clear();
        shifts.extend(extremes.iter().map(|extremes| extremes.with_zero().low));
        apply::<T, DIVIDE>(self.level, shifts, scale, self.odd);
        self.to_weight(shifts, rounded);
        let limits = self.limits.unwrap_or(Limits { low: T::default(), high: T::default() });
        for shift in shifts.iter_mut() {
            *shift = limits.low.combine::<SUBTRACT, false>(*shift);
        }
        self.to_weight(shifts, rounded);
        for (shift, amax) in shifts.iter_mut().zip(amax.iter()) {
            let whole = T::from_f64(shift.limited(limits.low, limits.high).to_f64().round_ties_even());
            // 0 / 0, which torch turns into the integer 0.
            *shift = if amax.to_f64() == 0.0 { T::default() } else { whole };
        }
    }

    /// Makes codes 0 where there is no scale, or none that is a number.
    fn leave_out(&self, buffers: &mut Buffers<T>) {
        let Buffers { amax, scale, factors, .. } = buffers;
        let nothing = T::default();
        let none = if self.multiplies() { nothing } else { T::from_f32(f32::INFINITY) };
        let steps = self.recipe.steps;
        let (is_edge, needs_scale) = (steps == Steps::Edge, steps != Steps::EncodeScale);
        let numbers = factors.iter_mut().zip(scale.iter().zip(amax.iter()));
        on_level::<T>(self.level, move || {
            for (factor, (&scale, &amax)) in numbers {
                let known = *factor;
                let is_zero = !is_edge & ((amax == nothing) | (needs_scale & (scale == nothing)));
                *factor = if is_zero | !amax.is_finite() { none } else { known };
            }
        });
    }

    /// Whether scales are stored as powers of two.
    pub(super) fn has_powers(&self) -> bool {
        self.stored.format.name() == E8M0
    }

    /// Rounds values to the dtype of the weight, if the recipe computes in it.
    fn to_weight(&self, values: &mut [T], rounded: &mut Vec<u8>) {
        if let Some(weight) = &self.weight {
            weight.round(values, rounded);
        }
    }

    /// Fills quotients of one number and others.
    fn over(&self, quotients: &mut Vec<T>, number: T, divisors: &[T]) {
        quotients.clear();
        quotients.resize(divisors.len(), number);
        apply::<T, DIVIDE>(self.level, quotients, divisors, self.odd);
    }

    /// Whether the largest magnitudes are those of elements, and rounding does not tell from zero what underflows, as
    /// directions do. Of blocks under a global scale, it is not the caller's that bounds elements.
    pub(super) fn is_usual(&self) -> bool {
        let is_own = self.what.amax.is_none() || self.what.scheme.global_scale;
        is_own && self.rounds_to_nearest()
    }

    pub(super) fn rounds_to_nearest(&self) -> bool {
        let rounding = self.settings.options.rounding;
        matches!(rounding, Some(Rounding::NearestEven | Rounding::NearestAway))
    }

    /// Applies an operation to numbers and one other. Of float64, results are rounded to odd, for they are rounded again.
    fn with<const OPERATION: u8>(&self, values: &mut [T], number: T) {
        with_one::<T, OPERATION>(self.level, values, number, self.odd);
    }

    /// Fills in the results of an operation on numbers and one other.
    fn scaled<const OPERATION: u8>(&self, to: &mut Vec<T>, values: &[T], number: T) {
        refill(to, values);
        self.with::<OPERATION>(to, number);
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
}

/// Copies values, in place of those that are there.
fn refill<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}

/// Replaces magnitudes by the powers of two of their blocks.
fn powers<T: Real>(level: Level, values: &mut [T], addend: u64, largest: &Largest) {
    on_level::<T>(level, || {
        for value in values {
            *value = T::from_f64(power(power_code(value.to_f64(), addend, largest)));
        }
    });
}
