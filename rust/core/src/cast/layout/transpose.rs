//! Transposing a block of words, whose values do not matter.

/// Bytes of each line that are moved together; shorter lines gain nothing.
pub(super) const SQUARE: usize = 16;

/// Copies words at `from`, in `lines` of `length` adjacent ones, a line every `stride` bytes, to a dense block that has
/// the first word of every line first, then the second of every line, and so on.
///
/// # Safety
/// All of them are readable; `to` has room for as many words.
pub(super) unsafe fn transpose(
    size: usize,
    (from, stride): (*const u8, isize),
    (lines, length): (usize, usize),
    to: *mut u8,
) {
    // SAFETY: passed on.
    unsafe {
        match size {
            1 => whole::<u8, 16>((from, stride), (lines, length), to),
            2 => whole::<u16, 8>((from, stride), (lines, length), to),
            4 => whole::<u32, 4>((from, stride), (lines, length), to),
            8 => whole::<u64, 2>((from, stride), (lines, length), to),
            _ => unreachable!("real formats take 1, 2, 4 or 8 bytes"),
        }
    }
}

/// # Safety
/// As for [`transpose`].
unsafe fn whole<T: Word<N>, const N: usize>(
    (from, stride): (*const u8, isize),
    (lines, length): (usize, usize),
    to: *mut u8,
) {
    let to = to.cast::<T>();
    let (even_lines, even_length) = (lines / N * N, length / N * N);
    // SAFETY: `line < lines` and `word < length`.
    let one = |line: usize, word: usize| unsafe {
        let value = from.offset(line as isize * stride).cast::<T>().add(word).read_unaligned();
        to.add(word * lines + line).write_unaligned(value);
    };
    for line in (0..even_lines).step_by(N) {
        for word in (0..even_length).step_by(N) {
            // SAFETY: N lines of N words from here on are among those of the caller, at both ends.
            unsafe {
                let corner = from.offset(line as isize * stride).cast::<T>().add(word);
                square::<T, N>((corner.cast(), stride), to.add(word * lines + line), lines);
            }
        }
        (line..line + N).for_each(|line| (even_length..length).for_each(|word| one(line, word)));
    }
    (even_lines..lines).for_each(|line| (0..length).for_each(|word| one(line, word)));
}

/// A square of words that fills N vectors. Interleaving each half of the vectors with the other moves one bit of a
/// word's position from its place in the vector to the number of the vector; after as many times as a position has bits
/// they have changed places.
///
/// # Safety
/// N words are readable at each of N lines, and writable at each of N lines of the target, `pitch` words apart.
#[inline(always)]
unsafe fn square<T: Word<N>, const N: usize>((from, stride): (*const u8, isize), to: *mut T, pitch: usize) {
    // SAFETY: the caller's promise.
    let mut vectors: [T::Vector; N] =
        std::array::from_fn(|line| unsafe { T::load(from.offset(line as isize * stride).cast()) });
    let mut width = 1;
    while width < N {
        vectors = std::array::from_fn(|place| {
            let (first, second) = (vectors[place / 2], vectors[place / 2 + N / 2]);
            if place % 2 == 0 { T::low(first, second) } else { T::high(first, second) }
        });
        width *= 2;
    }
    for (line, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { T::store(to.add(line * pitch), vector) };
    }
}

/// A word of which N make a vector of 16 bytes.
trait Word<const N: usize>: Copy {
    type Vector: Copy;
    /// # Safety
    /// N words are readable.
    unsafe fn load(from: *const Self) -> Self::Vector;
    /// # Safety
    /// N words are writable.
    unsafe fn store(to: *mut Self, vector: Self::Vector);
    /// The words of two vectors' lower halves in turn.
    fn low(first: Self::Vector, second: Self::Vector) -> Self::Vector;
    /// Those of their upper halves.
    fn high(first: Self::Vector, second: Self::Vector) -> Self::Vector;
}

/// Words whose vectors are the machine's, on machines that always have them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! word {
    ($($word:ty, $lanes:literal, $vector:ty, $load:path, $store:path, $low:ident, $high:ident;)*) => {$(
        impl super::Word<$lanes> for $word {
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
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use word;

#[cfg(target_arch = "x86_64")]
mod interleave {
    use std::arch::x86_64 as arch;

    use arch::{__m128i, _mm_loadu_si128 as load, _mm_storeu_si128 as store};

    super::word! {
        u8, 16, __m128i, load, store, _mm_unpacklo_epi8, _mm_unpackhi_epi8;
        u16, 8, __m128i, load, store, _mm_unpacklo_epi16, _mm_unpackhi_epi16;
        u32, 4, __m128i, load, store, _mm_unpacklo_epi32, _mm_unpackhi_epi32;
        u64, 2, __m128i, load, store, _mm_unpacklo_epi64, _mm_unpackhi_epi64;
    }
}

#[cfg(target_arch = "aarch64")]
mod interleave {
    use std::arch::aarch64 as arch;

    super::word! {
        u8, 16, arch::uint8x16_t, arch::vld1q_u8, arch::vst1q_u8, vzip1q_u8, vzip2q_u8;
        u16, 8, arch::uint16x8_t, arch::vld1q_u16, arch::vst1q_u16, vzip1q_u16, vzip2q_u16;
        u32, 4, arch::uint32x4_t, arch::vld1q_u32, arch::vst1q_u32, vzip1q_u32, vzip2q_u32;
        u64, 2, arch::uint64x2_t, arch::vld1q_u64, arch::vst1q_u64, vzip1q_u64, vzip2q_u64;
    }
}

/// Elsewhere the compiler finds the instructions.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod interleave {
    macro_rules! word {
        ($($word:ty, $lanes:literal;)*) => {$(
            impl super::Word<$lanes> for $word {
                type Vector = [Self; $lanes];
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
                    std::array::from_fn(|i| [first, second][i % 2][$lanes / 2 + i / 2])
                }
            }
        )*};
    }
    word! { u8, 16; u16, 8; u32, 4; u64, 2; }
}

#[cfg(test)]
mod tests {
    use super::transpose;

    #[test]
    fn every_word_of_every_shape_comes_to_its_place() {
        for size in [1, 2, 4, 8] {
            for (lines, length) in [(1, 1), (16, 16), (32, 32), (17, 33), (3, 40), (40, 3), (64, 16)] {
                let stride = length * size + 5;
                let memory: Vec<u8> = (0..lines * stride).map(|i| (i * 7 + i / 251) as u8).collect();
                let mut found = vec![0u8; lines * length * size];
                // SAFETY: the vectors have these sizes.
                unsafe {
                    let from = (memory.as_ptr(), stride as isize);
                    transpose(size, from, (lines, length), found.as_mut_ptr());
                }
                let word = |line: usize, word: usize| &memory[line * stride + word * size..][..size];
                let wanted: Vec<u8> = (0..length)
                    .flat_map(|i| (0..lines).flat_map(move |line| word(line, i)))
                    .copied()
                    .collect();
                assert_eq!(found, wanted, "{size} {lines} {length}");
            }
        }
    }
}
