//! Threads: how many, and which parts each takes.
//!
//! Threads are started per call and joined before it returns, so no pool can be missing in the child of a `fork`, or
//! compete with the caller's own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What `set_num_threads` asked for; 0: every CPU this process may use.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// How many CPUs this process may use, affinity and container limits considered; 0: not known yet.
static AVAILABLE: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads a cast may use; 0 means every CPU that this process may use.
pub fn set_num_threads(threads: usize) {
    THREADS.store(threads, Ordering::Relaxed);
}

/// How many threads a cast may use.
#[must_use]
pub fn num_threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => available(),
        threads => threads,
    }
}

/// How many CPUs this process may use. Found once, because it reads files.
fn available() -> usize {
    match AVAILABLE.load(Ordering::Relaxed) {
        0 => {
            let found = thread::available_parallelism().map_or(1, usize::from);
            AVAILABLE.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

/// Runs parts on so many threads, this one included, each of which takes the next part that none has taken; passes the
/// results to `take`, in order.
pub(super) fn in_parts<T: Send>(
    threads: usize,
    parts: usize,
    work: impl Fn(usize) -> T + Sync,
    take: impl FnMut(T),
) {
    let results: Vec<_> = (0..parts).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    on_threads(threads.min(parts), &|| {
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = results.get(part) else { return };
            let result = work(part);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    });
    let results =
        results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    results.flatten().for_each(take);
}

/// Calls a function on so many threads, this one included. Where one cannot be started, the others do its work. (One
/// piece of code for all kinds of work: starting threads takes much.)
///
/// # Panics
/// As the function does.
fn on_threads(threads: usize, work: &(dyn Fn() + Sync)) {
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, work);
        let handles: Vec<_> = (1..threads).map(start).collect();
        work();
        for handle in handles.into_iter().flatten() {
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
