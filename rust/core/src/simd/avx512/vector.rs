//! Registers of 512 bits.

use std::arch::x86_64 as arch;

use crate::cpu::level::{Level, Owner, RawKernel};
use crate::simd::halves::up_above_middle;
use crate::simd::vector::{Tables, Vector, operations, or_masked, rarely};

/// AVX-512 with bytes (VBMI) and integers of 52 bits (IFMA).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(pub(in crate::simd) Level);

/// Returns every other index from `first`, for permutations of two registers.
const fn every_other<const N: usize>(first: u16) -> [u16; N] {
    let mut indices = [0; N];
    let mut i = 0;
    while i < N {
        indices[i] = first + 2 * i as u16;
        i += 1;
    }
    indices
}

const fn bytes(indices: [u16; 64]) -> [u8; 64] {
    let mut all = [0; 64];
    let mut i = 0;
    while i < 64 {
        all[i] = indices[i] as u8;
        i += 1;
    }
    all
}

static EVEN_WORDS: [u16; 32] = every_other(0);
static ODD_WORDS: [u16; 32] = every_other(1);
static EVEN_BYTES: [u8; 64] = bytes(every_other(0));
static ODD_BYTES: [u8; 64] = bytes(every_other(1));

type Integers = arch::__m512i;
type F32s = arch::__m512;

/// Towards zero, and without exceptions.
const TRUNCATE: i32 = arch::_MM_FROUND_TO_ZERO | arch::_MM_FROUND_NO_EXC;

// SAFETY: the sizes are those of the registers.
unsafe impl Vector for Avx512 {
    const BYTES: usize = 64;
    const STREAMS: bool = true;
    type Integers = Integers;
    type F32s = F32s;
    type Mask8 = arch::__mmask64;
    type Mask16 = arch::__mmask32;

    fn level(self) -> Level {
        self.0
    }

    #[inline(always)]
    fn function<O: Owner<K>, K: RawKernel>() -> unsafe fn(K) -> K::Output {
        O::avx512
    }

    operations! {
        fn load_first(source: *const u8, count: usize) -> Integers {
            arch::_mm512_maskz_loadu_epi8(first(count), source.cast())
        }
        fn store_first(target: *mut u8, a: Integers, count: usize) {
            arch::_mm512_mask_storeu_epi8(target.cast(), first(count), a);
        }
        fn load(source: *const u8) -> Integers { arch::_mm512_loadu_si512(source.cast()) }
        fn store(target: *mut u8, a: Integers) { arch::_mm512_storeu_si512(target.cast(), a) }
        fn stream(target: *mut u8, a: Integers) { arch::_mm512_stream_si512(target.cast(), a) }
        fn splat8(value: u8) -> Integers { arch::_mm512_set1_epi8(value as i8) }
        fn splat16(value: u16) -> Integers { arch::_mm512_set1_epi16(value as i16) }
        fn splat32(value: u32) -> Integers { arch::_mm512_set1_epi32(value as i32) }
        fn and(a: Integers, b: Integers) -> Integers { arch::_mm512_and_si512(a, b) }
        fn or(a: Integers, b: Integers) -> Integers { arch::_mm512_or_si512(a, b) }
        fn add8(a: Integers, b: Integers) -> Integers { arch::_mm512_add_epi8(a, b) }
        fn add16(a: Integers, b: Integers) -> Integers { arch::_mm512_add_epi16(a, b) }
        fn add_saturated8(a: Integers, b: Integers) -> Integers { arch::_mm512_adds_epu8(a, b) }
        fn sub_saturated8(a: Integers, b: Integers) -> Integers { arch::_mm512_subs_epu8(a, b) }
        fn sub_saturated16(a: Integers, b: Integers) -> Integers { arch::_mm512_subs_epu16(a, b) }
        fn min8(a: Integers, b: Integers) -> Integers { arch::_mm512_min_epu8(a, b) }
        fn min16(a: Integers, b: Integers) -> Integers { arch::_mm512_min_epu16(a, b) }
        fn max16(a: Integers, b: Integers) -> Integers { arch::_mm512_max_epu16(a, b) }
        fn max32(a: Integers, b: Integers) -> Integers { arch::_mm512_max_epu32(a, b) }
        fn most16(a: Integers) -> u16 {
            let half = arch::_mm256_max_epu16(arch::_mm512_castsi512_si256(a), arch::_mm512_extracti64x4_epi64::<1>(a));
            let most = arch::_mm_max_epu16(arch::_mm256_castsi256_si128(half), arch::_mm256_extracti128_si256::<1>(half));
            // There is an instruction for the smallest.
            let turned = arch::_mm_xor_si128(most, arch::_mm_set1_epi16(-1));
            !(arch::_mm_cvtsi128_si32(arch::_mm_minpos_epu16(turned)) as u16)
        }
        fn most32(a: Integers) -> u32 { arch::_mm512_reduce_max_epu32(a) }
        fn add32(a: Integers, b: Integers) -> Integers { arch::_mm512_add_epi32(a, b) }
        fn min_signed16(a: Integers, b: Integers) -> Integers { arch::_mm512_min_epi16(a, b) }
        fn max_signed16(a: Integers, b: Integers) -> Integers { arch::_mm512_max_epi16(a, b) }
        fn nearest_product16(a: Integers, b: Integers) -> Integers { arch::_mm512_mulhrs_epi16(a, b) }
        fn pair_products32(a: Integers, b: Integers) -> Integers { arch::_mm512_madd_epi16(a, b) }
        fn mul16(a: Integers, b: Integers) -> Integers { arch::_mm512_mullo_epi16(a, b) }
        fn shr16(a: Integers, count: u32) -> Integers {
            arch::_mm512_srl_epi16(a, arch::_mm_cvtsi32_si128(count as i32))
        }
        fn shl_each16(a: Integers, counts: Integers) -> Integers { arch::_mm512_sllv_epi16(a, counts) }
        fn shr32(a: Integers, count: u32) -> Integers {
            arch::_mm512_srl_epi32(a, arch::_mm_cvtsi32_si128(count as i32))
        }
        fn raised(a: Integers) -> Integers { arch::_mm512_slli_epi32::<16>(a) }
        fn unzip16(a: Integers, b: Integers) -> (Integers, Integers) {
            let even = arch::_mm512_loadu_si512(EVEN_WORDS.as_ptr().cast());
            let odd = arch::_mm512_loadu_si512(ODD_WORDS.as_ptr().cast());
            (arch::_mm512_permutex2var_epi16(a, even, b), arch::_mm512_permutex2var_epi16(a, odd, b))
        }
        fn unzip8(a: Integers, b: Integers) -> (Integers, Integers) {
            let even = arch::_mm512_loadu_si512(EVEN_BYTES.as_ptr().cast());
            let odd = arch::_mm512_loadu_si512(ODD_BYTES.as_ptr().cast());
            (arch::_mm512_permutex2var_epi8(a, even, b), arch::_mm512_permutex2var_epi8(a, odd, b))
        }
        fn load_unzipped16(source: *const u8) -> (Integers, Integers) {
            Self::unzip16(Self::load(source), Self::load(source.add(Self::BYTES)))
        }
        fn crosswise(a: Integers) -> Integers {
            // Transposes four by four.
            let order = arch::_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            arch::_mm512_permutexvar_epi32(order, a)
        }
        fn interleave(planes: [Integers; 4]) -> [Integers; 4] {
            // Interleaves within each 128 bits; `crosswise` accounts for that.
            let [a, b, c, d] = planes;
            let (low, high) = (arch::_mm512_unpacklo_epi8(a, b), arch::_mm512_unpackhi_epi8(a, b));
            let (next_low, next_high) = (arch::_mm512_unpacklo_epi8(c, d), arch::_mm512_unpackhi_epi8(c, d));
            [
                arch::_mm512_unpacklo_epi16(low, next_low),
                arch::_mm512_unpackhi_epi16(low, next_low),
                arch::_mm512_unpacklo_epi16(high, next_high),
                arch::_mm512_unpackhi_epi16(high, next_high),
            ]
        }
        fn above16(a: Integers, b: Integers) -> Self::Mask16 { arch::_mm512_cmpgt_epi16_mask(a, b) }
        fn top8(a: Integers) -> Self::Mask8 { arch::_mm512_movepi8_mask(a) }
        fn join(low: Self::Mask16, high: Self::Mask16) -> Self::Mask8 {
            arch::_mm512_kunpackd(u64::from(high), u64::from(low))
        }
        fn choose8(mask: Self::Mask8, yes: Integers, no: Integers) -> Integers {
            arch::_mm512_mask_blend_epi8(mask, no, yes)
        }
        fn choose16(mask: Self::Mask16, yes: Integers, no: Integers) -> Integers {
            arch::_mm512_mask_blend_epi16(mask, no, yes)
        }
        fn bits(a: F32s) -> Integers { arch::_mm512_castps_si512(a) }
        fn from_bits(a: Integers) -> F32s { arch::_mm512_castsi512_ps(a) }
        fn alternate_halves(a: Integers, b: Integers) -> (Integers, Integers) {
            // The truth table of `(a & c) | b`.
            let low = arch::_mm512_ternarylogic_epi32::<0b1110_1100>(
                a,
                arch::_mm512_slli_epi32::<16>(b),
                arch::_mm512_set1_epi32(0xffff),
            );
            (low, or_masked::<Self>(arch::_mm512_srli_epi32::<16>(a), b, arch::_mm512_set1_epi32(-1 << 16)))
        }
        fn splat_halves32(lower: u32, upper: u32) -> Integers {
            let lower = arch::_mm512_set1_epi32(lower as i32);
            arch::_mm512_mask_set1_epi32(lower, 0xff00, upper as i32)
        }
        fn load_bf16(source: *const u8) -> F32s {
            let wide = arch::_mm512_cvtepu16_epi32(arch::_mm256_loadu_si256(source.cast()));
            arch::_mm512_castsi512_ps(arch::_mm512_slli_epi32::<16>(wide))
        }
        fn load_f16(source: *const u8) -> F32s {
            arch::_mm512_cvtph_ps(arch::_mm256_loadu_si256(source.cast()))
        }
        fn load_f64(source: *const u8) -> F32s {
            let cut = Self::load_f64_midrange(source);
            const ZERO_OR_SUBNORMAL: i32 = 0x02 | 0x04 | 0x20;
            let small = arch::_mm512_fpclass_ps_mask::<ZERO_OR_SUBNORMAL>(cut);
            if small != 0 {
                let a = arch::_mm512_loadu_pd(source.cast());
                let b = arch::_mm512_loadu_pd(source.add(Self::BYTES).cast());
                if small & any_bits(a, b, i64::MAX) != 0 {
                    let low = arch::_mm512_castsi256_si512(odd_f32(a, 0));
                    return arch::_mm512_castsi512_ps(arch::_mm512_inserti64x4::<1>(low, odd_f32(b, 0)));
                }
            }
            cut
        }
        fn load_f64_midrange(source: *const u8) -> F32s {
            let low = arch::_mm512_castps256_ps512(sticky_f32(source));
            arch::_mm512_insertf32x8::<1>(low, sticky_f32(source.add(Self::BYTES)))
        }
        fn load_f64_nearest(source: *const u8) -> F32s {
            let low = arch::_mm512_cvtpd_ps(arch::_mm512_loadu_pd(source.cast()));
            let high = arch::_mm512_cvtpd_ps(arch::_mm512_loadu_pd(source.add(Self::BYTES).cast()));
            arch::_mm512_insertf32x8::<1>(arch::_mm512_castps256_ps512(low), high)
        }
        fn nearest_bf16_of_f64(source: *const u8, one: Integers) -> Option<Integers> {
            // Rounded to nearest twice, which is wrong only if the first rounding produced a midpoint.
            let (a, b) = (Self::load_f64_nearest(source), Self::load_f64_nearest(source.add(2 * Self::BYTES)));
            let (low, high) = Self::unzip16(Self::bits(a), Self::bits(b));
            let middle = arch::_mm512_cmpeq_epi16_mask(low, Self::splat16(1 << 15));
            let doubtful = middle != 0 || Self::any_nan([a, b]);
            if doubtful && (any_lost(a, source) || any_lost(b, source.add(2 * Self::BYTES))) {
                return None;
            }
            Some(up_above_middle::<Self>(low, high, one))
        }
        fn product(a: F32s, b: F32s) -> F32s { arch::_mm512_mul_ps(a, b) }
        fn quotient(a: F32s, b: F32s) -> F32s { arch::_mm512_div_ps(a, b) }
        fn product_sum(a: F32s, b: F32s, c: F32s) -> F32s { arch::_mm512_fmadd_ps(a, b, c) }
        fn product_to_odd(a: F32s, b: F32s) -> F32s {
            let product = arch::_mm512_mul_round_ps::<TRUNCATE>(a, b);
            let error = arch::_mm512_fmsub_ps(a, b, product);
            // An error of NaN means an infinite product, which is exact.
            let inexact = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_NEQ_OQ }>(error, arch::_mm512_setzero_ps());
            let bits = arch::_mm512_castps_si512(product);
            let odd = arch::_mm512_mask_or_epi32(bits, inexact, bits, arch::_mm512_set1_epi32(1));
            arch::_mm512_castsi512_ps(odd)
        }
        fn any16(mask: Self::Mask16) -> bool { rarely(arch::_kortestz_mask32_u8(mask, mask) == 0) }
        fn any_differ(a: F32s, b: F32s) -> bool {
            rarely(arch::_mm512_cmp_ps_mask::<{ arch::_CMP_NEQ_OQ }>(a, b) != 0)
        }
        fn any_clear(a: [F32s; 2], added: Integers, clear: Integers) -> bool {
            let (first, second) = (arch::_mm512_castps_si512(a[0]), arch::_mm512_castps_si512(a[1]));
            let near_first = arch::_mm512_testn_epi32_mask(arch::_mm512_add_epi32(first, added), clear);
            let near_second = arch::_mm512_testn_epi32_mask(arch::_mm512_add_epi32(second, added), clear);
            let magnitude = arch::_mm512_set1_epi32(i32::MAX);
            // Zeros are told apart where that matters.
            rarely(near_first | near_second != 0)
                && (arch::_mm512_mask_test_epi32_mask(near_first, first, magnitude) != 0
                    || arch::_mm512_mask_test_epi32_mask(near_second, second, magnitude) != 0)
        }
        fn any_subnormal(a: F32s) -> bool {
            const SUBNORMAL: i32 = 0x20;
            arch::_mm512_fpclass_ps_mask::<SUBNORMAL>(a) != 0
        }
        fn add_by_sign32(a: F32s, added: [Integers; 2]) -> Integers {
            let (bits, [positive, negative]) = (arch::_mm512_castps_si512(a), added);
            let added = arch::_mm512_mask_mov_epi32(positive, arch::_mm512_movepi32_mask(bits), negative);
            arch::_mm512_add_epi32(bits, added)
        }
        fn limited(a: F32s, limit_nan_mask: [Integers; 3]) -> Integers {
            let [limit, nan, mask] = limit_nan_mask;
            let is_nan = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_UNORD_Q }>(a, a);
            let (bits, sign) = (arch::_mm512_castps_si512(a), arch::_mm512_set1_epi32(i32::MIN));
            let magnitude = arch::_mm512_min_epu32(arch::_mm512_andnot_si512(sign, bits), limit);
            let result = or_masked::<Self>(magnitude, bits, sign);
            arch::_mm512_mask_blend_epi32(is_nan, result, or_masked::<Self>(nan, bits, mask))
        }
    }

    #[inline(always)]
    unsafe fn any_nan<const COUNT: usize>(a: [F32s; COUNT]) -> bool {
        let mut found = 0;
        for i in (0..COUNT).step_by(2) {
            found |= arch::_mm512_cmp_ps_mask::<{ arch::_CMP_UNORD_Q }>(a[i], a[i + 1]);
        }
        rarely(found != 0)
    }

    #[inline(always)]
    unsafe fn even<const SIZE: usize>(a: Integers, b: Integers) -> Integers {
        if SIZE == 4 {
            let even = arch::_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            arch::_mm512_permutex2var_epi32(a, even, b)
        } else {
            let even = arch::_mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
            arch::_mm512_permutex2var_epi64(a, even, b)
        }
    }

    #[inline(always)]
    unsafe fn f64_product<const ODD: bool>(a: F32s, b: f64) -> F32s {
        let low = f64_product::<ODD>(arch::_mm512_castps512_ps256(a), b);
        let high = f64_product::<ODD>(arch::_mm512_extractf32x8_ps::<1>(a), b);
        arch::_mm512_insertf32x8::<1>(arch::_mm512_castps256_ps512(low), high)
    }

    #[inline(always)]
    unsafe fn with_zeros<const SIZE: usize>(a: Integers) -> [Integers; 2] {
        let high = arch::_mm512_castsi256_si512(arch::_mm512_extracti64x4_epi64::<1>(a));
        if SIZE == 4 {
            [arch::_mm512_maskz_expand_epi32(0x5555, a), arch::_mm512_maskz_expand_epi32(0x5555, high)]
        } else {
            [arch::_mm512_maskz_expand_epi64(0x55, a), arch::_mm512_maskz_expand_epi64(0x55, high)]
        }
    }

    #[inline(always)]
    unsafe fn load_integers<const SIZE: usize, const SIGNED: bool>(source: *const u8) -> F32s {
        // SAFETY: the trait's contract; exactly as many bytes are loaded as the integers have.
        unsafe {
            let wide = match (SIZE, SIGNED) {
                (1, true) => arch::_mm512_cvtepi8_epi32(arch::_mm_loadu_si128(source.cast())),
                (1, false) => arch::_mm512_cvtepu8_epi32(arch::_mm_loadu_si128(source.cast())),
                (2, true) => arch::_mm512_cvtepi16_epi32(arch::_mm256_loadu_si256(source.cast())),
                (2, false) => arch::_mm512_cvtepu16_epi32(arch::_mm256_loadu_si256(source.cast())),
                (4, true) => Self::load(source),
                (4, false) => return arch::_mm512_cvtepu32_ps(Self::load(source)),
                _ => {
                    let (a, b) = (Self::load(source), Self::load(source.add(Self::BYTES)));
                    let [low, high] = if SIGNED {
                        [arch::_mm512_cvtepi64_ps(a), arch::_mm512_cvtepi64_ps(b)]
                    } else {
                        [arch::_mm512_cvtepu64_ps(a), arch::_mm512_cvtepu64_ps(b)]
                    };
                    return arch::_mm512_insertf32x8::<1>(arch::_mm512_castps256_ps512(low), high);
                }
            };
            arch::_mm512_cvtepi32_ps(wide)
        }
    }

    #[inline(always)]
    unsafe fn nearest_of_64_bits<const SIGNED: bool>(source: *const u8) -> [F32s; 4] {
        // SAFETY: the trait's contract; each register of integers becomes half a register. One instruction rounds them.
        unsafe {
            [
                Self::load_integers::<8, SIGNED>(source),
                Self::load_integers::<8, SIGNED>(source.add(2 * Self::BYTES)),
                Self::load_integers::<8, SIGNED>(source.add(4 * Self::BYTES)),
                Self::load_integers::<8, SIGNED>(source.add(6 * Self::BYTES)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn to_f16<const ROUNDING: i32>(a: F32s, b: F32s) -> Integers {
        let low = arch::_mm512_cvtps_ph::<ROUNDING>(a);
        let high = arch::_mm512_cvtps_ph::<ROUNDING>(b);
        arch::_mm512_inserti64x4::<1>(arch::_mm512_castsi256_si512(low), high)
    }
}

/// Converts a register of float64 to float32, rounded towards zero. The lower 32 bits are first reduced to a sticky bit
/// within float32's precision, so only subnormal and overflowing results are rounded.
///
/// # Safety
/// AVX-512, and eight float64 at the pointer.
#[inline(always)]
unsafe fn sticky_f32(source: *const u8) -> arch::__m256 {
    let a = arch::_mm512_loadu_si512(source.cast());
    let any = arch::_mm512_test_epi32_mask(a, arch::_mm512_set1_epi64(u32::MAX.into()));
    let short = arch::_mm512_mask_mov_epi32(a, any, arch::_mm512_set1_epi32(1 << 30));
    arch::_mm512_cvt_roundpd_ps::<TRUNCATE>(arch::_mm512_castsi512_pd(short))
}

/// Returns whether any float32 differs from its float64, or is NaN.
///
/// # Safety
/// AVX-512, and as many float64 at the pointer.
#[inline(always)]
unsafe fn any_lost(f32s: F32s, source: *const u8) -> bool {
    let (a, b) =
        (arch::_mm512_loadu_pd(source.cast()), arch::_mm512_loadu_pd(source.add(Avx512::BYTES).cast()));
    let low = arch::_mm512_cvtps_pd(arch::_mm512_castps512_ps256(f32s));
    let high = arch::_mm512_cvtps_pd(arch::_mm512_extractf32x8_ps::<1>(f32s));
    let low = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_NEQ_UQ }>(low, a);
    (low | arch::_mm512_cmp_pd_mask::<{ arch::_CMP_NEQ_UQ }>(high, b)) != 0
}

/// Returns which float64 of two registers have any of these bits.
///
/// # Safety
/// AVX-512.
#[inline(always)]
unsafe fn any_bits(a: arch::__m512d, b: arch::__m512d, bits: i64) -> arch::__mmask16 {
    let bits = arch::_mm512_set1_epi64(bits);
    let low = arch::_mm512_test_epi64_mask(arch::_mm512_castpd_si512(a), bits);
    let high = arch::_mm512_test_epi64_mask(arch::_mm512_castpd_si512(b), bits);
    arch::_mm512_kunpackb(high.into(), low.into())
}

/// Returns a mask of the first bytes.
#[inline(always)]
fn first(count: usize) -> u64 {
    u64::MAX.checked_shl(count as u32).map_or(u64::MAX, |others| !others)
}

/// The indices of the last two bytes of elements of `SIZE` bytes, for each result register; the bytes before are masked
/// out as zeros.
struct Spread<const SIZE: usize>;

impl<const SIZE: usize> Spread<SIZE> {
    const INDICES: [[u8; 64]; SIZE] = {
        let mut indices = [[0; 64]; SIZE];
        let mut element = 0;
        while element < 64 {
            let last = element * SIZE + SIZE - 1;
            indices[last / 64][last % 64] = 64 + element as u8;
            indices[last / 64][last % 64 - 1] = element as u8;
            element += 1;
        }
        indices
    };
    const MASK: u64 = {
        let mut mask = 0;
        let mut last = SIZE - 1;
        while last < 64 {
            mask |= 0b11 << (last - 1);
            last += SIZE;
        }
        mask
    };
}

impl Tables for Avx512 {
    type Table<const QUARTERS: usize> = [Integers; QUARTERS];

    operations! {
        fn above8(a: Integers, b: Integers) -> Self::Mask8 { arch::_mm512_cmpgt_epu8_mask(a, b) }
        fn increment8(mask: Self::Mask8, a: Integers) -> Integers {
            // Subtracting -1 adds one.
            arch::_mm512_mask_sub_epi8(a, mask, a, arch::_mm512_set1_epi8(-1))
        }
    }

    #[inline(always)]
    unsafe fn load_table<const QUARTERS: usize>(table: *const u8) -> [Integers; QUARTERS] {
        // SAFETY: the trait's contract; a quarter is a register.
        unsafe {
            let mut registers = [Self::splat8(0); QUARTERS];
            for (quarter, register) in registers.iter_mut().enumerate() {
                *register = Self::load(table.add(quarter * Self::BYTES));
            }
            registers
        }
    }

    #[inline(always)]
    unsafe fn lookup<const QUARTERS: usize>(table: [Integers; QUARTERS], indices: Integers) -> Integers {
        const { assert!(QUARTERS == 3 || QUARTERS == 4, "two registers or one for the upper half") };
        let (low, upper) =
            (arch::_mm512_permutex2var_epi8(table[0], indices, table[1]), arch::_mm512_movepi8_mask(indices));
        if QUARTERS == 3 {
            return arch::_mm512_mask_permutexvar_epi8(low, upper, indices, table[2]);
        }
        let high = arch::_mm512_permutex2var_epi8(table[2], indices, table[QUARTERS - 1]);
        arch::_mm512_mask_blend_epi8(upper, low, high)
    }

    #[inline(always)]
    unsafe fn spread<const SIZE: usize>(low: Integers, high: Integers) -> [Integers; SIZE] {
        let mut spread = [low; SIZE];
        for (place, result) in spread.iter_mut().enumerate() {
            *result = {
                let indices = Self::load(Spread::<SIZE>::INDICES[place].as_ptr());
                arch::_mm512_maskz_permutex2var_epi8(Spread::<SIZE>::MASK, low, indices, high)
            };
        }
        spread
    }
}

/// Multiplies in float64 and rounds to float32, to odd or to nearest.
///
/// # Safety
/// AVX-512.
#[inline(always)]
unsafe fn f64_product<const ODD: bool>(a: arch::__m256, b: f64) -> arch::__m256 {
    let (wide, b) = (arch::_mm512_cvtps_pd(a), arch::_mm512_set1_pd(b));
    let product = arch::_mm512_mul_round_pd::<TRUNCATE>(wide, b);
    let error = arch::_mm512_fmsub_pd(wide, b, product);
    // An error of NaN means an infinite product, which is exact.
    let inexact = arch::_mm512_cmp_pd_mask::<{ arch::_CMP_NEQ_OQ }>(error, arch::_mm512_setzero_pd());
    if ODD {
        return arch::_mm256_castsi256_ps(odd_f32(product, inexact));
    }
    let bits = arch::_mm512_castpd_si512(product);
    let odd = arch::_mm512_mask_or_epi64(bits, inexact, bits, arch::_mm512_set1_epi64(1));
    arch::_mm512_cvtpd_ps(arch::_mm512_castsi512_pd(odd))
}

/// Converts float64 to float32 rounded to odd; the mask marks those known to be inexact.
///
/// # Safety
/// AVX-512.
#[inline(always)]
unsafe fn odd_f32(a: arch::__m512d, inexact: arch::__mmask8) -> arch::__m256i {
    let narrow = arch::_mm512_cvt_roundpd_ps::<TRUNCATE>(a);
    let back = arch::_mm512_cvtps_pd(narrow);
    let inexact = inexact | arch::_mm512_cmp_pd_mask::<{ arch::_CMP_NEQ_OQ }>(back, a);
    let bits = arch::_mm256_castps_si256(narrow);
    arch::_mm256_mask_or_epi32(bits, inexact, bits, arch::_mm256_set1_epi32(1))
}
