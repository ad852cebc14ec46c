//! Floats to integers, and float32 to float64, a register at a time.

use super::Vector;

/// What a level does with floats that become integers or wider floats.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Whole: Vector {
    /// Singles truncated to integers of 32 bits, clamped; NaN gives 0.
    unsafe fn truncated(a: Self::Singles) -> Self::Integers;
    /// The same of the doubles at the pointer, two registers of them.
    unsafe fn truncated_doubles(source: *const u8) -> Self::Integers;
    /// Doubles truncated to integers of 64 bits, likewise.
    unsafe fn truncated64(a: Self::Integers) -> Self::Integers;
    /// Integers of 32 bits clamped to words, with a sign or without.
    unsafe fn to_words<const SIGNED: bool>(a: [Self::Integers; 2]) -> Self::Integers;
    /// The same to bytes.
    unsafe fn to_bytes<const SIGNED: bool>(a: [Self::Integers; 4]) -> Self::Integers;
    /// Singles as doubles.
    unsafe fn doubles(a: Self::Singles) -> [Self::Integers; 2];
}

/// The first float that is too large for an integer of 32 bits.
const TOO_LARGE: f32 = -(i32::MIN as f32);

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64 as arch;

    use super::{TOO_LARGE, Whole};
    use crate::simd::{Avx2, Vector};

    impl Whole for Avx2 {
        crate::simd::operations! {
            fn truncated(a: arch::__m256) -> arch::__m256i {
                let number = arch::_mm256_and_ps(a, arch::_mm256_cmp_ps::<{ arch::_CMP_ORD_Q }>(a, a));
                let whole = arch::_mm256_cvttps_epi32(number);
                // What is out of range became the least: inverted, the greatest.
                let above = arch::_mm256_cmp_ps::<{ arch::_CMP_GE_OQ }>(number, arch::_mm256_set1_ps(TOO_LARGE));
                arch::_mm256_xor_si256(whole, arch::_mm256_castps_si256(above))
            }
            fn truncated_doubles(source: *const u8) -> arch::__m256i {
                let low = truncated_doubles(source);
                arch::_mm256_set_m128i(truncated_doubles(source.add(Self::BYTES)), low)
            }
            fn truncated64(a: arch::__m256i) -> arch::__m256i {
                let number = arch::_mm256_castsi256_pd(a);
                let magnitude = arch::_mm256_andnot_pd(arch::_mm256_set1_pd(-0.0), number);
                let small = arch::_mm256_cmp_pd::<{ arch::_CMP_LT_OQ }>(magnitude, arch::_mm256_set1_pd(HALF_WIDTH));
                if arch::_mm256_movemask_pd(small) != 0b1111 {
                    return each_truncated64(a);
                }
                const TRUNCATE: i32 = arch::_MM_FROUND_TO_ZERO | arch::_MM_FROUND_NO_EXC;
                let middle = arch::_mm256_set1_pd(MIDDLE);
                let sum = arch::_mm256_add_pd(arch::_mm256_round_pd::<TRUNCATE>(number), middle);
                arch::_mm256_sub_epi64(arch::_mm256_castpd_si256(sum), arch::_mm256_castpd_si256(middle))
            }
            fn doubles(a: arch::__m256) -> [arch::__m256i; 2] {
                let low = arch::_mm256_cvtps_pd(arch::_mm256_castps256_ps128(a));
                let high = arch::_mm256_cvtps_pd(arch::_mm256_extractf128_ps::<1>(a));
                [arch::_mm256_castpd_si256(low), arch::_mm256_castpd_si256(high)]
            }
        }

        #[inline(always)]
        unsafe fn to_words<const SIGNED: bool>([a, b]: [arch::__m256i; 2]) -> arch::__m256i {
            // SAFETY: the trait's contract.
            unsafe {
                Self::in_order(if SIGNED {
                    arch::_mm256_packs_epi32(a, b)
                } else {
                    arch::_mm256_packus_epi32(a, b)
                })
            }
        }

        #[inline(always)]
        unsafe fn to_bytes<const SIGNED: bool>([a, b, c, d]: [arch::__m256i; 4]) -> arch::__m256i {
            // SAFETY: the trait's contract.
            unsafe {
                let (low, high) = (arch::_mm256_packs_epi32(a, b), arch::_mm256_packs_epi32(c, d));
                let packed = if SIGNED {
                    arch::_mm256_packs_epi16(low, high)
                } else {
                    arch::_mm256_packus_epi16(low, high)
                };
                arch::_mm256_permutevar8x32_epi32(packed, arch::_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
            }
        }
    }

    /// The middle of the doubles whose last bit is 1: what is added to it is a difference of bits.
    const MIDDLE: f64 = (1u64 << 52 | 1 << 51) as f64;

    /// How far they go on either side of it.
    const HALF_WIDTH: f64 = (1u64 << 51) as f64;

    /// One by one, what seldom occurs.
    #[cold]
    fn each_truncated64(a: arch::__m256i) -> arch::__m256i {
        // SAFETY: as many bits of any value.
        unsafe {
            let numbers: [f64; 4] = std::mem::transmute(a);
            std::mem::transmute(numbers.map(|number| number as i64))
        }
    }

    /// One register of doubles.
    ///
    /// # Safety
    /// AVX2, and four doubles at the pointer.
    #[inline(always)]
    unsafe fn truncated_doubles(source: *const u8) -> arch::__m128i {
        // SAFETY: the caller's promise.
        unsafe {
            let a = arch::_mm256_loadu_pd(source.cast());
            let number = arch::_mm256_and_pd(a, arch::_mm256_cmp_pd::<{ arch::_CMP_ORD_Q }>(a, a));
            // What is below the range becomes the least by itself.
            arch::_mm256_cvttpd_epi32(arch::_mm256_min_pd(number, arch::_mm256_set1_pd(i32::MAX.into())))
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64 as arch;

    use super::{TOO_LARGE, Whole};
    use crate::simd::{Avx512, Tables, Vector};

    impl Whole for Avx512 {
        crate::simd::operations! {
            fn truncated(a: arch::__m512) -> arch::__m512i {
                let is_number = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_ORD_Q }>(a, a);
                let whole = arch::_mm512_maskz_cvttps_epi32(is_number, a);
                let above = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_GE_OQ }>(a, arch::_mm512_set1_ps(TOO_LARGE));
                arch::_mm512_mask_mov_epi32(whole, above, arch::_mm512_set1_epi32(i32::MAX))
            }
            fn truncated_doubles(source: *const u8) -> arch::__m512i {
                let low = arch::_mm512_castsi256_si512(truncated_doubles(source));
                arch::_mm512_inserti64x4::<1>(low, truncated_doubles(source.add(Self::BYTES)))
            }
            fn truncated64(a: arch::__m512i) -> arch::__m512i {
                let number = arch::_mm512_castsi512_pd(a);
                let is_number = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_ORD_Q }>(number, number);
                let whole = arch::_mm512_maskz_cvttpd_epi64(is_number, number);
                let large = arch::_mm512_set1_pd(-(i64::MIN as f64));
                let above = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_GE_OQ }>(number, large);
                arch::_mm512_mask_mov_epi64(whole, above, arch::_mm512_set1_epi64(i64::MAX))
            }
            fn doubles(a: arch::__m512) -> [arch::__m512i; 2] {
                let low = arch::_mm512_cvtps_pd(arch::_mm512_castps512_ps256(a));
                let high = arch::_mm512_cvtps_pd(arch::_mm512_extractf32x8_ps::<1>(a));
                [arch::_mm512_castpd_si512(low), arch::_mm512_castpd_si512(high)]
            }
        }

        #[inline(always)]
        unsafe fn to_words<const SIGNED: bool>([a, b]: [arch::__m512i; 2]) -> arch::__m512i {
            // SAFETY: the trait's contract.
            unsafe {
                let packed =
                    if SIGNED { arch::_mm512_packs_epi32(a, b) } else { arch::_mm512_packus_epi32(a, b) };
                arch::_mm512_permutexvar_epi64(arch::_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed)
            }
        }

        #[inline(always)]
        unsafe fn to_bytes<const SIGNED: bool>([a, b, c, d]: [arch::__m512i; 4]) -> arch::__m512i {
            // SAFETY: the trait's contract.
            unsafe {
                let (low, high) = (arch::_mm512_packs_epi32(a, b), arch::_mm512_packs_epi32(c, d));
                let packed = if SIGNED {
                    arch::_mm512_packs_epi16(low, high)
                } else {
                    arch::_mm512_packus_epi16(low, high)
                };
                Self::crosswise(packed)
            }
        }
    }

    /// One register of doubles.
    ///
    /// # Safety
    /// AVX-512, and eight doubles at the pointer.
    #[inline(always)]
    unsafe fn truncated_doubles(source: *const u8) -> arch::__m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let a = arch::_mm512_loadu_pd(source.cast());
            let is_number = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_ORD_Q }>(a, a);
            // What is below the range becomes the least by itself.
            let limited = arch::_mm512_min_pd(a, arch::_mm512_set1_pd(i32::MAX.into()));
            arch::_mm512_maskz_cvttpd_epi32(is_number, limited)
        }
    }
}

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon {
    use std::arch::aarch64 as arch;

    use super::Whole;
    use crate::simd::{Neon, Vector};

    type Integers = arch::uint8x16_t;

    // Conversions saturate, and make 0 of NaN.
    impl Whole for Neon {
        crate::simd::operations! {
            fn truncated(a: arch::float32x4_t) -> Integers { arch::vreinterpretq_u8_s32(arch::vcvtq_s32_f32(a)) }
            fn truncated_doubles(source: *const u8) -> Integers {
                let low = arch::vcvtq_s64_f64(arch::vreinterpretq_f64_u8(Self::load(source)));
                let high = arch::vcvtq_s64_f64(arch::vreinterpretq_f64_u8(Self::load(source.add(Self::BYTES))));
                arch::vreinterpretq_u8_s32(arch::vqmovn_high_s64(arch::vqmovn_s64(low), high))
            }
            fn truncated64(a: Integers) -> Integers {
                arch::vreinterpretq_u8_s64(arch::vcvtq_s64_f64(arch::vreinterpretq_f64_u8(a)))
            }
            fn doubles(a: arch::float32x4_t) -> [Integers; 2] {
                [arch::vcvt_f64_f32(arch::vget_low_f32(a)), arch::vcvt_high_f64_f32(a)]
                    .map(|half| arch::vreinterpretq_u8_f64(half))
            }
        }

        #[inline(always)]
        unsafe fn to_words<const SIGNED: bool>(a: [Integers; 2]) -> Integers {
            // SAFETY: the instructions are part of aarch64.
            unsafe {
                let [a, b] = a.map(|half| arch::vreinterpretq_s32_u8(half));
                if SIGNED {
                    arch::vreinterpretq_u8_s16(arch::vqmovn_high_s32(arch::vqmovn_s32(a), b))
                } else {
                    arch::vreinterpretq_u8_u16(arch::vqmovun_high_s32(arch::vqmovun_s32(a), b))
                }
            }
        }

        #[inline(always)]
        unsafe fn to_bytes<const SIGNED: bool>([a, b, c, d]: [Integers; 4]) -> Integers {
            // SAFETY: the instructions are part of aarch64.
            unsafe {
                let [low, high] =
                    [[a, b], [c, d]].map(|half| arch::vreinterpretq_s16_u8(Self::to_words::<true>(half)));
                if SIGNED {
                    arch::vreinterpretq_u8_s8(arch::vqmovn_high_s16(arch::vqmovn_s16(low), high))
                } else {
                    arch::vqmovun_high_s16(arch::vqmovun_s16(low), high)
                }
            }
        }
    }
}
