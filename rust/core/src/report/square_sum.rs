//! Exact sums of squares, or of sums of tiles: these do not depend on the order in which they are added.

#![deny(unsafe_code)]

use std::fmt;
use std::ops::AddAssign;

/// 64-bit words of a sum: from the square of the smallest float64 to 2^64 times that of the largest.
const WORDS: usize = 67;

/// The lowest bit is worth two to this: the square of the smallest float64.
pub(crate) const LOWEST: i32 = 2 * -1074;

/// An exact sum of squares of float64, each of them rounded to the precision of float64, but not to its range.
///
/// A fixed-point number of more than 4,000 bits: addition is exact, hence associative and commutative.
#[derive(Clone, PartialEq, Eq)]
pub struct SquareSum {
    /// From the lowest to the highest.
    words: [u64; WORDS],
}

/// Adds to a word. Returns the next carry.
fn add_with_carry(word: &mut u64, more: u64, carry: bool) -> bool {
    let (sum, over) = word.overflowing_add(more);
    let (sum, again) = sum.overflowing_add(u64::from(carry));
    *word = sum;
    over | again
}

impl Default for SquareSum {
    fn default() -> Self {
        Self { words: [0; WORDS] }
    }
}

impl fmt::Debug for SquareSum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SquareSum").field(&self.to_parts()).finish()
    }
}

impl AddAssign<&Self> for SquareSum {
    fn add_assign(&mut self, other: &Self) {
        let mut carry = false;
        for (word, &more) in self.words.iter_mut().zip(&other.words) {
            carry = add_with_carry(word, more, carry);
        }
    }
}

impl SquareSum {
    /// Adds `units * 2^exponent`, where the exponent is not below that of the smallest square.
    pub(crate) fn add(&mut self, units: u128, exponent: i32) {
        let place = (exponent - LOWEST) as usize;
        let (first, shift) = (place / 64, place % 64);
        let beyond = if shift == 0 { 0 } else { (units >> (128 - shift)) as u64 };
        let low = units << shift;
        let parts = [low as u64, (low >> 64) as u64, beyond];
        let mut words = self.words[first..].iter_mut();
        let mut carry = false;
        for (part, word) in parts.into_iter().zip(&mut words) {
            carry = add_with_carry(word, part, carry);
        }
        for word in words {
            if !carry {
                break;
            }
            carry = add_with_carry(word, 0, carry);
        }
    }

    /// Adds the square of a finite number.
    #[cfg(test)]
    pub(crate) fn add_square_of(&mut self, root: f64) {
        /// Bits of the significand of float64.
        const PRECISION: u32 = f64::MANTISSA_DIGITS;
        let bits = root.abs().to_bits();
        let field = (bits >> (PRECISION - 1)) as i32;
        let fraction = bits & ((1 << (PRECISION - 1)) - 1);
        let significand = if field == 0 { fraction } else { fraction | 1 << (PRECISION - 1) };
        let square = u128::from(significand).pow(2);
        let excess = (u128::BITS - square.leading_zeros()).saturating_sub(PRECISION);
        let mut units = square >> excess;
        if excess > 0 {
            let (rest, half) = (square & ((1 << excess) - 1), 1 << (excess - 1));
            units += u128::from(rest > half || (rest == half && units & 1 == 1));
        }
        self.add(units, LOWEST + 2 * (field.max(1) - 1) + excess as i32);
    }

    /// Adds a sum so many times.
    pub(crate) fn add_times(&mut self, other: &Self, count: u64) {
        for (i, &word) in other.words.iter().enumerate().filter(|(_, word)| **word != 0) {
            self.add(u128::from(word) * u128::from(count), LOWEST + 64 * i as i32);
        }
    }

    /// Returns the number of zero words at the low end, and the words from there to the highest nonzero one, for
    /// [`SquareSum::from_parts`].
    #[must_use]
    pub fn to_parts(&self) -> (usize, Vec<u64>) {
        let is_set = |word: &u64| *word != 0;
        let first = self.words.iter().position(is_set).unwrap_or(0);
        let end = self.words.iter().rposition(is_set).map_or(first, |last| last + 1);
        (first, self.words[first..end].to_vec())
    }

    /// Restores a sum from [`SquareSum::to_parts`]; words beyond the highest are left out.
    #[must_use]
    pub fn from_parts((first, words): (usize, Vec<u64>)) -> Self {
        let mut sum = Self::default();
        for (word, part) in sum.words.iter_mut().skip(first).zip(words) {
            *word = part;
        }
        sum
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// Returns the base-10 logarithm of the sum; minus infinity if it is empty.
    pub(crate) fn log10(&self) -> f64 {
        let Some(last) = self.words.iter().rposition(|&word| word != 0) else { return f64::NEG_INFINITY };
        let below = if last == 0 { 0 } else { self.words[last - 1] };
        let units = u128::from(self.words[last]) << 64 | u128::from(below);
        let exponent = LOWEST + 64 * (last as i32 - 1);
        (units as f64).log10() + f64::from(exponent) * 2f64.log10()
    }
}

impl SquareSum {
    /// Returns the root of the sum divided by a count that is not zero.
    #[must_use]
    pub fn root_mean(&self, count: u64) -> f64 {
        let Some(last) = self.words.iter().rposition(|&word| word != 0) else { return 0.0 };
        let below = if last == 0 { 0 } else { self.words[last - 1] };
        let units = u128::from(self.words[last]) << 64 | u128::from(below);
        // Even, as the lowest exponent is. In two steps, each of which is a normal number.
        let exponent = LOWEST / 2 + 32 * (last as i32 - 1);
        let power = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
        let root = (units as f64 / count as f64).sqrt();
        root * power(exponent / 2) * power(exponent - exponent / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of(roots: &[f64]) -> SquareSum {
        let mut sum = SquareSum::default();
        for &root in roots {
            sum.add_square_of(root);
        }
        sum
    }

    #[test]
    fn sums_do_not_depend_on_order() {
        let roots = [1e300, 1e-300, 3.0, 1e16, 1.0, 5e-324, 2.5e-5, 1.7e308, 1.0];
        let backwards: Vec<f64> = roots.iter().rev().copied().collect();
        assert_eq!(sum_of(&roots), sum_of(&backwards));
        let mut whole = sum_of(&roots[..4]);
        whole += &sum_of(&roots[4..]);
        assert_eq!(whole, sum_of(&roots));
    }

    #[test]
    fn many_times_is_as_often() {
        let (root, mut times) = (f64::from_bits(0x7fe1_2345_6789_abcd), SquareSum::default());
        times.add_times(&sum_of(&[root]), 1000);
        assert_eq!(times, sum_of(&[root; 1000]));
    }

    #[test]
    fn parts_make_the_whole_again() {
        for sum in [sum_of(&[]), sum_of(&[5e-324]), sum_of(&[1e300, 1.0, f64::MAX])] {
            assert_eq!(SquareSum::from_parts(sum.to_parts()), sum);
        }
    }

    #[test]
    fn the_root_of_the_mean_is_that_of_the_sum() {
        for root in [5e-324, 1e-310, 1e-200, 1e-3, 1.0, 3.7e18, f64::MAX] {
            assert_eq!(sum_of(&[root; 4]).root_mean(4), root);
        }
        assert_eq!(sum_of(&[3.0, 4.0]).root_mean(2), 12.5f64.sqrt());
        assert_eq!(sum_of(&[]).root_mean(7), 0.0);
    }

    #[test]
    fn the_logarithm_is_that_of_the_sum() {
        for roots in [&[3.0, 4.0][..], &[1e-3, 7.5, 0.1], &[1e30, 1e28]] {
            let wanted: f64 = roots.iter().map(|root| root * root).sum();
            assert!((sum_of(roots).log10() - wanted.log10()).abs() < 1e-13, "{roots:?}");
        }
        assert!((sum_of(&[1e300]).log10() - 600.0).abs() < 1e-11);
        assert_eq!(sum_of(&[5e-324; 4]), sum_of(&[1e-323]));
    }
}
