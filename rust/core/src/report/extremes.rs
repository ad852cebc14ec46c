//! The range of the sources of a tile.

use super::squares::Values;
use crate::cpu::Kernel;

/// The results of the first pass over a tile. Magnitudes are compared as bits of float32, whose order is the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstPass {
    pub(super) largest: u32,
    /// The smallest magnitude less one, modulo 2^32: so zeros do not count.
    pub(super) below: u32,
    pub(super) error: u32,
    pub(super) inexact: u32,
    /// Whether some relative error may exceed the largest so far.
    pub(super) may_exceed: bool,
}

#[inline(always)]
pub(super) fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

/// The first pass over sources of a lossless cast: their range.
pub(super) struct Extremes(pub(super) Values);

impl Kernel for Extremes {
    type Output = FirstPass;

    #[inline(always)]
    fn run(self) -> FirstPass {
        let (mut largest, mut below) = (0, u32::MAX);
        for i in 0..self.0.count() {
            // SAFETY: `i` is below the count.
            let magnitude = bits(unsafe { self.0.get(i) });
            largest = magnitude.max(largest);
            below = magnitude.wrapping_sub(1).min(below);
        }
        FirstPass { largest, below, ..FirstPass::default() }
    }
}
