//! The options of a request as a number, for caches by request.

use super::request::Request;
use crate::codec::options::{NanRule, Overflow, Rounding};

const ROUNDINGS: usize = 5;

/// How many [`variant`]s there are.
pub(super) const VARIANTS: usize = ROUNDINGS * 2 * 2;

/// The number of a request's options, where codes are all that decides what becomes of them.
pub(super) fn variant(request: &Request) -> Option<usize> {
    let rounding = match request.rounding() {
        Rounding::NearestEven => 0,
        Rounding::NearestAway => 1,
        Rounding::TowardsZero => 2,
        Rounding::TowardsPositive => 3,
        Rounding::TowardsNegative => 4,
        Rounding::Stochastic => return None,
    };
    let saturate = usize::from(request.options.overflow == Overflow::Saturate);
    let nan = usize::from(request.options.nan == NanRule::Zero);
    (!request.watched()).then_some((rounding * 2 + saturate) * 2 + nan)
}
