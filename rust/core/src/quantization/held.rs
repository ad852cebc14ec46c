//! Buffers that each thread keeps between calls: clearing them each time would take longer than a small array.

#![deny(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function with this thread's buffers of a type, as it left them.
pub(super) fn with_held<B: Any + Default>(function: impl FnOnce(&mut B)) {
    let mut buffers = take::<B>();
    function(&mut buffers);
    HELD.with_borrow_mut(|held| held.push(buffers));
}

/// Returns the buffers, or makes them. Not inlined, because making them takes much code.
#[inline(never)]
#[expect(clippy::unnecessary_box_returns, reason = "they stay where they are between calls")]
fn take<B: Any + Default>() -> Box<B> {
    let taken = HELD.with_borrow_mut(|held| {
        let place = held.iter().position(|buffers| buffers.is::<B>())?;
        held.swap_remove(place).downcast::<B>().ok()
    });
    taken.unwrap_or_default()
}
