//! Nibbles by tables.

use std::arch::aarch64 as arch;

use super::vector::Neon;
use crate::simd::nibble_tables::NibbleTables;
use crate::simd::vector::operations;

impl NibbleTables for Neon {
    operations! {
        fn store_entries(tables: [*const u8; 2], codes: *const u8, target: *mut u8) {
            let both = arch::vld1q_u8(codes);
            let low = arch::vandq_u8(both, arch::vdupq_n_u8(0x0f));
            let high = arch::vshrq_n_u8::<4>(both);
            let indices = [arch::vzip1q_u8(low, high), arch::vzip2q_u8(low, high)];
            for half in 0..2 {
                let (a, b) = (arch::vld1q_u8(tables[half]), arch::vld1q_u8(tables[half].add(16)));
                let low = arch::vqtbl1q_u8(arch::vuzp1q_u8(a, b), indices[half]);
                let high = arch::vqtbl1q_u8(arch::vuzp2q_u8(a, b), indices[half]);
                let target = target.add(32 * half);
                arch::vst1q_u8(target, arch::vzip1q_u8(low, high));
                arch::vst1q_u8(target.add(16), arch::vzip2q_u8(low, high));
            }
        }
    }
}
