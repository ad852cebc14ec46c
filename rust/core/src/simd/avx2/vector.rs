//! Registers of 256 bits.

use std::arch::asm;
use std::arch::x86_64 as arch;

use crate::cpu::level::{Level, Owner, RawKernel};
use crate::simd::halves::up_above_middle;
use crate::simd::vector::{Vector, nearest_one_by_one, operations, or_masked, rarely};

/// AVX2 with F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(pub(in crate::simd) Level);

type Integers = arch::__m256i;
type F32s = arch::__m256;

/// The order of 64-bit lanes after two registers have been packed into one, half by half.
const UNPACKED: i32 = 0b11_01_10_00;

/// Selects the upper u16 of each 32-bit lane.
const UPPER_U16: i32 = 0b1010_1010;

// SAFETY: the sizes are those of the registers.
unsafe impl Vector for Avx2 {
    const BYTES: usize = 32;
    const STREAMS: bool = true;
    type Integers = Integers;
    type F32s = F32s;
    // All bits of a lane, or none.
    type Mask8 = Integers;
    type Mask16 = Integers;

    fn level(self) -> Level {
        self.0
    }

    #[inline(always)]
    fn function<O: Owner<K>, K: RawKernel>() -> unsafe fn(K) -> K::Output {
        O::avx2
    }

    operations! {
        fn load(source: *const u8) -> Integers { arch::_mm256_loadu_si256(source.cast()) }
        fn store(target: *mut u8, a: Integers) { arch::_mm256_storeu_si256(target.cast(), a) }
        fn stream(target: *mut u8, a: Integers) { arch::_mm256_stream_si256(target.cast(), a) }
        fn splat8(value: u8) -> Integers { arch::_mm256_set1_epi8(value as i8) }
        fn splat16(value: u16) -> Integers { arch::_mm256_set1_epi16(value as i16) }
        fn splat32(value: u32) -> Integers { arch::_mm256_set1_epi32(value as i32) }
        fn and(a: Integers, b: Integers) -> Integers { arch::_mm256_and_si256(a, b) }
        fn or(a: Integers, b: Integers) -> Integers { arch::_mm256_or_si256(a, b) }
        fn add8(a: Integers, b: Integers) -> Integers { arch::_mm256_add_epi8(a, b) }
        fn add16(a: Integers, b: Integers) -> Integers { arch::_mm256_add_epi16(a, b) }
        fn add_saturated8(a: Integers, b: Integers) -> Integers { arch::_mm256_adds_epu8(a, b) }
        fn sub_saturated8(a: Integers, b: Integers) -> Integers { arch::_mm256_subs_epu8(a, b) }
        fn sub_saturated16(a: Integers, b: Integers) -> Integers { arch::_mm256_subs_epu16(a, b) }
        fn min8(a: Integers, b: Integers) -> Integers { arch::_mm256_min_epu8(a, b) }
        fn min16(a: Integers, b: Integers) -> Integers { arch::_mm256_min_epu16(a, b) }
        fn max16(a: Integers, b: Integers) -> Integers { arch::_mm256_max_epu16(a, b) }
        fn max32(a: Integers, b: Integers) -> Integers { arch::_mm256_max_epu32(a, b) }
        fn most16(a: Integers) -> u16 {
            let most = arch::_mm_max_epu16(arch::_mm256_castsi256_si128(a), arch::_mm256_extracti128_si256::<1>(a));
            // There is an instruction for the smallest.
            let turned = arch::_mm_xor_si128(most, arch::_mm_set1_epi16(-1));
            !(arch::_mm_cvtsi128_si32(arch::_mm_minpos_epu16(turned)) as u16)
        }
        fn most32(a: Integers) -> u32 {
            let four = arch::_mm_max_epu32(arch::_mm256_castsi256_si128(a), arch::_mm256_extracti128_si256::<1>(a));
            let two = arch::_mm_max_epu32(four, arch::_mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = arch::_mm_max_epu32(two, arch::_mm_shuffle_epi32::<0b10_11_00_01>(two));
            arch::_mm_cvtsi128_si32(one) as u32
        }
        fn add32(a: Integers, b: Integers) -> Integers { arch::_mm256_add_epi32(a, b) }
        fn min_signed16(a: Integers, b: Integers) -> Integers { arch::_mm256_min_epi16(a, b) }
        fn max_signed16(a: Integers, b: Integers) -> Integers { arch::_mm256_max_epi16(a, b) }
        fn nearest_product16(a: Integers, b: Integers) -> Integers { arch::_mm256_mulhrs_epi16(a, b) }
        fn pair_products32(a: Integers, b: Integers) -> Integers { arch::_mm256_madd_epi16(a, b) }
        fn mul16(a: Integers, b: Integers) -> Integers { arch::_mm256_mullo_epi16(a, b) }
        fn shr16(a: Integers, count: u32) -> Integers {
            arch::_mm256_srl_epi16(a, arch::_mm_cvtsi32_si128(count as i32))
        }
        fn shl_each16(a: Integers, counts: Integers) -> Integers {
            // Multiplies by a power of two for each count, from a table of bytes; entries for upper bytes are
            // multiplied by 0.
            let powers = arch::_mm256_broadcastsi128_si256(arch::_mm_setr_epi8(
                1, 2, 4, 8, 16, 32, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ));
            arch::_mm256_maddubs_epi16(a, arch::_mm256_shuffle_epi8(powers, counts))
        }
        fn shr32(a: Integers, count: u32) -> Integers {
            arch::_mm256_srl_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
        }
        fn raised(a: Integers) -> Integers { arch::_mm256_slli_epi32::<16>(a) }
        fn unzip16(a: Integers, b: Integers) -> (Integers, Integers) {
            let (even, odd) = unzip16_by_halves(a, b);
            (Self::in_order(even), Self::in_order(odd))
        }
        fn load_unzipped16(source: *const u8) -> (Integers, Integers) {
            // Quarters are loaded to where packing puts them in order.
            let quarters = |low: usize, high: usize| {
                let quarter = |index: usize| arch::_mm_loadu_si128(source.add(16 * index).cast());
                arch::_mm256_inserti128_si256::<1>(arch::_mm256_castsi128_si256(quarter(low)), quarter(high))
            };
            unzip16_by_halves(quarters(0, 2), quarters(1, 3))
        }
        fn unzip8(a: Integers, b: Integers) -> (Integers, Integers) {
            let low = arch::_mm256_set1_epi16(0xff);
            let even = arch::_mm256_packus_epi16(arch::_mm256_and_si256(a, low), arch::_mm256_and_si256(b, low));
            let odd = arch::_mm256_packus_epi16(arch::_mm256_srli_epi16::<8>(a), arch::_mm256_srli_epi16::<8>(b));
            (even, odd)
        }
        fn in_order(a: Integers) -> Integers { arch::_mm256_permute4x64_epi64::<UNPACKED>(a) }
        fn crosswise(a: Integers) -> Integers {
            arch::_mm256_permutevar8x32_epi32(a, arch::_mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))
        }
        fn interleave(planes: [Integers; 4]) -> [Integers; 4] {
            // Interleaves within each 128 bits; `crosswise` accounts for that.
            let [a, b, c, d] = planes;
            let (low, high) = (arch::_mm256_unpacklo_epi8(a, b), arch::_mm256_unpackhi_epi8(a, b));
            let (next_low, next_high) = (arch::_mm256_unpacklo_epi8(c, d), arch::_mm256_unpackhi_epi8(c, d));
            [
                arch::_mm256_unpacklo_epi16(low, next_low),
                arch::_mm256_unpackhi_epi16(low, next_low),
                arch::_mm256_unpacklo_epi16(high, next_high),
                arch::_mm256_unpackhi_epi16(high, next_high),
            ]
        }
        fn above16(a: Integers, b: Integers) -> Integers { arch::_mm256_cmpgt_epi16(a, b) }
        fn top8(a: Integers) -> Integers { arch::_mm256_cmpgt_epi8(arch::_mm256_setzero_si256(), a) }
        fn join(low: Integers, high: Integers) -> Integers {
            arch::_mm256_packs_epi16(low, high)
        }
        fn choose8(mask: Integers, yes: Integers, no: Integers) -> Integers {
            arch::_mm256_blendv_epi8(no, yes, mask)
        }
        fn choose16(mask: Integers, yes: Integers, no: Integers) -> Integers {
            arch::_mm256_blendv_epi8(no, yes, mask)
        }
        fn halves(a: Integers, b: Integers) -> (Integers, Integers) {
            // Takes fewer instructions than unzipping.
            Self::alternate_halves(a, b)
        }
        fn alternate_halves(a: Integers, b: Integers) -> (Integers, Integers) {
            let low = arch::_mm256_blend_epi16::<UPPER_U16>(a, arch::_mm256_slli_epi32::<16>(b));
            (low, arch::_mm256_blend_epi16::<UPPER_U16>(arch::_mm256_srli_epi32::<16>(a), b))
        }
        fn halves_in_order(a: Integers) -> Integers {
            let order = arch::_mm256_broadcastsi128_si256(arch::_mm_setr_epi8(
                0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
            ));
            Self::in_order(arch::_mm256_shuffle_epi8(a, order))
        }
        fn bits(a: F32s) -> Integers { arch::_mm256_castps_si256(a) }
        fn from_bits(a: Integers) -> F32s { arch::_mm256_castsi256_ps(a) }
        fn load_bf16(source: *const u8) -> F32s {
            let wide = arch::_mm256_cvtepu16_epi32(arch::_mm_loadu_si128(source.cast()));
            arch::_mm256_castsi256_ps(arch::_mm256_slli_epi32::<16>(wide))
        }
        fn load_f16(source: *const u8) -> F32s {
            arch::_mm256_cvtph_ps(arch::_mm_loadu_si128(source.cast()))
        }
        fn load_f64(source: *const u8) -> F32s {
            let cut = Self::load_f64_midrange(source);
            // In the order of numbers with a sign, so that those below the smallest are above all others.
            let magnitude = Self::and(Self::bits(cut), Self::splat32(FIRST_SIGN - 1));
            let above = arch::_mm256_add_epi32(magnitude, Self::splat32(FIRST_SIGN - SMALLEST_NORMAL));
            let beyond = arch::_mm256_cmpgt_epi32(above, Self::splat32(FIRST_SIGN + NORMAL_NUMBERS - 1));
            let beyond = arch::_mm256_movemask_ps(Self::from_bits(beyond));
            if beyond != 0 && beyond & !zeros(source) != 0 {
                let low = odd_f32(arch::_mm256_loadu_pd(source.cast()));
                return arch::_mm256_set_m128(odd_f32(arch::_mm256_loadu_pd(source.add(Self::BYTES).cast())), low);
            }
            cut
        }
        fn load_f64_midrange(source: *const u8) -> F32s {
            arch::_mm256_set_m128(sticky_f32(source.add(Self::BYTES)), sticky_f32(source))
        }
        fn product(a: F32s, b: F32s) -> F32s { arch::_mm256_mul_ps(a, b) }
        fn quotient(a: F32s, b: F32s) -> F32s { arch::_mm256_div_ps(a, b) }
        fn product_sum(a: F32s, b: F32s, c: F32s) -> F32s { arch::_mm256_fmadd_ps(a, b, c) }
        fn product_to_odd(a: F32s, b: F32s) -> F32s {
            let product = arch::_mm256_mul_ps(a, b);
            let error = arch::_mm256_fmsub_ps(a, b, product);
            // An error of NaN means an infinite product, which is exact.
            let inexact = arch::_mm256_cmp_ps::<{ arch::_CMP_NEQ_OQ }>(error, arch::_mm256_setzero_ps());
            let inexact = arch::_mm256_castps_si256(inexact);
            let bits = arch::_mm256_castps_si256(product);
            // Where the signs of product and error differ, it was rounded away from zero; adding all ones subtracts
            // one.
            let away = arch::_mm256_xor_si256(bits, arch::_mm256_castps_si256(error));
            let less = arch::_mm256_and_si256(inexact, arch::_mm256_srai_epi32::<31>(away));
            let one = arch::_mm256_srli_epi32::<31>(inexact);
            let odd = arch::_mm256_or_si256(arch::_mm256_add_epi32(bits, less), one);
            arch::_mm256_castsi256_ps(odd)
        }
        fn any_clear(a: [F32s; 2], added: Integers, clear: Integers) -> bool {
            let (first, second) = (arch::_mm256_castps_si256(a[0]), arch::_mm256_castps_si256(a[1]));
            let first = arch::_mm256_and_si256(arch::_mm256_add_epi32(first, added), clear);
            let second = arch::_mm256_and_si256(arch::_mm256_add_epi32(second, added), clear);
            let zero = arch::_mm256_setzero_si256();
            let near = arch::_mm256_cmpeq_epi32(arch::_mm256_min_epu32(first, second), zero);
            // Zeros are told apart where that matters.
            any(arch::_mm256_movemask_epi8(near))
                && (any_nonzero(a[0], arch::_mm256_cmpeq_epi32(first, zero))
                    || any_nonzero(a[1], arch::_mm256_cmpeq_epi32(second, zero)))
        }
        fn any_subnormal(a: F32s) -> bool {
            let bits = arch::_mm256_castps_si256(a);
            let exponent = arch::_mm256_and_si256(bits, arch::_mm256_set1_epi32(0x7f80_0000));
            let small = arch::_mm256_cmpeq_epi32(exponent, arch::_mm256_setzero_si256());
            let is_zero = arch::_mm256_cmp_ps::<{ arch::_CMP_EQ_OQ }>(a, arch::_mm256_setzero_ps());
            arch::_mm256_testc_si256(arch::_mm256_castps_si256(is_zero), small) == 0
        }
        fn add_by_sign32(a: F32s, added: [Integers; 2]) -> Integers {
            let (positive, negative) =
                (arch::_mm256_castsi256_ps(added[0]), arch::_mm256_castsi256_ps(added[1]));
            let added = arch::_mm256_castps_si256(arch::_mm256_blendv_ps(positive, negative, a));
            arch::_mm256_add_epi32(arch::_mm256_castps_si256(a), added)
        }
        fn limited(a: F32s, limit_nan_mask: [Integers; 3]) -> Integers {
            let [limit, nan, mask] = limit_nan_mask;
            let is_nan = arch::_mm256_cmp_ps::<{ arch::_CMP_UNORD_Q }>(a, a);
            let (bits, sign) = (arch::_mm256_castps_si256(a), arch::_mm256_set1_epi32(i32::MIN));
            let magnitude = arch::_mm256_min_epu32(arch::_mm256_andnot_si256(sign, bits), limit);
            let result = or_masked::<Self>(magnitude, bits, sign);
            let nan = or_masked::<Self>(nan, bits, mask);
            arch::_mm256_blendv_epi8(result, nan, arch::_mm256_castps_si256(is_nan))
        }
        fn load_f64_nearest(source: *const u8) -> F32s {
            let low = arch::_mm256_cvtpd_ps(arch::_mm256_loadu_pd(source.cast()));
            arch::_mm256_set_m128(
                arch::_mm256_cvtpd_ps(arch::_mm256_loadu_pd(source.add(Self::BYTES).cast())),
                low,
            )
        }
        fn nearest_bf16_of_f64(source: *const u8, one: Integers) -> Option<Integers> {
            // Rounded to nearest twice, which is wrong only if the first rounding produced a midpoint.
            let (a, b) = (Self::load_f64_nearest(source), Self::load_f64_nearest(source.add(2 * Self::BYTES)));
            let (low, high) = Self::halves(Self::bits(a), Self::bits(b));
            let middle = arch::_mm256_cmpeq_epi16(low, Self::splat16(1 << 15));
            let nan = Self::bits(arch::_mm256_cmp_ps::<{ arch::_CMP_UNORD_Q }>(a, b));
            let doubtful = Self::any16(Self::or(middle, nan));
            if doubtful && (any_lost(a, source) || any_lost(b, source.add(2 * Self::BYTES))) {
                return None;
            }
            Some(Self::halves_in_order(up_above_middle::<Self>(low, high, one)))
        }
        fn any_differ(a: F32s, b: F32s) -> bool {
            any(arch::_mm256_movemask_ps(arch::_mm256_cmp_ps::<{ arch::_CMP_NEQ_OQ }>(a, b)))
        }
        fn any16(mask: Integers) -> bool { any(arch::_mm256_movemask_epi8(mask)) }
    }

    #[inline(always)]
    unsafe fn any_nan<const COUNT: usize>(a: [F32s; COUNT]) -> bool {
        let mut found = arch::_mm256_setzero_ps();
        for i in (0..COUNT).step_by(2) {
            found = arch::_mm256_or_ps(found, is_nan(a[i], a[i + 1]));
        }
        any(arch::_mm256_movemask_ps(found))
    }

    #[inline(always)]
    unsafe fn even<const SIZE: usize>(a: Integers, b: Integers) -> Integers {
        Self::in_order(if SIZE == 4 {
            let (a, b) = (arch::_mm256_castsi256_ps(a), arch::_mm256_castsi256_ps(b));
            arch::_mm256_castps_si256(arch::_mm256_shuffle_ps::<0b10_00_10_00>(a, b))
        } else {
            arch::_mm256_unpacklo_epi64(a, b)
        })
    }

    #[inline(always)]
    unsafe fn f64_product<const ODD: bool>(a: F32s, b: f64) -> F32s {
        let low = f64_product::<ODD>(arch::_mm256_castps256_ps128(a), b);
        let high = f64_product::<ODD>(arch::_mm256_extractf128_ps::<1>(a), b);
        arch::_mm256_set_m128(high, low)
    }

    #[inline(always)]
    unsafe fn with_zeros<const SIZE: usize>(a: Integers) -> [Integers; 2] {
        let (a, zero) = (Self::in_order(a), arch::_mm256_setzero_si256());
        if SIZE == 4 {
            [arch::_mm256_unpacklo_epi32(a, zero), arch::_mm256_unpackhi_epi32(a, zero)]
        } else {
            [arch::_mm256_unpacklo_epi64(a, zero), arch::_mm256_unpackhi_epi64(a, zero)]
        }
    }

    #[inline(always)]
    unsafe fn load_integers<const SIZE: usize, const SIGNED: bool>(source: *const u8) -> F32s {
        // SAFETY: the trait's contract; exactly as many bytes are loaded as the integers have.
        unsafe {
            let wide = match (SIZE, SIGNED) {
                (1, true) => arch::_mm256_cvtepi8_epi32(arch::_mm_loadl_epi64(source.cast())),
                (1, false) => arch::_mm256_cvtepu8_epi32(arch::_mm_loadl_epi64(source.cast())),
                (2, true) => arch::_mm256_cvtepi16_epi32(arch::_mm_loadu_si128(source.cast())),
                (2, false) => arch::_mm256_cvtepu16_epi32(arch::_mm_loadu_si128(source.cast())),
                (4, true) => Self::load(source),
                (4, false) => return unsigned_to_f32(Self::load(source)),
                _ => return load_64_bits::<SIGNED>(source),
            };
            arch::_mm256_cvtepi32_ps(wide)
        }
    }

    #[inline(always)]
    unsafe fn nearest_of_64_bits<const SIGNED: bool>(source: *const u8) -> [F32s; 4] {
        // SAFETY: the trait's contract; eight registers of integers become four.
        unsafe {
            let (mut doubtful, mut numbers) = (arch::_mm256_setzero_si256(), [arch::_mm256_setzero_ps(); 4]);
            for (part, numbers) in numbers.iter_mut().enumerate() {
                let source = source.add(2 * part * Self::BYTES);
                let (low, low_middles) = integers_to_f64::<SIGNED>(Self::load(source));
                let (high, high_middles) = integers_to_f64::<SIGNED>(Self::load(source.add(Self::BYTES)));
                *numbers = arch::_mm256_set_m128(arch::_mm256_cvtpd_ps(high), arch::_mm256_cvtpd_ps(low));
                doubtful = Self::or(doubtful, Self::or(low_middles, high_middles));
            }
            if any(arch::_mm256_movemask_epi8(doubtful)) {
                return nearest_one_by_one::<Self, SIGNED>(source);
            }
            numbers
        }
    }

    #[inline(always)]
    unsafe fn to_f16<const ROUNDING: i32>(a: F32s, b: F32s) -> Integers {
        let low = arch::_mm256_cvtps_ph::<ROUNDING>(a);
        let high = arch::_mm256_cvtps_ph::<ROUNDING>(b);
        arch::_mm256_inserti128_si256::<1>(arch::_mm256_castsi128_si256(low), high)
    }
}

/// Returns the even and the odd u16 of two registers, separately for the lower and the upper 128 bits.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn unzip16_by_halves(a: Integers, b: Integers) -> (Integers, Integers) {
    let low = arch::_mm256_set1_epi32(0xffff);
    let even = arch::_mm256_packus_epi32(arch::_mm256_and_si256(a, low), arch::_mm256_and_si256(b, low));
    let odd = arch::_mm256_packus_epi32(arch::_mm256_srli_epi32::<16>(a), arch::_mm256_srli_epi32::<16>(b));
    (even, odd)
}

/// Converts unsigned 32-bit integers to float32, rounded to nearest: both halves are exact.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn unsigned_to_f32(a: Integers) -> F32s {
    let high = arch::_mm256_cvtepi32_ps(arch::_mm256_srli_epi32::<16>(a));
    let low = arch::_mm256_blend_epi16::<UPPER_U16>(a, arch::_mm256_setzero_si256());
    arch::_mm256_fmadd_ps(high, arch::_mm256_set1_ps(65_536.0), arch::_mm256_cvtepi32_ps(low))
}

/// Returns whether any float32 of a mask is not zero.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn any_nonzero(a: F32s, mask: Integers) -> bool {
    let is_zero = arch::_mm256_cmp_ps::<{ arch::_CMP_EQ_OQ }>(a, arch::_mm256_setzero_ps());
    // Tests whether every bit of the mask is set in `is_zero`.
    arch::_mm256_testc_si256(arch::_mm256_castps_si256(is_zero), mask) == 0
}

/// Converts 64-bit integers to float32: exactly up to 2^24, and from there on to one of the two neighbors, because
/// neither the upper 32 bits nor what is added to them can pass a number of float32.
///
/// # Safety
/// AVX2, and as many integers at the pointer.
#[inline(always)]
unsafe fn load_64_bits<const SIGNED: bool>(source: *const u8) -> F32s {
    let a = arch::_mm256_loadu_ps(source.cast());
    let b = arch::_mm256_loadu_ps(source.add(Avx2::BYTES).cast());
    let low = arch::_mm256_castps_si256(arch::_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
    let high = arch::_mm256_castps_si256(arch::_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
    let high = if SIGNED { arch::_mm256_cvtepi32_ps(high) } else { unsigned_to_f32(high) };
    let middle = arch::_mm256_cvtepi32_ps(arch::_mm256_srli_epi32::<16>(low));
    let low = arch::_mm256_blend_epi16::<UPPER_U16>(low, arch::_mm256_setzero_si256());
    let shift = arch::_mm256_set1_ps(65_536.0);
    let sum = arch::_mm256_fmadd_ps(high, shift, middle);
    let sum = arch::_mm256_fmadd_ps(sum, shift, arch::_mm256_cvtepi32_ps(low));
    Avx2::from_bits(Avx2::in_order(Avx2::bits(sum)))
}

/// Converts 64-bit integers to float64, rounded to nearest, and marks those that rounding made the middle of two
/// float32: to round them once more would be wrong.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn integers_to_f64<const SIGNED: bool>(a: Integers) -> (arch::__m256d, Integers) {
    const UPPER: i32 = 0b1010_1010;
    // Combined with the bits of these, the lower and the upper 32 bits of integers are their sum.
    const LOWER_PLACE: f64 = (1u64 << 52) as f64;
    const UPPER_PLACE: f64 = LOWER_PLACE * (1u64 << 32) as f64;
    // Float64 has 29 bits below those of float32.
    const OTHERS: i32 = (u64::BITS - 29) as i32;
    // Flipped, the sign adds this.
    let sign = if SIGNED { 1u64 << 63 } else { 0 };
    let place = arch::_mm256_set1_epi64x((UPPER_PLACE.to_bits() | sign >> 32) as i64);
    let upper = arch::_mm256_castsi256_pd(arch::_mm256_xor_si256(arch::_mm256_srli_epi64::<32>(a), place));
    let upper = arch::_mm256_sub_pd(upper, arch::_mm256_set1_pd(UPPER_PLACE + LOWER_PLACE + sign as f64));
    let place = arch::_mm256_castpd_si256(arch::_mm256_set1_pd(LOWER_PLACE));
    let lower = arch::_mm256_castsi256_pd(arch::_mm256_blend_epi32::<UPPER>(a, place));
    let sum = arch::_mm256_add_pd(upper, lower);
    let inexact = arch::_mm256_cmp_pd::<{ arch::_CMP_NEQ_OQ }>(arch::_mm256_sub_pd(sum, upper), lower);
    let below = arch::_mm256_slli_epi64::<OTHERS>(arch::_mm256_castpd_si256(sum));
    let middle = arch::_mm256_cmpeq_epi64(below, arch::_mm256_set1_epi64x(i64::MIN));
    (sum, arch::_mm256_and_si256(middle, arch::_mm256_castpd_si256(inexact)))
}

/// Converts a register of float64 to float32. The lower 32 bits are first reduced to a sticky bit within float32's
/// precision, so only subnormal and overflowing results are rounded.
///
/// # Safety
/// AVX2, and four float64 at the pointer.
#[inline(always)]
unsafe fn sticky_f32(source: *const u8) -> arch::__m128 {
    const LOWER: i32 = 0b01_01_01_01;
    let a = arch::_mm256_loadu_si256(source.cast());
    // Multiplies 1 << 30 by the sign of the lower half: nonzero exactly if that half is.
    let any = arch::_mm256_sign_epi32(arch::_mm256_set1_epi32(1 << 30), a);
    arch::_mm256_cvtpd_ps(arch::_mm256_castsi256_pd(arch::_mm256_blend_epi32::<LOWER>(a, any)))
}

/// Returns whether a mask has any bit, which is rare, by testing it: the compiler would test the register that it comes
/// from, which takes AMD's processors longer.
#[inline(always)]
pub(super) fn any(mut mask: i32) -> bool {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0:e} */", inout(reg) mask, options(pure, nomem, nostack, preserves_flags)) };
    rarely(mask != 0)
}

/// Returns which lanes of either register are NaN.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub(super) unsafe fn is_nan(a: F32s, b: F32s) -> F32s {
    arch::_mm256_cmp_ps::<{ arch::_CMP_UNORD_Q }>(a, b)
}

/// Returns whether any float32 differs from its float64, or is NaN.
///
/// # Safety
/// AVX2, and as many float64 at the pointer.
#[inline(always)]
unsafe fn any_lost(f32s: F32s, source: *const u8) -> bool {
    let (a, b) =
        (arch::_mm256_loadu_pd(source.cast()), arch::_mm256_loadu_pd(source.add(Avx2::BYTES).cast()));
    let low = arch::_mm256_cvtps_pd(arch::_mm256_castps256_ps128(f32s));
    let high = arch::_mm256_cvtps_pd(arch::_mm256_extractf128_ps::<1>(f32s));
    let low = arch::_mm256_cmp_pd::<{ arch::_CMP_NEQ_UQ }>(low, a);
    let high = arch::_mm256_cmp_pd::<{ arch::_CMP_NEQ_UQ }>(high, b);
    arch::_mm256_movemask_pd(arch::_mm256_or_pd(low, high)) != 0
}

/// Returns which float64 of two registers at a pointer are zero.
///
/// # Safety
/// AVX2, and as many float64.
#[cold]
#[inline(always)]
unsafe fn zeros(source: *const u8) -> i32 {
    let (a, b) =
        (arch::_mm256_loadu_pd(source.cast()), arch::_mm256_loadu_pd(source.add(Avx2::BYTES).cast()));
    let zero = arch::_mm256_setzero_pd();
    let low = arch::_mm256_movemask_pd(arch::_mm256_cmp_pd::<{ arch::_CMP_EQ_OQ }>(a, zero));
    low | arch::_mm256_movemask_pd(arch::_mm256_cmp_pd::<{ arch::_CMP_EQ_OQ }>(b, zero)) << 4
}

/// Multiplies in float64 and rounds to float32, to odd or to nearest.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn f64_product<const ODD: bool>(a: arch::__m128, b: f64) -> arch::__m128 {
    let (wide, b) = (arch::_mm256_cvtps_pd(a), arch::_mm256_set1_pd(b));
    let product = arch::_mm256_mul_pd(wide, b);
    let odd = odd_f64(product, arch::_mm256_fmsub_pd(wide, b, product));
    if ODD { odd_f32(odd) } else { arch::_mm256_cvtpd_ps(odd) }
}

/// Returns a number rounded to odd, from the one rounded to nearest and its error.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn odd_f64(rounded: arch::__m256d, error: arch::__m256d) -> arch::__m256d {
    let zero = arch::_mm256_setzero_pd();
    // An error of NaN means an infinity, which is exact.
    let inexact = arch::_mm256_castpd_si256(arch::_mm256_cmp_pd::<{ arch::_CMP_NEQ_OQ }>(error, zero));
    let bits = arch::_mm256_castpd_si256(rounded);
    // Where the signs differ, it was rounded away from zero; adding all ones subtracts one.
    let signs = arch::_mm256_castsi256_pd(arch::_mm256_xor_si256(bits, arch::_mm256_castpd_si256(error)));
    let ones = arch::_mm256_castsi256_pd(inexact);
    let away = arch::_mm256_castpd_si256(arch::_mm256_blendv_pd(zero, ones, signs));
    let one = arch::_mm256_srli_epi64::<63>(inexact);
    arch::_mm256_castsi256_pd(arch::_mm256_or_si256(arch::_mm256_add_epi64(bits, away), one))
}

/// Converts float64 rounded to odd to float32 rounded to odd.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn odd_f32(a: arch::__m256d) -> arch::__m128 {
    let narrow = arch::_mm256_cvtpd_ps(a);
    let error = arch::_mm256_sub_pd(a, arch::_mm256_cvtps_pd(narrow));
    let inexact = arch::_mm256_cmp_pd::<{ arch::_CMP_NEQ_OQ }>(error, arch::_mm256_setzero_pd());
    let (inexact, signs) = (upper_u32s(inexact), upper_u32s(error));
    let bits = arch::_mm_castps_si128(narrow);
    let away = arch::_mm_srai_epi32::<31>(arch::_mm_xor_si128(bits, signs));
    let less = arch::_mm_and_si128(inexact, away);
    let one = arch::_mm_srli_epi32::<31>(inexact);
    arch::_mm_castsi128_ps(arch::_mm_or_si128(arch::_mm_add_epi32(bits, less), one))
}

/// Returns the upper 32 bits of each float64.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn upper_u32s(a: arch::__m256d) -> arch::__m128i {
    let a = arch::_mm256_castpd_ps(a);
    let (low, high) = (arch::_mm256_castps256_ps128(a), arch::_mm256_extractf128_ps::<1>(a));
    arch::_mm_castps_si128(arch::_mm_shuffle_ps::<0b11_01_11_01>(low, high))
}

/// The sign bit of a float32.
const FIRST_SIGN: u32 = 1 << 31;

/// The bits of the smallest normal float32.
const SMALLEST_NORMAL: u32 = f32::MIN_POSITIVE.to_bits();

/// How many normal float32 there are above zero.
const NORMAL_NUMBERS: u32 = f32::INFINITY.to_bits() - SMALLEST_NORMAL;
