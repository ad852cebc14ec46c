//! Cells of magnitudes, by tables of 32 bytes.

use std::arch::aarch64 as arch;

use super::vector::Neon;
use crate::simd::cells::{CELLS, Cells};
use crate::simd::vector::operations;

impl Cells for Neon {
    type Cells = arch::uint8x16x2_t;

    operations! {
        fn load_cells(tables: [&[u8; CELLS]; 2]) -> arch::uint8x16x2_t {
            let start = tables[0].as_ptr();
            arch::uint8x16x2_t(arch::vld1q_u8(start), arch::vld1q_u8(start.add(16)))
        }
        fn entries16(cells: arch::uint8x16x2_t, indices: arch::uint8x16_t) -> arch::uint8x16_t {
            arch::vqtbl2q_u8(cells, indices)
        }
        fn entries8(cells: arch::uint8x16x2_t, indices: arch::uint8x16_t) -> arch::uint8x16_t {
            arch::vqtbl2q_u8(cells, indices)
        }
    }
}
