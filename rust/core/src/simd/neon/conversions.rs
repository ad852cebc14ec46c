//! The operations of [`Conversions`].

use std::arch::aarch64 as arch;

use super::vector::Neon;
use crate::simd::conversions::Conversions;
use crate::simd::vector::{Vector, operations, rounding};

type Integers = arch::uint8x16_t;

/// Truncates float64 to 64-bit integers, signed or unsigned.
///
/// # Safety
/// Part of aarch64.
#[inline(always)]
unsafe fn words<const SIGNED: bool>(a: Integers) -> Integers {
    let a = arch::vreinterpretq_f64_u8(a);
    if SIGNED {
        arch::vreinterpretq_u8_s64(arch::vcvtq_s64_f64(a))
    } else {
        arch::vreinterpretq_u8_u64(arch::vcvtq_u64_f64(a))
    }
}

// The instructions saturate, and give 0 for NaN. No `map`: the compiler calls functions for each part of an array.
impl Conversions for Neon {
    operations! {
        fn truncated(a: arch::float32x4_t) -> Integers { arch::vreinterpretq_u8_s32(arch::vcvtq_s32_f32(a)) }
        fn truncated_unsigned(a: [arch::float32x4_t; 4]) -> [Integers; 4] {
            [
                arch::vreinterpretq_u8_u32(arch::vcvtq_u32_f32(a[0])),
                arch::vreinterpretq_u8_u32(arch::vcvtq_u32_f32(a[1])),
                arch::vreinterpretq_u8_u32(arch::vcvtq_u32_f32(a[2])),
                arch::vreinterpretq_u8_u32(arch::vcvtq_u32_f32(a[3])),
            ]
        }
        fn to_f64(a: arch::float32x4_t) -> [Integers; 2] {
            let (low, high) = (arch::vcvt_f64_f32(arch::vget_low_f32(a)), arch::vcvt_high_f64_f32(a));
            [arch::vreinterpretq_u8_f64(low), arch::vreinterpretq_u8_f64(high)]
        }
        fn rounded_away_quickly(a: arch::float32x4_t) -> Integers {
            arch::vreinterpretq_u8_s32(arch::vcvtaq_s32_f32(a))
        }
        fn any_unequal(a: [Integers; 4], b: [Integers; 4]) -> bool {
            let first = Self::or(arch::veorq_u8(a[0], b[0]), arch::veorq_u8(a[1], b[1]));
            let second = Self::or(arch::veorq_u8(a[2], b[2]), arch::veorq_u8(a[3], b[3]));
            arch::vmaxvq_u8(Self::or(first, second)) != 0
        }
        fn product_sum_f64(a: Integers, b: Integers, c: Integers) -> Integers {
            let (a, b) = (arch::vreinterpretq_f64_u8(a), arch::vreinterpretq_f64_u8(b));
            arch::vreinterpretq_u8_f64(arch::vfmaq_f64(arch::vreinterpretq_f64_u8(c), a, b))
        }
    }

    #[inline(always)]
    unsafe fn truncated_f64<const SIGNED: bool>(source: *const u8) -> Integers {
        let low = words::<SIGNED>(Self::load(source));
        let high = words::<SIGNED>(Self::load(source.add(Self::BYTES)));
        if SIGNED {
            let (low, high) = (arch::vreinterpretq_s64_u8(low), arch::vreinterpretq_s64_u8(high));
            arch::vreinterpretq_u8_s32(arch::vqmovn_high_s64(arch::vqmovn_s64(low), high))
        } else {
            let (low, high) = (arch::vreinterpretq_u64_u8(low), arch::vreinterpretq_u64_u8(high));
            arch::vreinterpretq_u8_u32(arch::vqmovn_high_u64(arch::vqmovn_u64(low), high))
        }
    }

    #[inline(always)]
    unsafe fn truncated64<const SIGNED: bool>([a, b, c, d]: [Integers; 4]) -> [Integers; 4] {
        [words::<SIGNED>(a), words::<SIGNED>(b), words::<SIGNED>(c), words::<SIGNED>(d)]
    }

    #[inline(always)]
    unsafe fn whole<const ROUNDING: i32>(a: arch::float32x4_t) -> arch::float32x4_t {
        match ROUNDING {
            rounding::TOWARDS_POSITIVE => arch::vrndpq_f32(a),
            rounding::TOWARDS_NEGATIVE => arch::vrndmq_f32(a),
            rounding::TOWARDS_ZERO => arch::vrndq_f32(a),
            _ => arch::vrndnq_f32(a),
        }
    }

    #[inline(always)]
    unsafe fn rounded_quickly<const ROUNDING: i32>(a: arch::float32x4_t) -> Integers {
        arch::vreinterpretq_u8_s32(match ROUNDING {
            rounding::TOWARDS_POSITIVE => arch::vcvtpq_s32_f32(a),
            rounding::TOWARDS_NEGATIVE => arch::vcvtmq_s32_f32(a),
            rounding::TOWARDS_ZERO => arch::vcvtq_s32_f32(a),
            _ => arch::vcvtnq_s32_f32(a),
        })
    }

    #[inline(always)]
    unsafe fn clamp_to_16<const SIGNED: bool>([a, b]: [Integers; 2]) -> Integers {
        // SAFETY: the instructions are part of aarch64.
        unsafe {
            let (a, b) = (arch::vreinterpretq_s32_u8(a), arch::vreinterpretq_s32_u8(b));
            if SIGNED {
                arch::vreinterpretq_u8_s16(arch::vqmovn_high_s32(arch::vqmovn_s32(a), b))
            } else {
                arch::vreinterpretq_u8_u16(arch::vqmovun_high_s32(arch::vqmovun_s32(a), b))
            }
        }
    }

    #[inline(always)]
    unsafe fn clamp_to_8<const SIGNED: bool>([a, b, c, d]: [Integers; 4]) -> Integers {
        // SAFETY: the instructions are part of aarch64.
        unsafe {
            let low = arch::vreinterpretq_s16_u8(Self::clamp_to_16::<true>([a, b]));
            let high = arch::vreinterpretq_s16_u8(Self::clamp_to_16::<true>([c, d]));
            if SIGNED {
                arch::vreinterpretq_u8_s8(arch::vqmovn_high_s16(arch::vqmovn_s16(low), high))
            } else {
                arch::vqmovun_high_s16(arch::vqmovun_s16(low), high)
            }
        }
    }
}
