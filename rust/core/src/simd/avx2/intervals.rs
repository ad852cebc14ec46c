//! Piecewise lookup tables, by two tables of 16 bytes.

use std::arch::x86_64 as arch;

use super::vector::Avx2;
use crate::simd::intervals::{INTERVALS, Intervals};
use crate::simd::vector::{Vector, operations};

/// Added to bytes below 32, they set the top bit of each that has no entry in a table: of those from 16 on, and of those
/// below.
const FIRST: u8 = 0x70;
const SECOND: u8 = 0xf0;

impl Intervals for Avx2 {
    type Entries = [arch::__m256i; 2];

    operations! {
        fn load_entries(tables: [&[u8; INTERVALS]; 2]) -> [arch::__m256i; 2] {
            let start: *const arch::__m128i = tables[0].as_ptr().cast();
            [
                arch::_mm256_broadcastsi128_si256(arch::_mm_loadu_si128(start)),
                arch::_mm256_broadcastsi128_si256(arch::_mm_loadu_si128(start.add(1))),
            ]
        }
        fn entries16(entries: [arch::__m256i; 2], intervals: arch::__m256i) -> arch::__m256i {
            let first = arch::_mm256_shuffle_epi8(entries[0], Self::add8(intervals, Self::splat8(FIRST)));
            let second = arch::_mm256_shuffle_epi8(entries[1], Self::add8(intervals, Self::splat8(SECOND)));
            Self::or(first, second)
        }
        fn entries8(entries: [arch::__m256i; 2], intervals: arch::__m256i) -> arch::__m256i {
            arch::_mm256_shuffle_epi8(entries[0], intervals)
        }
        fn store_nibbles(target: *mut u8, a: arch::__m256i, b: arch::__m256i, weights: arch::__m256i) {
            let pairs = arch::_mm256_maddubs_epi16(arch::_mm256_packus_epi16(a, b), weights);
            // Quarters of 4 bytes are of a, b, a and b.
            let bytes = arch::_mm256_packus_epi16(pairs, pairs);
            let order = arch::_mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let bytes = arch::_mm256_permutevar8x32_epi32(bytes, order);
            arch::_mm_storeu_si128(target.cast(), arch::_mm256_castsi256_si128(bytes));
        }
    }
}
