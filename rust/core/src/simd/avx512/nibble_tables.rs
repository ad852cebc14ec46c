//! Nibbles by tables, in registers of 512 bits.

use std::arch::x86_64 as arch;

use super::vector::Avx512;
use crate::simd::nibble_tables::NibbleTables;
use crate::simd::vector::{Vector, operations};

/// The bit before each of four nibbles: eight bits from there are the index of a byte, twice the nibble.
static SHIFTS: [[u8; 8]; 8] = [[63, 63, 3, 3, 7, 7, 11, 11]; 8];

/// The bits of indices that come from nibbles.
const DOUBLED: u8 = 0x1e;

/// The bits that do not: which byte of an entry, and which table.
static PLACES: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i] = (i % 2 + i / 32 * 32) as u8;
        i += 1;
    }
    places
};

/// `(a & b) | c`.
const AND_OR: i32 = 0xea;

impl NibbleTables for Avx512 {
    operations! {
        fn store_entries(tables: [*const u8; 2], codes: *const u8, target: *mut u8) {
            let [first, second] = tables;
            let first = arch::_mm512_castsi256_si512(arch::_mm256_loadu_si256(first.cast()));
            let second = arch::_mm256_loadu_si256(second.cast());
            let table = arch::_mm512_inserti64x4::<1>(first, second);
            let fours = arch::_mm512_cvtepu16_epi64(arch::_mm_loadu_si128(codes.cast()));
            let shifted = arch::_mm512_multishift_epi64_epi8(Self::load(SHIFTS.as_ptr().cast()), fours);
            let places = Self::load(PLACES.as_ptr());
            let indices = arch::_mm512_ternarylogic_epi64::<AND_OR>(shifted, Self::splat8(DOUBLED), places);
            Self::store(target, arch::_mm512_permutexvar_epi8(indices, table));
        }
    }
}
