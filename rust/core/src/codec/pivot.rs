//! The few representations every value passes through, and how each is taken apart.
//!
//! A cast decodes its source into the lanes of a *pivot* that holds every source value exactly, and encodes the
//! target from there with one rounding:
//!
//! | pivot | holds exactly | lane |
//! |---|---|---|
//! | [`Binary32`] | floats of 16 bits or fewer, float32, integers up to 16 bits | `u32`, the float's bits |
//! | [`Binary64`] | those, float64, integers up to 32 bits | `u64`, the float's bits |
//! | [`Int64`], [`Uint64`] | 64-bit integers | `u64`, the integer's bits |
//! | [`Product`](super::product::Product) | any of these times a float64 scale | two lanes of 64 bits |

use super::lane::Lane;

/// A value taken apart: `±significand * 2^(exponent - TOP)`.
#[derive(Clone, Copy, Debug)]
pub struct Parts<L> {
    /// Its sign bit.
    pub negative: bool,
    /// It is NaN; exponent and significand then mean nothing.
    pub nan: bool,
    /// It is an infinity; its exponent is beyond every format's.
    pub infinite: bool,
    /// Unbiased exponent in two's complement.
    pub exponent: L,
    /// Below `2^(TOP + 1)`; bit `TOP` is set for all but zero and the pivot's subnormals.
    pub significand: L,
}

/// A representation that holds source values exactly.
pub trait Pivot: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// What one value occupies in a tile.
    type Bits: Copy + Send + Sync + 'static;
    /// What the encoders compute in.
    type Lane: Lane;
    /// Position of a significand's leading bit. A lane leaves room above it for the sum of a rounding.
    const TOP: u32;
    /// Whether loops over it are worth compiling for each level.
    const IN_VECTORS: bool = false;
    /// Takes a value apart.
    fn unpack(bits: Self::Bits) -> Parts<Self::Lane>;
    /// Returns the value as a sum of two float64: the nearest one and the remainder.
    fn to_f64_pair(bits: Self::Bits) -> (f64, f64);
}

/// A pivot that is an IEEE format, with the float addition that the nearest-even fast path needs.
pub trait FloatPivot: Pivot<Bits = <Self as Pivot>::Lane> {
    /// Explicit mantissa bits.
    const MANTISSA: u32;
    /// Exponent bias.
    const BIAS: i64;
    /// Bits of positive infinity.
    const INFINITY: Self::Lane;
    /// Bits of the canonical quiet NaN.
    const QUIET_NAN: Self::Lane;
    /// The sign bit.
    const SIGN: Self::Lane;
    /// Bits of the float sum of two values, rounded to nearest even.
    fn float_add(a: Self::Lane, b: Self::Lane) -> Self::Lane;
    /// Bits of the value of these bits of a float32, whose NaNs are quiet.
    fn from_binary32(bits: u32) -> Self::Lane;
    /// Bits of a whole number without sign that the pivot holds exactly.
    fn from_unsigned(value: Self::Lane) -> Self::Lane;
    /// Bits of a float64 that the pivot holds exactly.
    fn from_f64(value: f64) -> Self::Lane;
    /// Bits of a whole number in two's complement that the pivot holds exactly.
    fn from_signed(value: Self::Lane) -> Self::Lane;
}

/// Takes an IEEE float apart.
#[inline(always)]
fn unpack_float<P: FloatPivot>(bits: P::Lane) -> Parts<P::Lane> {
    let mantissa = P::Lane::from_i64(i64::from(P::MANTISSA));
    let sign = bits & P::SIGN;
    let magnitude = bits ^ sign;
    let field = magnitude.shr(mantissa);
    let implicit = field.min(P::Lane::ONE).shl(mantissa);
    let fraction = magnitude & P::Lane::ONE.shl(mantissa).sub(P::Lane::ONE);
    Parts {
        negative: sign != P::Lane::ZERO,
        nan: magnitude > P::INFINITY,
        infinite: magnitude == P::INFINITY,
        exponent: field.max(P::Lane::ONE).sub(P::Lane::from_i64(P::BIAS)),
        // One bit of room below, so that every target leaves at least one bit to round away.
        significand: (fraction | implicit).shl(P::Lane::ONE),
    }
}

/// float32.
#[derive(Clone, Copy, Debug)]
pub struct Binary32;

impl Pivot for Binary32 {
    type Bits = u32;
    type Lane = u32;
    const TOP: u32 = 24;
    const IN_VECTORS: bool = true;

    #[inline(always)]
    fn unpack(bits: u32) -> Parts<u32> {
        unpack_float::<Self>(bits)
    }
    #[inline(always)]
    fn to_f64_pair(bits: u32) -> (f64, f64) {
        (f64::from(f32::from_bits(bits)), 0.0)
    }
}

impl FloatPivot for Binary32 {
    const MANTISSA: u32 = 23;
    const BIAS: i64 = 127;
    const INFINITY: u32 = f32::INFINITY.to_bits();
    const QUIET_NAN: u32 = 0x7fc0_0000;
    const SIGN: u32 = 1 << 31;

    #[inline(always)]
    fn float_add(a: u32, b: u32) -> u32 {
        (f32::from_bits(a) + f32::from_bits(b)).to_bits()
    }
    #[inline(always)]
    fn from_binary32(bits: u32) -> u32 {
        bits
    }
    #[inline(always)]
    fn from_unsigned(value: u32) -> u32 {
        (value as f32).to_bits()
    }
    #[inline(always)]
    fn from_f64(value: f64) -> u32 {
        (value as f32).to_bits()
    }
    #[inline(always)]
    fn from_signed(value: u32) -> u32 {
        (value as i32 as f32).to_bits()
    }
}

/// Converts a float32 to float64, with a canonical NaN. Rust does not specify the bits of a converted NaN; the
/// instruction's are used here, since no argument is a constant.
#[inline(always)]
#[must_use]
pub fn widen(bits: u32) -> u64 {
    // The instruction of every machine keeps the sign of a NaN and makes it quiet; the rest of its payload is cleared
    // here.
    let wide = f64::from(f32::from_bits(bits));
    let payload = if wide.is_nan() { !(Binary64::QUIET_NAN | Binary64::SIGN) } else { 0 };
    wide.to_bits() & !payload
}

/// Converts a float64 to float32, rounded to nearest even, with a canonical NaN.
#[inline(always)]
#[must_use]
pub fn narrow(bits: u64) -> u32 {
    // As above.
    let narrow = f64::from_bits(bits) as f32;
    let payload = if narrow.is_nan() { !(Binary32::QUIET_NAN | Binary32::SIGN) } else { 0 };
    narrow.to_bits() & !payload
}

/// float64.
#[derive(Clone, Copy, Debug)]
pub struct Binary64;

impl Pivot for Binary64 {
    type Bits = u64;
    type Lane = u64;
    const TOP: u32 = 53;
    const IN_VECTORS: bool = true;

    #[inline(always)]
    fn unpack(bits: u64) -> Parts<u64> {
        unpack_float::<Self>(bits)
    }
    #[inline(always)]
    fn to_f64_pair(bits: u64) -> (f64, f64) {
        (f64::from_bits(bits), 0.0)
    }
}

impl FloatPivot for Binary64 {
    const MANTISSA: u32 = 52;
    const BIAS: i64 = 1023;
    const INFINITY: u64 = f64::INFINITY.to_bits();
    const QUIET_NAN: u64 = 0x7ff8_0000_0000_0000;
    const SIGN: u64 = 1 << 63;

    #[inline(always)]
    fn float_add(a: u64, b: u64) -> u64 {
        (f64::from_bits(a) + f64::from_bits(b)).to_bits()
    }
    #[inline(always)]
    fn from_binary32(bits: u32) -> u64 {
        widen(bits)
    }
    #[inline(always)]
    fn from_unsigned(value: u64) -> u64 {
        (value as f64).to_bits()
    }
    #[inline(always)]
    fn from_f64(value: f64) -> u64 {
        value.to_bits()
    }
    #[inline(always)]
    fn from_signed(value: u64) -> u64 {
        (value as i64 as f64).to_bits()
    }
}

/// Takes a 64-bit integer of this sign and magnitude apart.
#[inline(always)]
fn unpack_integer(negative: bool, magnitude: u64) -> Parts<u64> {
    // `| 1` keeps the count below 64 for zero, whose significand stays 0.
    let leading = u64::from((magnitude | 1).leading_zeros());
    Parts {
        negative,
        nan: false,
        infinite: false,
        exponent: Lane::sub(63, leading),
        significand: magnitude.shl(leading),
    }
}

/// Returns the float64 nearest to an integer, and the remainder.
#[inline(always)]
fn split_integer(value: i128) -> (f64, f64) {
    let nearest = value as f64;
    (nearest, (value - nearest as i128) as f64)
}

/// int64.
#[derive(Clone, Copy, Debug)]
pub struct Int64;

impl Pivot for Int64 {
    type Bits = u64;
    type Lane = u64;
    const TOP: u32 = 63;

    #[inline(always)]
    fn unpack(bits: u64) -> Parts<u64> {
        let value = bits as i64;
        unpack_integer(value < 0, value.unsigned_abs())
    }
    #[inline(always)]
    fn to_f64_pair(bits: u64) -> (f64, f64) {
        split_integer(i128::from(bits as i64))
    }
}

/// uint64.
#[derive(Clone, Copy, Debug)]
pub struct Uint64;

impl Pivot for Uint64 {
    type Bits = u64;
    type Lane = u64;
    const TOP: u32 = 63;

    #[inline(always)]
    fn unpack(bits: u64) -> Parts<u64> {
        unpack_integer(false, bits)
    }
    #[inline(always)]
    fn to_f64_pair(bits: u64) -> (f64, f64) {
        split_integer(i128::from(bits))
    }
}
