//! Piecewise lookup tables, in registers of 512 bits.

use std::arch::x86_64 as arch;

use super::vector::Avx512;
use crate::simd::intervals::{INTERVALS, Intervals};
use crate::simd::vector::{Vector, operations};

/// What entries of the upper half are behind those of the lower one.
static BEHIND: [u16; 32] = {
    let mut behind = [0; 32];
    let mut i = 16;
    while i < 32 {
        behind[i] = INTERVALS as u16;
        i += 1;
    }
    behind
};

/// The lower bytes of u16, of which 4 of one register and 4 of another take turns: first those of the one.
static IN_TURNS: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 32 {
        let (register, quarter, place) = (i / 16, i % 16 / 4, i % 4);
        places[i] = (quarter * 16 + register * 8 + place * 2) as u8;
        i += 1;
    }
    places
};

impl Intervals for Avx512 {
    type Entries = arch::__m512i;

    operations! {
        fn load_entries(tables: [&[u8; INTERVALS]; 2]) -> arch::__m512i {
            let [first, second] = tables;
            let first = arch::_mm512_castsi256_si512(arch::_mm256_loadu_si256(first.as_ptr().cast()));
            arch::_mm512_inserti64x4::<1>(first, arch::_mm256_loadu_si256(second.as_ptr().cast()))
        }
        fn entries16(entries: arch::__m512i, intervals: arch::__m512i) -> arch::__m512i {
            let intervals = Self::or(intervals, Self::load(BEHIND.as_ptr().cast()));
            arch::_mm512_permutexvar_epi8(intervals, entries)
        }
        fn entries8(entries: arch::__m512i, intervals: arch::__m512i) -> arch::__m512i {
            arch::_mm512_permutexvar_epi8(intervals, entries)
        }
        fn store_nibbles(target: *mut u8, a: arch::__m512i, b: arch::__m512i, weights: arch::__m512i) {
            let pairs = arch::_mm512_maddubs_epi16(arch::_mm512_packus_epi16(a, b), weights);
            let bytes = arch::_mm512_permutexvar_epi8(Self::load(IN_TURNS.as_ptr()), pairs);
            arch::_mm256_storeu_si256(target.cast(), arch::_mm512_castsi512_si256(bytes));
        }
    }
}
