//! The operations that kernels of this level alone use: its tables have 16 entries, where others have longer ones.
//! Each needs the level's features.

use std::arch::x86_64 as arch;

use super::vector::{Avx2, is_nan};
use crate::simd::vector::{Vector, operations};

type Integers = arch::__m256i;
type F32s = arch::__m256;

operations! {
    pub(crate) fn load_nibbles(table: &[u8; 16]) -> Integers {
        arch::_mm256_broadcastsi128_si256(arch::_mm_loadu_si128(table.as_ptr().cast()))
    }
    /// Returns the entry of the lower four bits of each byte; 0 where its top bit is set.
    pub(crate) fn lookup_nibbles(table: Integers, indices: Integers) -> Integers {
        arch::_mm256_shuffle_epi8(table, indices)
    }
    /// Subtracts signed bytes, with saturation.
    pub(crate) fn sub_saturated_signed8(a: Integers, b: Integers) -> Integers { arch::_mm256_subs_epi8(a, b) }
    /// Adds one to bytes where others are greater than a bound, as signed ones.
    pub(crate) fn increment_above8(a: Integers, b: Integers, bound: Integers) -> Integers {
        arch::_mm256_sub_epi8(a, arch::_mm256_cmpgt_epi8(b, bound))
    }
    /// Returns bytes with the top bits of two registers of u16, in the order of [`Vector::unzip8`].
    pub(crate) fn tops8(a: Integers, b: Integers) -> Integers { arch::_mm256_packs_epi16(a, b) }
    /// Returns registers of u16, from their low and their high bytes in the order of [`Vector::in_order`].
    pub(crate) fn zip8(low: Integers, high: Integers) -> [Integers; 2] {
        [arch::_mm256_unpacklo_epi8(low, high), arch::_mm256_unpackhi_epi8(low, high)]
    }
    /// Multiplies float32 by the third constant, a power of two, and rounds to nearest even by adding an anchor: the
    /// power of two of each float, at least the first constant, with the second one added to its bits. Returns how many
    /// places of the anchor the sum is away from it, plus the bits of the power shifted right.
    pub(crate) fn rounded_by_addition(a: F32s, smallest_anchor_factor: [Integers; 3], shift: u32) -> Integers {
        let [smallest, anchor, factor] = smallest_anchor_factor;
        let power = arch::_mm256_and_si256(Avx2::bits(a), Avx2::splat32(f32::INFINITY.to_bits()));
        let power = arch::_mm256_max_epu32(power, smallest);
        let anchor = arch::_mm256_add_epi32(power, anchor);
        let sum = arch::_mm256_fmadd_ps(a, Avx2::from_bits(factor), Avx2::from_bits(anchor));
        let places = arch::_mm256_abs_epi32(arch::_mm256_sub_epi32(Avx2::bits(sum), anchor));
        let exponent = arch::_mm256_srlv_epi32(power, Avx2::splat32(shift));
        arch::_mm256_add_epi32(places, exponent)
    }
    /// Packs two registers of i32 into one of i16, with saturation, in an order of the level's own.
    pub(crate) fn pack_u16(a: Integers, b: Integers) -> Integers { arch::_mm256_packs_epi32(a, b) }
    /// Packs two registers of i16 into one of unsigned bytes, with saturation, in an order of the level's own.
    pub(crate) fn pack_u8(low: Integers, high: Integers) -> Integers { arch::_mm256_packus_epi16(low, high) }
    /// Returns bytes whose top bits are the signs of float32, in the order of the packed bytes.
    pub(crate) fn signs(a: [F32s; 4]) -> Integers {
        let [a, b, c, d] = a;
        let low = arch::_mm256_packs_epi32(Avx2::bits(a), Avx2::bits(b));
        arch::_mm256_packs_epi16(low, arch::_mm256_packs_epi32(Avx2::bits(c), Avx2::bits(d)))
    }
    /// Returns which float32 are NaN, in that order.
    pub(crate) fn nan8(a: [F32s; 4]) -> Integers {
        let [a, b, c, d] = a;
        signs([is_nan(a, a), is_nan(b, b), is_nan(c, c), is_nan(d, d)])
    }
    /// Moves bytes from that order to memory order.
    pub(crate) fn in_sequence(a: Integers) -> Integers {
        arch::_mm256_permutevar8x32_epi32(a, arch::_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }
}

/// Rounds numbers down to codes, float32 or (unless `SIGNED`) their magnitudes: adds the first constant to their bits
/// and shifts them right, and adds the third one to their products with the second. Returns the magnitudes of both in
/// 16 bits, packed as by [`pack_u16`]; those of products that overflow are large.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn rounded_down<const SIGNED: bool>(
    [a, b]: [F32s; 2],
    constants: [Integers; 3],
    shift: u32,
) -> [Integers; 2] {
    let [a, a_places] = rounded_down32::<SIGNED>(a, constants, shift);
    let [b, b_places] = rounded_down32::<SIGNED>(b, constants, shift);
    let (bits, places) = (arch::_mm256_packs_epi32(a, b), arch::_mm256_packs_epi32(a_places, b_places));
    [arch::_mm256_abs_epi16(bits), arch::_mm256_abs_epi16(places)]
}

/// Rounds a register down, as [`rounded_down`] does, in 32 bits and with signs.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn rounded_down32<const SIGNED: bool>(
    a: F32s,
    [added, scale, half]: [Integers; 3],
    shift: u32,
) -> [Integers; 2] {
    let bits = Avx2::bits(a);
    let magnitude = arch::_mm256_and_si256(bits, Avx2::splat32(i32::MAX as u32));
    let number = if SIGNED { arch::_mm256_sign_epi32(magnitude, bits) } else { magnitude };
    let number = arch::_mm256_add_epi32(number, added);
    let float = if SIGNED { a } else { Avx2::from_bits(magnitude) };
    let places = arch::_mm256_fmadd_ps(float, Avx2::from_bits(scale), Avx2::from_bits(half));
    let places = if SIGNED { arch::_mm256_floor_ps(places) } else { places };
    [arch::_mm256_srav_epi32(number, Avx2::splat32(shift)), arch::_mm256_cvttps_epi32(places)]
}
