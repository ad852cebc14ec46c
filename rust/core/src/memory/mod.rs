//! Memory for large arrays that is used again: the system clears every page that it hands out, which takes longer than
//! the cast that fills it.
//!
//! A few blocks that were given back wait for the next array of about their size. Linux only: what makes waiting cheap
//! for everybody else is advice that others do not take (`Pages::rest`).

mod pages;

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pages::Pages;

/// Smaller arrays are as well off with the host's own allocator; the pages of larger ones can be huge, so that few are
/// handed out and given back at a time.
const FROM: usize = 1 << 21;

/// Blocks that wait, at most.
const BLOCKS: usize = 4;

/// Bytes that wait, at most.
static LIMIT: AtomicUsize = AtomicUsize::new(256 << 20);

/// Oldest first. Nobody waits for the lock: who does not get it at once asks the system. So the child of a `fork` works
/// even if another thread of its parent held it.
static WAITING: Mutex<Vec<Pages>> = Mutex::new(Vec::new());

/// Sets how many bytes may wait; with 0, no array lies in memory from here.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
    if let Ok(mut waiting) = WAITING.try_lock() {
        make_room(&mut waiting, bytes);
    }
}

/// Whether an array of so many bytes should lie in memory from here: it is large, and could wait.
#[must_use]
pub fn is_for(bytes: usize) -> bool {
    (FROM..=LIMIT.load(Ordering::Relaxed)).contains(&bytes)
}

/// Memory for so many bytes, whatever is in it; `None` if there is none.
#[must_use]
pub fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let waiting = WAITING.try_lock().ok().and_then(|mut waiting| {
        let found = waiting.iter().rposition(|pages| pages.suit(bytes))?;
        Some(waiting.remove(found))
    });
    let pages = waiting.filter(Pages::wake).or_else(|| map(bytes))?;
    Some(pages.into_pointer())
}

/// The same for memory that is all zero.
#[must_use]
pub fn allocate_zeroed(bytes: usize) -> Option<NonNull<u8>> {
    Some(map(bytes)?.into_pointer())
}

/// Gives everything that waits back to the system; returns whether anything did.
pub fn release() -> bool {
    let waiting = WAITING.try_lock().map(|mut waiting| std::mem::take(&mut *waiting)).unwrap_or_default();
    !waiting.is_empty()
}

/// New pages, if need be in the place of what waits: what a process may map can be bounded.
fn map(bytes: usize) -> Option<Pages> {
    Pages::map(bytes).or_else(|| release().then(|| Pages::map(bytes))?)
}

/// Takes memory back.
///
/// # Safety
/// It came from here, and nobody uses it any more.
pub unsafe fn free(pointer: NonNull<u8>) {
    // SAFETY: the caller's promise.
    let pages = unsafe { Pages::from_pointer(pointer) };
    let limit = LIMIT.load(Ordering::Relaxed);
    if pages.length() > limit || !pages.rest() {
        return;
    }
    if let Ok(mut waiting) = WAITING.try_lock() {
        make_room(&mut waiting, limit - pages.length());
        waiting.push(pages);
    }
}

/// Memory for another number of bytes with the same content, as far as it goes; the old one stays if there is none.
///
/// # Safety
/// As for [`free`].
#[must_use]
pub unsafe fn resize(pointer: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
    let new = map(bytes)?.into_pointer();
    // SAFETY: the caller's promise; the new memory is another, with room for so many.
    unsafe {
        let kept = Pages::room_at(pointer).min(bytes);
        pointer.copy_to_nonoverlapping(new, kept);
        free(pointer);
    }
    Some(new)
}

/// Gives the oldest back to the system until one more block may come, and no more bytes than these wait.
fn make_room(waiting: &mut Vec<Pages>, bytes: usize) {
    while waiting.len() >= BLOCKS || waiting.iter().map(Pages::length).sum::<usize>() > bytes {
        waiting.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pointer: NonNull<u8>, bytes: usize, value: u8) {
        // SAFETY: allocated with as many bytes.
        unsafe { pointer.write_bytes(value, bytes) };
    }

    /// One test, for what waits belongs to the process.
    #[test]
    fn what_was_given_back_is_used_again_within_bounds() {
        let bytes = 3 << 20;
        let first = allocate(bytes).unwrap();
        let second = allocate(bytes).unwrap();
        assert_ne!(first, second);
        fill(first, bytes, 1);
        fill(second, bytes, 2);
        // SAFETY: each is given back once, and not used afterwards.
        unsafe { free(first) };
        assert_eq!(allocate(bytes - 1000), Some(first));
        // SAFETY: as above.
        unsafe { free(first) };
        let larger = allocate(bytes + 5000).unwrap();
        let much_smaller = allocate(bytes / 2).unwrap();
        assert!(larger != first && much_smaller != first);

        // SAFETY: as above; the last of the bytes asked for is there.
        let (resized, last) = unsafe {
            let resized = resize(second, 100).unwrap();
            (resized, resized.add(99).read())
        };
        assert_eq!(last, 2);
        // SAFETY: as above.
        [larger, much_smaller, resized].into_iter().for_each(|pointer| unsafe { free(pointer) });

        let many: Vec<_> = (0..2 * BLOCKS).map(|_| allocate(bytes).unwrap()).collect();
        // SAFETY: as above.
        many.iter().for_each(|&pointer| unsafe { free(pointer) });
        assert_eq!(WAITING.lock().unwrap().len(), BLOCKS);
        set_limit(2 * bytes);
        assert!(is_for(bytes) && !is_for(FROM - 1) && !is_for(2 * bytes + 1));
        assert_eq!(WAITING.lock().unwrap().len(), 1, "the head makes two a little longer than the limit");
        set_limit(0);
        assert!(!is_for(bytes));
        assert!(WAITING.lock().unwrap().is_empty());
    }
}
