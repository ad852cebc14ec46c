//! Cells of magnitudes, in registers of 512 bits.

use std::arch::x86_64 as arch;

use super::vector::Avx512;
use crate::simd::cells::{CELLS, Cells};
use crate::simd::vector::{Vector, operations};

/// The u16 of the upper half.
const UPPER: u32 = 0xffff_0000;

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
            arch::_mm512_mask_set1_epi16(Self::splat16(numbers[0]), UPPER, numbers[1] as i16)
        }
    }
}
