//! Parts to codes: any float format, integer or bool, in every rounding and overflow rule.
//!
//! ```text
//! float:    e = max(exponent + bias, 1)                    subnormals share the smallest exponent
//!           code = (e - 1) * 2^mantissa_bits + round(significand >> (TOP - mantissa_bits + missing exponent))
//!           the implicit bit, and a carry, run into the exponent by themselves
//!           beyond the largest finite code: the overflow code
//! integer:  code = round(significand >> (TOP - exponent)), clamped; of fewer than 8 bits: the low bits of an int32
//! ```

use super::lane::Lane;
use super::options::{NanRule, Options, Overflow, Rounding};
use super::pivot::{Parts, Pivot};
use super::rounding::{Rounder, round_off};
use crate::format::{FloatSpec, Format, Specials};

/// The result is not the source's value.
pub const INEXACT: u8 = 1;
/// The source is beyond the target's range.
pub const OVERFLOW: u8 = 2;
/// The source is NaN.
pub const NAN: u8 = 4;
/// The source is beyond the target's range, and the code is its low bits.
pub const WRAPPED: u8 = 8;

/// A code and flags for what happened to the value.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<L> {
    /// The code, in the low bits.
    pub code: L,
    /// [`INEXACT`] | [`OVERFLOW`] | [`NAN`] | [`WRAPPED`].
    pub flags: u8,
}

impl<L> Encoded<L> {
    #[inline(always)]
    fn new(code: L, inexact: bool, overflow: bool, nan: bool) -> Self {
        let flags =
            INEXACT * u8::from(inexact | overflow) + OVERFLOW * u8::from(overflow) + NAN * u8::from(nan);
        Self { code, flags }
    }
}

/// Turns values of a pivot into codes.
pub trait Encoder<P: Pivot>: Copy + Send + Sync {
    /// Whether it consumes random bits.
    const STOCHASTIC: bool;
    /// Whether its flags are meaningful.
    const TELLS: bool = true;
    /// Encodes one value.
    fn encode(&self, bits: P::Bits, draw: u64) -> Encoded<P::Lane>;
}

/// A code for each sign.
#[derive(Clone, Copy, Debug)]
struct BySign<L> {
    positive: L,
    negative: L,
}

impl<L: Lane> BySign<L> {
    #[inline(always)]
    fn of(self, negative: bool) -> L {
        L::select(negative, self.negative, self.positive)
    }
}

/// The codes that a float format gives to zeros, infinities, NaN and overflows, under given options.
#[derive(Clone, Copy, Debug)]
pub struct SpecialCodes {
    /// Finite values beyond the range, by sign.
    pub overflow: [u64; 2],
    /// Infinities.
    pub infinity: [u64; 2],
    /// NaN.
    pub nan: [u64; 2],
    /// Results that are zero.
    pub zero: [u64; 2],
    /// Exact zeros (the same as `zero`, except in e8m0, which has no zero).
    pub exact_zero: [u64; 2],
    /// Infinities stay infinities.
    pub keeps_infinity: bool,
    /// NaN stays NaN.
    pub keeps_nan: bool,
}

impl SpecialCodes {
    /// Derives them from the row; index 0 is for a clear sign.
    #[must_use]
    pub fn new(spec: &FloatSpec, options: &Options, rounding: Rounding) -> Self {
        let sign = spec.sign_bit();
        let has_zero = spec.specials != Specials::ExponentOnly;
        let signed = |code: u64| [code, code | sign];
        // The limits of the range: the largest value, and the lowest, which is its negative, zero, or (e8m0) the
        // smallest power of two. In unsigned formats that is code 0.
        let limit = if spec.signed { signed(spec.max_code()) } else { [spec.max_code(), 0] };
        let saturate = options.overflow == Overflow::Saturate;
        let beyond = match (spec.infinity_code(), spec.nan_code()) {
            (Some(infinity), _) => signed(infinity),
            (None, Some(nan)) => signed(nan),
            (None, None) => limit,
        };
        let infinity = if saturate { limit } else { beyond };
        let mut overflow = infinity;
        // IEEE 754-2019, 7.4: a directed rounding that points back into the range stops at its limit.
        if matches!(rounding, Rounding::TowardsZero | Rounding::TowardsNegative) {
            overflow[0] = limit[0];
        }
        if has_zero && matches!(rounding, Rounding::TowardsZero | Rounding::TowardsPositive) {
            overflow[1] = limit[1];
        }
        let negative_zero = if spec.specials == Specials::Fnuz { 0 } else { sign };
        let exact_zero = if has_zero { [0, negative_zero] } else { [infinity[1]; 2] };
        // Every number below zero is beyond the range of an unsigned format, however near to zero, as in ml_dtypes.
        let zero = [0, if spec.signed { negative_zero } else { overflow[1] }];
        let nan = match (options.nan, spec.nan_code(), spec.specials) {
            // Formats without a zero are refused before.
            (NanRule::Zero, ..) => [0; 2],
            (_, Some(code), Specials::Fnuz) => [code; 2],
            (_, Some(code), _) => signed(code),
            // No NaN at all: ml_dtypes answers with the zero of the other sign.
            (_, None, _) => [sign, 0],
        };
        Self {
            overflow,
            infinity,
            nan,
            zero,
            exact_zero,
            keeps_infinity: spec.infinity_code().is_some() && !saturate,
            keeps_nan: spec.nan_code().is_some() && options.nan != NanRule::Zero,
        }
    }
}

/// A float format as a target.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "constants of a kernel, not states")]
pub struct FloatEncoder<L, R> {
    rounder: R,
    mantissa_bits: L,
    shift: L,
    bias: L,
    min_code: L,
    max_code: L,
    code_offset: L,
    negative_keep: L,
    negative_add: L,
    unsigned: bool,
    keeps_infinity: bool,
    keeps_nan: bool,
    has_zero: bool,
    overflow: BySign<L>,
    infinity: BySign<L>,
    nan: BySign<L>,
    zero: BySign<L>,
    exact_zero: BySign<L>,
}

impl<L: Lane, R> FloatEncoder<L, R> {
    /// Derives all constants from the row.
    #[must_use]
    pub fn new(spec: &FloatSpec, options: &Options, rounding: Rounding, rounder: R, top: u32) -> Self {
        let lane = |value: u64| L::from_i64(value as i64);
        let pair =
            |[positive, negative]: [u64; 2]| BySign { positive: lane(positive), negative: lane(negative) };
        let codes = SpecialCodes::new(spec, options, rounding);
        // Without zero and subnormals, exponent field 0 is an ordinary one: count codes from 1 instead.
        let has_zero = spec.specials != Specials::ExponentOnly;
        let offset = u64::from(!has_zero);
        Self {
            rounder,
            mantissa_bits: lane(u64::from(spec.mantissa_bits)),
            shift: lane(u64::from(top - spec.mantissa_bits)),
            bias: L::from_i64(i64::from(spec.bias) + offset as i64),
            min_code: lane(offset),
            max_code: lane(spec.max_code() + offset),
            code_offset: lane(offset),
            negative_keep: L::mask(spec.signed),
            negative_add: lane(if spec.signed { spec.sign_bit() } else { codes.overflow[1] }),
            unsigned: !spec.signed,
            keeps_infinity: codes.keeps_infinity,
            keeps_nan: codes.keeps_nan,
            has_zero,
            overflow: pair(codes.overflow),
            infinity: pair(codes.infinity),
            nan: pair(codes.nan),
            zero: pair(codes.zero),
            exact_zero: pair(codes.exact_zero),
        }
    }

    /// Encodes a value taken apart.
    #[inline(always)]
    fn encode_parts(&self, parts: Parts<L>, draw: u64) -> Encoded<L>
    where
        R: Rounder<L>,
    {
        let negative = parts.negative;
        let exponent = parts.exponent.add(self.bias);
        let field = exponent.signed_max(L::ONE);
        let shift = self.shift.add(field.sub(exponent));
        let (rounded, dropped) = round_off(&self.rounder, parts.significand, shift, negative, draw);
        let code = field.sub(L::ONE).shl(self.mantissa_bits).add(rounded);

        let is_zero = parts.significand == L::ZERO;
        let below = self.unsigned & negative & !is_zero;
        let overflow = (code > self.max_code) | below | (is_zero & !self.has_zero);
        let magnitude = code.max(self.min_code).sub(self.code_offset);
        let signed = L::select(negative, (magnitude & self.negative_keep) | self.negative_add, magnitude);

        let mut result = L::select(code > self.max_code, self.overflow.of(negative), signed);
        result = L::select(code == L::ZERO && self.has_zero, self.zero.of(negative), result);
        result = L::select(is_zero, self.exact_zero.of(negative), result);
        result = L::select(parts.infinite, self.infinity.of(negative), result);
        result = L::select(parts.nan, self.nan.of(negative), result);

        let special = parts.nan | (parts.infinite & self.keeps_infinity);
        let inexact = (dropped & !special) | (parts.nan & !self.keeps_nan);
        let overflow = overflow & !special;
        Encoded::new(result, inexact, overflow, parts.nan)
    }
}

impl<P: Pivot, R: Rounder<P::Lane>> Encoder<P> for FloatEncoder<P::Lane, R> {
    const STOCHASTIC: bool = R::STOCHASTIC;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, draw: u64) -> Encoded<P::Lane> {
        self.encode_parts(P::unpack(bits), draw)
    }
}

/// An integer format as a target of floats: NaN gives 0, values beyond the range are clamped.
///
/// Formats of fewer than 8 bits keep the low bits of values that an int32 holds, unless they saturate: `ml_dtypes`
/// converts to int first, which C defines. C leaves the conversion of a float beyond an integer's range undefined.
#[derive(Clone, Copy, Debug)]
pub struct IntegerEncoder<L, R> {
    rounder: R,
    top: L,
    widest_exponent: L,
    limit: BySign<L>,
    /// The largest magnitude that is not clamped.
    wrap_limit: BySign<L>,
    code_mask: L,
}

/// Returns the range of truncated floats that a cast to an integer format does not clamp.
#[must_use]
pub fn unclamped_range(target: Format, overflow: Overflow) -> Option<(i128, i128)> {
    let wraps = target.row().bits < 8 && overflow != Overflow::Saturate;
    let own = target.integer_range()?;
    Some(if wraps { (i32::MIN.into(), i32::MAX.into()) } else { own })
}

impl<L: Lane, R> IntegerEncoder<L, R> {
    /// Makes the encoder of an integer format; the lane is at least as wide as its magnitudes. `None` for other
    /// formats.
    #[must_use]
    pub fn new(target: Format, overflow: Overflow, rounder: R, top: u32) -> Option<Self> {
        let lane = |magnitude: u128| L::from_i64(magnitude as u64 as i64) & Self::word();
        let by_sign = |(low, high): (i128, i128)| BySign {
            positive: lane(high.unsigned_abs()),
            negative: lane(low.unsigned_abs()),
        };
        Some(Self {
            rounder,
            top: L::from_i64(i64::from(top)),
            widest_exponent: L::from_i64(i64::from(L::WIDTH.min(64)) - 1),
            limit: by_sign(target.integer_range()?),
            wrap_limit: by_sign(unclamped_range(target, overflow)?),
            code_mask: L::from_i64((u64::MAX >> (64 - target.row().bits)) as i64) & Self::word(),
        })
    }

    /// Returns a mask of the low 64 bits of a lane.
    fn word() -> L {
        let unused = L::WIDTH.saturating_sub(64);
        L::ONES.shr(L::from_i64(i64::from(unused)))
    }
}

impl<P: Pivot, R: Rounder<P::Lane>> Encoder<P> for IntegerEncoder<P::Lane, R> {
    const STOCHASTIC: bool = R::STOCHASTIC;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, draw: u64) -> Encoded<P::Lane> {
        let zero = P::Lane::ZERO;
        let parts = P::unpack(bits);
        let distance = self.top.sub(parts.exponent);
        // Above 2^TOP the significand moves left instead, and nothing is dropped.
        let widest = P::Lane::from_i64(i64::from(P::Lane::WIDTH) - 1);
        let left = zero.sub(distance).signed_max(zero).signed_min(widest);
        let (rounded, dropped) = round_off(
            &self.rounder,
            parts.significand.shl(left),
            distance.signed_max(zero),
            parts.negative,
            draw,
        );
        let limit = self.limit.of(parts.negative);
        let far = self.widest_exponent.signed_less(parts.exponent);
        let number = (parts.significand != zero) & !parts.nan;
        let overflow = (far | (rounded > limit)) & number;
        let clamped = (far | (rounded > self.wrap_limit.of(parts.negative))) & number;
        let magnitude = P::Lane::select(clamped, limit, rounded);
        let value = P::Lane::select(parts.negative, zero.sub(magnitude), magnitude);
        let code = P::Lane::select(parts.nan, zero, value & self.code_mask);
        let mut encoded = Encoded::new(code, dropped | parts.nan, overflow, parts.nan);
        encoded.flags |= WRAPPED * u8::from(overflow & !clamped);
        encoded
    }
}

/// bool as a target: every value but zero is true.
#[derive(Clone, Copy, Debug)]
pub struct BoolEncoder {
    nan_is_true: bool,
}

impl BoolEncoder {
    /// NaN is true, unless the options make it zero.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        Self { nan_is_true: options.nan != NanRule::Zero }
    }
}

impl<P: Pivot> Encoder<P> for BoolEncoder {
    const STOCHASTIC: bool = false;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, _draw: u64) -> Encoded<P::Lane> {
        let (zero, one) = (P::Lane::ZERO, P::Lane::ONE);
        let parts = P::unpack(bits);
        let number = !parts.nan & (parts.infinite | (parts.significand != zero));
        let truth = number | (parts.nan & self.nan_is_true);
        let top = P::Lane::from_i64(i64::from(P::TOP));
        let is_one = !parts.negative & (parts.exponent == zero) & (parts.significand == one.shl(top));
        let code = P::Lane::select(truth, one, zero);
        Encoded::new(code, parts.nan | (number & !is_one), false, parts.nan)
    }
}
