//! Rounds a significand as bits are shifted out, for every rounding. (The fast paths of `nearest` and `stochastic` do
//! it in fewer steps.)

use super::lane::Lane;
use super::options::Rounding;

/// How much to add to the bits that a shift drops, so that their carry rounds the rest.
pub trait Rounder<L: Lane>: Copy + Send + Sync {
    /// Whether it consumes random bits.
    const STOCHASTIC: bool;
    /// The addend, given the mask of the dropped bits and the last bit that stays.
    fn addend(&self, mask: L, last: L, shift: L, negative: bool, draw: u64) -> L;
}

/// Every rounding that needs no randomness, as four masks.
#[derive(Clone, Copy, Debug)]
pub struct Directed<L> {
    nearest_even: L,
    nearest_away: L,
    up_if_positive: L,
    up_if_negative: L,
}

impl<L: Lane> Directed<L> {
    /// The masks of a rounding; all clear (truncation) for the stochastic one.
    #[must_use]
    pub fn new(rounding: Rounding) -> Self {
        let is = |wanted| L::mask(rounding == wanted);
        Self {
            nearest_even: is(Rounding::NearestEven),
            nearest_away: is(Rounding::NearestAway),
            up_if_positive: is(Rounding::TowardsPositive),
            up_if_negative: is(Rounding::TowardsNegative),
        }
    }
}

impl<L: Lane> Rounder<L> for Directed<L> {
    const STOCHASTIC: bool = false;

    #[inline(always)]
    fn addend(&self, mask: L, last: L, _shift: L, negative: bool, _draw: u64) -> L {
        let half = mask.sub(mask.shr(L::ONE));
        let even = half.sub(L::ONE).add(last) & self.nearest_even;
        let up = L::select(negative, self.up_if_negative, self.up_if_positive);
        (even | (half & self.nearest_away) | up) & mask
    }
}

/// A uniform addend: the carry happens with the probability that the dropped bits stand for.
#[derive(Clone, Copy, Debug)]
pub struct Stochastic;

impl<L: Lane> Rounder<L> for Stochastic {
    const STOCHASTIC: bool = true;

    #[inline(always)]
    fn addend(&self, mask: L, _last: L, shift: L, _negative: bool, draw: u64) -> L {
        // The draw's top bits, so that lanes of different widths decide alike.
        L::from_random(draw).shr(L::from_i64(i64::from(L::WIDTH)).sub(shift)) & mask
    }
}

/// `significand / 2^shift` rounded to an integer, and whether anything was dropped.
///
/// `shift` is not negative and may exceed the lane; the significand is below `2^(WIDTH - 2)` whenever it does.
#[inline(always)]
pub fn round_off<L: Lane, R: Rounder<L>>(
    rounder: &R,
    significand: L,
    shift: L,
    negative: bool,
    draw: u64,
) -> (L, bool) {
    let widest = L::from_i64(i64::from(L::WIDTH) - 1);
    let capped = shift.min(widest);
    let mask = L::ONE.shl(capped).sub(L::ONE);
    let kept = significand.shr(capped);
    let dropped = significand & mask;
    // Rounding to nearest or in a direction only needs to know whether half is reached, or any bit is set; the capped
    // shift keeps both. A probability must shrink with the true shift.
    let weight = if R::STOCHASTIC { dropped.shr(shift.sub(capped).min(widest)) } else { dropped };
    let addend = rounder.addend(mask, kept & L::ONE, capped, negative, draw);
    (kept.add(weight.add(addend).shr(capped)), dropped != L::ZERO)
}
