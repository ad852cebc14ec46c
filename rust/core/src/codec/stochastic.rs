//! The fast path of stochastic rounding, without flags: from the bits of a float to those of a narrower one.
//!
//! ```text
//! bits dropped   those of a mantissa, and one more for each binade below the smallest normal
//! code           (significand + as many of the draw's top bits) >> bits dropped, and the exponent
//! ```
//! The results are those of the general encoder.

use super::encode::{Encoded, Encoder, SpecialCodes};
use super::lane::Lane;
use super::options::{Options, Rounding};
use super::pivot::FloatPivot;
use crate::format::{FloatSpec, Specials};

/// The signs, overflow and NaN of rounded codes.
#[derive(Clone, Copy, Debug)]
struct Finish<L> {
    limit: L,
    nan: L,
    nan_sign: L,
    sign_distance: L,
    zero_sign: L,
}

impl<L: Lane> Finish<L> {
    /// Derives the constants; `None` where this method does not apply.
    fn new(spec: &FloatSpec, options: &Options, rounding: Rounding) -> Option<Self> {
        if rounding != Rounding::Stochastic || !spec.signed || spec.specials == Specials::ExponentOnly {
            return None;
        }
        let lane = |value: u64| L::from_i64(value as i64);
        let codes = SpecialCodes::new(spec, options, rounding);
        let sign = spec.sign_bit();
        // Without its sign bit; where overflow is NaN, the sign merges into the same code.
        let limit = codes.infinity[0];
        let limits = limit == spec.max_code() || limit == spec.max_code() + 1;
        limits.then(|| Self {
            limit: lane(limit),
            nan: lane(codes.nan[0]),
            nan_sign: lane(codes.nan[0] ^ codes.nan[1]),
            sign_distance: L::from_i64(i64::from(L::WIDTH) - 1 - i64::from(sign.trailing_zeros())),
            zero_sign: lane(codes.zero[1]),
        })
    }

    #[inline(always)]
    fn code<P: FloatPivot<Lane = L>>(&self, rounded: L, sign: L, magnitude: L) -> Encoded<L> {
        let sign = sign.shr(self.sign_distance);
        // Overflows become the largest code or the one after it.
        let code = rounded.min(self.limit);
        let is_nan = magnitude > P::INFINITY;
        let allowed = L::select(code == L::ZERO, self.zero_sign, sign);
        let nan = self.nan ^ (sign & self.nan_sign);
        Encoded { code: L::select(is_nan, nan, code | (sign & allowed)), flags: 0 }
    }
}

/// To a format with the pivot's exponents: every binade drops as many bits.
#[derive(Clone, Copy, Debug)]
pub struct StochasticTruncatedEncoder<L> {
    dropped: L,
    not_drawn: L,
    finish: Finish<L>,
}

impl<L: Lane> StochasticTruncatedEncoder<L> {
    /// Derives the constants; `None` where this method does not apply.
    #[must_use]
    pub fn new<P: FloatPivot<Lane = L>>(
        spec: &FloatSpec,
        options: &Options,
        rounding: Rounding,
    ) -> Option<Self> {
        let applies = i64::from(spec.bias) == P::BIAS
            && spec.exponent_bits == L::WIDTH - 1 - P::MANTISSA
            && spec.mantissa_bits < P::MANTISSA;
        let dropped = i64::from(P::MANTISSA) - i64::from(spec.mantissa_bits);
        let finish = Finish::new(spec, options, rounding).filter(|_| applies)?;
        let not_drawn = L::from_i64(i64::from(L::WIDTH) - dropped);
        Some(Self { dropped: L::from_i64(dropped), not_drawn, finish })
    }
}

impl<P: FloatPivot> Encoder<P> for StochasticTruncatedEncoder<P::Lane> {
    const STOCHASTIC: bool = true;
    const TELLS: bool = false;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, draw: u64) -> Encoded<P::Lane> {
        let sign = bits & P::SIGN;
        let magnitude = bits ^ sign;
        let addend = P::Lane::from_random(draw).shr(self.not_drawn);
        self.finish.code::<P>(magnitude.add(addend).shr(self.dropped), sign, magnitude)
    }
}

/// To a format with far fewer exponents.
#[derive(Clone, Copy, Debug)]
pub struct StochasticEncoder<L> {
    /// The smallest normal's exponent field less one, in the pivot's counting.
    lowest: L,
    /// Bits dropped from normal significands.
    dropped: L,
    mantissa_bits: L,
    /// The code 0 of normal values, if they continued below the smallest one.
    rebias: L,
    finish: Finish<L>,
}

impl<L: Lane> StochasticEncoder<L> {
    /// Derives the constants; `None` where this method does not apply.
    #[must_use]
    pub fn new<P: FloatPivot<Lane = L>>(
        spec: &FloatSpec,
        options: &Options,
        rounding: Rounding,
    ) -> Option<Self> {
        let (lowest, mantissa) = (P::BIAS - i64::from(spec.bias) + 1, i64::from(P::MANTISSA));
        let dropped = mantissa - i64::from(spec.mantissa_bits);
        // The pivot's own subnormals are too small for any draw, so they need no case of their own.
        let applies = dropped > 0 && lowest + dropped > i64::from(L::WIDTH) + mantissa;
        let finish = Finish::new(spec, options, rounding).filter(|_| applies)?;
        Some(Self {
            lowest: L::from_i64(lowest),
            dropped: L::from_i64(dropped),
            mantissa_bits: L::from_i64(i64::from(spec.mantissa_bits)),
            rebias: L::from_i64(lowest << spec.mantissa_bits),
            finish,
        })
    }
}

impl<P: FloatPivot> Encoder<P> for StochasticEncoder<P::Lane> {
    const STOCHASTIC: bool = true;
    const TELLS: bool = false;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, draw: u64) -> Encoded<P::Lane> {
        let one = P::Lane::ONE;
        let mantissa = P::Lane::from_i64(i64::from(P::MANTISSA));
        let implicit = one.shl(mantissa);
        let widest = P::Lane::from_i64(i64::from(P::Lane::WIDTH) - 1);
        let sign = bits & P::SIGN;
        let magnitude = bits ^ sign;
        let field = magnitude.shr(mantissa);
        let significand = (magnitude & implicit.sub(one)) | implicit;
        let kept = field.max(self.lowest);
        let shift = kept.sub(field).add(self.dropped);
        // Shifts beyond the lane's width: the probability is below what a draw resolves, and becomes zero.
        let beyond = shift.max(widest).sub(widest).min(widest);
        let shift = shift.min(widest);
        let addend = P::Lane::from_random(draw).shr(one).shr(widest ^ shift);
        let rounded = significand.shr(beyond).add(addend).shr(shift);
        // A normal significand includes its implicit bit.
        let code = kept.shl(self.mantissa_bits).sub(self.rebias).add(rounded);
        self.finish.code::<P>(code, sign, magnitude)
    }
}
