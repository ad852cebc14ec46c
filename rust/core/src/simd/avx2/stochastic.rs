//! The operations of [`StochasticOps`].

use std::arch::x86_64 as arch;

use super::vector::Avx2;
use crate::simd::stochastic::{EXPONENT, StochasticOps};
use crate::simd::vector::{Vector, operations};

type Integers = arch::__m256i;

impl StochasticOps for Avx2 {
    operations! {
        fn xor(a: Integers, b: Integers) -> Integers { arch::_mm256_xor_si256(a, b) }
        fn mul32(a: Integers, b: Integers) -> Integers { arch::_mm256_mullo_epi32(a, b) }
        fn min32(a: Integers, b: Integers) -> Integers { arch::_mm256_min_epu32(a, b) }
        fn sar32(a: Integers, count: u32) -> Integers {
            arch::_mm256_sra_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
        }
        fn fixed_below(a: Integers, power: arch::__m256) -> Integers {
            // Units of the last place up to `power`, where they end at its own bits.
            let units = arch::_mm256_div_ps(arch::_mm256_set1_ps(EXPONENT as f32), power);
            let least = arch::_mm256_min_ps(arch::_mm256_castsi256_ps(a), power);
            let cut = arch::_mm256_cvttps_epi32(arch::_mm256_mul_ps(least, units));
            let start = arch::_mm256_sub_epi32(arch::_mm256_castps_si256(power), Self::splat32(EXPONENT));
            arch::_mm256_max_epu32(a, arch::_mm256_add_epi32(cut, start))
        }
        fn any_have(all: [Integers; 4], bits: Integers) -> bool {
            let [a, b, c, d] = all;
            let low = arch::_mm256_or_si256(lacks_none(a, bits), lacks_none(b, bits));
            let high = arch::_mm256_or_si256(lacks_none(c, bits), lacks_none(d, bits));
            arch::_mm256_movemask_epi8(arch::_mm256_or_si256(low, high)) != 0
        }
        fn smaller(a: arch::__m256, b: arch::__m256) -> arch::__m256 { arch::_mm256_min_ps(a, b) }
        fn any_low_ones(all: [Integers; 4]) -> bool {
            let [a, b, c, d] = all;
            let most = arch::_mm256_max_epu16(arch::_mm256_max_epu16(a, b), arch::_mm256_max_epu16(c, d));
            let ones = arch::_mm256_cmpeq_epi16(most, arch::_mm256_set1_epi32(-1));
            // Two bits of each four belong to a lower half.
            arch::_mm256_movemask_epi8(ones) & 0x3333_3333 != 0
        }
        fn any_below16(a: Integers, bound: Integers) -> bool {
            let reaches = arch::_mm256_cmpeq_epi16(arch::_mm256_max_epu16(a, bound), a);
            arch::_mm256_movemask_epi8(reaches) != -1
        }
    }
}

/// Returns which lanes have all of these bits.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn lacks_none(a: Integers, bits: Integers) -> Integers {
    arch::_mm256_cmpeq_epi32(arch::_mm256_and_si256(a, bits), bits)
}
