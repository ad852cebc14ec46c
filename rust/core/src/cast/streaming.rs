//! Copying past the caches: what is written would not stay there, and need not be read first.

#[cfg(target_arch = "x86_64")]
use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use crate::cpu::Kernel;
use crate::cpu::Level;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Vector};

/// From this many bytes read and written on.
pub(super) const STREAM_FROM: usize = 1 << 25;

/// Copies bytes; [`fence`] makes them visible to other threads.
///
/// # Safety
/// They are readable at the source and writable at the target, which do not overlap.
pub(super) unsafe fn copy(level: Level, source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; `run` finds the levels' features.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match level {
            Level::Avx512 => {
                return level.run(Lines::<Avx512> { source, target, bytes, vectors: PhantomData });
            }
            Level::Avx2 => return level.run(Lines::<Avx2> { source, target, bytes, vectors: PhantomData }),
            Level::Portable | Level::Neon => {}
        }
        source.copy_to_nonoverlapping(target, bytes);
    }
}

/// Makes what was copied visible before whatever is stored later.
pub(super) fn fence(level: Level) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 {
        // SAFETY: every x86-64 has the instruction.
        unsafe { Avx2::fence() };
    }
}

/// Whole registers at aligned addresses, and what is left at either end.
#[cfg(target_arch = "x86_64")]
struct Lines<V> {
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    vectors: PhantomData<V>,
}

#[cfg(target_arch = "x86_64")]
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
