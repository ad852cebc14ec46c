//! Counts results below the normal range of a target.

use super::extremes::bits;
use super::squares::{Errors, Values};
use crate::cpu::{Kernel, RawKernel};

/// The subnormal codes of a target of one byte.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    /// All bits but the sign.
    pub(super) magnitude: u8,
    /// The smallest code that is not subnormal.
    pub(super) normal: u8,
}

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

/// Codes per block, counted in parallel; each count fits in a byte.
pub(super) const BLOCK: usize = 64;

/// Does the same as [`SubnormalCount`] from results of one byte each, in whole blocks; sources may be zero if `zeros`
/// is set.
#[derive(Clone, Copy)]
pub(super) struct ByteSubnormalCount {
    pub(super) x: Values,
    /// As many codes as sources, readable.
    pub(super) codes: *const u8,
    pub(super) bytes: Bytes,
    pub(super) zeros: bool,
}

impl RawKernel for ByteSubnormalCount {
    type Output = [u32; 2];

    #[inline(always)]
    unsafe fn run(self) -> [u32; 2] {
        let Self { x, codes, bytes: Bytes { magnitude, normal }, zeros } = self;
        let (mut subnormal, mut zero) = ([0u8; BLOCK], [0u8; BLOCK]);
        for i in (0..x.count()).step_by(BLOCK) {
            for lane in 0..BLOCK {
                // SAFETY: the caller's promise: as many results as sources.
                let code = unsafe { codes.add(i + lane).read() } & magnitude;
                subnormal[lane] += u8::from(code.wrapping_sub(1) < normal - 1);
                zero[lane] += u8::from(code == 0);
            }
        }
        let total = |counts: &[u8; BLOCK]| counts.iter().map(|&count| u32::from(count)).sum::<u32>();
        if !zeros {
            return [total(&subnormal), 0];
        }
        // Zero sources have zero results, which are not underflows.
        // SAFETY: `i` is below the count.
        let before: u32 = (0..x.count()).map(|i| u32::from(unsafe { x.get(i) } == 0.0)).sum();
        [total(&subnormal), total(&zero).saturating_sub(before)]
    }
}
