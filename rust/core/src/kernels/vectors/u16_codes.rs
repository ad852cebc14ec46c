//! Codes of 16 bits from float32: bf16 or float16.

use super::float_source::Floats;
use crate::codec::encode::SpecialCodes;
use crate::codec::options::Rounding;
use crate::kernels::request::Request;
use crate::simd::halves::{SIGN, to_odd, up_above_middle};
use crate::simd::{Vector, or_masked, rounding};

/// The special codes of a target of 16 bits.
#[derive(Clone, Copy)]
pub(super) struct Specials {
    /// The magnitude of infinity.
    infinity: u16,
    /// Larger magnitudes are clamped to this.
    limit: u16,
    /// The bits of NaN, and of its sign.
    nan: u16,
    nan_sign: u16,
    /// By sign: added to float32 before its lower 16 bits are cut off, in roundings that do not look at even bits.
    added: [u32; 2],
}

/// The exponent of float16's largest finite number.
const F16_MOST: u32 = 15;

impl Specials {
    /// Returns whether overflow gives another magnitude than infinity.
    pub(super) fn limits(&self) -> bool {
        self.limit != self.infinity
    }

    /// Returns those of the target of a request.
    pub(super) fn of(request: &Request) -> Option<Self> {
        const HALF: u32 = 1 << 15;
        const UP: u32 = u16::MAX as u32;
        let (spec, rounding) = (request.target.float()?, request.rounding());
        let codes = SpecialCodes::new(&spec, &request.options, rounding);
        let [nan, negative_nan] = codes.nan.map(|code| code as u16);
        Some(Self {
            infinity: spec.infinity_code()? as u16,
            limit: codes.infinity[0] as u16,
            nan,
            nan_sign: nan ^ negative_nan,
            added: match rounding {
                Rounding::NearestAway => [HALF; 2],
                Rounding::TowardsPositive => [UP, 0],
                Rounding::TowardsNegative => [0, UP],
                Rounding::TowardsZero | Rounding::NearestEven | Rounding::Stochastic => [0; 2],
            },
        })
    }
}

/// Makes a register of 16-bit codes from floats.
///
/// # Safety
/// The operation needs the level's features, and as many elements at the source.
pub(super) trait U16Codes: Copy + Send + Sync + 'static {
    /// The exponent of the largest finite number.
    const MOST: u32;
    /// Returns codes; `one` is 1 in every 16-bit lane. With `CLAMP`, magnitudes are limited.
    unsafe fn codes16<V: Vector, F: Floats, const CLAMP: bool>(
        specials: Specials,
        floats: F,
        source: *const u8,
        one: V::Integers,
    ) -> V::Integers;
}

/// Limits magnitudes of codes, infinite ones included.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn limited<V: Vector, const CLAMP: bool>(specials: Specials, codes: V::Integers) -> V::Integers {
    if !CLAMP {
        return codes;
    }
    let magnitude = V::and(codes, V::splat16(!SIGN));
    or_masked::<V>(V::min16(magnitude, V::splat16(specials.limit)), codes, V::splat16(SIGN))
}

/// Limits magnitudes, and gives NaN its code, by the floats that the codes come from.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn finish<V: Vector, const CLAMP: bool>(
    specials: Specials,
    codes: V::Integers,
    is_nan: V::Mask16,
) -> V::Integers {
    let nan = or_masked::<V>(V::splat16(specials.nan), codes, V::splat16(specials.nan_sign));
    V::choose16(is_nan, nan, limited::<V, CLAMP>(specials, codes))
}

/// Does the same by the codes alone, where NaN is still NaN in them.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn finish_visible_nan<V: Vector, const CLAMP: bool>(
    specials: Specials,
    codes: V::Integers,
) -> V::Integers {
    let magnitude = V::and(codes, V::splat16(!SIGN));
    finish::<V, CLAMP>(specials, codes, V::above16(magnitude, V::splat16(specials.infinity)))
}

/// float16 codes, in one of the [`rounding`]s.
#[derive(Clone, Copy)]
pub(super) struct F16Codes<const ROUNDING: i32>;

impl<const ROUNDING: i32> U16Codes for F16Codes<ROUNDING> {
    const MOST: u32 = F16_MOST;

    #[inline(always)]
    unsafe fn codes16<V: Vector, F: Floats, const CLAMP: bool>(
        specials: Specials,
        floats: F,
        source: *const u8,
        _one: V::Integers,
    ) -> V::Integers {
        let [first, second] = if ROUNDING == rounding::NEAREST_EVEN {
            floats.pair_midrange::<V>(source)
        } else {
            floats.pair::<V>(source)
        };
        let codes = V::to_f16::<ROUNDING>(first, second);
        if !F::NAN || !V::any_nan([first, second]) {
            return limited::<V, CLAMP>(specials, codes);
        }
        finish_visible_nan::<V, CLAMP>(specials, codes)
    }
}

/// float16 codes rounded to nearest, ties away from zero: a last bit that is set lifts ties above the middle, and moves
/// no other number to another side.
#[derive(Clone, Copy)]
pub(super) struct AwayF16Codes;

impl U16Codes for AwayF16Codes {
    const MOST: u32 = F16_MOST;

    #[inline(always)]
    unsafe fn codes16<V: Vector, F: Floats, const CLAMP: bool>(
        specials: Specials,
        floats: F,
        source: *const u8,
        _one: V::Integers,
    ) -> V::Integers {
        let [first, second] = floats.pair::<V>(source);
        let last = V::splat32(1);
        let (a, b) = (V::from_bits(V::or(V::bits(first), last)), V::from_bits(V::or(V::bits(second), last)));
        // Infinities are NaN here.
        if !V::any_nan([a, b]) {
            return limited::<V, CLAMP>(specials, V::to_f16::<{ rounding::NEAREST_EVEN }>(a, b));
        }
        let (a, b) = (with_last_bit::<V>(first), with_last_bit::<V>(second));
        finish_visible_nan::<V, CLAMP>(specials, V::to_f16::<{ rounding::NEAREST_EVEN }>(a, b))
    }
}

/// Sets the last bit of each float32 that is not an infinity or NaN.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn with_last_bit<V: Vector>(a: V::F32s) -> V::F32s {
    let (bits, infinity) = (V::bits(a), V::splat32(f32::INFINITY.to_bits()));
    // In the upper u16, what the exponent is below that of infinities; one at most.
    let below = V::sub_saturated16(infinity, V::and(bits, infinity));
    let finite = V::min16(below, V::splat32(1 << 16));
    V::from_bits(V::or(bits, V::shr32(finite, 16)))
}

/// bf16 codes in any rounding that is not stochastic; `NEAREST_EVEN` says that it is the default one.
#[derive(Clone, Copy)]
pub(super) struct Bf16Codes<const NEAREST_EVEN: bool>;

impl<const NEAREST_EVEN: bool> U16Codes for Bf16Codes<NEAREST_EVEN> {
    const MOST: u32 = f32::MAX_EXP as u32 - 1;

    #[inline(always)]
    unsafe fn codes16<V: Vector, F: Floats, const CLAMP: bool>(
        specials: Specials,
        floats: F,
        source: *const u8,
        one: V::Integers,
    ) -> V::Integers {
        if NEAREST_EVEN && let Some(codes) = floats.nearest_bf16::<V>(source, one) {
            return limited::<V, CLAMP>(specials, codes);
        }
        let [first, second] = floats.pair::<V>(source);
        let (low, high) = V::unzip16(V::bits(first), V::bits(second));
        let codes = if NEAREST_EVEN {
            up_above_middle::<V>(low, high, one)
        } else {
            let added = [V::splat32(specials.added[0]), V::splat32(specials.added[1])];
            let sums = [V::add_by_sign32(first, added), V::add_by_sign32(second, added)];
            let codes = V::unzip16(sums[0], sums[1]).1;
            if !V::any_nan([first, second]) {
                return limited::<V, CLAMP>(specials, codes);
            }
            codes
        };
        let magnitude = V::and(high, V::splat16(!SIGN));
        let odd = to_odd::<V>(low, magnitude, one);
        let is_nan = V::above16(odd, V::splat16(specials.infinity));
        finish::<V, CLAMP>(specials, V::choose16(is_nan, high, codes), is_nan)
    }
}
