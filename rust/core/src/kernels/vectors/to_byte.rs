//! Floats of 16 and 32 bits to floats of 8 bits or fewer, a register of codes at a time.

use super::float_source::{Floats, OddBf16};
use super::vector_loop::{Step, in_steps};
use crate::codec::odd_bf16::{MANTISSA, OddBf16Rule, PowerRule};
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::halves::{INFINITY, SIGN};
use crate::simd::{Vector, or_masked, unknown_one};

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

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector, F: Floats, C: Codes<V>> Step<V, 1> for ToBytes<F, C> {
    const NAME: &'static str = "ToBytes";
    const FROM: usize = F::SIZE;
    type Ready = (F, C::Ready, [V::Integers; 2]);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        let one = unknown_one();
        (self.source, self.codes.ready(), [V::splat8(one), V::splat16(u16::from(one))])
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
#[derive(Clone, Copy)]
pub(super) struct SignPlace {
    /// The bit of the sign.
    pub(super) bit: u8,
    /// Whether zero has a sign.
    pub(super) of_zero: bool,
}

impl SignPlace {
    #[inline]
    pub(super) fn of(rule: &OddBf16Rule) -> Self {
        Self { bit: rule.sign, of_zero: !rule.signless_zero }
    }

    /// Returns whether it is the top bit of all codes.
    #[inline]
    pub(super) fn is_top(self) -> bool {
        self.bit == TOP_BYTE && self.of_zero
    }
}

/// Inserts signs, the top bits of `tops`, into magnitudes of codes. `TOP` says that [`SignPlace::is_top`].
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn with_signs<V: Vector, const TOP: bool>(
    code: V::Integers,
    tops: V::Integers,
    place: SignPlace,
) -> V::Integers {
    if TOP {
        return or_masked::<V>(code, tops, V::splat8(TOP_BYTE));
    }
    let of_zero = V::splat8(if place.of_zero { TOP_BYTE } else { 0 });
    let has_sign = V::or(V::add_saturated8(code, V::splat8(TOP_BYTE - 1)), of_zero);
    V::choose8(V::top8(V::and(has_sign, tops)), V::or(code, V::splat8(place.bit)), code)
}

/// Codes of any format with a sign, by an [`OddBf16Rule`]; `TOP` is that of [`with_signs`].
#[derive(Clone, Copy)]
struct FloatCodes<const TOP: bool>(OddBf16Rule);

/// Chooses a byte by sign.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn by_sign<V: Vector>(negative: V::Mask8, bytes: [u8; 2]) -> V::Integers {
    V::choose8(negative, V::splat8(bytes[1]), V::splat8(bytes[0]))
}

const TOP_BYTE: u8 = 1 << 7;

impl<const TOP: bool> FloatCodes<TOP> {
    /// Returns magnitudes, and codes in fixed point with 8 fraction bits (with their sign, if it goes on top).
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn fixed<V: Vector>(&self, bf16: OddBf16<V::Integers>) -> (V::Integers, V::Integers) {
        let rule = &self.0;
        let implicit = 1 << MANTISSA;
        let magnitude = V::and(bf16.odd, V::splat16(!SIGN));
        let negative = V::above16(V::splat16(0), bf16.cut);
        let limit = V::choose16(negative, V::splat16(rule.limit[1]), V::splat16(rule.limit[0]));
        let distance = V::sub_saturated16(V::min16(magnitude, limit), V::splat16(rule.lowest));
        let scaled = V::mul16(distance, V::splat16(rule.factor));
        let normal = V::sub_saturated16(scaled, V::splat16(rule.offset));
        let steps = V::min16(V::shr16(distance, MANTISSA), V::splat16(rule.steps));
        let significand = or_masked::<V>(V::splat16(implicit), distance, V::splat16(implicit - 1));
        let mut fixed = V::max16(normal, V::shl_each16(significand, steps));
        // Directed roundings see every nonzero value, however small, as a fraction below one half.
        let too_small = V::above16(V::splat16(rule.lowest), magnitude);
        fixed = V::choose16(too_small, V::min16(magnitude, V::splat16(1)), fixed);
        if TOP {
            fixed = or_masked::<V>(fixed, bf16.cut, V::splat16(SIGN));
        }
        (magnitude, fixed)
    }
}

impl<V: Vector, const TOP: bool> Codes<V> for FloatCodes<TOP> {
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
        let (low, low_fixed) = ready.fixed::<V>(first);
        let (high, high_fixed) = ready.fixed::<V>(second);
        let (magnitudes, fixed) = ([low, high], [low_fixed, high_fixed]);
        rounded::<V, TOP, false>(&ready.0, magnitudes, fixed, [first.cut, second.cut], INFINITY, one)
    }
}

/// Rounds codes in fixed point by their fraction bits, and gives infinities and NaN their codes; `infinity` is the
/// magnitude of the source's.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn rounded<V: Vector, const TOP: bool, const NEAREST_EVEN: bool>(
    rule: &OddBf16Rule,
    [low, high]: [V::Integers; 2],
    fixed: [V::Integers; 2],
    signs: [V::Integers; 2],
    infinity: u16,
    one: V::Integers,
) -> V::Integers {
    let (fraction, code) = V::unzip8(fixed[0], fixed[1]);
    let tops = if TOP { code } else { V::unzip8(signs[0], signs[1]).1 };
    let bound = if NEAREST_EVEN { V::splat8(rule.bound[0]) } else { by_sign::<V>(V::top8(tops), rule.bound) };
    let decisive = or_masked::<V>(fraction, code, V::splat8(rule.even));
    let mut code = V::add8(code, V::min8(V::sub_saturated8(decisive, bound), one));
    if !TOP {
        code = with_signs::<V, TOP>(code, tops, SignPlace::of(rule));
    }
    with_specials::<V>(rule, code, [low, high], tops, infinity)
}

/// Gives infinities and NaN their codes, by the magnitudes of the sources.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn with_specials<V: Vector>(
    rule: &OddBf16Rule,
    code: V::Integers,
    [low, high]: [V::Integers; 2],
    tops: V::Integers,
    infinity: u16,
) -> V::Integers {
    let finite = V::splat16(infinity - 1);
    if rule.has_specials && V::any16(V::above16(V::max16(low, high), finite)) {
        let (infinity, negative) = (V::splat16(infinity), V::top8(tops));
        let is_special = V::join(V::above16(low, finite), V::above16(high, finite));
        let is_nan = V::join(V::above16(low, infinity), V::above16(high, infinity));
        let special = by_sign::<V>(negative, rule.infinity);
        let special = V::choose8(is_nan, by_sign::<V>(negative, rule.nan), special);
        return V::choose8(is_special, special, code);
    }
    code
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
        let magnitude = V::and(bf16.odd, V::splat16(!SIGN));
        let rounded = V::shr16(V::add16(magnitude, V::splat16(rule.half)), MANTISSA);
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
        V::unzip8(ready.codes16::<V>(first), ready.codes16::<V>(second)).0
    }
}

/// Makes the stage for the default rounding to powers of two.
pub(super) fn stage<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    let rule = PowerRule::new(&request.target.float()?, &request.options, request.rounding())?;
    Some(boxed(vectors, source, PowerCodes(rule)))
}

/// Makes the stage in any rounding that is not stochastic.
pub(super) fn rounded_stage<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    let rule = OddBf16Rule::new(&request.target.float()?, &request.options, request.rounding())?;
    Some(if SignPlace::of(&rule).is_top() {
        boxed(vectors, source, FloatCodes::<true>(rule))
    } else {
        boxed(vectors, source, FloatCodes::<false>(rule))
    })
}

/// Makes the stage of a rule.
pub(super) fn boxed<V: Vector, F: Floats, C: Codes<V>>(vectors: V, source: F, codes: C) -> Box<dyn Stage> {
    in_steps::<V, _, 1>(vectors, ToBytes { source, codes })
}
