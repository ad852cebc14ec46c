//! Codes to a pivot: always exact. NaN becomes quiet and keeps its sign.
//!
//! Floats of 32 bits or fewer are all values of float32, and become its bits; [`Through32`] takes them on to any pivot.

use std::marker::PhantomData;

use super::lane::Lane;
use super::pivot::{Binary32, FloatPivot};
use crate::format::{FloatSpec, Kind, Row, Specials};

/// Turns codes into bits of a pivot.
pub trait Decoder<L: Lane>: Copy + Send + Sync {
    /// Returns the pivot bits of a code; bits above the format's are ignored.
    fn decode(&self, code: L) -> L;
}

/// Decodes to float32, then on to the pivot `P`.
#[derive(Clone, Copy, Debug)]
pub struct Through32<P, D> {
    decoder: D,
    pivot: PhantomData<P>,
}

impl<P, D> Through32<P, D> {
    /// Wraps a decoder to float32.
    #[must_use]
    pub fn new(decoder: D) -> Self {
        Self { decoder, pivot: PhantomData }
    }
}

impl<P: FloatPivot, D: Decoder<u32>> Decoder<P::Lane> for Through32<P, D> {
    #[inline(always)]
    fn decode(&self, code: P::Lane) -> P::Lane {
        P::from_binary32(self.decoder.decode(code.to_u64() as u32))
    }
}

/// A float format as a source.
///
/// ```text
/// normal:     shift into place, rebias
/// subnormal:  the code is a small integer: convert it, times the smallest subnormal
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FloatDecoder {
    magnitude_mask: u32,
    shift: u32,
    rebias: u32,
    subnormal_end: u32,
    subnormal_unit: f32,
    infinity: u32,
    nan: NanCodes,
    sign: SignPlace,
}

impl FloatDecoder {
    /// Derives all constants from the row, of a format with zero and subnormals.
    #[must_use]
    pub fn new(spec: &FloatSpec) -> Self {
        Self {
            magnitude_mask: spec.magnitude_mask() as u32,
            shift: Binary32::MANTISSA - spec.mantissa_bits,
            rebias: ((Binary32::BIAS as i32 - spec.bias) as u32) << Binary32::MANTISSA,
            subnormal_end: 1 << spec.mantissa_bits,
            subnormal_unit: 2f32.powi(1 - spec.bias - spec.mantissa_bits as i32),
            infinity: spec.infinity_code().map_or(u32::MAX, |code| code as u32),
            nan: NanCodes::new(spec),
            sign: SignPlace::new(spec),
        }
    }
}

impl Decoder<u32> for FloatDecoder {
    #[inline(always)]
    fn decode(&self, code: u32) -> u32 {
        let magnitude = code & self.magnitude_mask;
        let normal = magnitude.shl(self.shift).add(self.rebias);
        let subnormal = (magnitude as i32 as f32 * self.subnormal_unit).to_bits();
        let mut result = u32::select(magnitude < self.subnormal_end, subnormal, normal);
        result = u32::select(magnitude == self.infinity, Binary32::INFINITY, result);
        result = u32::select(self.nan.contains(code), Binary32::QUIET_NAN, result);
        result | self.sign.of(code)
    }
}

/// A float format that is float32 with a shorter mantissa (bfloat16), or float32 itself: a shift.
#[derive(Clone, Copy, Debug)]
pub struct TruncatedDecoder {
    shift: u32,
}

impl TruncatedDecoder {
    /// Derives the constants; `None` where a shift is not enough.
    #[must_use]
    pub fn new(spec: &FloatSpec) -> Option<Self> {
        let applies = spec.signed
            && spec.specials == Specials::Ieee
            && spec.exponent_bits == u32::BITS - 1 - Binary32::MANTISSA;
        applies.then(|| Self { shift: Binary32::MANTISSA - spec.mantissa_bits })
    }
}

impl Decoder<u32> for TruncatedDecoder {
    #[inline(always)]
    fn decode(&self, code: u32) -> u32 {
        let shifted = code.shl(self.shift);
        let sign = shifted & Binary32::SIGN;
        let is_nan = (shifted ^ sign) > Binary32::INFINITY;
        u32::select(is_nan, sign | Binary32::QUIET_NAN, shifted)
    }
}

/// Powers of two (e8m0) as a source: the code is float32's exponent.
#[derive(Clone, Copy, Debug)]
pub struct PowerDecoder {
    nan: u32,
}

impl PowerDecoder {
    /// Derives the constants; `None` where the code is not the exponent.
    #[must_use]
    pub fn new(spec: &FloatSpec) -> Option<Self> {
        let applies = spec.specials == Specials::ExponentOnly && i64::from(spec.bias) == Binary32::BIAS;
        applies.then(|| Self { nan: spec.magnitude_mask() as u32 })
    }
}

impl Decoder<u32> for PowerDecoder {
    #[inline(always)]
    fn decode(&self, code: u32) -> u32 {
        // The lowest power is half float32's smallest normal.
        let power = code.shl(Binary32::MANTISSA).max(1 << (Binary32::MANTISSA - 1));
        u32::select(code == self.nan, Binary32::QUIET_NAN, power)
    }
}

/// Which codes are NaN: those whose key lies in a range.
#[derive(Clone, Copy, Debug)]
struct NanCodes {
    key_mask: u32,
    first: u32,
    span: u32,
}

impl NanCodes {
    fn new(spec: &FloatSpec) -> Self {
        let magnitude = spec.magnitude_mask() as u32;
        let full = magnitude | spec.sign_bit() as u32;
        let (key_mask, first, span) = match (spec.specials, spec.infinity_code()) {
            (_, Some(infinity)) => (magnitude, infinity as u32 + 1, magnitude - infinity as u32 - 1),
            (Specials::FiniteNan, _) => (magnitude, magnitude, 0),
            (Specials::Finite, _) => (magnitude, u32::MAX, 0),
            (_, _) => (full, spec.nan_code().unwrap_or(0) as u32, 0),
        };
        Self { key_mask, first, span }
    }

    #[inline(always)]
    fn contains(&self, code: u32) -> bool {
        (code & self.key_mask).sub(self.first) <= self.span
    }
}

/// Where the sign of a code goes.
#[derive(Clone, Copy, Debug)]
struct SignPlace {
    distance: u32,
    mask: u32,
}

impl SignPlace {
    fn new(spec: &FloatSpec) -> Self {
        let position = if spec.signed { spec.sign_bit().trailing_zeros() } else { 0 };
        Self { distance: u32::BITS - 1 - position, mask: u32::mask(spec.signed) & Binary32::SIGN }
    }

    #[inline(always)]
    fn of(&self, code: u32) -> u32 {
        code.shl(self.distance) & self.mask
    }
}

/// An integer format wider than the pivot's significand, rounded to odd: small values are exact; large ones keep their
/// high bits, the last of which is set if any lower bit was. Rounding from there to two bits fewer is correct (see
/// [`super::product`]).
#[derive(Clone, Copy, Debug)]
pub struct OddIntegerDecoder<P, const SIGNED: bool>(PhantomData<P>);

impl<P, const SIGNED: bool> Default for OddIntegerDecoder<P, SIGNED> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<P: FloatPivot, const SIGNED: bool> OddIntegerDecoder<P, SIGNED> {
    /// Bits that are cut off large values.
    const CUT: u32 = <P::Lane as Lane>::WIDTH - 1 - P::MANTISSA;
    /// Bits that are kept of large values, at least.
    pub const KEPT: u32 = P::MANTISSA + 1 - Self::CUT;
}

impl<P: FloatPivot, const SIGNED: bool> Decoder<P::Lane> for OddIntegerDecoder<P, SIGNED> {
    #[inline(always)]
    fn decode(&self, code: P::Lane) -> P::Lane {
        let one = P::Lane::ONE;
        let cut = P::Lane::from_i64(i64::from(Self::CUT));
        let low = one.shl(cut).sub(one);
        let sticky = (code & low).add(low);
        let odd = (code | sticky) & !low;
        let end = one.shl(P::Lane::from_i64(i64::from(P::MANTISSA) + 1));
        let small = if SIGNED { code.add(end) < end.add(end) } else { code < end };
        let bits = P::Lane::select(small, code, odd);
        if SIGNED { P::from_signed(bits) } else { P::from_unsigned(bits) }
    }
}

/// An integer format or bool as a source; its values fit in the pivot.
#[derive(Clone, Copy, Debug)]
pub struct IntegerDecoder<P: FloatPivot> {
    value: IntegerValue<P::Lane>,
}

impl<P: FloatPivot> IntegerDecoder<P> {
    /// Derives the constants of an integer row.
    #[must_use]
    pub fn new(row: &Row) -> Self {
        Self { value: IntegerValue::new(row) }
    }
}

impl<P: FloatPivot> Decoder<P::Lane> for IntegerDecoder<P> {
    #[inline(always)]
    fn decode(&self, code: P::Lane) -> P::Lane {
        P::from_signed(self.value.of(code))
    }
}

/// The value of an integer code, in two's complement of the lane.
#[derive(Clone, Copy, Debug)]
pub struct IntegerValue<L> {
    code_mask: L,
    sign: L,
    ceiling: L,
}

impl<L: Lane> IntegerValue<L> {
    /// Derives the constants of an integer row or bool.
    #[must_use]
    pub fn new(row: &Row) -> Self {
        let bits = row.bits;
        let signed = row.kind == Kind::Integer { signed: true };
        let is_bool = row.kind == Kind::Bool;
        Self {
            code_mask: if is_bool { L::ONES } else { L::from_i64((u64::MAX >> (64 - bits)) as i64) },
            sign: if signed { L::from_i64(1i64 << (bits - 1)) } else { L::ZERO },
            // Any nonzero byte of a bool is true.
            ceiling: if is_bool { L::ONE } else { L::ONES },
        }
    }

    /// Returns the value.
    #[inline(always)]
    pub fn of(self, code: L) -> L {
        let bits = code & self.code_mask;
        (bits ^ self.sign).sub(self.sign).min(self.ceiling)
    }
}
