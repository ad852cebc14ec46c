//! The fast path of [`super::encode`]: nearest-even from a float pivot to a narrower signed format.
//!
//! ```text
//! normal:     add half an ulp less one, plus the bit that decides ties, rebias, shift
//! subnormal:  add a float whose ulp is the target's smallest subnormal; the sum's low bits are the code
//! ```
//! Both are computed and blended. The float addition needs the default floating-point environment, which
//! [`crate::cpu::environment`] guarantees around every kernel.

use super::encode::{Encoded, Encoder, SpecialCodes};
use super::lane::Lane;
use super::options::{Options, Rounding};
use super::pivot::FloatPivot;
use crate::format::{FloatSpec, Specials};

/// Constants of the fast path for one target.
#[derive(Clone, Copy, Debug)]
pub struct NearestEncoder<L> {
    shift: L,
    rebias_and_round: L,
    magic: L,
    min_normal: L,
    max_code: L,
    overflow: L,
    nan: L,
    nan_sign: L,
    sign_distance: L,
    zero_sign: L,
}

impl<L: Lane> NearestEncoder<L> {
    /// Derives the constants; `None` where the fast path does not apply.
    #[must_use]
    pub fn new<P: FloatPivot<Lane = L>>(
        spec: &FloatSpec,
        options: &Options,
        rounding: Rounding,
    ) -> Option<Self> {
        let applies = rounding == Rounding::NearestEven
            && spec.signed
            && spec.specials != Specials::ExponentOnly
            && spec.mantissa_bits < P::MANTISSA
            && i64::from(spec.bias) <= P::BIAS;
        if !applies {
            return None;
        }
        let lane = |value: u64| L::from_i64(value as i64);
        let codes = SpecialCodes::new(spec, options, rounding);
        let shift = P::MANTISSA - spec.mantissa_bits;
        let mantissa = lane(u64::from(P::MANTISSA));
        let rebias = lane((P::BIAS - i64::from(spec.bias)) as u64).shl(mantissa);
        let half_less_one = lane((1 << (shift - 1)) - 1);
        // The ulp of 2^k is 2^(k - MANTISSA); the smallest subnormal is 2^(1 - bias - mantissa_bits).
        let magic_exponent =
            i64::from(P::MANTISSA) + 1 - i64::from(spec.bias) - i64::from(spec.mantissa_bits);
        let min_normal = 1 - i64::from(spec.bias) + P::BIAS;
        Some(Self {
            shift: lane(u64::from(shift)),
            rebias_and_round: half_less_one.sub(rebias),
            magic: L::from_i64(magic_exponent + P::BIAS).shl(mantissa),
            min_normal: L::from_i64(min_normal).shl(mantissa),
            max_code: lane(spec.max_code()),
            // A clear sign bit: in fnuz, where overflow is NaN, the sign merges into the same code.
            overflow: lane(codes.infinity[0]),
            nan: lane(codes.nan[0]),
            nan_sign: lane(codes.nan[0] ^ codes.nan[1]),
            sign_distance: L::from_i64(i64::from(L::WIDTH) - 1 - i64::from(spec.sign_bit().trailing_zeros())),
            zero_sign: lane(codes.zero[1]),
        })
    }
}

impl<P: FloatPivot> Encoder<P> for NearestEncoder<P::Lane> {
    const STOCHASTIC: bool = false;
    const TELLS: bool = false;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, _draw: u64) -> Encoded<P::Lane> {
        let one = P::Lane::ONE;
        let sign = bits & P::SIGN;
        let magnitude = bits ^ sign;
        let tie = magnitude.shr(self.shift) & one;
        let normal = magnitude.add(self.rebias_and_round).add(tie).shr(self.shift);
        let subnormal = P::float_add(magnitude, self.magic).sub(self.magic);
        let code = P::Lane::select(magnitude < self.min_normal, subnormal, normal);
        let code = P::Lane::select(code > self.max_code, self.overflow, code);
        let sign_code = sign.shr(self.sign_distance);
        let allowed = P::Lane::select(code == P::Lane::ZERO, self.zero_sign, sign_code);
        let merged = code | (sign_code & allowed);
        let nan = self.nan ^ (sign_code & self.nan_sign);
        let result = P::Lane::select(magnitude > P::INFINITY, nan, merged);
        Encoded { code: result, flags: 0 }
    }
}

/// The fast path to powers of two (e8m0): half a mantissa added, the exponent is the code.
///
/// A tie lies between a power and its double, and the significand of a power is odd, so ties go up.
#[derive(Clone, Copy, Debug)]
pub struct PowerEncoder<L> {
    half: L,
    mantissa_bits: L,
    rebias: L,
    first_above_lowest: L,
    max_code: L,
    overflow: L,
    outside: L,
    nan: L,
}

impl<L: Lane> PowerEncoder<L> {
    /// Derives the constants; `None` where the fast path does not apply.
    #[must_use]
    pub fn new<P: FloatPivot<Lane = L>>(
        spec: &FloatSpec,
        options: &Options,
        rounding: Rounding,
    ) -> Option<Self> {
        if rounding != Rounding::NearestEven || spec.specials != Specials::ExponentOnly {
            return None;
        }
        let lane = |value: u64| L::from_i64(value as i64);
        let codes = SpecialCodes::new(spec, options, rounding);
        Some(Self {
            half: lane(1 << (P::MANTISSA - 1)),
            mantissa_bits: lane(u64::from(P::MANTISSA)),
            rebias: L::from_i64(P::BIAS - i64::from(spec.bias)),
            first_above_lowest: P::from_f64(1.5 * 2f64.powi(-spec.bias)),
            max_code: lane(spec.max_code()),
            overflow: lane(codes.infinity[0]),
            // Zero and negative values are below the range.
            outside: lane(codes.exact_zero[0]),
            nan: lane(codes.nan[0]),
        })
    }
}

impl<P: FloatPivot> Encoder<P> for PowerEncoder<P::Lane> {
    const STOCHASTIC: bool = false;
    const TELLS: bool = false;

    #[inline(always)]
    fn encode(&self, bits: P::Bits, _draw: u64) -> Encoded<P::Lane> {
        let magnitude = bits & !P::SIGN;
        let rounded = magnitude.add(self.half).shr(self.mantissa_bits).sub(self.rebias);
        let code = P::Lane::select(magnitude < self.first_above_lowest, P::Lane::ZERO, rounded);
        let code = P::Lane::select(code > self.max_code, self.overflow, code);
        // Zero and negative values: all bits outside 1..=NaN.
        let outside = bits.sub(P::Lane::ONE) >= P::SIGN.sub(P::Lane::ONE);
        let code = P::Lane::select(outside, self.outside, code);
        let code = P::Lane::select(magnitude > P::INFINITY, self.nan, code);
        Encoded { code, flags: 0 }
    }
}
