//! Cells of magnitudes, by tables of 16 bytes.

use std::arch::x86_64 as arch;

use super::vector::Avx2;
use crate::simd::cells::{CELLS, Cells};
use crate::simd::vector::{Vector, operations};

/// Added to u16 below 32, they set the top bit of each byte whose lookup has no entry: of those from 16 on and of those
/// below, and always of the upper one.
const FIRST: u16 = 0x8070;
const SECOND: u16 = 0x80f0;

impl Cells for Avx2 {
    type Cells = [arch::__m256i; 2];

    operations! {
        fn load_cells(tables: [&[u8; CELLS]; 2]) -> [arch::__m256i; 2] {
            let start: *const arch::__m128i = tables[0].as_ptr().cast();
            [
                arch::_mm256_broadcastsi128_si256(arch::_mm_loadu_si128(start)),
                arch::_mm256_broadcastsi128_si256(arch::_mm_loadu_si128(start.add(1))),
            ]
        }
        fn entries16(cells: [arch::__m256i; 2], indices: arch::__m256i) -> arch::__m256i {
            let first = arch::_mm256_shuffle_epi8(cells[0], Self::add8(indices, Self::splat16(FIRST)));
            Self::or(first, arch::_mm256_shuffle_epi8(cells[1], Self::add8(indices, Self::splat16(SECOND))))
        }
        fn entries8(cells: [arch::__m256i; 2], indices: arch::__m256i) -> arch::__m256i {
            arch::_mm256_shuffle_epi8(cells[0], indices)
        }
    }
}
