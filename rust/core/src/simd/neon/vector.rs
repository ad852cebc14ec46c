//! Registers of 128 bits, part of every aarch64.
//!
//! float16 conversions are instructions of its baseline, but have intrinsics only in newer compilers, so they are
//! written in assembly. They round as FPCR says, to nearest even; directed roundings step from there to the neighbor,
//! which takes four instructions more, where setting FPCR twice for each register would stall.

use std::arch::aarch64 as arch;
use std::arch::asm;

use crate::cpu::level::{Level, Owner, RawKernel};
use crate::simd::halves::nearest_bf16;
use crate::simd::vector::{TABLE_BYTES, Tables, Vector, operations, or_masked, rarely, rounding};

/// Advanced SIMD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(pub(in crate::simd) Level);

type Integers = arch::uint8x16_t;
type F32s = arch::float32x4_t;
type U16s = arch::uint16x8_t;

const SIGN: u32 = 1 << 31;

// SAFETY: the sizes are those of the registers.
unsafe impl Vector for Neon {
    const BYTES: usize = 16;
    // Non-temporal stores are hints that CPUs may ignore; most detect by themselves that whole lines are written.
    const STREAMS: bool = false;
    type Integers = Integers;
    type F32s = F32s;
    // All bits of a lane, or none.
    type Mask8 = Integers;
    type Mask16 = U16s;

    fn level(self) -> Level {
        self.0
    }

    #[inline(always)]
    fn function<O: Owner<K>, K: RawKernel>() -> unsafe fn(K) -> K::Output {
        O::portable
    }

    operations! {
        fn load(source: *const u8) -> Integers { arch::vld1q_u8(source) }
        fn store(target: *mut u8, a: Integers) { arch::vst1q_u8(target, a) }
        fn stream(target: *mut u8, a: Integers) { arch::vst1q_u8(target, a) }
        fn splat8(value: u8) -> Integers { arch::vdupq_n_u8(value) }
        fn splat16(value: u16) -> Integers { bytes(arch::vdupq_n_u16(value)) }
        fn splat32(value: u32) -> Integers { arch::vreinterpretq_u8_u32(arch::vdupq_n_u32(value)) }
        fn and(a: Integers, b: Integers) -> Integers { arch::vandq_u8(a, b) }
        fn or(a: Integers, b: Integers) -> Integers { arch::vorrq_u8(a, b) }
        fn add8(a: Integers, b: Integers) -> Integers { arch::vaddq_u8(a, b) }
        fn add16(a: Integers, b: Integers) -> Integers { bytes(arch::vaddq_u16(u16s(a), u16s(b))) }
        fn add_saturated8(a: Integers, b: Integers) -> Integers { arch::vqaddq_u8(a, b) }
        fn sub_saturated8(a: Integers, b: Integers) -> Integers { arch::vqsubq_u8(a, b) }
        fn sub_saturated16(a: Integers, b: Integers) -> Integers {
            bytes(arch::vqsubq_u16(u16s(a), u16s(b)))
        }
        fn min8(a: Integers, b: Integers) -> Integers { arch::vminq_u8(a, b) }
        fn min16(a: Integers, b: Integers) -> Integers { bytes(arch::vminq_u16(u16s(a), u16s(b))) }
        fn max16(a: Integers, b: Integers) -> Integers { bytes(arch::vmaxq_u16(u16s(a), u16s(b))) }
        fn max32(a: Integers, b: Integers) -> Integers {
            let (a, b) = (arch::vreinterpretq_u32_u8(a), arch::vreinterpretq_u32_u8(b));
            arch::vreinterpretq_u8_u32(arch::vmaxq_u32(a, b))
        }
        fn most16(a: Integers) -> u16 { arch::vmaxvq_u16(u16s(a)) }
        fn most32(a: Integers) -> u32 { arch::vmaxvq_u32(arch::vreinterpretq_u32_u8(a)) }
        fn add32(a: Integers, b: Integers) -> Integers {
            let (a, b) = (arch::vreinterpretq_u32_u8(a), arch::vreinterpretq_u32_u8(b));
            arch::vreinterpretq_u8_u32(arch::vaddq_u32(a, b))
        }
        fn min_signed16(a: Integers, b: Integers) -> Integers {
            arch::vreinterpretq_u8_s16(arch::vminq_s16(i16s(a), i16s(b)))
        }
        fn max_signed16(a: Integers, b: Integers) -> Integers {
            arch::vreinterpretq_u8_s16(arch::vmaxq_s16(i16s(a), i16s(b)))
        }
        fn nearest_product16(a: Integers, b: Integers) -> Integers {
            arch::vreinterpretq_u8_s16(arch::vqrdmulhq_s16(i16s(a), i16s(b)))
        }
        fn pair_products32(a: Integers, b: Integers) -> Integers {
            let (a, b) = (i16s(a), i16s(b));
            let low = arch::vmull_s16(arch::vget_low_s16(a), arch::vget_low_s16(b));
            arch::vreinterpretq_u8_s32(arch::vpaddq_s32(low, arch::vmull_high_s16(a, b)))
        }
        fn mul16(a: Integers, b: Integers) -> Integers { bytes(arch::vmulq_u16(u16s(a), u16s(b))) }
        // A left shift by a negative count, which the compiler turns into a right shift where it is constant.
        fn shr16(a: Integers, count: u32) -> Integers {
            bytes(arch::vshlq_u16(u16s(a), arch::vdupq_n_s16(-(count as i16))))
        }
        fn shl_each16(a: Integers, counts: Integers) -> Integers {
            bytes(arch::vshlq_u16(u16s(a), arch::vreinterpretq_s16_u8(counts)))
        }
        fn shr32(a: Integers, count: u32) -> Integers {
            let left = arch::vdupq_n_s32(-(count as i32));
            arch::vreinterpretq_u8_u32(arch::vshlq_u32(arch::vreinterpretq_u32_u8(a), left))
        }
        fn raised(a: Integers) -> Integers {
            arch::vreinterpretq_u8_u32(arch::vshlq_n_u32::<16>(arch::vreinterpretq_u32_u8(a)))
        }
        fn unzip16(a: Integers, b: Integers) -> (Integers, Integers) {
            (bytes(arch::vuzp1q_u16(u16s(a), u16s(b))), bytes(arch::vuzp2q_u16(u16s(a), u16s(b))))
        }
        fn unzip8(a: Integers, b: Integers) -> (Integers, Integers) {
            (arch::vuzp1q_u8(a, b), arch::vuzp2q_u8(a, b))
        }
        fn load_unzipped16(source: *const u8) -> (Integers, Integers) {
            Self::unzip16(Self::load(source), Self::load(source.add(Self::BYTES)))
        }
        fn interleave(planes: [Integers; 4]) -> [Integers; 4] {
            let [a, b, c, d] = planes;
            let (low, high) = (u16s(arch::vzip1q_u8(a, b)), u16s(arch::vzip2q_u8(a, b)));
            let (next_low, next_high) = (u16s(arch::vzip1q_u8(c, d)), u16s(arch::vzip2q_u8(c, d)));
            [
                bytes(arch::vzip1q_u16(low, next_low)),
                bytes(arch::vzip2q_u16(low, next_low)),
                bytes(arch::vzip1q_u16(high, next_high)),
                bytes(arch::vzip2q_u16(high, next_high)),
            ]
        }
        fn above16(a: Integers, b: Integers) -> U16s {
            arch::vcgtq_s16(arch::vreinterpretq_s16_u8(a), arch::vreinterpretq_s16_u8(b))
        }
        fn top8(a: Integers) -> Integers { arch::vcltzq_s8(arch::vreinterpretq_s8_u8(a)) }
        fn join(low: U16s, high: U16s) -> Integers { arch::vuzp1q_u8(bytes(low), bytes(high)) }
        fn choose8(mask: Integers, yes: Integers, no: Integers) -> Integers { arch::vbslq_u8(mask, yes, no) }
        fn choose16(mask: U16s, yes: Integers, no: Integers) -> Integers {
            arch::vbslq_u8(bytes(mask), yes, no)
        }
        fn any_differ(a: F32s, b: F32s) -> bool {
            arch::vmaxvq_u32(arch::vorrq_u32(arch::vcltq_f32(a, b), arch::vcgtq_f32(a, b))) != 0
        }
        fn any16(mask: U16s) -> bool { arch::vmaxvq_u32(arch::vreinterpretq_u32_u16(mask)) != 0 }
        fn bits(a: F32s) -> Integers { arch::vreinterpretq_u8_f32(a) }
        fn from_bits(a: Integers) -> F32s { arch::vreinterpretq_f32_u8(a) }
        fn alternate_halves(a: Integers, b: Integers) -> (Integers, Integers) {
            (bytes(arch::vtrn1q_u16(u16s(a), u16s(b))), bytes(arch::vtrn2q_u16(u16s(a), u16s(b))))
        }
        fn load_bf16(source: *const u8) -> F32s {
            let wide = arch::vmovl_u16(arch::vreinterpret_u16_u8(arch::vld1_u8(source)));
            arch::vreinterpretq_f32_u32(arch::vshlq_n_u32::<16>(wide))
        }
        fn load_f16(source: *const u8) -> F32s {
            let halves = arch::vld1_u8(source);
            let singles: F32s;
            // The instruction reads one register and writes another; FPCR is the default one.
            asm!("fcvtl {singles:v}.4s, {halves:v}.4h", singles = lateout(vreg) singles, halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
            singles
        }
        fn nearest_bf16_of_f64(source: *const u8, one: Integers) -> Option<Integers> {
            let a = Self::load_f64(source);
            let b = Self::load_f64(source.add(2 * Self::BYTES));
            if Self::any_nan([a, b]) { None } else { Some(nearest_bf16::<Self>(a, b, one)) }
        }
        fn load_f64(source: *const u8) -> F32s {
            let low = arch::vreinterpretq_f64_u8(arch::vld1q_u8(source));
            let high = arch::vreinterpretq_f64_u8(arch::vld1q_u8(source.add(Self::BYTES)));
            // The machine rounds to odd itself.
            arch::vcvtx_high_f32_f64(arch::vcvtx_f32_f64(low), high)
        }
        fn load_f64_nearest(source: *const u8) -> F32s {
            let low = arch::vreinterpretq_f64_u8(arch::vld1q_u8(source));
            let high = arch::vreinterpretq_f64_u8(arch::vld1q_u8(source.add(Self::BYTES)));
            arch::vcvt_high_f32_f64(arch::vcvt_f32_f64(low), high)
        }
        fn product(a: F32s, b: F32s) -> F32s { arch::vmulq_f32(a, b) }
        fn quotient(a: F32s, b: F32s) -> F32s { arch::vdivq_f32(a, b) }
        fn product_sum(a: F32s, b: F32s, c: F32s) -> F32s { arch::vfmaq_f32(c, a, b) }
        fn product_to_odd(a: F32s, b: F32s) -> F32s {
            let product = arch::vmulq_f32(a, b);
            let error = arch::vfmaq_f32(arch::vnegq_f32(product), a, b);
            // An error of NaN means an infinite product, which is exact.
            let inexact = arch::vcagtq_f32(error, arch::vdupq_n_f32(0.0));
            let bits = arch::vreinterpretq_u32_f32(product);
            // Where the signs differ, it was rounded away from zero; adding all ones subtracts one.
            let signs = arch::veorq_u32(bits, arch::vreinterpretq_u32_f32(error));
            let less = arch::vandq_u32(inexact, arch::vcltzq_s32(arch::vreinterpretq_s32_u32(signs)));
            let one = arch::vshrq_n_u32::<31>(inexact);
            arch::vreinterpretq_f32_u32(arch::vorrq_u32(arch::vaddq_u32(bits, less), one))
        }
        fn any_clear(a: [F32s; 2], added: Integers, clear: Integers) -> bool {
            let (added, clear) = (arch::vreinterpretq_u32_u8(added), arch::vreinterpretq_u32_u8(clear));
            let first = arch::vandq_u32(arch::vaddq_u32(arch::vreinterpretq_u32_f32(a[0]), added), clear);
            let second = arch::vandq_u32(arch::vaddq_u32(arch::vreinterpretq_u32_f32(a[1]), added), clear);
            let first = arch::vbicq_u32(arch::vceqzq_u32(first), arch::vceqzq_f32(a[0]));
            let second = arch::vbicq_u32(arch::vceqzq_u32(second), arch::vceqzq_f32(a[1]));
            arch::vmaxvq_u32(arch::vorrq_u32(first, second)) != 0
        }
        fn any_subnormal(a: F32s) -> bool {
            let magnitude = arch::vandq_u32(arch::vreinterpretq_u32_f32(a), arch::vdupq_n_u32(!SIGN));
            // Zero wraps around.
            let least = arch::vsubq_u32(magnitude, arch::vdupq_n_u32(1));
            let largest_subnormal = arch::vdupq_n_u32(0x007f_ffff);
            arch::vmaxvq_u32(arch::vcltq_u32(least, largest_subnormal)) != 0
        }
        fn add_by_sign32(a: F32s, added: [Integers; 2]) -> Integers {
            let [positive, negative] = [arch::vreinterpretq_u32_u8(added[0]), arch::vreinterpretq_u32_u8(added[1])];
            let is_negative = arch::vcltzq_s32(arch::vreinterpretq_s32_f32(a));
            let added = arch::vbslq_u32(is_negative, negative, positive);
            arch::vreinterpretq_u8_u32(arch::vaddq_u32(arch::vreinterpretq_u32_f32(a), added))
        }
        fn limited(a: F32s, limit_nan_mask: [Integers; 3]) -> Integers {
            let [limit, nan, mask] = limit_nan_mask;
            let (bits, sign) = (Self::bits(a), arch::vreinterpretq_u8_u32(arch::vdupq_n_u32(SIGN)));
            let magnitude = arch::vreinterpretq_u32_u8(arch::vbicq_u8(bits, sign));
            let limited = arch::vminq_u32(magnitude, arch::vreinterpretq_u32_u8(limit));
            let result = or_masked::<Self>(arch::vreinterpretq_u8_u32(limited), bits, sign);
            let is_number = arch::vreinterpretq_u8_u32(arch::vceqq_f32(a, a));
            arch::vbslq_u8(is_number, result, or_masked::<Self>(nan, bits, mask))
        }
    }

    #[inline(always)]
    unsafe fn any_nan<const COUNT: usize>(a: [F32s; COUNT]) -> bool {
        // The maximum is NaN if any number is.
        let mut most = arch::vmaxq_f32(a[0], a[1]);
        for i in (2..COUNT).step_by(2) {
            most = arch::vmaxq_f32(most, arch::vmaxq_f32(a[i], a[i + 1]));
        }
        rarely(arch::vmaxvq_f32(most).is_nan())
    }

    #[inline(always)]
    unsafe fn even<const SIZE: usize>(a: Integers, b: Integers) -> Integers {
        if SIZE == 4 {
            let (a, b) = (arch::vreinterpretq_u32_u8(a), arch::vreinterpretq_u32_u8(b));
            arch::vreinterpretq_u8_u32(arch::vuzp1q_u32(a, b))
        } else {
            let (a, b) = (arch::vreinterpretq_u64_u8(a), arch::vreinterpretq_u64_u8(b));
            arch::vreinterpretq_u8_u64(arch::vuzp1q_u64(a, b))
        }
    }

    #[inline(always)]
    unsafe fn f64_product<const ODD: bool>(a: F32s, b: f64) -> F32s {
        let low = odd_product(arch::vcvt_f64_f32(arch::vget_low_f32(a)), b);
        let high = odd_product(arch::vcvt_high_f64_f32(a), b);
        if ODD {
            // Rounding to odd once more is an instruction.
            arch::vcvtx_high_f32_f64(arch::vcvtx_f32_f64(low), high)
        } else {
            arch::vcvt_high_f32_f64(arch::vcvt_f32_f64(low), high)
        }
    }

    #[inline(always)]
    unsafe fn with_zeros<const SIZE: usize>(a: Integers) -> [Integers; 2] {
        // SAFETY: the instructions are part of aarch64.
        unsafe {
            if SIZE == 4 {
                let (a, zero) = (arch::vreinterpretq_u32_u8(a), arch::vdupq_n_u32(0));
                let (low, high) = (arch::vzip1q_u32(a, zero), arch::vzip2q_u32(a, zero));
                [arch::vreinterpretq_u8_u32(low), arch::vreinterpretq_u8_u32(high)]
            } else {
                let (a, zero) = (arch::vreinterpretq_u64_u8(a), arch::vdupq_n_u64(0));
                let (low, high) = (arch::vzip1q_u64(a, zero), arch::vzip2q_u64(a, zero));
                [arch::vreinterpretq_u8_u64(low), arch::vreinterpretq_u8_u64(high)]
            }
        }
    }

    #[inline(always)]
    unsafe fn load_integers<const SIZE: usize, const SIGNED: bool>(source: *const u8) -> F32s {
        // SAFETY: the trait's contract; exactly as many bytes are loaded as the integers have.
        unsafe {
            let u16s = match SIZE {
                1 => {
                    // Each byte moves to the top of a lane: fixed point, with 24 fraction bits. Other entries are 0.
                    const TOPS: [u32; 4] = [0x00ff_ffff, 0x01ff_ffff, 0x02ff_ffff, 0x03ff_ffff];
                    let four = source.cast::<u32>().read_unaligned();
                    let four =
                        arch::vreinterpretq_u8_u32(arch::vsetq_lane_u32::<0>(four, arch::vdupq_n_u32(0)));
                    let fixed = arch::vqtbl1q_u8(four, Self::load(TOPS.as_ptr().cast()));
                    return if SIGNED {
                        arch::vcvtq_n_f32_s32::<24>(arch::vreinterpretq_s32_u8(fixed))
                    } else {
                        arch::vcvtq_n_f32_u32::<24>(arch::vreinterpretq_u32_u8(fixed))
                    };
                }
                2 => arch::vreinterpret_u16_u8(arch::vld1_u8(source)),
                4 => {
                    let u32s = arch::vreinterpretq_u32_u8(Self::load(source));
                    let signed = arch::vcvtq_f32_s32(arch::vreinterpretq_s32_u32(u32s));
                    return if SIGNED { signed } else { arch::vcvtq_f32_u32(u32s) };
                }
                _ => {
                    let f64s = [source, source.add(Self::BYTES)].map(|source| {
                        let u64s = arch::vreinterpretq_u64_u8(Self::load(source));
                        let signed = arch::vcvtq_f64_s64(arch::vreinterpretq_s64_u64(u64s));
                        if SIGNED { signed } else { arch::vcvtq_f64_u64(u64s) }
                    });
                    return arch::vcvt_high_f32_f64(arch::vcvt_f32_f64(f64s[0]), f64s[1]);
                }
            };
            if SIGNED {
                arch::vcvtq_f32_s32(arch::vmovl_s16(arch::vreinterpret_s16_u16(u16s)))
            } else {
                arch::vcvtq_f32_u32(arch::vmovl_u16(u16s))
            }
        }
    }

    #[inline(always)]
    unsafe fn to_f16<const ROUNDING: i32>(a: F32s, b: F32s) -> Integers {
        let codes: U16s;
        // SAFETY: the trait's contract. The instructions read and write registers only, the first while an operand of
        // the second is still to be read; FPCR is the default one.
        unsafe {
            asm!("fcvtn {codes:v}.4h, {a:v}.4s", "fcvtn2 {codes:v}.8h, {b:v}.4s",
                codes = out(vreg) codes, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
            if ROUNDING == rounding::NEAREST_EVEN { bytes(codes) } else { directed::<ROUNDING>(codes, a, b) }
        }
    }
}

#[inline(always)]
fn u16s(a: Integers) -> U16s {
    // SAFETY: the instructions are part of aarch64.
    unsafe { arch::vreinterpretq_u16_u8(a) }
}

#[inline(always)]
fn i16s(a: Integers) -> arch::int16x8_t {
    // SAFETY: the instructions are part of aarch64.
    unsafe { arch::vreinterpretq_s16_u8(a) }
}

#[inline(always)]
fn bytes(a: U16s) -> Integers {
    // SAFETY: the instructions are part of aarch64.
    unsafe { arch::vreinterpretq_u8_u16(a) }
}

/// Corrects float16 codes that were rounded to nearest to a directed rounding of the float32 they come from. NaN stays
/// unchanged.
#[inline(always)]
fn directed<const ROUNDING: i32>(codes: U16s, a: F32s, b: F32s) -> Integers {
    let (low, high): (F32s, F32s);
    // SAFETY: the instructions are part of aarch64. They read and write registers only, the first while the operand of the
    // second is still to be read; FPCR is the default one.
    unsafe {
        asm!("fcvtl {low:v}.4s, {codes:v}.4h", "fcvtl2 {high:v}.4s, {codes:v}.8h",
            low = out(vreg) low, high = lateout(vreg) high, codes = in(vreg) codes,
            options(pure, nomem, nostack, preserves_flags));
        let beyond = |rounded: F32s, exact: F32s| match ROUNDING {
            rounding::TOWARDS_ZERO => arch::vcagtq_f32(rounded, exact),
            rounding::TOWARDS_POSITIVE => arch::vcltq_f32(rounded, exact),
            _ => arch::vcgtq_f32(rounded, exact),
        };
        let beyond = Neon::unzip16(
            arch::vreinterpretq_u8_u32(beyond(low, a)),
            arch::vreinterpretq_u8_u32(beyond(high, b)),
        );
        // Adding all ones subtracts one: magnitudes step down, or up where the sign demands it.
        let signed = arch::vreinterpretq_s16_u16(codes);
        let down = arch::vdupq_n_u16(u16::MAX);
        let step = match ROUNDING {
            rounding::TOWARDS_ZERO => down,
            rounding::TOWARDS_POSITIVE => arch::vorrq_u16(arch::vcltzq_s16(signed), arch::vdupq_n_u16(1)),
            _ => arch::vorrq_u16(arch::vcgezq_s16(signed), arch::vdupq_n_u16(1)),
        };
        bytes(arch::vaddq_u16(codes, arch::vandq_u16(u16s(beyond.0), step)))
    }
}

/// Returns products rounded to odd.
#[inline(always)]
fn odd_product(a: arch::float64x2_t, b: f64) -> arch::float64x2_t {
    // SAFETY: the instructions are part of aarch64.
    unsafe {
        let b = arch::vdupq_n_f64(b);
        let product = arch::vmulq_f64(a, b);
        let error = arch::vfmaq_f64(arch::vnegq_f64(product), a, b);
        // An error of NaN means an infinity, which is exact.
        let inexact = arch::vcagtq_f64(error, arch::vdupq_n_f64(0.0));
        let bits = arch::vreinterpretq_u64_f64(product);
        // Where the signs differ, it was rounded away from zero; adding all ones subtracts one.
        let signs = arch::veorq_u64(bits, arch::vreinterpretq_u64_f64(error));
        let less = arch::vandq_u64(inexact, arch::vcltzq_s64(arch::vreinterpretq_s64_u64(signs)));
        let one = arch::vshrq_n_u64::<63>(inexact);
        arch::vreinterpretq_f64_u64(arch::vorrq_u64(arch::vaddq_u64(bits, less), one))
    }
}

/// Bytes that one instruction looks up.
const QUARTER: usize = TABLE_BYTES / 4;

impl Tables for Neon {
    type Table<const QUARTERS: usize> = [arch::uint8x16x4_t; QUARTERS];

    operations! {
        fn above8(a: Integers, b: Integers) -> Integers { arch::vcgtq_u8(a, b) }
        fn increment8(mask: Integers, a: Integers) -> Integers {
            // Subtracting -1 adds one.
            arch::vsubq_u8(a, mask)
        }
    }

    #[inline(always)]
    unsafe fn load_table<const QUARTERS: usize>(table: *const u8) -> Self::Table<QUARTERS> {
        std::array::from_fn(|quarter| arch::vld1q_u8_x4(table.add(quarter * QUARTER)))
    }

    #[inline(always)]
    unsafe fn lookup<const QUARTERS: usize>(table: Self::Table<QUARTERS>, indices: Integers) -> Integers {
        let quarter = arch::vdupq_n_u8(QUARTER as u8);
        let mut entries = arch::vqtbl4q_u8(table[0], indices);
        let mut indices = indices;
        for part in &table[1..] {
            // Indices of other parts are out of range here, and keep their entry.
            indices = arch::vsubq_u8(indices, quarter);
            entries = arch::vqtbx4q_u8(entries, *part, indices);
        }
        entries
    }

    #[inline(always)]
    unsafe fn spread<const SIZE: usize>(low: Integers, high: Integers) -> [Integers; SIZE] {
        let zero = arch::vdupq_n_u8(0);
        let words = [arch::vzip1q_u8(low, high), arch::vzip2q_u8(low, high)];
        std::array::from_fn(|part| match SIZE {
            2 => words[part],
            4 => behind_zeros16(zero, words[part / 2], part % 2 == 0),
            8 => {
                let singles = behind_zeros16(zero, words[part / 4], part % 4 < 2);
                behind_zeros32(zero, singles, part % 2 == 0)
            }
            _ => unreachable!("elements take 2, 4 or 8 bytes"),
        })
    }
}

/// Returns the u16 of a register's lower or upper half, each after 16 zero bits.
#[inline(always)]
fn behind_zeros16(zero: Integers, a: Integers, lower: bool) -> Integers {
    // SAFETY: the instructions are part of aarch64.
    unsafe {
        let (zero, a) = (u16s(zero), u16s(a));
        bytes(if lower { arch::vzip1q_u16(zero, a) } else { arch::vzip2q_u16(zero, a) })
    }
}

/// Does the same for u32.
#[inline(always)]
fn behind_zeros32(zero: Integers, a: Integers, lower: bool) -> Integers {
    // SAFETY: the instructions are part of aarch64.
    unsafe {
        let (zero, a) = (arch::vreinterpretq_u32_u8(zero), arch::vreinterpretq_u32_u8(a));
        let zipped = if lower { arch::vzip1q_u32(zero, a) } else { arch::vzip2q_u32(zero, a) };
        arch::vreinterpretq_u8_u32(zipped)
    }
}
