//! What magnitudes lose under a stored scale: the values of codes, and the scales that have codes of their own.

use crate::codec::pivot::{Binary32, FloatPivot};
use crate::codec::reference::worth;
use crate::format::Format;
use crate::quantization::element::names::{E4M3, E8M0};
use crate::quantization::rounded::single;

/// More than the roundings of a few operations of float32.
pub(super) const ROUNDED_UP: f32 = 1.0 + 1.0 / 1_048_576.0;

/// The values of codes.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Grid {
    /// What rounds a magnitude to the bits of a code: `c - (c - y)` with `c = y * split` (Veltkamp's splitting), but at least
    /// `least`, next to which float32 has the steps of the smallest codes.
    split: f32,
    least: f32,
    pub(super) max: f32,
    pub(super) limit: f32,
    /// The largest scale whose largest product the dtype of the weight has: results are not to become infinite.
    pub(super) most: f32,
    /// An error is less than that of the recipe's own scale if it is below this part of it. Where a quotient is in the middle
    /// of two values but for its rounding, codes may be those of the other one, which makes a sum of squares larger by less
    /// than `limit / step * 2^-18` of it, `step` being that of the largest codes; its additions round off at most 2^-16.
    pub(super) less: f32,
}

impl Grid {
    /// Returns those of a format of floats, or of integers of at most this magnitude, for weights of a dtype.
    pub(super) fn new(element: Format, max: f64, weight: Format) -> Self {
        let mantissa = Binary32::MANTISSA as i32;
        let (bits, step, top_step, split) = match element.float() {
            Some(spec) => {
                let bits = spec.mantissa_bits as i32;
                let step = worth(&spec, 1);
                let top_step = max - worth(&spec, spec.max_code() - 1);
                (bits, step, top_step, 2f32.powi(mantissa - bits) + 1.0)
            }
            // Codes of MXINT8 are 64ths.
            None => (0, 1.0 / 64.0, 1.0 / 64.0, 0.0),
        };
        debug_assert!(bits < mantissa, "by the table of formats");
        let least = (1.5 * step * 2f64.powi(mantissa)) as f32;
        let limit = max + top_step / 2.0;
        let spec = weight.float().unwrap_or_else(single);
        let largest = worth(&spec, spec.max_code()).min(f64::from(f32::MAX));
        let most = (largest / max) as f32;
        let less = (1.0 - limit / top_step * 2f64.powi(-16)) as f32;
        Self { split, least, max: max as f32, limit: limit as f32, most, less }
    }

    /// Returns a sum of squares for so many elements, in squares of a scale, that few blocks reach under their best scale: a part
    /// of the largest one without limits. Integers lose a third of that on average, floats an eighth.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn full_sum(&self, elements: usize) -> f32 {
        let most = self.limit - self.max;
        let part = if self.split > 0.0 { 0.25 } else { 0.5 };
        most * most * elements as f32 * part
    }

    /// What the largest magnitude is multiplied by to be the largest scale that has to be tried.
    #[inline(always)]
    pub(super) fn twice(&self) -> f32 {
        // A scale may not be left out for the rounding of this.
        2.0 / self.limit * ROUNDED_UP
    }
}

/// How scales follow from stored codes: the bits of a float32 after a shift, times a power of two, over a number and times
/// another, one of which is the scale of the array.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct StoredScales {
    pub(super) shift: u32,
    pub(super) unit: f32,
    /// The bits of the smallest scale.
    pub(super) least_bits: u32,
    /// The codes that may be chosen.
    pub(super) codes: (u32, u32),
    /// The smallest code of which it is sure that half of each larger one's scale has a code.
    pub(super) halved: u32,
    pub(super) divisor: f32,
    pub(super) factor: f32,
}

impl StoredScales {
    /// Returns those of a format, given the smallest scale of a recipe; none for other formats than those of MX and NVFP4.
    pub(super) fn new(format: Format, least: f32) -> Option<Self> {
        let usual = Self {
            shift: Binary32::MANTISSA,
            unit: 1.0,
            least_bits: 1 << (Binary32::MANTISSA - 1),
            codes: (1, 254),
            halved: 1,
            divisor: 1.0,
            factor: 1.0,
        };
        match format.name() {
            E8M0 => Some(usual),
            E4M3 => {
                let unit = 2f32.powi(120);
                let shift = Binary32::MANTISSA - 3;
                let least = (least / unit).to_bits() >> shift;
                let codes = (least.max(1), 126);
                Some(Self { shift, unit, least_bits: 0, codes, halved: 15, ..usual })
            }
            _ => None,
        }
    }

    /// Returns the scale of a code as a decoder does.
    #[inline(always)]
    pub(super) fn value(&self, code: u32) -> f32 {
        let bits = (code << self.shift).max(self.least_bits);
        f32::from_bits(bits) * self.unit / self.divisor * self.factor
    }

    /// Returns the largest code whose scale is not above another, and which may be chosen.
    #[inline(always)]
    pub(super) fn code_below(&self, scale: f32) -> u32 {
        let bits = (scale / self.factor * self.divisor / self.unit).to_bits();
        (bits >> self.shift).max(self.halved).max(self.codes.0).min(self.codes.1)
    }
}

#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}

/// Returns the squared error of a magnitude under a scale.
#[inline(always)]
pub(super) fn square<const CLIPS: bool>(magnitude: f32, scale: f32, inverse: f32, grid: Grid) -> f32 {
    let quotient = magnitude * inverse;
    let quotient = if !CLIPS || quotient < grid.max { quotient } else { grid.max };
    let split = quotient * grid.split;
    let split = if split > grid.least { split } else { grid.least };
    let value = split - (split - quotient);
    let lost = magnitude - value * scale;
    lost * lost
}
