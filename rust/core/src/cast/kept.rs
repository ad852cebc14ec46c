//! What is found out once and stays: plans, tables.
//!
//! No locks: the child of a `fork` would wait for ever for one that a thread of its parent held.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::request::Request;
use crate::codec::options::{NanRule, Overflow, Rounding};

/// Room for `N` things, each of which is made when it is first asked for by some thread, and lent to all.
pub(super) struct Kept<T: Send + Sync + 'static, const N: usize>([AtomicPtr<T>; N]);

impl<T: Send + Sync, const N: usize> Kept<T, N> {
    pub(super) const fn new() -> Self {
        Self([const { AtomicPtr::new(null_mut()) }; N])
    }

    /// What is kept in a place, if anything is yet.
    pub(super) fn get(&self, place: usize) -> Option<&'static T> {
        // SAFETY: a pointer that was stored here came from a box that is never freed, nor written to.
        unsafe { self.0[place].load(Ordering::Acquire).as_ref() }
    }

    /// Keeps it, unless another thread was quicker; gives what is kept.
    pub(super) fn keep(&self, place: usize, made: T) -> &'static T {
        let made = Box::into_raw(Box::new(made));
        match self.0[place].compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and from now on never freed.
            Ok(_) => unsafe { &*made },
            // SAFETY: what another thread stored is never freed; ours nobody has seen.
            Err(first) => unsafe {
                drop(Box::from_raw(made));
                &*first
            },
        }
    }
}

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
