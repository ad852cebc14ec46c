//! The operations of [`MagicAddition`].

use std::arch::x86_64 as arch;

use super::vector::{Avx2, is_nan};
use crate::simd::magic_addition::MagicAddition;
use crate::simd::vector::{Vector, operations};

type Integers = arch::__m256i;
type F32s = arch::__m256;

impl MagicAddition for Avx2 {
    #[inline(always)]
    unsafe fn rounded_down<const SIGNED: bool>(
        [a, b]: [F32s; 2],
        constants: [Integers; 3],
        shift: u32,
    ) -> [Integers; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let [a, a_places] = rounded_down::<SIGNED>(a, constants, shift);
            let [b, b_places] = rounded_down::<SIGNED>(b, constants, shift);
            let (bits, places) =
                (arch::_mm256_packs_epi32(a, b), arch::_mm256_packs_epi32(a_places, b_places));
            [arch::_mm256_abs_epi16(bits), arch::_mm256_abs_epi16(places)]
        }
    }

    operations! {
        fn rounded_by_addition(a: F32s, smallest_anchor_factor: [Integers; 3], shift: u32) -> Integers {
            let [smallest, anchor, factor] = smallest_anchor_factor;
            let power = arch::_mm256_and_si256(Self::bits(a), Self::splat32(f32::INFINITY.to_bits()));
            let power = arch::_mm256_max_epu32(power, smallest);
            let anchor = arch::_mm256_add_epi32(power, anchor);
            let sum = arch::_mm256_fmadd_ps(a, Self::from_bits(factor), Self::from_bits(anchor));
            let places = arch::_mm256_abs_epi32(arch::_mm256_sub_epi32(Self::bits(sum), anchor));
            let exponent = arch::_mm256_srlv_epi32(power, Self::splat32(shift));
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

/// Rounds a register down, as [`MagicAddition::rounded_down`] does, in 32 bits and with signs.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn rounded_down<const SIGNED: bool>(
    a: F32s,
    [added, scale, half]: [Integers; 3],
    shift: u32,
) -> [Integers; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = Avx2::bits(a);
        let magnitude = arch::_mm256_and_si256(bits, Avx2::splat32(i32::MAX as u32));
        let number = if SIGNED { arch::_mm256_sign_epi32(magnitude, bits) } else { magnitude };
        let number = arch::_mm256_add_epi32(number, added);
        let float = if SIGNED { a } else { Avx2::from_bits(magnitude) };
        let places = arch::_mm256_fmadd_ps(float, Avx2::from_bits(scale), Avx2::from_bits(half));
        let places = if SIGNED { arch::_mm256_floor_ps(places) } else { places };
        [arch::_mm256_srav_epi32(number, Avx2::splat32(shift)), arch::_mm256_cvttps_epi32(places)]
    }
}
