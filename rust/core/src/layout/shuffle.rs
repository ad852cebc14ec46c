//! Shuffles of elements in vectors of 16 bytes, by instructions that every machine has.

/// An element of which N make a vector of 16 bytes.
pub(super) trait Shuffle<const N: usize>: Copy {
    type Vector: Copy;
    /// # Safety
    /// N elements are readable.
    unsafe fn load(from: *const Self) -> Self::Vector;
    /// # Safety
    /// N elements are writable.
    unsafe fn store(to: *mut Self, vector: Self::Vector);
    /// Interleaves the elements of two vectors' lower halves.
    fn low(first: Self::Vector, second: Self::Vector) -> Self::Vector;
    /// Interleaves those of their upper halves.
    fn high(first: Self::Vector, second: Self::Vector) -> Self::Vector;
    /// Returns a vector whose lower half is the upper half of this.
    fn upper(vector: Self::Vector) -> Self::Vector;
}

/// Returns K vectors after log2(N) perfect shuffles, each of which interleaves the first half of all elements with the
/// second half.
///
/// A shuffle moves the element at place i of K N to 2 i modulo K N - 1. So the element at g K + c moves to c N + g: of
/// K interleaved channels, vector c has channel c.
#[inline(always)]
pub(super) fn deinterleaved<T: Shuffle<N>, const N: usize, const K: usize>(
    mut vectors: [T::Vector; K],
) -> [T::Vector; K] {
    // Unrolled by hand: the compiler would keep a loop, and the vectors in memory.
    if N > 1 {
        vectors = shuffled::<T, N, K>(&vectors);
    }
    if N > 2 {
        vectors = shuffled::<T, N, K>(&vectors);
    }
    if N > 4 {
        vectors = shuffled::<T, N, K>(&vectors);
    }
    if N > 8 {
        vectors = shuffled::<T, N, K>(&vectors);
    }
    vectors
}

#[inline(always)]
fn shuffled<T: Shuffle<N>, const N: usize, const K: usize>(vectors: &[T::Vector; K]) -> [T::Vector; K] {
    let mut next = *vectors;
    for half in 0..K {
        let other = half + K;
        let (first, second) = (vectors[half / 2], vectors[other / 2]);
        next[half] = match (half % 2, K % 2) {
            (0, 0) => T::low(first, second),
            (1, 0) => T::high(first, second),
            (0, _) => T::low(first, T::upper(second)),
            _ => T::low(T::upper(first), second),
        };
    }
    next
}

/// Elements in the machine's own vectors, on machines that always have them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! word {
    ($($word:ty, $lanes:literal, $vector:ty, $load:path, $store:path, $low:ident, $high:ident,
        $upper:path;)*) => {$(
        impl super::Shuffle<$lanes> for $word {
            type Vector = $vector;
            #[inline(always)]
            unsafe fn load(from: *const Self) -> Self::Vector {
                // SAFETY: the caller's promise; the load is an unaligned one.
                unsafe { $load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut Self, vector: Self::Vector) {
                // SAFETY: the caller's promise; the store is an unaligned one.
                unsafe { $store(to.cast(), vector) }
            }
            #[inline(always)]
            fn low(first: Self::Vector, second: Self::Vector) -> Self::Vector {
                // SAFETY: SSE2 is part of x86-64, Advanced SIMD of aarch64.
                unsafe { arch::$low(first, second) }
            }
            #[inline(always)]
            fn high(first: Self::Vector, second: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$high(first, second) }
            }
            #[inline(always)]
            fn upper(vector: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $upper(vector, vector) }
            }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use word;

#[cfg(target_arch = "x86_64")]
mod interleave {
    use std::arch::x86_64 as arch;

    use arch::{__m128i, _mm_loadu_si128 as load, _mm_storeu_si128 as store, _mm_unpackhi_epi64 as upper};

    super::word! {
        u8, 16, __m128i, load, store, _mm_unpacklo_epi8, _mm_unpackhi_epi8, upper;
        u16, 8, __m128i, load, store, _mm_unpacklo_epi16, _mm_unpackhi_epi16, upper;
        u32, 4, __m128i, load, store, _mm_unpacklo_epi32, _mm_unpackhi_epi32, upper;
        u64, 2, __m128i, load, store, _mm_unpacklo_epi64, _mm_unpackhi_epi64, upper;
    }
}

#[cfg(target_arch = "aarch64")]
mod interleave {
    use std::arch::aarch64 as arch;

    super::word! {
        u8, 16, arch::uint8x16_t, arch::vld1q_u8, arch::vst1q_u8, vzip1q_u8, vzip2q_u8, arch::vextq_u8::<8>;
        u16, 8, arch::uint16x8_t, arch::vld1q_u16, arch::vst1q_u16, vzip1q_u16, vzip2q_u16, arch::vextq_u16::<4>;
        u32, 4, arch::uint32x4_t, arch::vld1q_u32, arch::vst1q_u32, vzip1q_u32, vzip2q_u32, arch::vextq_u32::<2>;
        u64, 2, arch::uint64x2_t, arch::vld1q_u64, arch::vst1q_u64, vzip1q_u64, vzip2q_u64, arch::vextq_u64::<1>;
    }
}

/// Elsewhere the compiler chooses the instructions.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod interleave {
    impl<T: Copy, const N: usize> super::Shuffle<N> for T {
        type Vector = [Self; N];
        #[inline(always)]
        unsafe fn load(from: *const Self) -> Self::Vector {
            // SAFETY: the caller's promise.
            unsafe { from.cast::<Self::Vector>().read_unaligned() }
        }
        #[inline(always)]
        unsafe fn store(to: *mut Self, vector: Self::Vector) {
            // SAFETY: the caller's promise.
            unsafe { to.cast::<Self::Vector>().write_unaligned(vector) }
        }
        #[inline(always)]
        fn low(first: Self::Vector, second: Self::Vector) -> Self::Vector {
            std::array::from_fn(|i| [first, second][i % 2][i / 2])
        }
        #[inline(always)]
        fn high(first: Self::Vector, second: Self::Vector) -> Self::Vector {
            std::array::from_fn(|i| [first, second][i % 2][N / 2 + i / 2])
        }
        #[inline(always)]
        fn upper(vector: Self::Vector) -> Self::Vector {
            std::array::from_fn(|i| vector[(i + N / 2) % N])
        }
    }
}
