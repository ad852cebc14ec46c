//! Pages of the operating system, with a line before the data that tells how many they are.

use std::ptr::{self, NonNull};

/// Bytes before the data: a cache line, so that the data begins with one.
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
    /// New ones with room for so many bytes, all zero.
    pub(super) fn map(bytes: usize) -> Option<Self> {
        let length = bytes.checked_add(HEAD)?.checked_next_multiple_of(GRAIN)?;
        // Huge pages lie at multiples of their size only, and so few would have room if the first one had none.
        let pages = Self::anywhere(length.checked_add(HUGE)?)?.cut(HUGE, length);
        // A wish: without huge pages it works as well, only slower.
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

    /// So many of its bytes from the first multiple of `alignment` on; the others are unmapped.
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

    /// Bytes from the first to the last, the head's included.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether so many bytes of data have room, and do not waste much.
    pub(super) fn suit(&self, bytes: usize) -> bool {
        let room = self.length - HEAD;
        bytes <= room && room - bytes <= room / 8
    }

    /// To be asked when nobody needs the content any more. While they wait the system may take pages, if it runs short,
    /// and the child of a `fork` gets none of them, which would have to be copied when they are next written to.
    pub(super) fn rest(&self) -> bool {
        self.advise(libc::MADV_WIPEONFORK) && {
            // Memory that is locked stays as it is.
            let _ = self.advise(libc::MADV_FREE);
            true
        }
    }

    /// To be asked before they are used again.
    pub(super) fn wake(&self) -> bool {
        self.advise(libc::MADV_KEEPONFORK)
    }

    fn advise(&self, advice: libc::c_int) -> bool {
        // SAFETY: the mapping is ours; none of the advice given here takes away what somebody still needs.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, advice) == 0 }
    }

    /// The place of the data; [`Pages::from_pointer`] finds back.
    pub(super) fn into_pointer(self) -> NonNull<u8> {
        // SAFETY: every mapping is longer than the head, whose first word is the length.
        unsafe {
            self.start.cast::<usize>().write(self.length);
            let data = self.start.add(HEAD);
            std::mem::forget(self);
            data
        }
    }

    /// Those of a place that [`Pages::into_pointer`] gave.
    ///
    /// # Safety
    /// It did, and each place comes back once.
    pub(super) unsafe fn from_pointer(pointer: NonNull<u8>) -> Self {
        // SAFETY: the head lies before the data.
        unsafe {
            let start = pointer.sub(HEAD);
            Self { start, length: start.cast::<usize>().read() }
        }
    }

    /// How many bytes of data have room at a place that [`Pages::into_pointer`] gave.
    ///
    /// # Safety
    /// It did, and they are still mapped.
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
