//! Piecewise lookup tables, by tables of 32 bytes.

use std::arch::aarch64 as arch;

use super::vector::Neon;
use crate::simd::intervals::{INTERVALS, Intervals};
use crate::simd::vector::operations;

impl Intervals for Neon {
    type Entries = arch::uint8x16x2_t;

    operations! {
        fn load_entries(tables: [&[u8; INTERVALS]; 2]) -> arch::uint8x16x2_t {
            let start = tables[0].as_ptr();
            arch::uint8x16x2_t(arch::vld1q_u8(start), arch::vld1q_u8(start.add(16)))
        }
        fn entries16(entries: arch::uint8x16x2_t, intervals: arch::uint8x16_t) -> arch::uint8x16_t {
            arch::vqtbl2q_u8(entries, intervals)
        }
        fn entries8(entries: arch::uint8x16x2_t, intervals: arch::uint8x16_t) -> arch::uint8x16_t {
            arch::vqtbl2q_u8(entries, intervals)
        }
        fn store_nibbles(
            target: *mut u8,
            a: arch::uint8x16_t,
            b: arch::uint8x16_t,
            weights: arch::uint8x16_t
        ) {
            let products = arch::vmulq_u8(arch::vuzp1q_u8(a, b), weights);
            let bytes = arch::vpaddq_u8(products, products);
            arch::vst1_u8(target, arch::vget_low_u8(bytes));
        }
    }
}
