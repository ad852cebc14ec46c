//! The first pass over a tile, and the largest relative error: only elements that may exceed the largest so far are
//! divided.

use super::extremes::{FirstPass, bits};
use super::squares::{Errors, LANES};
use crate::cpu::{InstructionSet, Kernel, Level};

/// Below this, products of relative errors and sources may lose bits.
pub(super) const TINY: f32 = f32::from_bits((127 - 70) << 23);

/// The first pass; `FUSED` uses fused multiply-add.
struct FirstPassLoop<const FUSED: bool> {
    ends: Errors,
    ratio: f32,
}

impl<const FUSED: bool> Kernel for FirstPassLoop<FUSED> {
    type Output = FirstPass;

    #[inline(always)]
    fn run(self) -> FirstPass {
        let Self { ends, ratio } = self;
        let (mut below, mut above, mut most, mut inexact, mut excess) = (u32::MAX, 0, 0, 0, 0);
        for i in 0..ends.count() {
            // SAFETY: `i` is below the count.
            let (x, y) = unsafe { ends.get(i) };
            let error = (y - x).abs();
            let less = bits(x).wrapping_sub(1);
            below = less.min(below);
            above = less.max(above);
            most = bits(error).max(most);
            inexact += bits(error).min(1);
            let more = if FUSED { (-ratio).mul_add(x.abs(), error) } else { error - ratio * x.abs() };
            // As integers, the bits of floats keep their sign.
            excess = (more.to_bits() as i32).max(excess);
        }
        FirstPass { below, above, error: most, inexact, may_exceed: excess > 0 }
    }
}

/// The largest relative error so far, as the error and its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxRelativeError {
    error: f32,
    source: f32,
}

impl Default for MaxRelativeError {
    fn default() -> Self {
        Self { error: 0.0, source: 1.0 }
    }
}

impl MaxRelativeError {
    pub(super) fn quotient(self) -> f64 {
        f64::from(self.error) / f64::from(self.source)
    }

    /// Returns a float32 below the quotient by so many units in the last place, or equal to it.
    fn ratio(self, units: u32) -> f32 {
        let quotient = self.quotient();
        let near = quotient as f32;
        let excess = u32::from(f64::from(near) > quotient);
        if near < TINY { 0.0 } else { f32::from_bits(near.to_bits() - excess - units) }
    }

    pub(super) fn first_pass(self, level: Level, ends: Errors) -> FirstPass {
        if level.set() >= InstructionSet::Neon {
            level.run(FirstPassLoop::<true> { ends, ratio: self.ratio(0) })
        } else {
            // The product may be rounded up, so the ratio is taken lower.
            level.run(FirstPassLoop::<false> { ends, ratio: self.ratio(8) })
        }
    }

    /// Takes the largest relative error of a tile, if it exceeds the largest so far. Returns whether it does.
    pub(super) fn rise(&mut self, level: Level, ends: Errors) -> bool {
        let risen = level.run(Rise { ends, from: *self });
        let rises = risen.is_some();
        *self = risen.unwrap_or(*self);
        rises
    }

    /// Returns whether the quotient is below another. Products of float32 are exact in float64.
    #[inline(always)]
    fn is_below(self, error: f32, source: f32) -> bool {
        f64::from(self.error) * f64::from(source) < f64::from(error) * f64::from(self.source)
    }
}

/// Finds the largest relative error, if it exceeds another. Products tell which groups of elements may rise: arrays of
/// one value come here with each tile.
struct Rise {
    ends: Errors,
    from: MaxRelativeError,
}

impl Kernel for Rise {
    type Output = Option<MaxRelativeError>;

    #[inline(always)]
    fn run(self) -> Option<MaxRelativeError> {
        let Self { ends, from: mut most } = self;
        let mut risen = None;
        for start in (0..ends.count()).step_by(LANES) {
            // SAFETY: the count is a multiple of LANES.
            let at = |lane| unsafe { ends.get(start + lane) };
            let rises = |most: MaxRelativeError, (x, y): (f32, f32)| most.is_below((y - x).abs(), x.abs());
            let found: u64 = (0..LANES).map(|lane| u64::from(rises(most, at(lane)))).sum();
            if found == 0 {
                continue;
            }
            for (x, y) in (0..LANES).map(at) {
                if rises(most, (x, y)) {
                    most = MaxRelativeError { error: (y - x).abs(), source: x.abs() };
                    risen = Some(most);
                }
            }
        }
        risen
    }
}
