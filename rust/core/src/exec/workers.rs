//! How many threads a call takes: as many as pay, and together with calls that run at the same time no more than it may
//! use.

#![deny(unsafe_code)]

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tuning::BYTES_PER_THREAD;

/// Returns whether more than one of so many threads pays for so many bytes, read and written.
pub(crate) fn threads_pay(threads: usize, bytes: usize) -> bool {
    threads > 1 && bytes >= 2 * BYTES_PER_THREAD
}

/// The number of threads in use by all parallel calls, callers included; in the upper 32 bits, their process. The child
/// of a `fork` finds another process here and starts from 0.
static BUSY: AtomicU64 = AtomicU64::new(0);

/// The threads of one call; given back when dropped.
pub(crate) struct Workers {
    process: u64,
    count: u64,
}

impl Workers {
    /// Takes up to `threads`, the caller's own included, for so many bytes.
    pub(crate) fn engage(threads: usize, bytes: usize) -> Self {
        if !threads_pay(threads, bytes) {
            return Self { process: 0, count: 1 };
        }
        let useful = threads.min(bytes / BYTES_PER_THREAD) as u64;
        let process = u64::from(process::id()) << 32;
        let mut count = 1;
        let take = |word: u64| {
            let busy = if word & !MASK == process { word & MASK } else { 0 };
            count = useful.min((threads as u64).saturating_sub(busy)).max(1);
            Some(process | (busy + count).min(MASK))
        };
        // The closure never returns `None`.
        let _ = BUSY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Self { process, count }
    }

    /// How many there are, the caller's own included.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }
}

const MASK: u64 = u32::MAX as u64;

impl Drop for Workers {
    fn drop(&mut self) {
        if self.process == 0 {
            return;
        }
        let give = |word: u64| {
            (word & !MASK == self.process).then(|| self.process | (word & MASK).saturating_sub(self.count))
        };
        // In the child of a fork there is nothing to give back.
        let _ = BUSY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES_PER_THREAD, Workers};

    #[test]
    fn calls_at_the_same_time_share_what_each_may_use() {
        let bytes = 100 * BYTES_PER_THREAD;
        let first = Workers::engage(8, 3 * BYTES_PER_THREAD);
        let second = Workers::engage(8, bytes);
        let third = Workers::engage(8, bytes);
        assert_eq!((first.count(), second.count(), third.count()), (3, 5, 1));
        drop((second, third));
        assert_eq!(Workers::engage(8, bytes).count(), 5);
        drop(first);
        assert_eq!(Workers::engage(8, bytes).count(), 8);
        assert_eq!(Workers::engage(8, BYTES_PER_THREAD).count(), 1);
    }
}
