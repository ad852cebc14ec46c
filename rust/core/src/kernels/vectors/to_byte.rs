//! Floats of 16 and 32 bits to floats of 8 bits or fewer, a register of codes at a time.

use super::float_source::{F32Source, Floats, OddBf16};
use super::vector_loop::{InSteps, Step};
use crate::codec::odd_bf16::{MANTISSA, OddBf16Rule, PowerRule};
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::{Vector, unknown_one, with_nibbles};

/// Makes a register of codes from two registers of bf16.
///
/// # Safety
/// The operation needs the level's features.
pub(super) trait Codes<V: Vector>: Copy + Send + Sync + 'static {
    /// What the loop keeps in registers.
    type Ready: Copy;
    unsafe fn ready(&self) -> Self::Ready;
    /// Returns codes in the order of [`Vector::unzip8`]; `one` is 1 in every byte.
    unsafe fn codes(ready: Self::Ready, bf16s: [OddBf16<V::Integers>; 2], one: V::Integers) -> V::Integers;
}

/// Floats to codes.
#[derive(Clone, Copy)]
struct ToBytes<F, C> {
    source: F,
    codes: C,
}

impl<V: Vector, F: Floats, C: Codes<V>> Step<V, 1> for ToBytes<F, C> {
    const FROM: usize = F::SIZE;
    type Ready = (F, C::Ready, [V::Integers; 2]);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        let one = unknown_one();
        // SAFETY: the trait's contract.
        unsafe { (self.source, self.codes.ready(), [V::splat8(one), V::splat16(u16::from(one))]) }
    }

    #[inline(always)]
    unsafe fn step((floats, codes, ones): Self::Ready, source: *const u8) -> [V::Integers; 1] {
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe {
            let first = floats.odd_bf16::<V>(source, ones[1]);
            let second = floats.odd_bf16::<V>(source.add(V::BYTES / 2 * F::SIZE), ones[1]);
            [V::in_order(C::codes(codes, [first, second], ones[0]))]
        }
    }
}

/// Where the sign of a code goes.
pub(super) mod sign {
    /// To the top bit, of zero too.
    pub(in crate::kernels::vectors) const TOP: u8 = 0;
    /// To the top bit, but not of zero.
    pub(in crate::kernels::vectors) const SIGNLESS_ZERO: u8 = 1;
    /// To a lower bit.
    pub(in crate::kernels::vectors) const BELOW: u8 = 2;
}

/// Returns the one of a rule.
pub(super) fn sign_of(rule: &OddBf16Rule) -> u8 {
    match (rule.sign, rule.signless_zero) {
        (TOP_BYTE, false) => sign::TOP,
        (TOP_BYTE, true) => sign::SIGNLESS_ZERO,
        _ => sign::BELOW,
    }
}

/// Inserts signs, the top bits of `tops`, into magnitudes of codes; `bit` is their place if it is below the top.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn with_signs<V: Vector, const SIGN: u8>(
    code: V::Integers,
    tops: V::Integers,
    bit: u8,
) -> V::Integers {
    // SAFETY: the caller's promise.
    unsafe {
        match SIGN {
            sign::TOP => V::or_masked(code, tops, V::splat8(TOP_BYTE)),
            sign::SIGNLESS_ZERO => {
                let not_zero = V::add_saturated8(code, V::splat8(TOP_BYTE - 1));
                V::or_masked(code, V::and(not_zero, tops), V::splat8(TOP_BYTE))
            }
            _ => V::choose8(V::top8(tops), V::or(code, V::splat8(bit)), code),
        }
    }
}

/// Codes of any format with a sign, by an [`OddBf16Rule`]; `SIGN` is one of [`sign`]. `NEAREST_EVEN` says that the
/// rounding is the default one, which treats both signs alike.
#[derive(Clone, Copy)]
struct FloatCodes<const SIGN: u8, const NEAREST_EVEN: bool>(OddBf16Rule);

/// Chooses a constant by sign.
macro_rules! by_sign {
    ($choose:ident, $splat:ident, $negative:expr, $pair:expr) => {
        V::$choose($negative, V::$splat($pair[1]), V::$splat($pair[0]))
    };
}

const TOP_WORD: u16 = 1 << 15;
const TOP_BYTE: u8 = 1 << 7;
const INFINITY: u16 = (f32::INFINITY.to_bits() >> 16) as u16;

impl<const SIGN: u8, const NEAREST_EVEN: bool> FloatCodes<SIGN, NEAREST_EVEN> {
    /// Returns magnitudes, and codes in fixed point with 8 fraction bits (with their sign, if it goes on top).
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn fixed<V: Vector>(&self, bf16: OddBf16<V::Integers>) -> (V::Integers, V::Integers) {
        let rule = &self.0;
        let implicit = 1 << MANTISSA;
        // SAFETY: the caller's promise.
        unsafe {
            let magnitude = V::and(bf16.odd, V::splat16(!TOP_WORD));
            let limit = if NEAREST_EVEN {
                V::splat16(rule.limit[0])
            } else {
                by_sign!(choose16, splat16, V::above16(V::splat16(0), bf16.cut), rule.limit)
            };
            let distance = V::sub_saturated16(V::min16(magnitude, limit), V::splat16(rule.lowest));
            let scaled = V::mul16(distance, V::splat16(rule.factor));
            let normal = V::sub_saturated16(scaled, V::splat16(rule.offset));
            let steps = V::min16(V::shr16::<MANTISSA>(distance), V::splat16(rule.steps));
            let significand = V::or_masked(V::splat16(implicit), distance, V::splat16(implicit - 1));
            let mut fixed = V::max16(normal, V::shl_each16(significand, steps));
            if !NEAREST_EVEN {
                // Directed roundings see every nonzero value, however small, as a fraction below one half.
                let too_small = V::above16(V::splat16(rule.lowest), magnitude);
                fixed = V::choose16(too_small, V::min16(magnitude, V::splat16(1)), fixed);
            }
            if SIGN == sign::TOP {
                fixed = V::or_masked(fixed, bf16.cut, V::splat16(TOP_WORD));
            }
            (magnitude, fixed)
        }
    }
}

impl<V: Vector, const SIGN: u8, const NEAREST_EVEN: bool> Codes<V> for FloatCodes<SIGN, NEAREST_EVEN> {
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn codes(
        ready: Self,
        [first, second]: [OddBf16<V::Integers>; 2],
        one: V::Integers,
    ) -> V::Integers {
        let rule = &ready.0;
        // SAFETY: the caller's promise.
        unsafe {
            let (low, low_fixed) = ready.fixed::<V>(first);
            let (high, high_fixed) = ready.fixed::<V>(second);
            let (fraction, code) = V::unzip8(low_fixed, high_fixed);
            let tops = if SIGN == sign::TOP { code } else { V::unzip8(first.cut, second.cut).1 };
            let bound = if NEAREST_EVEN {
                V::splat8(rule.bound[0])
            } else {
                by_sign!(choose8, splat8, V::top8(tops), rule.bound)
            };
            let decisive = V::or_masked(fraction, code, V::splat8(rule.even));
            let mut code = V::add8(code, V::min8(V::sub_saturated8(decisive, bound), one));
            if SIGN != sign::TOP {
                code = with_signs::<V, SIGN>(code, tops, rule.sign);
            }
            if !NEAREST_EVEN {
                let beyond = V::splat16(INFINITY - 1);
                let special = V::join(V::above16(low, beyond), V::above16(high, beyond));
                code = V::choose8(special, by_sign!(choose8, splat8, V::top8(tops), rule.infinity), code);
            }
            let infinity = V::splat16(INFINITY);
            if rule.nan_is_special && V::any16(V::above16(V::max16(low, high), infinity)) {
                let is_nan = V::join(V::above16(low, infinity), V::above16(high, infinity));
                code = V::choose8(is_nan, by_sign!(choose8, splat8, V::top8(tops), rule.nan), code);
            }
            code
        }
    }
}

/// Codes of powers of two (e8m0).
#[derive(Clone, Copy)]
struct PowerCodes(PowerRule);

impl PowerCodes {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn codes16<V: Vector>(&self, bf16: OddBf16<V::Integers>) -> V::Integers {
        let rule = &self.0;
        // SAFETY: the caller's promise.
        unsafe {
            let magnitude = V::and(bf16.odd, V::splat16(!TOP_WORD));
            let rounded = V::shr16::<{ MANTISSA }>(V::add16(magnitude, V::splat16(rule.half)));
            let is_lowest = V::above16(V::splat16(rule.first_above_lowest), magnitude);
            let code = V::choose16(is_lowest, V::splat16(0), rounded);
            let overflows = V::above16(code, V::splat16(rule.max_code));
            let code = V::choose16(overflows, V::splat16(rule.overflow), code);
            // Zero and negative values are outside the range.
            let outside = V::above16(V::splat16(1), bf16.odd);
            let code = V::choose16(outside, V::splat16(rule.outside), code);
            V::choose16(V::above16(magnitude, V::splat16(INFINITY)), V::splat16(rule.nan), code)
        }
    }
}

impl<V: Vector> Codes<V> for PowerCodes {
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn codes(
        ready: Self,
        [first, second]: [OddBf16<V::Integers>; 2],
        _one: V::Integers,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::unzip8(ready.codes16::<V>(first), ready.codes16::<V>(second)).0 }
    }
}

/// Makes the stage for the default rounding: to powers of two, and from bf16 on levels without long tables.
pub(super) fn stage<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    let spec = request.target.float()?;
    if let Some(rule) = PowerRule::new(&spec, &request.options, request.rounding()) {
        return Some(boxed(vectors, source, PowerCodes(rule)));
    }
    let rule = OddBf16Rule::new(&spec, &request.options, request.rounding())?;
    if !F::SHIFTED || !rule.nearest_even {
        return None;
    }
    with_nibbles!(vectors.level(), vectors => match sign_of(&rule) {
        sign::TOP => boxed(vectors, super::float_source::Bf16Source, FloatCodes::<{ sign::TOP }, true>(rule)),
        sign::SIGNLESS_ZERO => boxed(vectors, super::float_source::Bf16Source, FloatCodes::<{ sign::SIGNLESS_ZERO }, true>(rule)),
        _ => boxed(vectors, super::float_source::Bf16Source, FloatCodes::<{ sign::BELOW }, true>(rule)),
    })
}

/// Makes the stage from float32 in any rounding that is not stochastic.
pub(super) fn rounded_stage<V: Vector>(vectors: V, request: &Request) -> Option<Box<dyn Stage>> {
    let rule = OddBf16Rule::new(&request.target.float()?, &request.options, request.rounding())?;
    Some(match sign_of(&rule) {
        sign::TOP => boxed(vectors, F32Source, FloatCodes::<{ sign::TOP }, false>(rule)),
        sign::SIGNLESS_ZERO => boxed(vectors, F32Source, FloatCodes::<{ sign::SIGNLESS_ZERO }, false>(rule)),
        _ => boxed(vectors, F32Source, FloatCodes::<{ sign::BELOW }, false>(rule)),
    })
}

/// Makes the stage of a rule.
pub(super) fn boxed<V: Vector, F: Floats, C: Codes<V>>(vectors: V, source: F, codes: C) -> Box<dyn Stage> {
    InSteps::<V, _, 1>::boxed(vectors, ToBytes { source, codes })
}
