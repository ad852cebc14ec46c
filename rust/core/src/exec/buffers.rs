//! Buffers that each thread keeps between calls: clearing them each time would take longer than a small array.

#![deny(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function with this thread's buffers of a type, as they were left. A call within it gets others.
pub(crate) fn with_buffers<B: Any + Default, R>(function: impl FnOnce(&mut B) -> R) -> R {
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

/// Makes buffers. Not inlined: they are made on the stack, whose pages would be touched in each call.
#[cold]
#[inline(never)]
#[expect(clippy::unnecessary_box_returns, reason = "they stay where they are between calls")]
fn make<B: Default>() -> Box<B> {
    Box::default()
}
