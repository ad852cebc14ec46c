//! The largest relative error of a tile: only elements that may exceed the largest so far are compared in float64.

use super::squares::{LANES, Values};
use crate::cpu::{InstructionSet, Kernel, Level};

/// Below this, products of relative errors and sources may lose bits.
pub(crate) const TINY: f32 = f32::from_bits((127 - 70) << 23);

/// The largest relative error so far, as the error and its source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxRelativeError {
    error: f32,
    source: f32,
    /// The largest float32 that is not above the quotient; 0 if that is [`TINY`].
    ratio: f32,
}

impl Default for MaxRelativeError {
    fn default() -> Self {
        Self { error: 0.0, source: 1.0, ratio: 0.0 }
    }
}

impl MaxRelativeError {
    pub(crate) fn quotient(self) -> f64 {
        f64::from(self.error) / f64::from(self.source)
    }

    /// Returns a number near the square of the largest relative error: below it by more than what three roundings change, or
    /// above it by so much, if all relative errors are quotients of two numbers of 8 bits, as a larger one is larger by
    /// 2^-17 of it. Powers of two are not rounded, nor are their products.
    pub(crate) fn square(self, are_short: bool) -> f32 {
        let bits = self.ratio.to_bits();
        let is_power = bits.trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
        let ratio = f32::from_bits(match are_short {
            _ if is_power => bits,
            true => bits + 16,
            false => bits - 8,
        });
        ratio * ratio
    }

    /// Returns a ratio by which errors are compared with products of sources, rounded at levels without fused multiply-add.
    pub(crate) fn ratio(self, level: Level) -> f32 {
        // The product may be rounded up, so the ratio is taken lower.
        let less = if level.set() >= InstructionSet::Neon { 0 } else { 8 };
        f32::from_bits(self.ratio.to_bits().saturating_sub(less))
    }

    /// Takes the largest relative error of a tile, if it exceeds the largest so far. Returns whether it does.
    pub(crate) fn rise(&mut self, level: Level, [sources, results]: [Values; 2]) -> bool {
        let risen = level.run(Rise { sources, results, from: *self });
        *self = risen.unwrap_or(*self);
        risen.is_some()
    }

    #[inline]
    fn new(error: f32, source: f32) -> Self {
        let quotient = f64::from(error) / f64::from(source);
        let near = quotient as f32;
        let excess = u32::from(f64::from(near) > quotient);
        let ratio = if near < TINY { 0.0 } else { f32::from_bits(near.to_bits() - excess) };
        Self { error, source, ratio }
    }

    /// Returns whether the quotient is below another. Products of float32 are exact in float64.
    #[inline(always)]
    fn is_below(self, error: f32, source: f32) -> bool {
        f64::from(self.error) * f64::from(source) < f64::from(error) * f64::from(self.source)
    }
}

/// Finds the largest relative error, if it exceeds another. Products in float32, and where these are equal to errors in
/// float64, tell which groups of elements may rise: arrays of one value come here with each tile. No error is relative to zero.
struct Rise {
    sources: Values,
    /// As many.
    results: Values,
    from: MaxRelativeError,
}

impl Kernel for Rise {
    type Output = Option<MaxRelativeError>;

    #[inline(always)]
    fn run(self) -> Option<MaxRelativeError> {
        let Self { sources, results, from: mut most } = self;
        let mut risen = None;
        assert!(results.count() == sources.count());
        for start in (0..sources.count()).step_by(LANES) {
            // SAFETY: `start` is below both counts, which are multiples of LANES, and so is `start + lane`.
            let at = |lane| unsafe {
                let (x, y) = (sources.get(start + lane), results.get(start + lane));
                (x.abs(), (y - x).abs())
            };
            // An error above an exact product is not below the rounded one.
            let may_rise = |(x, error): (f32, f32)| (error >= most.ratio * x) & (error > 0.0) & (x > 0.0);
            // A loop, as `fold` may be a function of its own, which has not the features of the level.
            let mut any = 0;
            for lane in 0..LANES {
                any |= u32::from(may_rise(at(lane)));
            }
            if any == 0 {
                continue;
            }
            let rises = |most: MaxRelativeError, (x, error): (f32, f32)| most.is_below(error, x) & (x > 0.0);
            let mut found = 0;
            for lane in 0..LANES {
                found |= u64::from(rises(most, at(lane)));
            }
            if found == 0 {
                continue;
            }
            for (source, error) in (0..LANES).map(at) {
                if rises(most, (source, error)) {
                    most = MaxRelativeError::new(error, source);
                    risen = Some(most);
                }
            }
        }
        risen
    }
}
