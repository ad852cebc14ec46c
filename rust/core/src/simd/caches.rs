//! Instructions about caches, which every CPU of an architecture has.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as arch;

/// Makes streamed stores visible before later ones.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of x86-64.
    unsafe {
        arch::_mm_sfence();
    }
}

/// Begins to fetch the cache line at an address, which may be one of no memory.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of x86-64, and reads nothing.
    unsafe {
        arch::_mm_prefetch::<{ arch::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
