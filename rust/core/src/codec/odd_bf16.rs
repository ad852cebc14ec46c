//! Floats to 8 bits or fewer by way of *bf16 rounded to odd*: the upper 16 bits of a float32, whose last bit is set if
//! any lower one was.
//!
//! Its mantissa has 7 bits, at least two more than these formats have, so rounding from it gives what rounding the
//! float32 would; and a vector holds twice as many. A bfloat16 needs no conversion.
//!
//! ```text
//! distance   magnitude - that of half the smallest subnormal, or 0
//! fixed      the code in fixed point, with 8 fraction bits: the greater of
//!   normal:     distance * factor - offset, or 0
//!   subnormal:  significand << min(distance >> 7, steps)      (never the greater one of normal results)
//! code       fixed >> 8, plus one if its fraction | (code & even) is above a bound
//! ```
//! With nearest-even, smaller values count as half of the smallest subnormal, a tie that goes to zero; the other
//! roundings correct this.

use super::encode::SpecialCodes;
use super::options::{Options, Rounding};
use super::pivot::{Binary32, FloatPivot};
use crate::format::{FloatSpec, Specials};

/// Bits of bf16's mantissa.
pub(crate) const MANTISSA: u32 = 7;

/// A constant for each sign: positive, negative.
pub(crate) type BySign<T> = [T; 2];

/// The constants of one target.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "levels with longer tables do not read all")
)]
pub(crate) struct OddBf16Rule {
    /// The magnitude of half the smallest subnormal.
    pub(crate) lowest: u16,
    /// Scales normal values to the fixed point.
    pub(crate) factor: u16,
    /// Subtracted from them afterwards.
    pub(crate) offset: u16,
    /// Binades from half the smallest subnormal to the smallest normal.
    pub(crate) steps: u16,
    /// Larger magnitudes are clamped to these, which give the code of overflows.
    pub(crate) limit: BySign<u16>,
    /// The magnitudes of the codes of overflows.
    pub(crate) most: BySign<u8>,
    /// The bit of the code that decides ties; 0 if none does.
    pub(crate) even: u8,
    /// Fractions above are rounded up.
    pub(crate) bound: BySign<u8>,
    /// The codes of infinities.
    pub(crate) infinity: BySign<u8>,
    /// The codes of NaN.
    pub(crate) nan: BySign<u8>,
    /// The sign bit.
    pub(crate) sign: u8,
    /// Zero has no sign.
    pub(crate) signless_zero: bool,
    /// Infinities or NaN have codes that are not those of overflows.
    pub(crate) has_specials: bool,
    /// The rounding is to nearest even.
    pub(crate) nearest_even: bool,
}

impl OddBf16Rule {
    /// Derives the constants; `None` where this method does not apply.
    pub(crate) fn new(spec: &FloatSpec, options: &Options, rounding: Rounding) -> Option<Self> {
        // Exponent fields.
        let smallest_normal = Binary32::BIAS + 1 - i64::from(spec.bias);
        let lowest = smallest_normal - 1 - i64::from(spec.mantissa_bits);
        let largest = (spec.max_code() >> spec.mantissa_bits) as i64 + smallest_normal;
        let applies = spec.signed
            && spec.specials != Specials::ExponentOnly
            && 1 + spec.exponent_bits + spec.mantissa_bits <= u8::BITS
            && spec.mantissa_bits + 2 <= MANTISSA
            && rounding != Rounding::Stochastic
            && lowest > 0
            && largest < 2 * Binary32::BIAS;
        if !applies {
            return None;
        }
        let codes = SpecialCodes::new(spec, options, rounding);
        let (lowest, steps) = ((lowest << MANTISSA) as u16, spec.mantissa_bits as u16 + 1);
        let shift = u32::from(steps);
        // The code 0 of normal values, if they continued below the smallest one.
        let rebias = ((smallest_normal - 1) << MANTISSA) as u16;
        let sign = spec.sign_bit();
        // Overflows become the largest code or the one after it; this is the magnitude whose code that would be.
        let most = |code: u64, sign: u64| {
            let after = spec.max_code() + 1;
            [after - 1, after].into_iter().find(|magnitude| magnitude | sign == code)
        };
        let most = [most(codes.overflow[0], 0)?, most(codes.overflow[1], sign)?];
        let limit = |magnitude: u64| (magnitude << (MANTISSA - spec.mantissa_bits)) as u16 + rebias;
        let bytes = |codes: [u64; 2]| codes.map(|code| code as u8);
        const NEVER: u8 = u8::MAX;
        const HALF: u8 = 1 << (u8::BITS - 1);
        let (even, bound) = match rounding {
            Rounding::NearestEven => (1, [HALF; 2]),
            Rounding::NearestAway => (0, [HALF - 1; 2]),
            Rounding::TowardsPositive => (0, [0, NEVER]),
            Rounding::TowardsNegative => (0, [NEVER, 0]),
            Rounding::TowardsZero | Rounding::Stochastic => (0, [NEVER; 2]),
        };
        Some(Self {
            lowest,
            factor: 1 << shift,
            offset: (rebias - lowest) << shift,
            steps,
            limit: most.map(limit),
            most: bytes(most),
            even,
            bound,
            infinity: bytes(codes.infinity),
            nan: bytes(codes.nan),
            sign: sign as u8,
            signless_zero: codes.zero[1] == 0,
            has_specials: codes.infinity != codes.overflow || codes.nan != codes.overflow,
            nearest_even: rounding == Rounding::NearestEven,
        })
    }
}

/// The constants of powers of two (e8m0): half a mantissa added, the exponent is the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerRule {
    /// Half a mantissa: a tie lies between a power and its double, and goes up.
    pub(crate) half: u16,
    /// Magnitudes below become the lowest power.
    pub(crate) first_above_lowest: u16,
    /// The largest code, and the code of larger values.
    pub(crate) max_code: u16,
    pub(crate) overflow: u16,
    /// The code of zero and everything negative.
    pub(crate) outside: u16,
    pub(crate) nan: u16,
}

impl PowerRule {
    /// Derives the constants; `None` where this method does not apply.
    pub(crate) fn new(spec: &FloatSpec, options: &Options, rounding: Rounding) -> Option<Self> {
        let applies = rounding == Rounding::NearestEven
            && spec.specials == Specials::ExponentOnly
            && i64::from(spec.bias) == Binary32::BIAS;
        let codes = SpecialCodes::new(spec, options, rounding);
        applies.then(|| Self {
            half: 1 << (MANTISSA - 1),
            // One and a half times half of float32's smallest normal.
            first_above_lowest: 3 << (MANTISSA - 2),
            max_code: spec.max_code() as u16,
            overflow: codes.infinity[0] as u16,
            outside: codes.exact_zero[0] as u16,
            nan: codes.nan[0] as u16,
        })
    }
}
