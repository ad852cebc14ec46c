//! Buffers that each thread keeps between calls: clearing them each time would take longer than a small array.

#![deny(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::thread;

thread_local! {
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function with this thread's buffers of a type, as they were left. A call within it gets others.
pub(crate) fn with_buffers<B: Any + Default + Send, R>(function: impl FnOnce(&mut B) -> R) -> R {
    if size_of::<B>() == 0 {
        return function(&mut B::default());
    }
    let mut buffers = take().unwrap_or_else(make::<B>);
    let result = function(&mut buffers);
    KEPT.with_borrow_mut(|kept| kept.push(buffers));
    result
}

/// Takes the buffers that were used last.
fn take<B: Any>() -> Option<Box<B>> {
    KEPT.with_borrow_mut(|kept| {
        let place = kept.iter().rposition(|buffers| buffers.is::<B>())?;
        kept.swap_remove(place).downcast::<B>().ok()
    })
}

/// Makes buffers. They are made on the stack, of which a thread of the caller's may have 128 KiB (those of musl do): so large
/// ones are made by a thread that has room for them.
#[cold]
#[expect(clippy::unnecessary_box_returns, reason = "they stay where they are between calls")]
fn make<B: Default + Send + 'static>() -> Box<B> {
    const SMALL: usize = 1 << 13;
    let mut buffers = None;
    if size_of::<B>() > SMALL {
        call_on_stack(4 * size_of::<B>() + (1 << 16), &mut || buffers = Some(make_here()));
    }
    buffers.unwrap_or_else(make_here)
}

/// Calls a function in a thread with a stack of so many bytes, if one can be started. (One piece of code for all kinds of
/// buffers: starting threads takes much.)
fn call_on_stack(bytes: usize, function: &mut (dyn FnMut() + Send)) {
    thread::scope(|scope| {
        let maker = thread::Builder::new().stack_size(bytes).spawn_scoped(scope, function);
        // What a panic leaves unmade, the caller makes.
        drop(maker.map(thread::ScopedJoinHandle::join));
    });
}

/// Not inlined: where they are made on the stack, its pages would be touched in each call.
#[inline(never)]
#[expect(clippy::unnecessary_box_returns, reason = "they stay where they are between calls")]
fn make_here<B: Default>() -> Box<B> {
    Box::default()
}
