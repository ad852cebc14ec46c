//! The operations of [`StochasticOps`].

use std::arch::x86_64 as arch;

use super::vector::Avx512;
use crate::simd::stochastic::StochasticOps;
use crate::simd::vector::{Vector, operations};

type Integers = arch::__m512i;

impl StochasticOps for Avx512 {
    operations! {
        fn xor(a: Integers, b: Integers) -> Integers { arch::_mm512_xor_si512(a, b) }
        fn mul32(a: Integers, b: Integers) -> Integers { arch::_mm512_mullo_epi32(a, b) }
        fn min32(a: Integers, b: Integers) -> Integers { arch::_mm512_min_epu32(a, b) }
        fn sar32(a: Integers, count: u32) -> Integers {
            arch::_mm512_sra_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
        }
        fn fixed_below(a: Integers, power: arch::__m512) -> Integers {
            const TRUNCATE: i32 = arch::_MM_FROUND_TO_ZERO | arch::_MM_FROUND_NO_EXC;
            // Half of the sum with `power` exceeds values below `power`, and no others.
            let (single, half) = (arch::_mm512_castsi512_ps(a), arch::_mm512_set1_ps(0.5));
            let sum = arch::_mm512_fmadd_round_ps::<TRUNCATE>(single, half, arch::_mm512_mul_ps(power, half));
            arch::_mm512_max_epu32(a, arch::_mm512_castps_si512(sum))
        }
        fn any_have(all: [Integers; 4], bits: Integers) -> bool {
            let [a, b, c, d] = all;
            let others = arch::_mm512_xor_si512(bits, arch::_mm512_set1_epi32(-1));
            let (a, b) = (arch::_mm512_or_si512(a, others), arch::_mm512_or_si512(b, others));
            let (c, d) = (arch::_mm512_or_si512(c, others), arch::_mm512_or_si512(d, others));
            let most = arch::_mm512_max_epu32(arch::_mm512_max_epu32(a, b), arch::_mm512_max_epu32(c, d));
            arch::_mm512_cmpeq_epi32_mask(most, arch::_mm512_set1_epi32(-1)) != 0
        }
        fn smaller(a: arch::__m512, b: arch::__m512) -> arch::__m512 { arch::_mm512_min_ps(a, b) }
        fn any_low_ones(all: [Integers; 4]) -> bool {
            const LOWER: u32 = u32::MAX / 3;
            let [a, b, c, d] = all;
            let most = arch::_mm512_max_epu16(arch::_mm512_max_epu16(a, b), arch::_mm512_max_epu16(c, d));
            arch::_mm512_mask_cmpeq_epi16_mask(LOWER, most, arch::_mm512_set1_epi16(-1)) != 0
        }
        fn any_below16(a: Integers, bound: Integers) -> bool {
            arch::_mm512_cmplt_epu16_mask(a, bound) != 0
        }
    }

    #[inline(always)]
    unsafe fn clamp_upper_to_8<const SIGNED: bool>([a, b, c, d]: [Integers; 4]) -> Integers {
        let (low, high) = (Self::unzip16(a, b).1, Self::unzip16(c, d).1);
        let packed =
            if SIGNED { arch::_mm512_packs_epi16(low, high) } else { arch::_mm512_packus_epi16(low, high) };
        arch::_mm512_permutexvar_epi64(arch::_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed)
    }
}
