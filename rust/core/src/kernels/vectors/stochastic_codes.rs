//! Codes from the values and the sums of stochastic rounding (see [`super::stochastic_stage`]).

use super::lane_draws::Draws;
use super::shapes::Shape;
use super::shapes::shape_of;
use crate::codec::encode::SpecialCodes;
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::format::{FloatSpec, Kind, Specials};
use crate::kernels::request::Request;
use crate::simd::halves::SIGN;
use crate::simd::{StochasticOps, or_masked, rarely, rounding};

/// Whole numbers below 256, as floats: 128 is the smallest normal one, and its last place is 1.
const WHOLE_NUMBERS: FloatSpec =
    FloatSpec { signed: true, exponent_bits: 0, mantissa_bits: 7, bias: -6, specials: Specials::Finite };

/// The least that units of its last place times 2^23 are a float32 of.
const LEAST: f32 = 1.0 / (1u128 << 103) as f32;

/// The constants of one target.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    /// Bits dropped from the mantissa.
    pub(super) dropped: u32,
    /// The smallest normal result.
    pub(super) smallest: f32,
    /// Subtracted from codes: the exponents below the smallest normal result's.
    pub(super) rebias: u32,
    /// The code of overflows. Of integers the largest magnitude, by sign.
    pub(super) limit: [u32; 2],
    /// Inputs of 16 bits with a nonzero magnitude up to this need all 32 bits of a draw.
    pub(super) tiny: u16,
    /// Zero has no sign.
    pub(super) signless_zero: bool,
}

impl Rule {
    /// The constants, or `None` where this way does not apply.
    pub(super) fn new(request: &Request) -> Option<Self> {
        let (source, target) = (request.source.float()?, request.target);
        let rounding = request.rounding();
        if rounding != Rounding::Stochastic || request.scaled || request.tells {
            return None;
        }
        if let (Kind::Integer { .. }, 8, Some((low, high))) =
            (target.kind(), target.row().bits, target.integer_range())
        {
            let limit = [high, low].map(|limit| limit.unsigned_abs() as u32);
            return Self::of(&WHOLE_NUMBERS, limit, false);
        }
        let spec = target.float()?;
        let codes = SpecialCodes::new(&spec, &request.options, rounding);
        let limit = codes.infinity[0];
        // float16 values are multiples of 2^-24: if the top 16 bits of a draw reach no lower, none is too small.
        let is_f16 = shape_of(&source) == Some(Shape::F16);
        let has_room = spec.bias + spec.mantissa_bits as i32 >= 9;
        let applies = spec.signed
            && spec.specials != Specials::ExponentOnly
            && spec.sign_bit() == 1 << (8 * target.item_size() - 1)
            && (limit == spec.max_code() || limit == spec.max_code() + 1)
            && (!is_f16 || has_room);
        let rule = Self::of(&spec, [limit as u32; 2], codes.zero[1] == 0)?;
        (applies && (rule.smallest >= LEAST || shape_of(&spec) == Some(Shape::Bf16))).then_some(rule)
    }

    fn of(spec: &FloatSpec, limit: [u32; 2], signless_zero: bool) -> Option<Self> {
        let dropped = Binary32::MANTISSA.checked_sub(spec.mantissa_bits).filter(|&dropped| dropped > 0)?;
        // The exponent field of the smallest normal.
        let lowest = Binary32::BIAS + 1 - i64::from(spec.bias);
        let power = |field: i64| f32::from_bits((field << Binary32::MANTISSA) as u32);
        Some(Self {
            dropped,
            smallest: power(lowest),
            rebias: ((lowest - 1) << spec.mantissa_bits) as u32,
            limit,
            tiny: (((lowest - i64::from(u32::BITS - dropped)).max(0) << MANTISSA) as u16).saturating_sub(1),
            signless_zero,
        })
    }
}

const TOP_BYTE: u8 = 1 << 7;
const F16_INFINITY: u32 = 0x7c00;
const BF16_INFINITY: u32 = f32::INFINITY.to_bits() >> 16;

/// Makes results from values or from sums.
///
/// # Safety
/// The operation needs the level's features.
pub(super) trait Results<V: StochasticOps, const SIZE: usize>: Send + Sync + 'static {
    /// Whether results have float32's exponents, so that signs need no separate handling.
    const SHIFTED: bool = false;
    /// Bits that are dropped at least, and at most.
    const DROPPED: [u32; 2];
    /// Whether some codes are computed from values, without sums.
    const OF_VALUES: bool = false;
    /// Returns codes of float32, none of them NaN, if they are computed from values.
    #[inline(always)]
    unsafe fn of_values(
        _rule: &Rule,
        _values: [V::F32s; 4],
        _draws: Draws<V>,
    ) -> Option<[V::Integers; SIZE]> {
        None
    }
    /// Returns codes in memory order, from sums, and registers of 16-bit lanes with the signs on top, if they are
    /// computed from these.
    #[inline(always)]
    unsafe fn of_sums(
        _rule: &Rule,
        _sums: [V::Integers; 4],
        _signs: [V::Integers; 2],
        _paired: bool,
    ) -> Option<[V::Integers; SIZE]> {
        None
    }
}

/// Codes of 8 bits.
pub(super) struct ByteCodes;

/// Integers of 8 bits.
pub(super) struct Integers;

/// Codes of 16 bits.
pub(super) struct U16Codes;

/// bf16 codes.
pub(super) struct Bf16Codes;

impl<V: StochasticOps> Results<V, 1> for ByteCodes {
    const DROPPED: [u32; 2] = [16, 23];

    #[inline(always)]
    unsafe fn of_sums(
        rule: &Rule,
        sums: [V::Integers; 4],
        signs: [V::Integers; 2],
        paired: bool,
    ) -> Option<[V::Integers; 1]> {
        let [low, high] = upper_u16s::<V>(sums, paired);
        let limit = V::splat16(rule.limit[0] as u16);
        let mut code = V::unzip8(code16::<V>(rule, low, limit), code16::<V>(rule, high, limit)).0;
        let mut tops = V::unzip8(signs[0], signs[1]).1;
        if rule.signless_zero {
            tops = V::and(tops, V::add_saturated8(code, V::splat8(TOP_BYTE - 1)));
        }
        code = or_masked::<V>(code, tops, V::splat8(TOP_BYTE));
        Some([V::in_order(code)])
    }
}

impl<V: StochasticOps> Results<V, 1> for Integers {
    const DROPPED: [u32; 2] = [16; 2];
    const OF_VALUES: bool = true;

    #[inline(always)]
    unsafe fn of_values(rule: &Rule, values: [V::F32s; 4], draws: Draws<V>) -> Option<[V::Integers; 1]> {
        const PLACES: f32 = (1 << 16) as f32;
        // Far above all limits, so that no sum overflows.
        const MOST: f32 = (1 << 30) as f32;
        let (places, most) =
            (V::from_bits(V::splat32(PLACES.to_bits())), V::from_bits(V::splat32(MOST.to_bits())));
        let mut sums = [V::splat32(0); 4];
        for (register, sum) in sums.iter_mut().enumerate() {
            // Below the range the machine gives the smallest integer.
            *sum = V::rounded_quickly::<{ rounding::TOWARDS_ZERO }>(V::smaller(
                V::product(values[register], places),
                most,
            ));
        }
        let mut magnitudes = sums;
        for register in 0..4 {
            let sign = V::sar32(sums[register], 31);
            // The draw less its largest number is added to negative ones, and the quotient rounded up.
            let draw = V::shr32(V::xor(draws.of(register, false), sign), 16);
            sums[register] = V::add32(sums[register], draw);
            magnitudes[register] = V::xor(sums[register], sign);
        }
        if V::any_low_ones(magnitudes) {
            return None;
        }
        let is_signed = rule.limit[1] > 0;
        Some([if is_signed { V::clamp_upper_to_8::<true>(sums) } else { V::clamp_upper_to_8::<false>(sums) }])
    }
}

/// Returns codes from the upper 16 bits of sums, up to a limit.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn code16<V: StochasticOps>(rule: &Rule, upper: V::Integers, limit: V::Integers) -> V::Integers {
    let places = V::shr16(upper, rule.dropped - u16::BITS);
    V::min16(V::sub_saturated16(places, V::splat16(rule.rebias as u16)), limit)
}

impl<V: StochasticOps> Results<V, 2> for U16Codes {
    const DROPPED: [u32; 2] = [13; 2];
    const OF_VALUES: bool = true;

    /// Converts sums without the bits that are dropped: float16 holds normal ones exactly.
    #[inline(always)]
    unsafe fn of_values(rule: &Rule, values: [V::F32s; 4], draws: Draws<V>) -> Option<[V::Integers; 2]> {
        const NEAREST: i32 = rounding::NEAREST_EVEN;
        let Rule { dropped, smallest, limit, .. } = *rule;
        let [a, b, c, d] = values;
        let given = [V::bits(a), V::bits(b), V::bits(c), V::bits(d)];
        let (mut kept, mask) = (given, V::splat32(u32::MAX << dropped));
        for (register, kept) in kept.iter_mut().enumerate() {
            let draw = V::shr32(draws.of(register, false), u32::BITS - dropped);
            *kept = V::and(V::add32(*kept, draw), mask);
        }
        let [a, b, c, d] = kept;
        let low = V::to_f16::<NEAREST>(V::from_bits(a), V::from_bits(b));
        let high = V::to_f16::<NEAREST>(V::from_bits(c), V::from_bits(d));
        let magnitude = V::splat16(!SIGN);
        let least = V::min16(V::and(low, magnitude), V::and(high, magnitude));
        // Up to the smallest normal result; zeros are among them.
        let bound = V::splat16((1 << (Binary32::MANTISSA - dropped)) + 1);
        if rarely(V::any_below16(least, bound)) && any_below::<V>(given, smallest) {
            return None;
        }
        if limit[0] == F16_INFINITY {
            return Some([low, high]);
        }
        Some([limited::<V>(rule, low), limited::<V>(rule, high)])
    }

    #[inline(always)]
    unsafe fn of_sums(
        rule: &Rule,
        sums: [V::Integers; 4],
        signs: [V::Integers; 2],
        _paired: bool,
    ) -> Option<[V::Integers; 2]> {
        let (a, b) = (code::<V>(rule, sums[0]), code::<V>(rule, sums[1]));
        let (c, d) = (code::<V>(rule, sums[2]), code::<V>(rule, sums[3]));
        let top = V::splat16(SIGN);
        let (low, high) = (V::unzip16(a, b).0, V::unzip16(c, d).0);
        Some([or_masked::<V>(low, signs[0], top), or_masked::<V>(high, signs[1], top)])
    }
}

impl<V: StochasticOps> Results<V, 2> for Bf16Codes {
    const SHIFTED: bool = true;
    const DROPPED: [u32; 2] = [16; 2];

    #[inline(always)]
    unsafe fn of_sums(
        rule: &Rule,
        sums: [V::Integers; 4],
        _signs: [V::Integers; 2],
        paired: bool,
    ) -> Option<[V::Integers; 2]> {
        let [low, high] = upper_u16s::<V>(sums, paired);
        if rule.limit[0] == BF16_INFINITY {
            return Some([low, high]);
        }
        Some([limited::<V>(rule, low), limited::<V>(rule, high)])
    }
}

/// Returns the code of a sum, without its sign.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn code<V: StochasticOps>(rule: &Rule, sum: V::Integers) -> V::Integers {
    let Rule { dropped, rebias, limit, .. } = *rule;
    let code = V::add32(V::shr32(sum, dropped), V::splat32(rebias.wrapping_neg()));
    V::min32(code, V::splat32(limit[0]))
}

/// Returns codes of 16 bits with magnitudes limited.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn limited<V: StochasticOps>(rule: &Rule, codes: V::Integers) -> V::Integers {
    let magnitude = V::and(codes, V::splat16(!SIGN));
    or_masked::<V>(V::min16(magnitude, V::splat16(rule.limit[0] as u16)), codes, V::splat16(SIGN))
}

/// Returns whether any float32 but zeros has a magnitude below a bound.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn any_below<V: StochasticOps>(values: [V::Integers; 4], bound: f32) -> bool {
    let (magnitude, minus_one) = (V::splat32(!(1 << 31)), V::splat32(u32::MAX));
    let mut least = V::splat32(u32::MAX);
    for value in values {
        // Zeros become the largest.
        least = V::min32(least, V::add32(V::and(value, magnitude), minus_one));
    }
    !V::most32(V::xor(least, V::splat32(u32::MAX))) < bound.to_bits() - 1
}

/// Returns the upper 16 bits of the lanes of four registers; `paired` says that registers 1 and 3 hold the odd elements
/// of pairs.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn upper_u16s<V: StochasticOps>([a, b, c, d]: [V::Integers; 4], paired: bool) -> [V::Integers; 2] {
    if paired {
        let odd = V::splat32(u32::MAX << 16);
        [or_masked::<V>(V::shr32(a, 16), b, odd), or_masked::<V>(V::shr32(c, 16), d, odd)]
    } else {
        [V::unzip16(a, b).1, V::unzip16(c, d).1]
    }
}
