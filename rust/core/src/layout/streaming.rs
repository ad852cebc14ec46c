//! Copies past the caches: large results would not stay there, and their old content need not be read.

use crate::cpu::{Level, RawKernel};
use crate::simd::{Vector, with_vectors};

/// Copies bytes; [`fence`](crate::simd::fence) makes them visible to other threads.
///
/// # Safety
/// They are readable at the source and writable at the target, which do not overlap.
pub(crate) unsafe fn copy(level: Level, source: *const u8, target: *mut u8, bytes: usize) {
    let streamed = with_vectors!(level, vectors: V => {
        if V::STREAMS {
            // SAFETY: the caller's promise.
            unsafe { vectors.run(Lines { source, target, bytes, _vectors: vectors }) };
        }
        V::STREAMS
    });
    if !streamed.unwrap_or(false) {
        // SAFETY: the caller's promise.
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
    }
}

/// Whole registers at aligned addresses, and what is left at either end.
struct Lines<V> {
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    /// Their features are there.
    _vectors: V,
}

impl<V: Vector> RawKernel for Lines<V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { source, target, bytes, .. } = self;
        let head = target.align_offset(V::BYTES).min(bytes);
        let whole = bytes - (bytes - head) % V::BYTES;
        // SAFETY: all within the bytes that the caller vouches for; the vectors are there, so their features are.
        unsafe {
            source.copy_to_nonoverlapping(target, head);
            for i in (head..whole).step_by(V::BYTES) {
                V::stream(target.add(i), V::load(source.add(i)));
            }
            source.add(whole).copy_to_nonoverlapping(target.add(whole), bytes - whole);
        }
    }
}
