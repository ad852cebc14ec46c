//! Lanes of 32 bits for draws, and for the floats that are rounded by them.

use super::Vector;

/// What a level does with lanes of 32 bits.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Chance: Vector {
    /// The first lanes that there are.
    unsafe fn load32(lanes: &[u32; 16]) -> Self::Integers;
    unsafe fn xor(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn add32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn sub32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The lower halves of products.
    unsafe fn mul32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of lanes without a sign.
    unsafe fn min32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn shr32<const COUNT: u32>(a: Self::Integers) -> Self::Integers;
    /// Lower halves, in place of upper ones.
    unsafe fn raised(a: Self::Integers) -> Self::Integers;
    /// All by one count below 32.
    unsafe fn shr32_by(a: Self::Integers, count: u32) -> Self::Integers;
    /// Words, by one count below 16.
    unsafe fn shr16_by(a: Self::Integers, count: u32) -> Self::Integers;
    /// Magnitudes of singles as bits. Those below a power of two become as many of its last places as they hold, on top
    /// of the bits of the power, less an exponent.
    unsafe fn fixed_below(a: Self::Integers, power: Self::Singles) -> Self::Integers;
    /// Whether any lane has all of these bits.
    unsafe fn any_have(a: [Self::Integers; 4], bits: Self::Integers) -> bool;
    /// Whether any word is below the bound, without signs.
    unsafe fn any_below16(a: Self::Integers, bound: Self::Integers) -> bool;
}

/// What the exponents of singles are counted in.
const EXPONENT: u32 = 1 << (f32::MANTISSA_DIGITS - 1);

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64 as arch;

    use super::Chance;
    use crate::simd::{Avx512, Vector};

    type Integers = arch::__m512i;

    impl Chance for Avx512 {
        crate::simd::operations! {
            fn load32(lanes: &[u32; 16]) -> Integers { Self::load(lanes.as_ptr().cast()) }
            fn xor(a: Integers, b: Integers) -> Integers { arch::_mm512_xor_si512(a, b) }
            fn add32(a: Integers, b: Integers) -> Integers { arch::_mm512_add_epi32(a, b) }
            fn sub32(a: Integers, b: Integers) -> Integers { arch::_mm512_sub_epi32(a, b) }
            fn mul32(a: Integers, b: Integers) -> Integers { arch::_mm512_mullo_epi32(a, b) }
            fn min32(a: Integers, b: Integers) -> Integers { arch::_mm512_min_epu32(a, b) }
            fn raised(a: Integers) -> Integers { arch::_mm512_slli_epi32::<16>(a) }
            fn shr32_by(a: Integers, count: u32) -> Integers {
                arch::_mm512_srl_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
            }
            fn shr16_by(a: Integers, count: u32) -> Integers {
                arch::_mm512_srl_epi16(a, arch::_mm_cvtsi32_si128(count as i32))
            }
            fn fixed_below(a: Integers, power: arch::__m512) -> Integers {
                const TRUNCATE: i32 = arch::_MM_FROUND_TO_ZERO | arch::_MM_FROUND_NO_EXC;
                // Half the sum with the power is more than what is below it, and no more than what is not.
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
            fn any_below16(a: Integers, bound: Integers) -> bool {
                arch::_mm512_cmplt_epu16_mask(a, bound) != 0
            }
        }

        #[inline(always)]
        unsafe fn shr32<const COUNT: u32>(a: Integers) -> Integers {
            // SAFETY: the trait's contract.
            unsafe { arch::_mm512_srli_epi32::<COUNT>(a) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64 as arch;

    use super::{Chance, EXPONENT};
    use crate::simd::{Avx2, Vector};

    type Integers = arch::__m256i;

    impl Chance for Avx2 {
        crate::simd::operations! {
            fn load32(lanes: &[u32; 16]) -> Integers { Self::load(lanes.as_ptr().cast()) }
            fn xor(a: Integers, b: Integers) -> Integers { arch::_mm256_xor_si256(a, b) }
            fn add32(a: Integers, b: Integers) -> Integers { arch::_mm256_add_epi32(a, b) }
            fn sub32(a: Integers, b: Integers) -> Integers { arch::_mm256_sub_epi32(a, b) }
            fn mul32(a: Integers, b: Integers) -> Integers { arch::_mm256_mullo_epi32(a, b) }
            fn min32(a: Integers, b: Integers) -> Integers { arch::_mm256_min_epu32(a, b) }
            fn raised(a: Integers) -> Integers { arch::_mm256_slli_epi32::<16>(a) }
            fn shr32_by(a: Integers, count: u32) -> Integers {
                arch::_mm256_srl_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
            }
            fn shr16_by(a: Integers, count: u32) -> Integers {
                arch::_mm256_srl_epi16(a, arch::_mm_cvtsi32_si128(count as i32))
            }
            fn fixed_below(a: Integers, power: arch::__m256) -> Integers {
                let single = arch::_mm256_castsi256_ps(a);
                let below = arch::_mm256_cmpgt_epi32(arch::_mm256_castps_si256(power), a);
                // Rounded up, or down: if up, it is one too many.
                let sum = arch::_mm256_add_ps(single, power);
                let up = arch::_mm256_cmp_ps::<{ arch::_CMP_GT_OQ }>(arch::_mm256_sub_ps(sum, power), single);
                let cut = arch::_mm256_add_epi32(arch::_mm256_castps_si256(sum), arch::_mm256_castps_si256(up));
                let fixed = arch::_mm256_sub_epi32(cut, Self::splat32(EXPONENT));
                arch::_mm256_blendv_epi8(a, fixed, below)
            }
            fn any_have(all: [Integers; 4], bits: Integers) -> bool {
                let [a, b, c, d] = all;
                let low = arch::_mm256_or_si256(lacks_none(a, bits), lacks_none(b, bits));
                let high = arch::_mm256_or_si256(lacks_none(c, bits), lacks_none(d, bits));
                arch::_mm256_movemask_epi8(arch::_mm256_or_si256(low, high)) != 0
            }
            fn any_below16(a: Integers, bound: Integers) -> bool {
                let reaches = arch::_mm256_cmpeq_epi16(arch::_mm256_max_epu16(a, bound), a);
                arch::_mm256_movemask_epi8(reaches) != -1
            }
        }

        #[inline(always)]
        unsafe fn shr32<const COUNT: u32>(a: Integers) -> Integers {
            // SAFETY: the trait's contract.
            unsafe { Self::shr32_by(a, COUNT) }
        }
    }

    /// Which lanes have all of these bits.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn lacks_none(a: Integers, bits: Integers) -> Integers {
        // SAFETY: the caller's promise.
        unsafe { arch::_mm256_cmpeq_epi32(arch::_mm256_and_si256(a, bits), bits) }
    }
}

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon {
    use std::arch::aarch64 as arch;

    use super::{Chance, EXPONENT};
    use crate::simd::{Neon, Vector};

    type Integers = arch::uint8x16_t;
    type Lanes = arch::uint32x4_t;

    impl Chance for Neon {
        crate::simd::operations! {
            fn load32(lanes: &[u32; 16]) -> Integers { Self::load(lanes.as_ptr().cast()) }
            fn xor(a: Integers, b: Integers) -> Integers { arch::veorq_u8(a, b) }
            fn add32(a: Integers, b: Integers) -> Integers { bytes(arch::vaddq_u32(lanes(a), lanes(b))) }
            fn sub32(a: Integers, b: Integers) -> Integers { bytes(arch::vsubq_u32(lanes(a), lanes(b))) }
            fn mul32(a: Integers, b: Integers) -> Integers { bytes(arch::vmulq_u32(lanes(a), lanes(b))) }
            fn min32(a: Integers, b: Integers) -> Integers { bytes(arch::vminq_u32(lanes(a), lanes(b))) }
            fn raised(a: Integers) -> Integers { bytes(arch::vshlq_n_u32::<16>(lanes(a))) }
            fn shr32_by(a: Integers, count: u32) -> Integers {
                bytes(arch::vshlq_u32(lanes(a), arch::vdupq_n_s32(-(count as i32))))
            }
            fn shr16_by(a: Integers, count: u32) -> Integers {
                let left = arch::vdupq_n_s16(-(count as i16));
                arch::vreinterpretq_u8_u16(arch::vshlq_u16(arch::vreinterpretq_u16_u8(a), left))
            }
            fn fixed_below(a: Integers, power: arch::float32x4_t) -> Integers {
                let single = arch::vreinterpretq_f32_u8(a);
                let below = arch::vcltq_f32(single, power);
                // Rounded up, or down: if up, it is one too many.
                let sum = arch::vaddq_f32(single, power);
                let up = arch::vcgtq_f32(arch::vsubq_f32(sum, power), single);
                let cut = arch::vaddq_u32(arch::vreinterpretq_u32_f32(sum), up);
                let fixed = arch::vsubq_u32(cut, arch::vdupq_n_u32(EXPONENT));
                bytes(arch::vbslq_u32(below, fixed, lanes(a)))
            }
            fn any_have(all: [Integers; 4], bits: Integers) -> bool {
                let [a, b, c, d] = all;
                let bits = lanes(bits);
                let (a, b) = (arch::vandq_u32(lanes(a), bits), arch::vandq_u32(lanes(b), bits));
                let (c, d) = (arch::vandq_u32(lanes(c), bits), arch::vandq_u32(lanes(d), bits));
                let low = arch::vorrq_u32(arch::vceqq_u32(a, bits), arch::vceqq_u32(b, bits));
                let high = arch::vorrq_u32(arch::vceqq_u32(c, bits), arch::vceqq_u32(d, bits));
                arch::vmaxvq_u32(arch::vorrq_u32(low, high)) != 0
            }
            fn any_below16(a: Integers, bound: Integers) -> bool {
                let (a, bound) = (arch::vreinterpretq_u16_u8(a), arch::vreinterpretq_u16_u8(bound));
                arch::vmaxvq_u16(arch::vcltq_u16(a, bound)) != 0
            }
        }

        #[inline(always)]
        unsafe fn shr32<const COUNT: u32>(a: Integers) -> Integers {
            // SAFETY: the trait's contract.
            unsafe { Self::shr32_by(a, COUNT) }
        }
    }

    fn lanes(a: Integers) -> Lanes {
        // SAFETY: the instructions are part of aarch64.
        unsafe { arch::vreinterpretq_u32_u8(a) }
    }

    fn bytes(a: Lanes) -> Integers {
        // SAFETY: as above.
        unsafe { arch::vreinterpretq_u8_u32(a) }
    }
}
