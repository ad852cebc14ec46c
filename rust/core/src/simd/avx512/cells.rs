//! Cells of magnitudes, in registers of 512 bits.

use std::arch::x86_64 as arch;

use super::vector::Avx512;
use crate::simd::cells::{CELLS, Cells};
use crate::simd::vector::{Vector, operations};

/// What entries of the upper half are behind those of the lower one.
static BEHIND: [u16; 32] = {
    let mut behind = [0; 32];
    let mut i = 16;
    while i < 32 {
        behind[i] = CELLS as u16;
        i += 1;
    }
    behind
};

/// The first two bytes of four in the lower half, the others in the upper one.
static BY_HALVES: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i] = (i % 2 + i / 32 * 2) as u8;
        i += 1;
    }
    places
};

impl Cells for Avx512 {
    type Cells = arch::__m512i;

    operations! {
        fn load_cells(tables: [&[u8; CELLS]; 2]) -> arch::__m512i {
            let [first, second] = tables;
            let first = arch::_mm512_castsi256_si512(arch::_mm256_loadu_si256(first.as_ptr().cast()));
            arch::_mm512_inserti64x4::<1>(first, arch::_mm256_loadu_si256(second.as_ptr().cast()))
        }
        fn entries16(cells: arch::__m512i, indices: arch::__m512i) -> arch::__m512i {
            let indices = Self::or(indices, Self::load(BEHIND.as_ptr().cast()));
            arch::_mm512_permutexvar_epi8(indices, cells)
        }
        fn entries8(cells: arch::__m512i, indices: arch::__m512i) -> arch::__m512i {
            arch::_mm512_permutexvar_epi8(indices, cells)
        }
        fn splat_halves16(numbers: [u16; 2]) -> arch::__m512i {
            let [lower, upper] = numbers.map(u32::from);
            let both = arch::_mm512_set1_epi32((lower | upper << u16::BITS) as i32);
            arch::_mm512_shuffle_epi8(both, Self::load(BY_HALVES.as_ptr()))
        }
    }
}
