//! The range of the sources of a tile.

use super::squares::Values;
use crate::cpu::{Kernel, Level};

/// The results of the first pass over a tile. Magnitudes are compared as bits of float32, whose order is the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstPass {
    /// The smallest magnitude less one, modulo 2^32: so zeros do not count.
    pub(super) below: u32,
    /// The largest magnitude less one, modulo 2^32: so one zero shows.
    pub(super) above: u32,
    pub(super) error: u32,
    pub(super) inexact: u32,
    /// Whether some relative error may exceed the largest so far.
    pub(super) may_exceed: bool,
}

#[inline(always)]
pub(super) fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

impl FirstPass {
    /// Returns the largest magnitude of the sources, and how many of them are zero. Most tiles have no zero, and need no
    /// second pass for that.
    pub(super) fn largest_and_zeros(&self, level: Level, sources: Values) -> [u32; 2] {
        if self.above == u32::MAX { level.run(Zeros(sources)) } else { [self.above + 1, 0] }
    }
}

/// Returns the largest magnitude, and how many sources are zero.
struct Zeros(Values);

impl Kernel for Zeros {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let (mut largest, mut zeros) = (0, 0);
        for i in 0..self.0.count() {
            // SAFETY: `i` is below the count.
            let magnitude = bits(unsafe { self.0.get(i) });
            largest = magnitude.max(largest);
            zeros += u32::from(magnitude == 0);
        }
        [largest, zeros]
    }
}

/// The first pass over sources of a lossless cast: their range.
pub(super) struct Extremes(pub(super) Values);

impl Kernel for Extremes {
    type Output = FirstPass;

    #[inline(always)]
    fn run(self) -> FirstPass {
        let (mut below, mut above) = (u32::MAX, 0);
        for i in 0..self.0.count() {
            // SAFETY: `i` is below the count.
            let less = bits(unsafe { self.0.get(i) }).wrapping_sub(1);
            below = less.min(below);
            above = less.max(above);
        }
        FirstPass { below, above, ..FirstPass::default() }
    }
}
