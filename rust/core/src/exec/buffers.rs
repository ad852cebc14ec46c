//! Buffers that threads keep between calls: making them each time would take longer than a small array.

#![deny(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::sync::Mutex;

/// The most buffers in the pool, of all types: enough for eight threads and two types. Those of a survey take two MiB each,
/// which a machine of 200 cores would otherwise keep of every thread.
const MOST_POOLED: usize = 16;

thread_local! {
    static KEPT: RefCell<ThreadBuffers> = const { RefCell::new(ThreadBuffers(Vec::new())) };
}

/// The buffers of threads that have ended, for those that are started next. Nobody waits for it: in the child of a `fork`
/// it may stay locked.
static POOL: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// The buffers of a thread, which end in the pool.
struct ThreadBuffers(Vec<Box<dyn Any + Send>>);

impl Drop for ThreadBuffers {
    fn drop(&mut self) {
        let Ok(mut pool) = POOL.try_lock() else { return };
        pool.append(&mut self.0);
        let excess = pool.len().saturating_sub(MOST_POOLED);
        // The excess is freed with this value, after the lock is.
        self.0.extend(pool.drain(..excess));
    }
}

/// Calls a function with buffers of a type, as this thread or one that has ended left them. A call within it gets others.
pub(crate) fn with_buffers<B: Any + Default + Send, R>(function: impl FnOnce(&mut B) -> R) -> R {
    // They are made on the stack, of which a thread of the caller's may have 128 KiB (those of musl do).
    const { assert!(size_of::<B>() <= 1 << 13) };
    if size_of::<B>() == 0 {
        return function(&mut B::default());
    }
    let kept = KEPT.with_borrow_mut(|kept| take(&mut kept.0));
    let mut buffers = kept.or_else(|| take(&mut *POOL.try_lock().ok()?)).unwrap_or_else(make);
    let result = function(&mut buffers);
    KEPT.with_borrow_mut(|kept| kept.0.push(buffers));
    result
}

/// Takes the last buffers of a type.
fn take<B: Any>(kept: &mut Vec<Box<dyn Any + Send>>) -> Option<Box<B>> {
    let place = kept.iter().rposition(|buffers| buffers.is::<B>())?;
    kept.swap_remove(place).downcast::<B>().ok()
}

/// Makes buffers. Not inlined: each call would touch the pages of the stack on which they are made.
#[cold]
#[inline(never)]
#[expect(clippy::unnecessary_box_returns, reason = "they stay where they are between calls")]
fn make<B: Default>() -> Box<B> {
    Box::default()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Numbered(u64);

    /// Returns the number that a new thread finds, and leaves another.
    fn exchange(number: u64) -> u64 {
        let exchange = move |buffers: &mut Numbered| std::mem::replace(&mut buffers.0, number);
        thread::spawn(move || with_buffers(exchange)).join().unwrap()
    }

    #[test]
    fn threads_take_the_buffers_of_threads_that_ended() {
        // Threads of other tests may end meanwhile, and push these buffers out of the pool.
        assert!((1..1000).any(|number| {
            exchange(number);
            exchange(0) == number
        }));
    }

    #[test]
    fn nobody_waits_for_a_pool_that_stays_locked() {
        let _locked = POOL.lock().unwrap();
        let leave_and_find = || (with_buffers(|buffers: &mut Numbered| buffers.0 += 1), exchange(0));
        assert_eq!(leave_and_find(), ((), 0));
    }
}
