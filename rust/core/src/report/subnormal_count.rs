//! Counts results below the normal range of a target.

use super::extremes::bits;
use super::squares::Values;
use crate::cpu::Kernel;

/// Counts results below the normal range, and those of zero.
pub(super) struct SubnormalCount {
    pub(super) sources: Values,
    /// As many, if there are any.
    pub(super) errors: Option<Values>,
    pub(super) normal: u32,
}

impl Kernel for SubnormalCount {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let Self { sources, errors, normal } = self;
        let (mut below, mut zeros) = (0, 0);
        assert!(errors.is_none_or(|errors| errors.count() == sources.count()));
        for i in 0..sources.count() {
            // SAFETY: `i` is below the count, which is that of the errors too.
            let (x, error) = unsafe { (sources.get(i), errors.map_or(0.0, |errors| errors.get(i))) };
            // The sum is the result, hence exact.
            let result = bits(x + error);
            // As signed integers, which compilers compare in one instruction.
            below += u32::from((result as i32) < normal as i32);
            zeros += u32::from(result == 0);
        }
        [below, zeros]
    }
}
