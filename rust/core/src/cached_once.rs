//! Values that are computed once and shared by all threads, without locks.
//!
//! A lock that a thread holds while its process forks stays held in the child for ever.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Room for `N` values, each computed when a thread first needs it.
///
/// Threads that need it at the same time all compute it, and the first result is used by all.
pub(crate) struct CachedOnce<T: Send + Sync + 'static, const N: usize>([AtomicPtr<T>; N]);

impl<T: Send + Sync, const N: usize> CachedOnce<T, N> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(null_mut()) }; N])
    }

    /// Returns the value of a place, if it has one yet.
    pub(crate) fn get(&self, place: usize) -> Option<&'static T> {
        // SAFETY: a pointer that was stored here came from a box that is never freed, nor written to.
        unsafe { self.0[place].load(Ordering::Acquire).as_ref() }
    }

    /// Stores a value, unless the place has one; returns the place's.
    pub(crate) fn store(&self, place: usize, made: T) -> &'static T {
        let made = Box::into_raw(Box::new(made));
        match self.0[place].compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and from now on never freed.
            Ok(_) => unsafe { &*made },
            // SAFETY: what another thread stored is never freed; this one was not shared.
            Err(first) => unsafe {
                drop(Box::from_raw(made));
                &*first
            },
        }
    }
}
