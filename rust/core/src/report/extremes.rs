//! The range of the sources of a tile.

use super::squares::Values;
use crate::cpu::Kernel;

/// What a first look at a tile tells. Magnitudes are bits of float32, whose order is the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstPass {
    pub(super) largest: u32,
    /// One less than the smallest but zero, which is thus the largest of all.
    pub(super) below: u32,
    pub(super) error: u32,
    pub(super) inexact: u32,
    /// Some relative error may be larger than all before.
    pub(super) may_exceed: bool,
}

#[inline(always)]
pub(super) fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

/// The range of sources that lose nothing.
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
