//! Counts results below the normal range of a target.

use super::extremes::bits;
use super::squares::Errors;
use crate::cpu::Kernel;

/// Counts subnormal results, and zero results of nonzero sources.
pub(super) struct SubnormalCount {
    pub(super) ends: Errors,
    pub(super) normal: u32,
}

impl Kernel for SubnormalCount {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let Self { ends, normal } = self;
        let (mut subnormal, mut vanished) = (0, 0);
        for i in 0..ends.count() {
            // SAFETY: `i` is below the count.
            let (x, y) = unsafe { ends.get(i) };
            let (before, after) = (bits(x), bits(y));
            subnormal += u32::from(after.wrapping_sub(1) < normal - 1);
            vanished += u32::from((after == 0) & (before != 0));
        }
        [subnormal, vanished]
    }
}
