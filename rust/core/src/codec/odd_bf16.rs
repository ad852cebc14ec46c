//! Floats to 8 bits or fewer by way of *upper halves*: the upper 16 bits of a float32, rounded to odd.
//!
//! An upper half is float32 with a mantissa of 7 bits, the last of which also records whether anything was cut off.
//! That is at least two bits more than these formats have, so what is rounded from it is what the float32 would have
//! given; and twice as many of them fit in a vector. bfloat16 is one as it is.
//!
//! ```text
//! distance   magnitude less that of half the smallest subnormal, or 0
//! fixed      the code with 8 bits after the point; the greater of
//!   normal:     distance * factor, less what subnormals take of it, or 0
//!   subnormal:  significand << min(distance >> 7, steps)      from the smallest normal on, not above the other
//! code       fixed >> 8, plus one if its fraction | (code & even) is above a bound
//! ```
//! Nearest-even takes what is too small to count for half of the smallest subnormal, a tie that goes to zero; for the
//! other roundings that is put right.

use super::encode::SpecialCodes;
use super::options::{Options, Rounding};
use super::pivot::{Binary32, FloatPivot};
use crate::format::{FloatSpec, Specials};

/// Bits of an upper half's mantissa.
pub(crate) const MANTISSA: u32 = 7;

/// A constant for each sign: positive, negative.
pub(crate) type BySign<T> = [T; 2];

/// The constants of one target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OddBf16Rule {
    /// The magnitude of half the smallest subnormal.
    pub(crate) lowest: u16,
    /// Brings normal values to the point.
    pub(crate) factor: u16,
    /// Taken from them then.
    pub(crate) offset: u16,
    /// Binades from half the smallest subnormal to the smallest normal.
    pub(crate) steps: u16,
    /// Magnitudes above are brought down to these, which become what overflows do.
    pub(crate) limit: BySign<u16>,
    /// The magnitude of what positive overflows become.
    pub(crate) most: u8,
    /// The bit of the code that decides ties, if any does.
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
    /// NaN has codes that are not those of overflows.
    pub(crate) nan_is_special: bool,
    /// The rounding is the default one.
    pub(crate) nearest_even: bool,
}

impl OddBf16Rule {
    /// The constants, or `None` where this way does not apply.
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
        // What code 0 would be, if normal values went on below the smallest one.
        let rebias = ((smallest_normal - 1) << MANTISSA) as u16;
        let sign = spec.sign_bit();
        // Overflows become the largest code or the one after it: the value that would have that code, if it were one.
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
            most: most[0] as u8,
            even,
            bound,
            infinity: bytes(codes.infinity),
            nan: bytes(codes.nan),
            sign: sign as u8,
            signless_zero: codes.zero[1] == 0,
            nan_is_special: codes.nan != codes.overflow,
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
    /// The largest code, and what is beyond it.
    pub(crate) max_code: u16,
    pub(crate) overflow: u16,
    /// The code of zero and everything negative.
    pub(crate) outside: u16,
    pub(crate) nan: u16,
}

impl PowerRule {
    /// The constants, or `None` where this way does not apply.
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
