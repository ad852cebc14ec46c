//! A source value times a scale, before any rounding.
//!
//! Both ways give the exact product, rounded once.
//! * [`odd_product`]: float64 with *round to odd* — the last bit is set if the product is inexact. Rounding from it to
//!   two or more bits fewer gives what the exact product would (Boldo and Melquiond, "Emulation of FMA and correctly
//!   rounded sums: proved algorithms using rounding to odd"). Vectors can do it.
//! * [`Product`]: all bits of both factors in 128 bits, for targets as wide as float64.

use super::lane::Lane;
use super::pivot::{Binary64, FloatPivot, Parts, Pivot};

/// Below this magnitude the error of a product may itself underflow. Every target narrower than float64 has its
/// smallest subnormal at 2^-149 or above, so there it only matters that the product is tiny and not zero.
const TINY: f64 = f64::from_bits((1023 - 900) << 52);

/// `x * scale` rounded to odd, for targets of 32 bits or fewer.
#[inline(always)]
#[must_use]
pub fn odd_product(x: f64, scale: f64) -> f64 {
    let product = x * scale;
    let error = x.mul_add(scale, -product);
    let bits = product.to_bits();
    let grows = (error < 0.0) == (product < 0.0);
    let odd = if grows { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let adjusted = if error != 0.0 && bits & 1 == 0 { f64::from_bits(odd) } else { product };
    let tiny = if x == 0.0 || scale == 0.0 { product } else { TINY.copysign(product) };
    let huge = if x.is_finite() && scale.is_finite() { f64::MAX.copysign(product) } else { product };
    if product.abs() < TINY {
        tiny
    } else if product.abs() < f64::INFINITY {
        adjusted
    } else if product.is_nan() {
        // Not the product's NaN, whose sign depends on the machine.
        if x.is_nan() { x } else { f64::from_bits(Binary64::QUIET_NAN) }
    } else {
        huge
    }
}

/// A factor of a product: `±significand * 2^exponent`.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    negative: bool,
    nan: bool,
    infinite: bool,
    exponent: i64,
    significand: u64,
}

impl Factor {
    /// Returns the value of pivot bits.
    #[inline(always)]
    pub fn of<P: Pivot<Lane = u64>>(bits: P::Bits) -> Self {
        let parts = P::unpack(bits);
        Self {
            negative: parts.negative,
            nan: parts.nan,
            infinite: parts.infinite,
            exponent: parts.exponent as i64 - i64::from(P::TOP),
            significand: parts.significand,
        }
    }

    fn to_f64(self) -> f64 {
        let magnitude = if self.nan {
            f64::NAN
        } else if self.infinite {
            f64::INFINITY
        } else {
            // Two steps: the power alone may be outside float64's range when the value is not.
            let half = (self.exponent / 2) as i32;
            let rest = self.exponent as i32 - half;
            self.significand as f64 * 2f64.powi(half) * 2f64.powi(rest)
        };
        if self.negative { -magnitude } else { magnitude }
    }
}

/// The exact product of two factors.
#[derive(Clone, Copy, Debug)]
pub struct Product;

impl Pivot for Product {
    type Bits = (Factor, Factor);
    type Lane = u128;
    const TOP: u32 = 120;

    #[inline(always)]
    fn unpack((x, scale): (Factor, Factor)) -> Parts<u128> {
        let significand = u128::from(x.significand) * u128::from(scale.significand);
        let zero = significand == 0;
        let infinite = x.infinite || scale.infinite;
        let nan = x.nan || scale.nan || (infinite && zero);
        // 64 bits times 54 bits: the leading bit is at 117 or below.
        let raise = (significand | 1).leading_zeros() - (127 - Self::TOP);
        let exponent = x.exponent + scale.exponent + i64::from(Self::TOP) - i64::from(raise);
        Parts {
            // As in `odd_product`, a NaN keeps its own sign.
            negative: if nan { x.nan && x.negative } else { x.negative != scale.negative },
            nan,
            infinite,
            // An infinity is beyond every format, however small the factor.
            exponent: u128::from_i64(if infinite { 1 << 20 } else { exponent }),
            significand: if infinite { 1 << Self::TOP } else { significand << raise },
        }
    }

    fn to_f64_pair((x, scale): (Factor, Factor)) -> (f64, f64) {
        let (a, b) = (x.to_f64(), scale.to_f64());
        (a * b, a.mul_add(b, -(a * b)))
    }
}
