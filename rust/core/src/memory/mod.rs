//! Memory of large arrays, kept for reuse: the system clears every page that it hands out, which takes longer than the
//! cast that fills it.
//!
//! A few freed blocks are kept for the next array of about their size. Linux only: kept blocks cost other processes
//! little because of `MADV_FREE`, which other systems lack (`Pages::rest`).

mod pages;

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pages::Pages;

/// Smaller arrays gain nothing over the host's allocator; larger ones can have huge pages, so that few are mapped and
/// unmapped.
const FROM: usize = 1 << 21;

/// Blocks that are kept, at most.
const BLOCKS: usize = 4;

/// Bytes that are kept, at most.
static LIMIT: AtomicUsize = AtomicUsize::new(256 << 20);

/// Oldest first. The lock is only tried, and the system asked where it is taken: so the child of a `fork` works even if
/// another thread of its parent held it.
static WAITING: Mutex<Vec<Pages>> = Mutex::new(Vec::new());

/// Sets how many bytes may be kept; with 0, no array gets memory from here.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
    if let Ok(mut waiting) = WAITING.try_lock() {
        make_room(&mut waiting, bytes);
    }
}

/// Returns whether an array of so many bytes should get memory from here: it is large, and could be kept.
#[must_use]
pub fn is_for(bytes: usize) -> bool {
    (FROM..=LIMIT.load(Ordering::Relaxed)).contains(&bytes)
}

/// Allocates uninitialized memory; `None` if there is none.
#[must_use]
pub fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let waiting = WAITING.try_lock().ok().and_then(|mut waiting| {
        let found = waiting.iter().rposition(|pages| pages.suit(bytes))?;
        Some(waiting.remove(found))
    });
    let pages = waiting.filter(Pages::wake).or_else(|| map(bytes))?;
    Some(pages.into_pointer())
}

/// Allocates memory that is all zero; `None` if there is none.
#[must_use]
pub fn allocate_zeroed(bytes: usize) -> Option<NonNull<u8>> {
    Some(map(bytes)?.into_pointer())
}

/// Gives all kept memory back to the system; returns whether there was any.
pub fn release() -> bool {
    let waiting = WAITING.try_lock().map(|mut waiting| std::mem::take(&mut *waiting)).unwrap_or_default();
    !waiting.is_empty()
}

/// Gives memory that the host's allocator holds, but that is free, back to the system, where it can be asked to.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: frees no memory that is in use, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Maps new pages, giving kept ones back if need be: the process may have a limit.
fn map(bytes: usize) -> Option<Pages> {
    Pages::map(bytes).or_else(|| release().then(|| Pages::map(bytes))?)
}

/// Frees memory.
///
/// # Safety
/// It came from here and is not used any more.
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

/// Moves content to memory of another size, truncated if need be; the old memory stays valid if there is no new one.
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

/// Gives the oldest blocks back to the system until there is room for one more, and no more than so many bytes are
/// kept.
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

    /// One test, because kept memory belongs to the process.
    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot unmap a part of a mapping")]
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
