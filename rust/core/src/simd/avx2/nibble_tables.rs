//! Nibbles by tables, in registers of 128 bits, across which bytes can be moved freely.

use std::arch::x86_64 as arch;

use super::vector::Avx2;
use crate::simd::nibble_tables::NibbleTables;
use crate::simd::vector::operations;

impl NibbleTables for Avx2 {
    operations! {
        fn store_entries(tables: [*const u8; 2], codes: *const u8, target: *mut u8) {
            let both = arch::_mm_loadu_si128(codes.cast());
            let nibble = arch::_mm_set1_epi8(0x0f);
            let low = arch::_mm_and_si128(both, nibble);
            let high = arch::_mm_and_si128(arch::_mm_srli_epi16::<4>(both), nibble);
            let indices = [arch::_mm_unpacklo_epi8(low, high), arch::_mm_unpackhi_epi8(low, high)];
            let byte = arch::_mm_set1_epi16(0xff);
            for half in 0..2 {
                let table: *const arch::__m128i = tables[half].cast();
                let (a, b) = (arch::_mm_loadu_si128(table), arch::_mm_loadu_si128(table.add(1)));
                let lows = arch::_mm_packus_epi16(arch::_mm_and_si128(a, byte), arch::_mm_and_si128(b, byte));
                let highs =
                    arch::_mm_packus_epi16(arch::_mm_srli_epi16::<8>(a), arch::_mm_srli_epi16::<8>(b));
                let low = arch::_mm_shuffle_epi8(lows, indices[half]);
                let high = arch::_mm_shuffle_epi8(highs, indices[half]);
                let target: *mut arch::__m128i = target.add(32 * half).cast();
                arch::_mm_storeu_si128(target, arch::_mm_unpacklo_epi8(low, high));
                arch::_mm_storeu_si128(target.add(1), arch::_mm_unpackhi_epi8(low, high));
            }
        }
    }
}
