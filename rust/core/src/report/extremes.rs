//! The range of the sources of a tile.

use super::squares::Values;
use crate::cpu::{Kernel, Level};

/// The smallest and the largest magnitude of the sources, as bits of float32, whose order is the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extremes {
    pub(super) smallest: u32,
    pub(super) largest: u32,
}

#[inline(always)]
pub(super) fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

impl Extremes {
    pub(super) fn of(level: Level, sources: Values) -> Self {
        level.run(Both(sources))
    }

    /// Returns the smallest nonzero magnitude of the sources, 0 if there is none, and how many of them are zero. Most
    /// tiles have no zero, and need no second pass for that.
    pub(super) fn smallest_nonzero_and_zeros(&self, level: Level, sources: Values) -> [u32; 2] {
        if self.smallest == 0 { level.run(Zeros(sources)) } else { [self.smallest, 0] }
    }
}

/// Finds both.
struct Both(Values);

impl Kernel for Both {
    type Output = Extremes;

    #[inline(always)]
    fn run(self) -> Extremes {
        let (mut smallest, mut largest) = (u32::MAX, 0);
        for i in 0..self.0.count() {
            // SAFETY: `i` is below the count.
            let magnitude = bits(unsafe { self.0.get(i) });
            smallest = magnitude.min(smallest);
            largest = magnitude.max(largest);
        }
        Extremes { smallest, largest }
    }
}

/// Returns the smallest nonzero magnitude, and how many sources are zero.
struct Zeros(Values);

impl Kernel for Zeros {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let (mut below, mut zeros) = (u32::MAX, 0);
        for i in 0..self.0.count() {
            // SAFETY: `i` is below the count.
            let magnitude = bits(unsafe { self.0.get(i) });
            // One is subtracted, so that zero wraps to the largest number.
            below = magnitude.wrapping_sub(1).min(below);
            zeros += u32::from(magnitude == 0);
        }
        [below.wrapping_add(1), zeros]
    }
}
