//! The operations of [`Conversions`].

use std::arch::x86_64 as arch;

use super::vector::Avx512;
use crate::simd::conversions::{Conversions, TOO_LARGE};
use crate::simd::vector::{Vector, operations, rarely, rounding};

impl Conversions for Avx512 {
    const DOUBTS: bool = true;

    operations! {
        fn truncated(a: arch::__m512) -> arch::__m512i {
            let is_number = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_ORD_Q }>(a, a);
            let whole = arch::_mm512_maskz_cvttps_epi32(is_number, a);
            let above = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_GE_OQ }>(a, arch::_mm512_set1_ps(TOO_LARGE));
            arch::_mm512_mask_mov_epi32(whole, above, arch::_mm512_set1_epi32(i32::MAX))
        }
        fn truncated_quickly_f64(source: *const u8) -> arch::__m512i {
            let low = arch::_mm512_cvttpd_epi32(arch::_mm512_loadu_pd(source.cast()));
            let high = arch::_mm512_cvttpd_epi32(arch::_mm512_loadu_pd(source.add(Self::BYTES).cast()));
            arch::_mm512_inserti64x4::<1>(arch::_mm512_castsi256_si512(low), high)
        }
        fn any_doubtful(a: [arch::__m512i; 4]) -> bool {
            let least = arch::_mm512_min_epi32(arch::_mm512_min_epi32(a[0], a[1]), arch::_mm512_min_epi32(a[2], a[3]));
            // For NaN and out of range the instructions give the smallest integer.
            rarely(arch::_mm512_cmpeq_epi32_mask(least, arch::_mm512_set1_epi32(i32::MIN)) != 0)
        }
        fn any_unequal(a: [arch::__m512i; 4], b: [arch::__m512i; 4]) -> bool {
            let first = Self::or(arch::_mm512_xor_si512(a[0], b[0]), arch::_mm512_xor_si512(a[1], b[1]));
            let second = Self::or(arch::_mm512_xor_si512(a[2], b[2]), arch::_mm512_xor_si512(a[3], b[3]));
            let all = Self::or(first, second);
            rarely(arch::_mm512_test_epi32_mask(all, all) != 0)
        }
        fn truncated_unsigned(a: [arch::__m512; 4]) -> [arch::__m512i; 4] {
            // The larger of NaN and 0 is 0; above the range the instruction gives the largest integer.
            let zero = arch::_mm512_setzero_ps();
            [
                arch::_mm512_cvttps_epu32(arch::_mm512_max_ps(a[0], zero)),
                arch::_mm512_cvttps_epu32(arch::_mm512_max_ps(a[1], zero)),
                arch::_mm512_cvttps_epu32(arch::_mm512_max_ps(a[2], zero)),
                arch::_mm512_cvttps_epu32(arch::_mm512_max_ps(a[3], zero)),
            ]
        }
        fn to_f64(a: arch::__m512) -> [arch::__m512i; 2] {
            let low = arch::_mm512_cvtps_pd(arch::_mm512_castps512_ps256(a));
            let high = arch::_mm512_cvtps_pd(arch::_mm512_extractf32x8_ps::<1>(a));
            [arch::_mm512_castpd_si512(low), arch::_mm512_castpd_si512(high)]
        }
        fn product_sum_f64(a: arch::__m512i, b: arch::__m512i, c: arch::__m512i) -> arch::__m512i {
            let (a, b, c) = (arch::_mm512_castsi512_pd(a), arch::_mm512_castsi512_pd(b), arch::_mm512_castsi512_pd(c));
            arch::_mm512_castpd_si512(arch::_mm512_fmadd_pd(a, b, c))
        }
    }

    #[inline(always)]
    unsafe fn truncated_f64<const SIGNED: bool>(source: *const u8) -> arch::__m512i {
        let low = truncated_f64::<SIGNED>(Self::load(source));
        let high = truncated_f64::<SIGNED>(Self::load(source.add(Self::BYTES)));
        arch::_mm512_inserti64x4::<1>(arch::_mm512_castsi256_si512(low), high)
    }

    #[inline(always)]
    unsafe fn truncated64<const SIGNED: bool>(a: [arch::__m512i; 4]) -> [arch::__m512i; 4] {
        [
            truncated64::<SIGNED>(a[0]),
            truncated64::<SIGNED>(a[1]),
            truncated64::<SIGNED>(a[2]),
            truncated64::<SIGNED>(a[3]),
        ]
    }

    #[inline(always)]
    unsafe fn whole<const ROUNDING: i32>(a: arch::__m512) -> arch::__m512 {
        arch::_mm512_roundscale_ps::<ROUNDING>(a)
    }

    #[inline(always)]
    unsafe fn rounded_quickly<const ROUNDING: i32>(a: arch::__m512) -> arch::__m512i {
        use arch::_MM_FROUND_NO_EXC as QUIET;
        match ROUNDING {
            rounding::TOWARDS_POSITIVE => {
                arch::_mm512_cvt_roundps_epi32::<{ rounding::TOWARDS_POSITIVE | QUIET }>(a)
            }
            rounding::TOWARDS_NEGATIVE => {
                arch::_mm512_cvt_roundps_epi32::<{ rounding::TOWARDS_NEGATIVE | QUIET }>(a)
            }
            rounding::TOWARDS_ZERO => arch::_mm512_cvttps_epi32(a),
            _ => arch::_mm512_cvt_roundps_epi32::<{ rounding::NEAREST_EVEN | QUIET }>(a),
        }
    }

    #[inline(always)]
    unsafe fn clamp_to_16<const SIGNED: bool>([a, b]: [arch::__m512i; 2]) -> arch::__m512i {
        let packed = if SIGNED { arch::_mm512_packs_epi32(a, b) } else { arch::_mm512_packus_epi32(a, b) };
        arch::_mm512_permutexvar_epi64(arch::_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed)
    }

    #[inline(always)]
    unsafe fn clamp_to_8<const SIGNED: bool>([a, b, c, d]: [arch::__m512i; 4]) -> arch::__m512i {
        let (low, high) = (arch::_mm512_packs_epi32(a, b), arch::_mm512_packs_epi32(c, d));
        let packed =
            if SIGNED { arch::_mm512_packs_epi16(low, high) } else { arch::_mm512_packus_epi16(low, high) };
        Self::crosswise(packed)
    }
}

/// Replaces negative float64 and NaN by 0.
///
/// # Safety
/// AVX-512.
#[inline(always)]
unsafe fn positive(a: arch::__m512i) -> arch::__m512d {
    arch::_mm512_max_pd(arch::_mm512_castsi512_pd(a), arch::_mm512_setzero_pd())
}

/// Truncates one register of float64 to 64-bit integers.
///
/// # Safety
/// AVX-512.
#[inline(always)]
unsafe fn truncated64<const SIGNED: bool>(a: arch::__m512i) -> arch::__m512i {
    if !SIGNED {
        return arch::_mm512_cvttpd_epu64(positive(a));
    }
    let number = arch::_mm512_castsi512_pd(a);
    let is_number = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_ORD_Q }>(number, number);
    let whole = arch::_mm512_maskz_cvttpd_epi64(is_number, number);
    let large = arch::_mm512_set1_pd(-(i64::MIN as f64));
    let above = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_GE_OQ }>(number, large);
    arch::_mm512_mask_mov_epi64(whole, above, arch::_mm512_set1_epi64(i64::MAX))
}

/// Truncates one register of float64 to 32-bit integers.
///
/// # Safety
/// AVX-512.
#[inline(always)]
unsafe fn truncated_f64<const SIGNED: bool>(a: arch::__m512i) -> arch::__m256i {
    if !SIGNED {
        return arch::_mm512_cvttpd_epu32(positive(a));
    }
    let a = arch::_mm512_castsi512_pd(a);
    let is_number = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_ORD_Q }>(a, a);
    // Below the range the instruction gives the smallest integer.
    let limited = arch::_mm512_min_pd(a, arch::_mm512_set1_pd(i32::MAX.into()));
    arch::_mm512_maskz_cvttpd_epi32(is_number, limited)
}
