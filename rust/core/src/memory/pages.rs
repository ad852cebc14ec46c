//! Pages of the operating system, with a header before the data that holds their length.

use std::ptr::{self, NonNull};

/// Bytes of the header: a cache line, so that the data begins at one.
const HEAD: usize = 64;

/// Lengths are rounded up to this, a multiple of the page size of most machines.
const GRAIN: usize = 1 << 12;

/// The size of a huge page on most machines.
const HUGE: usize = 1 << 21;

/// A mapping of its own, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: memory belongs to no thread.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps new pages with room for so many bytes, all zero.
    pub(super) fn map(bytes: usize) -> Option<Self> {
        let length = bytes.checked_add(HEAD)?.checked_next_multiple_of(GRAIN)?;
        // Huge pages start at multiples of their size only, so the mapping starts at one.
        let pages = Self::anywhere(length.checked_add(HUGE)?)?.cut(HUGE, length);
        // A hint: without huge pages it is only slower.
        let _ = pages.advise(libc::MADV_HUGEPAGE);
        Some(pages)
    }

    fn anywhere(length: usize) -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
        let start = (start != libc::MAP_FAILED).then_some(start)?;
        Some(Self { start: NonNull::new(start.cast())?, length })
    }

    /// Keeps so many of its bytes from the first multiple of `alignment` on, and unmaps the others.
    fn cut(self, alignment: usize, length: usize) -> Self {
        let before = self.start.align_offset(alignment);
        let after = self.length - before - length;
        // SAFETY: all within the mapping, which is ours; the parts do not meet, and have no length of 0.
        let part = |from: usize, length: usize| unsafe { Self { start: self.start.add(from), length } };
        let kept = part(before, length);
        for (from, length) in [(0, before), (before + length, after)] {
            drop((length > 0).then(|| part(from, length)));
        }
        std::mem::forget(self);
        kept
    }

    /// Returns its bytes, the header's included.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns whether so many bytes of data fit without wasting much.
    pub(super) fn suit(&self, bytes: usize) -> bool {
        let room = self.length - HEAD;
        bytes <= room && room - bytes <= room / 8
    }

    /// Advises the system that the content is not needed: it may take pages if it runs short, and the child of a `fork`
    /// gets none, so that later writes copy nothing. Returns whether that succeeded.
    pub(super) fn rest(&self) -> bool {
        self.advise(libc::MADV_WIPEONFORK) && {
            // Locked memory is not affected.
            let _ = self.advise(libc::MADV_FREE);
            true
        }
    }

    /// Undoes the advice, before the pages are used again. Returns whether that succeeded.
    pub(super) fn wake(&self) -> bool {
        self.advise(libc::MADV_KEEPONFORK)
    }

    fn advise(&self, advice: libc::c_int) -> bool {
        // SAFETY: the mapping is ours; none of the advice given here takes away what somebody still needs.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, advice) == 0 }
    }

    /// Returns the address of the data; [`Pages::from_pointer`] is the inverse.
    pub(super) fn into_pointer(self) -> NonNull<u8> {
        // SAFETY: every mapping is longer than the head, whose first word is the length.
        unsafe {
            self.start.cast::<usize>().write(self.length);
            let data = self.start.add(HEAD);
            std::mem::forget(self);
            data
        }
    }

    /// Returns the pages of an address from [`Pages::into_pointer`].
    ///
    /// # Safety
    /// The address is from there, and is passed once.
    pub(super) unsafe fn from_pointer(pointer: NonNull<u8>) -> Self {
        // SAFETY: the head lies before the data.
        unsafe {
            let start = pointer.sub(HEAD);
            Self { start, length: start.cast::<usize>().read() }
        }
    }

    /// Returns how many bytes of data fit at an address from [`Pages::into_pointer`].
    ///
    /// # Safety
    /// The address is from there, and still mapped.
    pub(super) unsafe fn room_at(pointer: NonNull<u8>) -> usize {
        // SAFETY: the head lies before the data.
        unsafe { pointer.sub(HEAD).cast::<usize>().read() - HEAD }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever drops it has no use for it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
