//! The operations of [`Conversions`].

use std::arch::x86_64 as arch;

use super::vector::{Avx2, any};
use crate::simd::conversions::{Conversions, TOO_LARGE};
use crate::simd::vector::{Vector, operations, rarely, rounding};

impl Conversions for Avx2 {
    const DOUBTS: bool = true;

    operations! {
        fn truncated(a: arch::__m256) -> arch::__m256i {
            let number = arch::_mm256_and_ps(a, arch::_mm256_cmp_ps::<{ arch::_CMP_ORD_Q }>(a, a));
            let whole = arch::_mm256_cvttps_epi32(number);
            // Out of range the instruction gives the smallest integer; inverted, the largest.
            let above = arch::_mm256_cmp_ps::<{ arch::_CMP_GE_OQ }>(number, arch::_mm256_set1_ps(TOO_LARGE));
            arch::_mm256_xor_si256(whole, arch::_mm256_castps_si256(above))
        }
        fn truncated_quickly_f64(source: *const u8) -> arch::__m256i {
            let low = arch::_mm256_cvttpd_epi32(arch::_mm256_loadu_pd(source.cast()));
            let high = arch::_mm256_cvttpd_epi32(arch::_mm256_loadu_pd(source.add(Self::BYTES).cast()));
            arch::_mm256_set_m128i(high, low)
        }
        fn any_doubtful(a: [arch::__m256i; 4]) -> bool {
            let least = arch::_mm256_min_epi32(arch::_mm256_min_epi32(a[0], a[1]), arch::_mm256_min_epi32(a[2], a[3]));
            // For NaN and out of range the instructions give the smallest integer.
            let is_least = arch::_mm256_cmpeq_epi32(least, arch::_mm256_set1_epi32(i32::MIN));
            any(arch::_mm256_movemask_ps(arch::_mm256_castsi256_ps(is_least)))
        }
        fn any_unequal(a: [arch::__m256i; 4], b: [arch::__m256i; 4]) -> bool {
            let first = Self::or(arch::_mm256_xor_si256(a[0], b[0]), arch::_mm256_xor_si256(a[1], b[1]));
            let second = Self::or(arch::_mm256_xor_si256(a[2], b[2]), arch::_mm256_xor_si256(a[3], b[3]));
            let all = Self::or(first, second);
            rarely(arch::_mm256_testz_si256(all, all) == 0)
        }
        fn truncated_unsigned(a: [arch::__m256; 4]) -> [arch::__m256i; 4] {
            let parts = [unsigned_parts(a[0]), unsigned_parts(a[1]), unsigned_parts(a[2]), unsigned_parts(a[3])];
            // Both are negative for NaN and out of range.
            let low = Self::or(Self::and(parts[0].0, parts[0].1), Self::and(parts[1].0, parts[1].1));
            let high = Self::or(Self::and(parts[2].0, parts[2].1), Self::and(parts[3].0, parts[3].1));
            if any(arch::_mm256_movemask_ps(Self::from_bits(Self::or(low, high)))) {
                return [
                    clamped_unsigned(a[0]),
                    clamped_unsigned(a[1]),
                    clamped_unsigned(a[2]),
                    clamped_unsigned(a[3]),
                ];
            }
            [of_parts(parts[0]), of_parts(parts[1]), of_parts(parts[2]), of_parts(parts[3])]
        }
        fn to_f64(a: arch::__m256) -> [arch::__m256i; 2] {
            let low = arch::_mm256_cvtps_pd(arch::_mm256_castps256_ps128(a));
            let high = arch::_mm256_cvtps_pd(arch::_mm256_extractf128_ps::<1>(a));
            [arch::_mm256_castpd_si256(low), arch::_mm256_castpd_si256(high)]
        }
        fn product_sum_f64(a: arch::__m256i, b: arch::__m256i, c: arch::__m256i) -> arch::__m256i {
            let (a, b, c) = (arch::_mm256_castsi256_pd(a), arch::_mm256_castsi256_pd(b), arch::_mm256_castsi256_pd(c));
            arch::_mm256_castpd_si256(arch::_mm256_fmadd_pd(a, b, c))
        }
    }

    #[inline(always)]
    unsafe fn truncated_f64<const SIGNED: bool>(source: *const u8) -> arch::__m256i {
        const EVEN: i32 = 0b10_00_10_00;
        const IN_ORDER: i32 = 0b11_01_10_00;
        if SIGNED {
            let low = truncated_f64(source);
            return arch::_mm256_set_m128i(truncated_f64(source.add(Self::BYTES)), low);
        }
        let limit = arch::_mm256_set1_pd(u32::MAX.into());
        let low = arch::_mm256_castpd_si256(arch::_mm256_min_pd(positive(Self::load(source)), limit));
        let high = positive(Self::load(source.add(Self::BYTES)));
        let high = arch::_mm256_castpd_si256(arch::_mm256_min_pd(high, limit));
        let (low, high) = (Self::from_bits(truncated_small(low)), Self::from_bits(truncated_small(high)));
        let joined = arch::_mm256_castps_si256(arch::_mm256_shuffle_ps::<EVEN>(low, high));
        arch::_mm256_permute4x64_epi64::<IN_ORDER>(joined)
    }

    #[inline(always)]
    unsafe fn truncated64<const SIGNED: bool>(a: [arch::__m256i; 4]) -> [arch::__m256i; 4] {
        if SIGNED {
            return truncated_four::<true>(a);
        }
        truncated_four::<false>([
            arch::_mm256_castpd_si256(positive(a[0])),
            arch::_mm256_castpd_si256(positive(a[1])),
            arch::_mm256_castpd_si256(positive(a[2])),
            arch::_mm256_castpd_si256(positive(a[3])),
        ])
    }

    #[inline(always)]
    unsafe fn whole<const ROUNDING: i32>(a: arch::__m256) -> arch::__m256 {
        arch::_mm256_round_ps::<ROUNDING>(a)
    }

    #[inline(always)]
    unsafe fn rounded_quickly<const ROUNDING: i32>(a: arch::__m256) -> arch::__m256i {
        match ROUNDING {
            // The rounding of the environment, which is the default.
            rounding::NEAREST_EVEN => arch::_mm256_cvtps_epi32(a),
            rounding::TOWARDS_ZERO => arch::_mm256_cvttps_epi32(a),
            _ => arch::_mm256_cvttps_epi32(Self::whole::<ROUNDING>(a)),
        }
    }

    #[inline(always)]
    unsafe fn clamp_to_16<const SIGNED: bool>([a, b]: [arch::__m256i; 2]) -> arch::__m256i {
        Self::in_order(if SIGNED { arch::_mm256_packs_epi32(a, b) } else { arch::_mm256_packus_epi32(a, b) })
    }

    #[inline(always)]
    unsafe fn clamp_to_8<const SIGNED: bool>([a, b, c, d]: [arch::__m256i; 4]) -> arch::__m256i {
        let (low, high) = (arch::_mm256_packs_epi32(a, b), arch::_mm256_packs_epi32(c, d));
        let packed =
            if SIGNED { arch::_mm256_packs_epi16(low, high) } else { arch::_mm256_packus_epi16(low, high) };
        arch::_mm256_permutevar8x32_epi32(packed, arch::_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }
}

/// Truncates float32 as signed integers, and what is above 2^31 of them. Out of range the instruction gives the smallest
/// integer: so the first is negative from 2^31 on, and the second up to there and from 2^32 on.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn unsigned_parts(a: arch::__m256) -> (arch::__m256i, arch::__m256i) {
    let above = arch::_mm256_sub_ps(a, arch::_mm256_set1_ps(TOO_LARGE));
    (arch::_mm256_cvttps_epi32(a), arch::_mm256_cvttps_epi32(above))
}

/// Joins these to unsigned integers, if the numbers are in their range.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn of_parts((low, high): (arch::__m256i, arch::__m256i)) -> arch::__m256i {
    let high = Avx2::from_bits(arch::_mm256_xor_si256(high, Avx2::splat32(1 << 31)));
    let low = Avx2::from_bits(low);
    Avx2::bits(arch::_mm256_blendv_ps(low, high, low))
}

/// Truncates float32 to unsigned integers, clamped; NaN gives 0.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn clamped_unsigned(a: arch::__m256) -> arch::__m256i {
    // The larger of NaN and 0 is 0.
    let number = arch::_mm256_max_ps(a, arch::_mm256_setzero_ps());
    let whole = of_parts(unsigned_parts(number));
    let limit = arch::_mm256_set1_ps(2.0 * TOO_LARGE);
    let above = arch::_mm256_cmp_ps::<{ arch::_CMP_GE_OQ }>(number, limit);
    arch::_mm256_or_si256(whole, arch::_mm256_castps_si256(above))
}

/// The middle of the float64 whose last place is 1: adding an integer to it adds that integer to its bits.
const MIDDLE: f64 = (1u64 << 52 | 1 << 51) as f64;

/// How far these extend on either side of it.
const HALF_WIDTH: f64 = (1u64 << 51) as f64;

/// Towards zero, and without exceptions.
const TRUNCATE: i32 = arch::_MM_FROUND_TO_ZERO | arch::_MM_FROUND_NO_EXC;

/// Returns lanes whose upper 32 bits are the larger of two magnitudes'.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn larger(a: arch::__m256i, b: arch::__m256i) -> arch::__m256i {
    let sign = arch::_mm256_set1_epi64x(i64::MIN);
    arch::_mm256_max_epu32(arch::_mm256_andnot_si256(sign, a), arch::_mm256_andnot_si256(sign, b))
}

/// Returns whether the upper 32 bits of all float64 are below those of a bound, a power of two.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn are_below(a: arch::__m256i, bound: f64) -> bool {
    const UPPER: i32 = 0b1010_1010;
    let bound = arch::_mm256_set1_epi32((bound.to_bits() >> 32) as i32);
    let below = arch::_mm256_castsi256_ps(arch::_mm256_cmpgt_epi32(bound, a));
    arch::_mm256_movemask_ps(below) & UPPER == UPPER
}

/// Truncates float64 to 64-bit integers, clamped; NaN gives 0. Those to be unsigned are not negative, and not NaN.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn truncated_four<const SIGNED: bool>(a: [arch::__m256i; 4]) -> [arch::__m256i; 4] {
    // No `map`: the instructions of a level are not inlined into closures.
    let largest = arch::_mm256_max_epu32(larger(a[0], a[1]), larger(a[2], a[3]));
    if are_below(largest, HALF_WIDTH) {
        return [truncated_small(a[0]), truncated_small(a[1]), truncated_small(a[2]), truncated_small(a[3])];
    }
    if are_below(largest, if SIGNED { SIGN } else { 2.0 * SIGN }) {
        return [truncated_large(a[0]), truncated_large(a[1]), truncated_large(a[2]), truncated_large(a[3])];
    }
    any_four::<SIGNED>(a)
}

/// Replaces negative float64 and NaN by 0.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn positive(a: arch::__m256i) -> arch::__m256d {
    arch::_mm256_max_pd(arch::_mm256_castsi256_pd(a), arch::_mm256_setzero_pd())
}

/// Truncates any float64 to 64-bit integers, clamped: [`truncated_any`], or [`unsigned_any`].
///
/// # Safety
/// As for these.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn any_four<const SIGNED: bool>(mut a: [arch::__m256i; 4]) -> [arch::__m256i; 4] {
    for register in &mut a {
        *register = if SIGNED { truncated_any(*register) } else { unsigned_any(*register) };
    }
    a
}

/// Truncates float64 that are not negative to unsigned 64-bit integers, clamped.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn unsigned_any(a: arch::__m256i) -> arch::__m256i {
    let limit = arch::_mm256_set1_pd(2.0 * SIGN);
    let above = arch::_mm256_cmp_pd::<{ arch::_CMP_GE_OQ }>(arch::_mm256_castsi256_pd(a), limit);
    arch::_mm256_or_si256(truncated_large(a), arch::_mm256_castpd_si256(above))
}

/// Truncates float64 below [`HALF_WIDTH`] in magnitude to 64-bit integers.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn truncated_small(a: arch::__m256i) -> arch::__m256i {
    let middle = arch::_mm256_set1_pd(MIDDLE);
    let whole = arch::_mm256_round_pd::<TRUNCATE>(arch::_mm256_castsi256_pd(a));
    let sum = arch::_mm256_castpd_si256(arch::_mm256_add_pd(whole, middle));
    arch::_mm256_sub_epi64(sum, arch::_mm256_castpd_si256(middle))
}

/// The value of a 64-bit integer's top bit.
const SIGN: f64 = -(i64::MIN as f64);

/// The middle to which the upper 32 bits of integers are added. Its own lower bits cancel those that [`MIDDLE`] adds
/// with the lower 32 bits.
const UPPER_MIDDLE: f64 = MIDDLE - (MIDDLE.to_bits() >> 32) as f64;

/// Truncates any float64 to 64-bit integers, clamped; NaN gives 0.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn truncated_any(a: arch::__m256i) -> arch::__m256i {
    let a = arch::_mm256_castsi256_pd(a);
    let number = arch::_mm256_and_pd(a, arch::_mm256_cmp_pd::<{ arch::_CMP_ORD_Q }>(a, a));
    let too_large = arch::_mm256_set1_pd(SIGN);
    let above = arch::_mm256_cmp_pd::<{ arch::_CMP_GE_OQ }>(number, too_large);
    let number = arch::_mm256_max_pd(arch::_mm256_min_pd(number, too_large), arch::_mm256_set1_pd(-SIGN));
    let whole = truncated_large(arch::_mm256_castpd_si256(number));
    // Too large values gave the smallest integer; inverted, the largest.
    arch::_mm256_xor_si256(whole, arch::_mm256_castpd_si256(above))
}

/// Truncates float64 of magnitudes up to 2^64 to 64-bit integers, without those bits that they have beyond.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn truncated_large(a: arch::__m256i) -> arch::__m256i {
    const HALF: f64 = (1u64 << 32) as f64;
    let whole = arch::_mm256_round_pd::<TRUNCATE>(arch::_mm256_castsi256_pd(a));
    // Splits into the nearest multiple of 2^32 and the remainder, which may be negative.
    let middle = arch::_mm256_set1_pd(UPPER_MIDDLE);
    let sum = arch::_mm256_fmadd_pd(whole, arch::_mm256_set1_pd(1.0 / HALF), middle);
    let upper = arch::_mm256_slli_epi64::<32>(arch::_mm256_castpd_si256(sum));
    let rest = arch::_mm256_fnmadd_pd(arch::_mm256_sub_pd(sum, middle), arch::_mm256_set1_pd(HALF), whole);
    let lower = arch::_mm256_castpd_si256(arch::_mm256_add_pd(rest, arch::_mm256_set1_pd(MIDDLE)));
    arch::_mm256_add_epi64(upper, lower)
}

/// Truncates one register of float64 to 32-bit integers.
///
/// # Safety
/// AVX2, and four float64 at the pointer.
#[inline(always)]
unsafe fn truncated_f64(source: *const u8) -> arch::__m128i {
    let a = arch::_mm256_loadu_pd(source.cast());
    let number = arch::_mm256_and_pd(a, arch::_mm256_cmp_pd::<{ arch::_CMP_ORD_Q }>(a, a));
    // Below the range the instruction gives the smallest integer.
    arch::_mm256_cvttpd_epi32(arch::_mm256_min_pd(number, arch::_mm256_set1_pd(i32::MAX.into())))
}
