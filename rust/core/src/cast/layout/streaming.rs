//! Copying past the caches: what is written would not stay there, and need not be read first.

use std::marker::PhantomData;

use crate::cpu::{Kernel, Level};
use crate::simd::{Vector, with_vectors};

/// From this many bytes read and written on.
pub(in crate::cast) const STREAM_FROM: usize = 1 << 25;

/// Copies bytes; [`fence`] makes them visible to other threads.
///
/// # Safety
/// They are readable at the source and writable at the target, which do not overlap.
pub(in crate::cast) unsafe fn copy(level: Level, source: *const u8, target: *mut u8, bytes: usize) {
    fn streams<V: Vector>(lines: Lines<V>) -> bool {
        if V::STREAMS {
            V::LEVEL.run(lines);
        }
        V::STREAMS
    }
    let streamed =
        with_vectors!(level, V => streams(Lines::<V> { source, target, bytes, vectors: PhantomData }));
    if !streamed.unwrap_or(false) {
        // SAFETY: the caller's promise.
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
    }
}

/// Makes what was copied visible before whatever is stored later.
pub(in crate::cast) fn fence(level: Level) {
    // SAFETY: stores of this level have been made, so its features are there.
    with_vectors!(level, V => unsafe { V::fence() });
}

/// Whole registers at aligned addresses, and what is left at either end.
struct Lines<V> {
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    vectors: PhantomData<V>,
}

impl<V: Vector> Kernel for Lines<V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { source, target, bytes, .. } = self;
        let head = target.align_offset(V::BYTES).min(bytes);
        let whole = bytes - (bytes - head) % V::BYTES;
        // SAFETY: all within the bytes that `copy`'s caller vouches for; it runs this on the vectors' own level.
        unsafe {
            source.copy_to_nonoverlapping(target, head);
            for i in (head..whole).step_by(V::BYTES) {
                V::stream(target.add(i), V::load(source.add(i)));
            }
            source.add(whole).copy_to_nonoverlapping(target.add(whole), bytes - whole);
        }
    }
}
