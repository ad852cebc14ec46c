//! The account of what a cast lost.

use std::ops::AddAssign;

/// Counts and errors of one cast, or of several merged by `+=`.
///
/// Merging is associative and commutative to the last bit: every field is a count, a maximum, a minimum, or an
/// [`SquareSum`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CastReport {
    /// Elements (components, for complex formats).
    pub count: u64,
    /// Elements whose value is preserved; NaN to NaN and infinity to infinity count.
    pub exact: u64,
    /// Values beyond the target's range that became infinity or NaN, or an integer that wrapped.
    pub overflowed: u64,
    /// Values beyond the target's range that became its limit.
    pub saturated: u64,
    /// Nonzero finite values within the range that became zero.
    pub underflowed: u64,
    /// Results that are nonzero subnormals of the target.
    pub subnormal: u64,
    /// NaN among the sources.
    pub nan_in: u64,
    /// NaN among the results.
    pub nan_out: u64,
    /// Infinities among the sources.
    pub inf_in: u64,
    /// Largest finite magnitude among the sources (after scaling); 0 if there is none.
    pub amax: f64,
    /// Smallest nonzero finite magnitude among the sources (after scaling); 0 if there is none.
    pub amin_nonzero: f64,
    /// Largest difference between a finite source and its finite result.
    pub max_abs_error: f64,
    /// Largest such difference relative to a nonzero source.
    pub max_rel_error: f64,
    /// Sum of squares of the sources that are finite with a finite result.
    pub signal: SquareSum,
    /// Sum of squares of the errors of the same.
    pub noise: SquareSum,
}

impl CastReport {
    /// Signal to quantization-noise ratio in decibels: infinite without error, NaN without signal.
    #[must_use]
    pub fn sqnr_db(&self) -> f64 {
        if self.signal.is_empty() {
            return f64::NAN;
        }
        10.0 * (self.signal.log10() - self.noise.log10())
    }
}

/// The smaller, where 0 stands for "none".
pub(crate) fn smallest_nonzero(a: f64, b: f64) -> f64 {
    if a == 0.0 || (b != 0.0 && b < a) { b } else { a }
}

impl AddAssign<&Self> for CastReport {
    fn add_assign(&mut self, other: &Self) {
        self.count += other.count;
        self.exact += other.exact;
        self.overflowed += other.overflowed;
        self.saturated += other.saturated;
        self.underflowed += other.underflowed;
        self.subnormal += other.subnormal;
        self.nan_in += other.nan_in;
        self.nan_out += other.nan_out;
        self.inf_in += other.inf_in;
        self.amax = self.amax.max(other.amax);
        self.amin_nonzero = smallest_nonzero(self.amin_nonzero, other.amin_nonzero);
        self.max_abs_error = self.max_abs_error.max(other.max_abs_error);
        self.max_rel_error = self.max_rel_error.max(other.max_rel_error);
        self.signal.merge(&other.signal);
        self.noise.merge(&other.noise);
    }
}

/// A sum of squares that is the same in whatever order, and in however many parts, its terms are added.
///
/// Every square is rounded to a fixed grid of bins of 40 bits, of which the sum keeps the three from the largest
/// term's downwards: 80 bits at least, in integers. What falls below is below for every order of the terms
/// (Demmel and Nguyen, "Fast reproducible floating-point summation", 2013).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SquareSum {
    /// Index of the first bin: its unit is `2^(BIN_BITS * top - OFFSET)`.
    top: i32,
    /// Units in the bins from `top` downwards.
    bins: [i128; 3],
}

/// Bits of a bin.
const BIN_BITS: i32 = 40;
/// The largest term of a sum with top bin 0 is below `2^21`, so at most `2^40` units of the first bin.
const OFFSET: i32 = 19;

impl SquareSum {
    /// The top bin for terms whose largest root is `largest` (positive and finite).
    #[must_use]
    pub fn top_for(largest: f64) -> i32 {
        let exponent = if largest < f64::MIN_POSITIVE {
            // Subnormal: all that matters is that every caller says the same.
            -1023
        } else {
            ((largest.to_bits() >> 52) & 0x7ff) as i32 - 1023
        };
        (exponent + BIN_BITS / 4).div_euclid(BIN_BITS / 2)
    }

    /// The factors, to be applied one after the other, that bring roots into the range where [`SquareSum::bins_of`]
    /// takes them.
    #[must_use]
    pub fn root_scales(top: i32) -> [f64; 2] {
        let exponent = -top * (BIN_BITS / 2);
        [exponent / 2, exponent - exponent / 2].map(|part| 2f64.powi(part))
    }

    /// How many units of each bin the square of a scaled root is.
    #[inline(always)]
    #[must_use]
    pub fn bins_of(root: f64) -> [i64; 3] {
        // Adding 1.5 * 2^52 units leaves the number of units, rounded, in the sum's low bits.
        const MAGIC: [f64; 3] = [magic(0), magic(1), magic(2)];
        let mut rest = root * root;
        MAGIC.map(|magic| {
            let sum = rest + magic;
            rest -= sum - magic;
            (sum.to_bits() as i64).wrapping_sub(magic.to_bits() as i64)
        })
    }

    /// A sum of terms in units of the bins from `top` downwards.
    #[must_use]
    pub fn new(top: i32, bins: [i64; 3]) -> Self {
        Self { top, bins: bins.map(i128::from) }
    }

    /// Top bin and units, to be put together again by [`SquareSum::from_parts`].
    #[must_use]
    pub fn to_parts(&self) -> (i32, [i128; 3]) {
        (self.top, self.bins)
    }

    /// The sum that [`SquareSum::to_parts`] took apart.
    #[must_use]
    pub fn from_parts((top, bins): (i32, [i128; 3])) -> Self {
        Self { top, bins }
    }

    fn is_empty(&self) -> bool {
        self.bins == [0; 3]
    }

    fn merge(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() || self.top < other.top {
            let lower = std::mem::replace(self, *other);
            if !lower.is_empty() {
                self.merge(&lower);
            }
            return;
        }
        let distance = (self.top - other.top) as usize;
        for (bin, more) in self.bins.iter_mut().skip(distance).zip(other.bins) {
            *bin += more;
        }
    }

    /// The base-10 logarithm of the sum; minus infinity if it is empty.
    fn log10(&self) -> f64 {
        let [first, second, third] = self.bins.map(|bin| bin as f64);
        let bin = 2f64.powi(BIN_BITS);
        let units = first + (second + third / bin) / bin;
        units.log10() + f64::from(BIN_BITS * self.top - OFFSET) * 2f64.log10()
    }
}

/// 1.5 * 2^52 units of a bin.
const fn magic(bin: u64) -> f64 {
    let exponent = 1023 + 52 - OFFSET as u64 - bin * BIN_BITS as u64;
    f64::from_bits(exponent << 52 | 1 << 51)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of(roots: &[f64]) -> SquareSum {
        let mut sum = SquareSum::default();
        for &root in roots {
            let top = SquareSum::top_for(root);
            let [a, b] = SquareSum::root_scales(top);
            sum.merge(&SquareSum::new(top, SquareSum::bins_of(root * a * b)));
        }
        sum
    }

    #[test]
    fn sums_do_not_depend_on_order() {
        let roots = [1e300, 1e-300, 3.0, 1e16, 1.0, 5e-324, 2.5e-5, 1.7e308, 1.0];
        let backwards: Vec<f64> = roots.iter().rev().copied().collect();
        assert_eq!(sum_of(&roots), sum_of(&backwards));
    }

    #[test]
    fn the_logarithm_is_that_of_the_sum() {
        for roots in [&[3.0, 4.0][..], &[1e-3, 7.5, 0.1], &[1e30, 1e28]] {
            let wanted: f64 = roots.iter().map(|root| root * root).sum();
            assert!((sum_of(roots).log10() - wanted.log10()).abs() < 1e-13, "{roots:?}");
        }
        assert!((sum_of(&[1e300]).log10() - 600.0).abs() < 1e-11);
    }

    #[test]
    fn without_error_the_ratio_is_infinite() {
        let report = CastReport { signal: sum_of(&[3.0]), ..CastReport::default() };
        assert_eq!(report.sqnr_db(), f64::INFINITY);
        assert!(CastReport::default().sqnr_db().is_nan());
    }

    #[test]
    fn nothing_is_not_the_smallest() {
        let mut report = CastReport::default();
        report += &CastReport { amin_nonzero: 2.0, ..CastReport::default() };
        report += &CastReport::default();
        assert_eq!(report.amin_nonzero, 2.0);
    }
}
