//! Draws in registers, as [`crate::codec::random`] has them.

use crate::codec::random::{GOLDEN, Keys, MULTIPLIERS};
use crate::simd::StochasticOps;

/// The indices of four registers of draws.
#[derive(Clone, Copy)]
pub(super) struct Draws<V: StochasticOps> {
    /// The indices of the first register, spread and combined with the key.
    spread: V::Integers,
    /// Offsets of the other registers.
    offsets: [V::Integers; 3],
    /// Offset of the next four registers.
    stride: V::Integers,
    key: V::Integers,
}

/// Multiples of the golden constant by all lane numbers, and by twice those.
const LANES: [[u32; 16]; 2] = {
    let mut lanes = [[0; 16]; 2];
    let mut lane = 0;
    while lane < 16 {
        lanes[0][lane] = GOLDEN.wrapping_mul(lane as u32);
        lanes[1][lane] = GOLDEN.wrapping_mul(2 * lane as u32);
        lane += 1;
    }
    lanes
};

impl<V: StochasticOps> Draws<V> {
    /// Prepares the indices whose lower 32 bits count from `first`; with `paired`, registers 1 and 3 hold the odd ones
    /// of pairs.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    pub(super) unsafe fn new(keys: Keys, first: u32, paired: bool) -> Self {
        let start = first.wrapping_mul(GOLDEN).wrapping_add(keys.first);
        let lanes = (V::BYTES / 4) as u32;
        let [a, b, c] = if paired { [1, 2 * lanes, 2 * lanes + 1] } else { [lanes, 2 * lanes, 3 * lanes] };
        Self {
            spread: V::add32(V::load(LANES[usize::from(paired)].as_ptr().cast()), V::splat32(start)),
            offsets: [
                V::splat32(GOLDEN.wrapping_mul(a)),
                V::splat32(GOLDEN.wrapping_mul(b)),
                V::splat32(GOLDEN.wrapping_mul(c)),
            ],
            stride: V::splat32(GOLDEN.wrapping_mul(4 * lanes)),
            key: V::splat32(keys.second),
        }
    }

    /// Returns the draws of a register; unless `whole`, only their upper 16 bits are valid.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    pub(super) unsafe fn of(&self, register: usize, whole: bool) -> V::Integers {
        let mut z = self.spread;
        if register > 0 {
            z = V::add32(z, self.offsets[register - 1]);
        }
        z = V::mul32(V::xor(z, V::shr32(z, 16)), V::splat32(MULTIPLIERS[0]));
        z = V::mul32(V::xor(V::xor(z, V::shr32(z, 15)), self.key), V::splat32(MULTIPLIERS[1]));
        if whole { V::xor(z, V::shr32(z, 16)) } else { z }
    }

    /// Moves on to the next four registers.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    pub(super) unsafe fn next(self) -> Self {
        Self { spread: V::add32(self.spread, self.stride), ..self }
    }
}
