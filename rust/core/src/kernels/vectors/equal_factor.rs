//! Replaces a float64 factor by a float32 one whose products round to the same results, for sources of few significant
//! bits.
//!
//! A result depends only on where the exact product lies on the grid of results and of ties between them: on a grid
//! point, or between which two. A source of few bits has few significands, and exponents make no difference. So what
//! nearby factors may be follows from the significands beside each point: their products, rounded to float32, must stay
//! on their sides of it. Products grow with significands, so where the grid is coarse no others need a look.

#![deny(unsafe_code)]

use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::format::FloatSpec;

/// Finds such a factor for a source and a grid of `grid` bits after the leading one. Its products, rounded to nearest,
/// give the right results unless they are subnormal in float32.
pub(super) fn equal_factor(source: &FloatSpec, grid: u32, factor: f64) -> Option<f32> {
    if is_exact(source, factor) {
        return Some(factor as f32);
    }
    // As a number from 1 to 2, and in two parts whose products with significands, whole numbers, are exact.
    let implicit = 1u64 << Binary64::MANTISSA;
    let number = |bits: u64| f64::from_bits(bits & (implicit - 1) | 1f64.to_bits());
    let exact = number(factor.to_bits());
    let upper = number(factor.to_bits() >> 32 << 32);
    let lower = exact - upper;
    let is_above = |significand: f64, point: f64| significand * upper - point + significand * lower > 0.0;
    let (first, last) =
        (f64::from(1u32 << source.mantissa_bits), f64::from((2u32 << source.mantissa_bits) - 1));
    // From one grid point to the next, in the bits of a float64.
    let step = 1u64 << (Binary64::MANTISSA - grid);
    let (mut least, mut most) = (0f64, f64::INFINITY);
    // Two products that lie between a point and the next one, and nearest to these.
    let mut keep_between = |point: u64, [low, high]: [f64; 2]| {
        // Half a unit in the last place of float32: so near to a point, products are rounded to it.
        let half = f64::from_bits(point & !(implicit - 1)) / f64::from(2u32 << Binary32::MANTISSA);
        let (above, below) = (f64::from_bits(point) + half, f64::from_bits(point + step) - half);
        // Few points are nearer than all before, and divisions are slow.
        if least * low <= above {
            least = least.max(above / low);
        }
        if most * high >= below {
            most = most.min(below / high);
        }
    };
    let point_of = |significand: f64| (significand * exact).to_bits() & !(step - 1);
    if grid < source.mantissa_bits {
        const WHOLE: f64 = (1u64 << Binary64::MANTISSA) as f64;
        let (inverse, mut low) = (1.0 / exact, first);
        for point in (point_of(first)..=point_of(last)).step_by(step as usize) {
            let next = f64::from_bits(point + step);
            let nearest = next * inverse + WHOLE - WHOLE;
            let high = nearest - f64::from(u8::from(is_above(nearest, next)));
            keep_between(point, [low, high.min(last)]);
            low = high + 1.0;
        }
    } else {
        for significand in (0..1u32 << source.mantissa_bits).map(|place| first + f64::from(place)) {
            let point = point_of(significand);
            let is_rounded_up = !is_above(significand, f64::from_bits(point));
            keep_between(point - if is_rounded_up { step } else { 0 }, [significand; 2]);
        }
    }
    let middle = f64::midpoint(least, most) as f32;
    // Back to the factor's sign and exponent.
    let found = f64::from(middle) * f64::from_bits(factor.to_bits() & !(implicit - 1));
    (least < middle.into() && f64::from(middle) < most && (found as f32).is_normal()).then_some(found as f32)
}

/// Returns whether float32 holds a factor and all its products with a source, except subnormal ones.
pub(super) fn is_exact(source: &FloatSpec, factor: f64) -> bool {
    let implicit = 1 << Binary32::MANTISSA;
    let as_f32 = factor as f32;
    let bits = f32::MANTISSA_DIGITS - (as_f32.to_bits() | implicit).trailing_zeros();
    f64::from(as_f32) == factor && source.mantissa_bits + 1 + bits <= f32::MANTISSA_DIGITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;

    /// Returns whether two factors' products with a significand have the same place on a grid, the second one after
    /// rounding to float32.
    fn are_equal(significand: u64, exact: u64, other: u64, grid: u32) -> bool {
        let (product, other) = (significand * exact, significand * other);
        let below = product.ilog2() - grid;
        let fraction = |number: u64| number & ((1 << below) - 1) != 0;
        let lies_alike = product >> below == other >> below && fraction(product) == fraction(other);
        // Rounding to float32 must not move a product onto the grid.
        let rounded = (other as f32).to_bits();
        let stays = (rounded & ((1 << (Binary32::MANTISSA - grid)) - 1) != 0) == fraction(other);
        lies_alike && stays
    }

    #[test]
    fn tenths_have_equals_for_every_significand() {
        let named = |name| Format::named(name).and_then(Format::float).unwrap();
        let implicit = 1u64 << Binary64::MANTISSA;
        for (name, grids) in [("bfloat16", &[7, 8, 11][..]), ("float16", &[7, 8])] {
            let source = named(name);
            for factor in [0.1, -0.3, 1.0 / 3.0, 1e-5, std::f64::consts::PI] {
                for &grid in grids {
                    let found = equal_factor(&source, grid, factor).unwrap();
                    let one = f64::from_bits(factor.to_bits() & !(implicit - 1));
                    let [exact, other] =
                        [factor, f64::from(found)].map(|number| (number / one * implicit as f64) as u64);
                    let mut all = 1 << source.mantissa_bits..2 << source.mantissa_bits;
                    assert!(all.all(|each| are_equal(each, exact, other, grid)), "{found} {factor} {grid}");
                }
            }
        }
        assert_eq!(equal_factor(&named("bfloat16"), 7, 1.5), Some(1.5));
    }
}
