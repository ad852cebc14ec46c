//! Replaces a float64 factor by a float32 one whose products round to the same results, for sources of few significant
//! bits.
//!
//! A result depends only on where the exact product lies on the grid of results and of ties between them: on a grid
//! point, or between which two. A source of few bits has few significands, and exponents make no difference. So all
//! products can be tested, and a nearby factor is taken if its products, rounded to float32, have the same places on
//! the grid as the exact ones.

#![deny(unsafe_code)]

use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::format::FloatSpec;

/// Finds such a factor for a source and a grid of `grid` bits after the leading one. Its products, rounded to nearest,
/// give the right results unless they are subnormal in float32.
pub(super) fn equal_factor(source: &FloatSpec, grid: u32, factor: f64) -> Option<f32> {
    let bits = source.mantissa_bits + 1;
    debug_assert!(bits < u64::BITS - Binary64::MANTISSA, "products with a float64 fit in 64 bits");
    // As a number from 1 to 2, in units of its last place.
    let implicit = 1u64 << Binary64::MANTISSA;
    let exact = factor.to_bits() & (implicit - 1) | implicit;
    let candidates = [24, 20, 18, 17, 16, 15].into_iter().flat_map(|kept: u32| {
        let unit = 1 << (Binary64::MANTISSA + 1 - kept);
        let nearest = (exact + unit / 2) & !(unit - 1);
        [nearest, nearest - unit, nearest + unit]
    });
    let fits = |&other: &u64| {
        other >= implicit
            && other <= 2 * implicit
            && (1u64 << (bits - 1)..1 << bits).all(|significand| are_equal(significand, exact, other, grid))
    };
    let found = candidates.into_iter().find(fits)?;
    // Back to the factor's sign and exponent.
    let one = f64::from_bits(factor.to_bits() & !(implicit - 1));
    let found = one * (found as f64 / implicit as f64);
    let as_f32 = found as f32;
    (as_f32.is_normal() && f64::from(as_f32) == found).then_some(as_f32)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;

    #[test]
    fn tenths_have_equals_and_those_are_near() {
        let source = Format::named("bfloat16").and_then(Format::float).unwrap();
        for factor in [0.1, -0.3, 1.0 / 3.0, 1e-5, std::f64::consts::PI] {
            for grid in [7, 8, 11] {
                let found = equal_factor(&source, grid, factor).unwrap();
                assert!((f64::from(found) / factor - 1.0).abs() < 1e-4, "{found} {factor}");
            }
        }
        assert_eq!(equal_factor(&source, 7, 1.5), Some(1.5));
    }
}
