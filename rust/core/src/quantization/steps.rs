//! The steps of recipes, a type for each sequence: how scales follow from the largest magnitudes of blocks, and from these
//! what codes are computed with.
//!
//! `D(…)` is a step that is rounded to the dtype of the weight, if the recipe computes in it; `max` is the largest element.

use super::arithmetic::{apply, limit, on_level, with_one};
use super::largest::Extremes;
use super::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use super::real::{Real, format};
use super::rounded::{Rounded, rounded, single};
use super::scale_rule::{Largest, power, power_code};
use crate::codec::reference::worth;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Format;

/// What blocks side by side have, an entry for each.
#[derive(Default)]
pub(super) struct BlockScales<T> {
    /// Scales, as they are stored in the end.
    pub(super) scale: Vec<T>,
    /// What codes are multiplied with, or divided by.
    pub(super) factors: Vec<T>,
    /// Zero points, or biases.
    pub(super) shifts: Vec<T>,
    /// Of factors that divide float32.
    pub(super) reciprocals: Vec<f32>,
    /// The bytes of stored scales.
    pub(super) bytes: Vec<u8>,
    /// Room for operands of a step, and for values in a producer's dtype.
    pub(super) operands: Vec<T>,
    pub(super) rounded: Vec<u8>,
}

/// What the steps of a recipe compute with, whichever the block.
pub(super) struct Numbers<T> {
    /// The largest element, in the recipe's sense, and as scale rules see it.
    pub(super) max: T,
    pub(super) largest: Largest,
    /// What the rule for powers of two adds to magnitudes.
    pub(super) power_addend: u64,
    /// The least of the largest magnitudes, if there is one.
    pub(super) least_amax: Option<T>,
    /// There are zero points.
    pub(super) is_asymmetric: bool,
    /// Scales are stored as powers of two.
    pub(super) has_powers: bool,
    /// Codes are products with factors; else they are quotients.
    pub(super) multiplies: bool,
    /// To the dtype of the weight and back, if the recipe computes in it.
    pub(super) weight: Option<Rounded>,
    /// The smallest normal and the largest number of that dtype, if float32 has more exponents.
    pub(super) narrow: Option<(T, T)>,
    pub(super) level: Level,
}

/// Results of float64 are rounded to odd, for they are rounded again.
pub(super) const ODD: bool = true;

/// Scales of a whole array.
#[derive(Clone, Copy)]
pub(super) struct ArrayScale<T> {
    pub(super) global: T,
    /// `TransformerEngine`'s factor.
    pub(super) encode: T,
}

impl<T: Real> Numbers<T> {
    /// Rounds values to the dtype of the weight, if the recipe computes in it. Those that are no normal numbers of a dtype
    /// with fewer exponents than float32 stay what they are: rounded, they would lose the weight.
    pub(super) fn to_weight(&self, values: &mut [T], bytes: &mut Vec<u8>) {
        const CHUNK: usize = 64;
        let Some(weight) = &self.weight else { return };
        let Some((least, most)) = self.narrow else { return weight.round(values, bytes) };
        let mut wide = [T::default(); CHUNK];
        for values in values.chunks_mut(CHUNK) {
            let wide = &mut wide[..values.len()];
            wide.copy_from_slice(values);
            weight.round(values, bytes);
            for (value, &wide) in values.iter_mut().zip(wide.iter()) {
                let magnitude = wide.larger(T::default());
                *value = if magnitude >= least && magnitude <= most { *value } else { wide };
            }
        }
    }

    /// Fills quotients of a number and others.
    fn over(&self, quotients: &mut Vec<T>, number: T, divisors: &[T]) {
        quotients.clear();
        quotients.resize(divisors.len(), number);
        apply::<T, DIVIDE>(self.level, quotients, divisors, ODD);
    }

    /// Applies an operation to values and a number.
    pub(super) fn with<const OPERATION: u8>(&self, values: &mut [T], number: T) {
        with_one::<T, OPERATION>(self.level, values, number, ODD);
    }

    /// Fills in the results of an operation on values and a number.
    fn scaled<const OPERATION: u8>(&self, to: &mut Vec<T>, values: &[T], number: T) {
        refill(to, values);
        self.with::<OPERATION>(to, number);
    }
}

/// Copies values, in place of those that are there.
pub(super) fn refill<T: Copy>(to: &mut Vec<T>, from: &[T]) {
    to.clear();
    to.extend_from_slice(from);
}

/// Replaces magnitudes by the powers of two of their blocks.
pub(super) fn powers<T: Real>(level: Level, values: &mut [T], addend: u64, largest: &Largest) {
    on_level!(level, <T: Real>, values: &'a mut [T] = values, addend: u64 = addend, largest: &'a Largest = largest; {
        for value in values {
            *value = T::from_f64(power(power_code(value.to_f64(), addend, largest)));
        }
    });
}

/// `TransformerEngine`'s factor of a whole array.
pub(super) fn encode_scale(amax: f32, whole: f32) -> f32 {
    if amax == 0.0 { 1.0 } else { (whole / amax).min(f32::MAX) }
}

/// What distinguishes sequences of steps beside their functions.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "columns of a table")]
pub(super) struct Properties {
    /// Codes are products with factors; else quotients by them, as codes of int8 are under powers of two.
    pub(super) multiplies: bool,
    /// Scales are powers of two by a rule.
    pub(super) powers: bool,
    /// Codes are relative to a bias.
    pub(super) affine: bool,
    /// Blocks of zeros have a scale of their own.
    pub(super) has_zero_scale: bool,
    /// A scale that is stored as zero is replaced by that of blocks of zeros.
    pub(super) replaces_zeros: bool,
    /// Factors follow from scales before these are stored.
    pub(super) of_unstored: bool,
    /// Codes of a block whose scale is stored as zero may be others than zero.
    pub(super) outlasts_zeros: bool,
    /// There is a scale of the whole array, where the scheme has it.
    pub(super) has_global: bool,
    /// Scales are divided by it when they are decoded.
    pub(super) divides_by_global: bool,
    /// The largest magnitude of the array is needed.
    pub(super) needs_array_amax: bool,
}

/// Most sequences differ from this in a property or two.
const USUAL: Properties = Properties {
    multiplies: false,
    powers: false,
    affine: false,
    has_zero_scale: true,
    replaces_zeros: false,
    of_unstored: false,
    outlasts_zeros: false,
    has_global: true,
    divides_by_global: false,
    needs_array_amax: false,
};

/// A sequence of steps.
pub(super) trait Sequence<T: Real> {
    const PROPERTIES: Properties = USUAL;

    /// Computes scales in place of the largest magnitudes; some sequences find factors first, or shifts as well.
    fn scales(
        numbers: &Numbers<T>,
        array: ArrayScale<T>,
        extremes: &[Extremes<T>],
        blocks: &mut BlockScales<T>,
    );

    /// Finds factors, of scales as they are stored.
    fn factors(numbers: &Numbers<T>, array: ArrayScale<T>, blocks: &mut BlockScales<T>);

    /// Returns the scale of an array, given its largest magnitude, the largest product of a code and a block's scale, and
    /// the dtype of the weight.
    fn global_scale(amax: f32, whole: f32, _weight: Format) -> Result<f32, Error> {
        Ok(if amax == 0.0 { 1.0 } else { amax / whole })
    }
}

/// [`Sequence::scales`] of a type.
type FindScales<T> = fn(&Numbers<T>, ArrayScale<T>, &[Extremes<T>], &mut BlockScales<T>);

/// [`Sequence::factors`] of a type.
type FindFactors<T> = fn(&Numbers<T>, ArrayScale<T>, &mut BlockScales<T>);

/// The functions of a sequence for a type of reals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions<T> {
    pub(super) scales: FindScales<T>,
    pub(super) factors: FindFactors<T>,
}

/// A sequence of steps, as a column of the table of recipes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pub(super) properties: Properties,
    pub(super) f32: Functions<f32>,
    pub(super) f64: Functions<f64>,
    pub(super) global_scale: fn(f32, f32, Format) -> Result<f32, Error>,
}

/// Returns the column of a sequence.
pub(super) const fn steps<S: Sequence<f32> + Sequence<f64>>() -> Steps {
    const fn functions<T: Real, S: Sequence<T>>() -> Functions<T> {
        Functions { scales: S::scales, factors: S::factors }
    }
    Steps {
        properties: <S as Sequence<f32>>::PROPERTIES,
        f32: functions::<f32, S>(),
        f64: functions::<f64, S>(),
        global_scale: <S as Sequence<f32>>::global_scale,
    }
}

/// `scale = D(amax / max)`, `code = D(x / scale)`.
pub(super) struct Quotient;

impl<T: Real> Sequence<T> for Quotient {
    const PROPERTIES: Properties = Properties { replaces_zeros: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, extremes: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        if !numbers.is_asymmetric {
            return rounded_quotients(numbers, blocks);
        }
        let BlockScales { scale, rounded, .. } = blocks;
        for (scale, extremes) in scale.iter_mut().zip(extremes) {
            let Extremes { low, high } = extremes.with_zero();
            *scale = high.combine::<SUBTRACT, false>(low);
        }
        numbers.to_weight(scale, rounded);
        numbers.with::<DIVIDE>(scale, numbers.max.combine::<ADD, false>(numbers.max));
        numbers.to_weight(scale, rounded);
    }

    fn factors(_: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        refill(&mut blocks.factors, &blocks.scale);
    }
}

/// Computes `D(amax / max)`.
fn rounded_quotients<T: Real>(numbers: &Numbers<T>, blocks: &mut BlockScales<T>) {
    if let Some(least) = numbers.least_amax {
        limit(numbers.level, &mut blocks.scale, least, T::from_f32(f32::INFINITY));
    }
    numbers.with::<DIVIDE>(&mut blocks.scale, numbers.max);
    numbers.to_weight(&mut blocks.scale, &mut blocks.rounded);
}

/// `t = (1 / amax) * max`, `scale = 1 / t`, `code = x * t`.
pub(super) struct Reciprocal;

impl<T: Real> Sequence<T> for Reciprocal {
    const PROPERTIES: Properties = Properties { multiplies: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, .. } = blocks;
        max_over_amax(numbers, factors, scale);
        numbers.over(scale, T::ONE, factors);
    }

    fn factors(numbers: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        if numbers.has_powers {
            numbers.over(&mut blocks.factors, T::ONE, &blocks.scale);
        }
    }
}

/// Fills in `(1 / amax) * max`.
fn max_over_amax<T: Real>(numbers: &Numbers<T>, factors: &mut Vec<T>, amax: &[T]) {
    numbers.over(factors, T::ONE, amax);
    numbers.with::<MULTIPLY>(factors, numbers.max);
}

/// `scale = max / (amax + 1e-7)`, `code = x * scale`: scales divide.
pub(super) struct Inverse;

impl<T: Real> Sequence<T> for Inverse {
    const PROPERTIES: Properties = Properties { multiplies: true, has_zero_scale: false, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        let BlockScales { scale, operands, .. } = blocks;
        numbers.with::<ADD>(scale, T::from_f32(1e-7));
        refill(operands, scale);
        numbers.over(scale, numbers.max, operands);
    }

    fn factors(_: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        refill(&mut blocks.factors, &blocks.scale);
    }
}

/// `scale = amax`, `code = x * ((1 / amax) * max)`.
pub(super) struct Amax;

impl<T: Real> Sequence<T> for Amax {
    const PROPERTIES: Properties = Properties { multiplies: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        max_over_amax(numbers, &mut blocks.factors, &blocks.scale);
    }

    fn factors(_: &Numbers<T>, _: ArrayScale<T>, _: &mut BlockScales<T>) {}
}

/// `scale = D(amax / max)`, `code = D(x * D(1 / scale))`. `ComfyUI` limits the scales of float16 so that it has `1 / scale`
/// (`quant_ops.py`), where comfy-kitchen alone has infinities.
pub(super) struct StoredReciprocal;

impl<T: Real> Sequence<T> for StoredReciprocal {
    const PROPERTIES: Properties = Properties { multiplies: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        rounded_quotients(numbers, blocks);
        let Some((least, most)) = numbers.narrow else { return };
        for scale in blocks.scale.iter_mut().filter(|scale| **scale < least) {
            let inverse = T::ONE.combine::<DIVIDE, false>(*scale).limited(T::default(), most);
            *scale = T::ONE.combine::<DIVIDE, false>(inverse);
        }
    }

    fn factors(numbers: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, rounded, .. } = blocks;
        numbers.over(factors, T::ONE, scale);
        numbers.to_weight(factors, rounded);
    }
}

/// The steps of [`StoredReciprocal`], with the scale before it is stored.
pub(super) struct UnstoredReciprocal;

impl<T: Real> Sequence<T> for UnstoredReciprocal {
    const PROPERTIES: Properties =
        Properties { multiplies: true, of_unstored: true, outlasts_zeros: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        rounded_quotients(numbers, blocks);
    }

    fn factors(numbers: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        let BlockScales { factors, operands, rounded, .. } = blocks;
        refill(operands, factors);
        numbers.over(factors, T::ONE, operands);
        numbers.to_weight(factors, rounded);
    }
}

/// `scale = 2^k`, `code = x / scale`.
pub(super) struct Power;

impl<T: Real> Sequence<T> for Power {
    const PROPERTIES: Properties = Properties { multiplies: true, powers: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        powers(numbers.level, &mut blocks.scale, numbers.power_addend, &numbers.largest);
    }

    fn factors(numbers: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, .. } = blocks;
        if numbers.multiplies {
            numbers.over(factors, T::ONE, scale);
        } else {
            // 64 over the smallest scales is beyond float32.
            numbers.scaled::<DIVIDE>(factors, scale, T::from_f32(64.0));
        }
    }
}

/// `scale = e4m3(D(amax / 6) * global)`, `code = x / (scale / global)`.
pub(super) struct DividedGlobal;

impl<T: Real> Sequence<T> for DividedGlobal {
    const PROPERTIES: Properties = Properties { replaces_zeros: true, divides_by_global: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, array: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        let BlockScales { scale, rounded, .. } = blocks;
        numbers.with::<DIVIDE>(scale, six());
        numbers.to_weight(scale, rounded);
        numbers.with::<MULTIPLY>(scale, array.global);
    }

    fn factors(numbers: &Numbers<T>, array: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        numbers.scaled::<DIVIDE>(&mut blocks.factors, &blocks.scale, array.global);
    }

    fn global_scale(amax: f32, whole: f32, weight: Format) -> Result<f32, Error> {
        let weight = if weight.item_size() > 4 { format::<f32>() } else { weight };
        let spec = weight.float().unwrap_or_else(single);
        let smallest = worth(&spec, 1 << spec.mantissa_bits) as f32;
        let scale = rounded(weight, rounded(weight, 1.0 / amax.max(smallest))? * whole)?;
        // compressed-tensors has 1 where its own overflows, so that all codes are 0.
        let wide = if amax > 0.0 && amax.is_finite() { (whole / amax).min(f32::MAX) } else { 1.0 };
        Ok(if scale.is_finite() && amax.is_finite() { scale } else { wide })
    }
}

/// The largest element of E2M1.
fn six<T: Real>() -> T {
    T::from_f32(6.0)
}

/// `scale = e4m3(amax / (6 * global))`, `code = x / (scale * global)`.
pub(super) struct ProductWithSix;

impl<T: Real> Sequence<T> for ProductWithSix {
    fn scales(numbers: &Numbers<T>, array: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        numbers.with::<DIVIDE>(&mut blocks.scale, six::<T>().combine::<MULTIPLY, false>(array.global));
    }

    fn factors(numbers: &Numbers<T>, array: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        numbers.scaled::<MULTIPLY>(&mut blocks.factors, &blocks.scale, array.global);
    }
}

/// `scale = e4m3(amax / 6 / global)`, `code = x * (1 / global / scale)`.
pub(super) struct ReciprocalGlobal;

impl<T: Real> Sequence<T> for ReciprocalGlobal {
    const PROPERTIES: Properties = Properties { multiplies: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, array: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        numbers.with::<DIVIDE>(&mut blocks.scale, six());
        numbers.with::<DIVIDE>(&mut blocks.scale, array.global);
    }

    fn factors(numbers: &Numbers<T>, array: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        let number = T::ONE.combine::<DIVIDE, false>(array.global);
        numbers.over(&mut blocks.factors, number, &blocks.scale);
    }
}

/// `scale = e4m3(amax * ((max / amax of all) * (1 / 6)))`, `code = x * (1 / (scale * (1 / (max / amax of all))))`.
pub(super) struct EncodeScale;

impl<T: Real> Sequence<T> for EncodeScale {
    const PROPERTIES: Properties =
        Properties { multiplies: true, outlasts_zeros: true, needs_array_amax: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, array: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        let sixth = T::ONE.combine::<DIVIDE, false>(six());
        numbers.with::<MULTIPLY>(&mut blocks.scale, array.encode.combine::<MULTIPLY, false>(sixth));
    }

    fn factors(numbers: &Numbers<T>, array: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, operands, .. } = blocks;
        numbers.scaled::<MULTIPLY>(operands, scale, T::ONE.combine::<DIVIDE, false>(array.encode));
        numbers.over(factors, T::ONE, operands);
        limit(numbers.level, factors, T::default(), T::from_f32(f32::MAX));
    }

    fn global_scale(amax: f32, whole: f32, _: Format) -> Result<f32, Error> {
        Ok(if amax == 0.0 { 1.0 } else { 1.0 / encode_scale(amax, whole) })
    }
}

/// `scale = e4m3(amax / 6 / global)`, `code = x / (scale * global)`.
pub(super) struct TwoQuotients;

impl<T: Real> Sequence<T> for TwoQuotients {
    fn scales(
        numbers: &Numbers<T>,
        array: ArrayScale<T>,
        extremes: &[Extremes<T>],
        blocks: &mut BlockScales<T>,
    ) {
        ReciprocalGlobal::scales(numbers, array, extremes, blocks);
    }

    fn factors(numbers: &Numbers<T>, array: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        ProductWithSix::factors(numbers, array, blocks);
    }
}

/// `scale = e4m3(amax / 6)`, `code = x / scale`.
pub(super) struct SingleLevel;

impl<T: Real> Sequence<T> for SingleLevel {
    const PROPERTIES: Properties = Properties { has_global: false, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        numbers.with::<DIVIDE>(&mut blocks.scale, six());
    }

    fn factors(_: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        refill(&mut blocks.factors, &blocks.scale);
    }

    fn global_scale(_: f32, _: f32, _: Format) -> Result<f32, Error> {
        Ok(1.0)
    }
}

/// An affine map whose edge of larger magnitude is exact: a whole number of steps from zero.
pub(super) struct Edge;

impl<T: Real> Sequence<T> for Edge {
    const PROPERTIES: Properties =
        Properties { affine: true, has_zero_scale: false, of_unstored: true, ..USUAL };

    fn scales(numbers: &Numbers<T>, _: ArrayScale<T>, extremes: &[Extremes<T>], blocks: &mut BlockScales<T>) {
        let BlockScales { scale, shifts, .. } = blocks;
        shifts.clear();
        let steps = T::from_f64((1u64 << numbers.largest.bits) as f64 - 1.0);
        for (scale, &Extremes { low, high }) in scale.iter_mut().zip(extremes) {
            let range = high.combine::<SUBTRACT, false>(low).combine::<DIVIDE, false>(steps);
            let range = range.limited(T::from_f32(1e-7), T::from_f32(f32::INFINITY));
            let from_low = low.larger(T::default()) > high.larger(T::default());
            let (edge, step) =
                if from_low { (low, range) } else { (high, T::default().combine::<SUBTRACT, false>(range)) };
            let whole = T::from_f64(edge.combine::<DIVIDE, false>(step).to_f64().round_ties_even());
            if whole == T::default() {
                *scale = step;
                shifts.push(T::default());
            } else {
                *scale = edge.combine::<DIVIDE, false>(whole);
                shifts.push(edge);
            }
        }
    }

    fn factors(_: &Numbers<T>, _: ArrayScale<T>, _: &mut BlockScales<T>) {}
}

/// What bitsandbytes divides by at least.
const SMALLEST_AMAX: f32 = 1e-38;

/// `scale = amax`, the code of the value nearest to `x * (1 / scale)`.
pub(super) struct Nearest;

impl<T: Real> Sequence<T> for Nearest {
    const PROPERTIES: Properties = Properties { multiplies: true, ..USUAL };

    fn scales(_: &Numbers<T>, _: ArrayScale<T>, _: &[Extremes<T>], _: &mut BlockScales<T>) {}

    fn factors(numbers: &Numbers<T>, _: ArrayScale<T>, blocks: &mut BlockScales<T>) {
        let BlockScales { scale, factors, operands, .. } = blocks;
        refill(operands, scale);
        limit(numbers.level, operands, T::from_f32(SMALLEST_AMAX), T::from_f32(f32::INFINITY));
        numbers.over(factors, T::ONE, operands);
    }
}
