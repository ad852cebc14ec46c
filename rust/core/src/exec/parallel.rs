//! Threads: how many, and which positions each takes.
//!
//! Threads are started per call and joined before it returns, so no pool can be missing in the child of a `fork`, or
//! compete with the caller's own.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::job::{Job, Outcome};
use super::workers::Workers;
use crate::error::Error;

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

/// Runs a job on at most this many threads. The outcome does not depend on how many.
///
/// # Safety
/// As for [`Job::run`].
pub(crate) unsafe fn run(job: &Job<'_>, threads: usize) -> Outcome {
    let count = job.layout.count;
    let bytes = count * (job.plan.route.source_size + job.plan.route.target_size);
    // Whole tiles, so that each tile holds the same elements however many threads there are.
    // SAFETY: the caller's promise; the ranges are disjoint.
    let work = |positions: Range<usize>| unsafe { job.run(positions.start, positions.end) };
    share(threads, bytes, (count, job.layout.tile), work, Outcome::merge)
}

/// Shares `0..count` between as many threads as pay for so many bytes, each of which takes a range that begins at a
/// multiple of `grain`; merges the outcomes, in order.
pub(super) fn share<T: Default + Send>(
    threads: usize,
    bytes: usize,
    (count, grain): (usize, usize),
    work: impl Fn(Range<usize>) -> T + Sync,
    merge: impl Fn(&mut T, &T),
) -> T {
    let workers = Workers::engage(threads, bytes);
    let useful = workers.count();
    if useful == 1 {
        return work(0..count);
    }
    let part_size = count.div_ceil(useful).next_multiple_of(grain);
    let at = |part: usize| (part * part_size).min(count);
    let mut outcome = T::default();
    in_parts(useful, |part| work(at(part)..at(part + 1)), |more| merge(&mut outcome, &more));
    outcome
}

/// Runs each part on a thread of its own, the first on this one, and passes the results to `take`, in order.
pub(crate) fn in_parts<T: Send>(parts: usize, work: impl Fn(usize) -> T + Sync, take: impl FnMut(T)) {
    let results: Vec<_> = (0..parts).map(|_| Mutex::new(None)).collect();
    on_threads(parts, &|part| {
        let result = work(part);
        *results[part].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    });
    let results =
        results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    results.flatten().for_each(take);
}

/// Runs each part on a thread of its own, the first on this one. (One piece of code for all kinds of work: starting
/// threads takes much.)
///
/// # Panics
/// As a part does.
fn on_threads(parts: usize, work: &(dyn Fn(usize) + Sync)) {
    thread::scope(|scope| {
        let start = |part| thread::Builder::new().spawn_scoped(scope, move || work(part));
        let handles: Vec<_> = (1..parts).map(|part| (part, start(part))).collect();
        work(0);
        for (part, handle) in handles {
            match handle.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(())) => {}
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // No thread could be started: its part is done here.
                Err(_) => work(part),
            }
        }
    });
}

/// Runs rows of so many bytes in all, each on one of at most this many threads or, where there are fewer rows than
/// threads, with all of them.
///
/// # Errors
/// One of the rows'.
pub(crate) fn each(
    rows: usize,
    bytes: usize,
    threads: usize,
    row: impl Fn(usize, usize) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    if rows < threads {
        return (0..rows).try_for_each(|index| row(index, threads));
    }
    let workers = Workers::engage(threads, bytes);
    let share = rows.div_ceil(workers.count());
    let part =
        |part: usize| (part * share..((part + 1) * share).min(rows)).try_for_each(|index| row(index, 1));
    let mut whole = Ok(());
    in_parts(workers.count(), part, |outcome| whole = std::mem::replace(&mut whole, Ok(())).and(outcome));
    whole
}
