//! The operations of [`StochasticOps`].

use std::arch::aarch64 as arch;

use super::vector::Neon;
use crate::simd::stochastic::{EXPONENT, StochasticOps};
use crate::simd::vector::{Vector, operations};

type Integers = arch::uint8x16_t;
type Lanes = arch::uint32x4_t;

impl StochasticOps for Neon {
    operations! {
        fn xor(a: Integers, b: Integers) -> Integers { arch::veorq_u8(a, b) }
        fn mul32(a: Integers, b: Integers) -> Integers { bytes(arch::vmulq_u32(lanes(a), lanes(b))) }
        fn min32(a: Integers, b: Integers) -> Integers { bytes(arch::vminq_u32(lanes(a), lanes(b))) }
        fn sar32(a: Integers, count: u32) -> Integers {
            let left = arch::vdupq_n_s32(-(count as i32));
            arch::vreinterpretq_u8_s32(arch::vshlq_s32(arch::vreinterpretq_s32_u8(a), left))
        }
        fn fixed_below(a: Integers, power: arch::float32x4_t) -> Integers {
            let single = arch::vreinterpretq_f32_u8(a);
            let below = arch::vcltq_f32(single, power);
            // The sum is rounded to nearest; where that was up, one is subtracted.
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
        fn smaller(a: arch::float32x4_t, b: arch::float32x4_t) -> arch::float32x4_t { arch::vminq_f32(a, b) }
        fn any_low_ones(all: [Integers; 4]) -> bool {
            let [a, b, c, d] = all;
            let most = Self::max16(Self::max16(a, b), Self::max16(c, d));
            arch::vmaxvq_u32(arch::vshlq_n_u32::<16>(lanes(most))) == u32::MAX << 16
        }
        fn any_below16(a: Integers, bound: Integers) -> bool {
            let (a, bound) = (arch::vreinterpretq_u16_u8(a), arch::vreinterpretq_u16_u8(bound));
            arch::vmaxvq_u16(arch::vcltq_u16(a, bound)) != 0
        }
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
