//! Singles to codes of fewer bits by sums, a register at a time.

use super::Vector;

/// What a level without long tables does with singles that become bytes.
///
/// # Safety
/// As for [`Vector`].
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
pub(crate) trait Sums: Vector {
    /// Singles times a power of two, rounded to nearest even: of a power of two that is not above their magnitude, nor
    /// below the smallest, so many bits are left as a sum with it leaves, once an anchor has been added to its bits.
    unsafe fn rounded_by_sums(
        a: Self::Singles,
        smallest_anchor_factor: [Self::Integers; 3],
    ) -> Self::Integers;
    unsafe fn shr32(a: Self::Integers, count: u32) -> Self::Integers;
    /// The lanes of 32 bits of two registers, which have no more than 15, as words, in an order of the level's own.
    unsafe fn words(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The words of two registers, which have no more than 15 bits, as bytes, or the largest, in an order of the level's
    /// own.
    unsafe fn bytes(low: Self::Integers, high: Self::Integers) -> Self::Integers;
    /// Bytes with the signs of singles for top bits, in the order of these two.
    unsafe fn signs(a: [Self::Singles; 4]) -> Self::Integers;
    /// Which singles are NaN, in that order.
    unsafe fn nan8(a: [Self::Singles; 4]) -> Self::Mask8;
    /// Whether any is.
    unsafe fn any_nan_of_four(a: [Self::Singles; 4]) -> bool;
    /// Bytes in that order, in the order of memory.
    unsafe fn in_sequence(a: Self::Integers) -> Self::Integers;
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64 as arch;

    use super::Sums;
    use crate::simd::{Avx2, Vector};

    type Integers = arch::__m256i;
    type Singles = arch::__m256;

    impl Sums for Avx2 {
        crate::simd::operations! {
            fn rounded_by_sums(a: Singles, smallest_anchor_factor: [Integers; 3]) -> Integers {
                let [smallest, anchor, factor] = smallest_anchor_factor;
                let power = arch::_mm256_and_si256(Self::bits(a), Self::splat32(f32::INFINITY.to_bits()));
                let power = arch::_mm256_max_epu32(power, smallest);
                let anchor = Self::singles(arch::_mm256_add_epi32(power, anchor));
                let sum = arch::_mm256_fmadd_ps(a, Self::singles(factor), anchor);
                Self::bits(arch::_mm256_sub_ps(sum, anchor))
            }
            fn shr32(a: Integers, count: u32) -> Integers {
                arch::_mm256_srl_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
            }
            fn words(a: Integers, b: Integers) -> Integers { arch::_mm256_packs_epi32(a, b) }
            fn bytes(low: Integers, high: Integers) -> Integers { arch::_mm256_packus_epi16(low, high) }
            fn signs(a: [Singles; 4]) -> Integers {
                let [a, b, c, d] = a;
                let low = arch::_mm256_packs_epi32(Self::bits(a), Self::bits(b));
                arch::_mm256_packs_epi16(low, arch::_mm256_packs_epi32(Self::bits(c), Self::bits(d)))
            }
            fn nan8(a: [Singles; 4]) -> Integers {
                let [a, b, c, d] = a;
                Self::signs([is_nan(a, a), is_nan(b, b), is_nan(c, c), is_nan(d, d)])
            }
            fn any_nan_of_four(a: [Singles; 4]) -> bool {
                let [a, b, c, d] = a;
                arch::_mm256_movemask_ps(arch::_mm256_or_ps(is_nan(a, b), is_nan(c, d))) != 0
            }
            fn in_sequence(a: Integers) -> Integers {
                arch::_mm256_permutevar8x32_epi32(a, arch::_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
            }
        }
    }

    /// Which lanes of either register are NaN.
    ///
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn is_nan(a: Singles, b: Singles) -> Singles {
        // SAFETY: the caller's promise.
        unsafe { arch::_mm256_cmp_ps::<{ arch::_CMP_UNORD_Q }>(a, b) }
    }
}
