//! The operations of [`MagicAddition`].

use std::arch::x86_64 as arch;

use super::vector::{Avx2, is_nan};
use crate::simd::magic_addition::MagicAddition;
use crate::simd::vector::{Vector, operations};

type Integers = arch::__m256i;
type F32s = arch::__m256;

impl MagicAddition for Avx2 {
    operations! {
        fn rounded_by_addition(a: F32s, smallest_anchor_factor: [Integers; 3], shift: u32) -> Integers {
            let [smallest, anchor, factor] = smallest_anchor_factor;
            let power = arch::_mm256_and_si256(Self::bits(a), Self::splat32(f32::INFINITY.to_bits()));
            let power = arch::_mm256_max_epu32(power, smallest);
            let anchor = arch::_mm256_add_epi32(power, anchor);
            let sum = arch::_mm256_fmadd_ps(a, Self::from_bits(factor), Self::from_bits(anchor));
            let places = arch::_mm256_abs_epi32(arch::_mm256_sub_epi32(Self::bits(sum), anchor));
            let exponent = arch::_mm256_srl_epi32(power, arch::_mm_cvtsi32_si128(shift as i32));
            arch::_mm256_add_epi32(places, exponent)
        }
        fn pack_u16(a: Integers, b: Integers) -> Integers { arch::_mm256_packs_epi32(a, b) }
        fn pack_u8(low: Integers, high: Integers) -> Integers { arch::_mm256_packus_epi16(low, high) }
        fn signs(a: [F32s; 4]) -> Integers {
            let [a, b, c, d] = a;
            let low = arch::_mm256_packs_epi32(Self::bits(a), Self::bits(b));
            arch::_mm256_packs_epi16(low, arch::_mm256_packs_epi32(Self::bits(c), Self::bits(d)))
        }
        fn nan8(a: [F32s; 4]) -> Integers {
            let [a, b, c, d] = a;
            Self::signs([is_nan(a, a), is_nan(b, b), is_nan(c, c), is_nan(d, d)])
        }
        fn in_sequence(a: Integers) -> Integers {
            arch::_mm256_permutevar8x32_epi32(a, arch::_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        }
    }
}
