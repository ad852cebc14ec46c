//! The report of what a cast lost.

#![deny(unsafe_code)]

use std::ops::AddAssign;

use super::square_sum::SquareSum;
use crate::cpu::DefaultEnvironment;

/// Counts and errors of one cast, or of several merged by `+=`.
///
/// Merging is associative and commutative to the last bit: every field is a count, a maximum, a minimum, or an
/// [`SquareSum`]. Squares may be rounded within a tile ([`crate::cast::TILE`] elements): parts of an array add up to the
/// same sums as the whole if they begin at whole tiles, and else to 1e-12 of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report<S = SquareSum> {
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
    /// Zeros among the sources (after scaling).
    pub zero_in: u64,
    /// Largest finite magnitude among the sources (after scaling); 0 if there is none.
    pub amax: f64,
    /// Smallest nonzero finite magnitude among the sources (after scaling); 0 if there is none.
    pub amin_nonzero: f64,
    /// Largest difference between a finite source and its result; infinite if such a result is infinite or NaN.
    pub max_abs_error: f64,
    /// Largest such difference relative to a nonzero source; infinite where the other is.
    pub max_rel_error: f64,
    /// Sum of squares of the sources that are finite with a finite result.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub signal: S,
    /// Sum of squares of the errors of the same.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub noise: S,
}

/// A report that others are added to.
pub type CastReport = Report<SquareSum>;

/// A report in less memory: of its sums only the nonzero words, as [`SquareSum::to_parts`] returns them.
pub type CompactReport = Report<(usize, Vec<u64>)>;

impl<S> Report<S> {
    /// Returns the report with other sums.
    fn with_sums<T>(self, convert: impl Fn(S) -> T) -> Report<T> {
        Report {
            count: self.count,
            exact: self.exact,
            overflowed: self.overflowed,
            saturated: self.saturated,
            underflowed: self.underflowed,
            subnormal: self.subnormal,
            nan_in: self.nan_in,
            nan_out: self.nan_out,
            inf_in: self.inf_in,
            zero_in: self.zero_in,
            amax: self.amax,
            amin_nonzero: self.amin_nonzero,
            max_abs_error: self.max_abs_error,
            max_rel_error: self.max_rel_error,
            signal: convert(self.signal),
            noise: convert(self.noise),
        }
    }
}

impl From<CastReport> for CompactReport {
    fn from(report: CastReport) -> Self {
        report.with_sums(|sum| sum.to_parts())
    }
}

impl From<CompactReport> for CastReport {
    fn from(report: CompactReport) -> Self {
        report.with_sums(SquareSum::from_parts)
    }
}

impl CastReport {
    /// Signal to quantization-noise ratio in decibels: infinite without error, minus infinity if an error is infinite,
    /// else NaN without signal.
    #[must_use]
    pub fn sqnr_db(&self) -> f64 {
        if self.max_abs_error == f64::INFINITY {
            return f64::NEG_INFINITY;
        }
        if self.signal.is_empty() {
            return f64::NAN;
        }
        DefaultEnvironment::compute(self, |this| 10.0 * (this.signal.log10() - this.noise.log10()))
    }

    /// Root of the mean squared error of the sources that are finite; infinite if an error is.
    #[must_use]
    pub fn rms_error(&self) -> f64 {
        if self.max_abs_error == f64::INFINITY {
            return f64::INFINITY;
        }
        let count = (self.count - self.nan_in - self.inf_in).max(1);
        DefaultEnvironment::compute(&self.noise, |noise| noise.root_mean(count))
    }

    /// Adds a report so many times.
    pub(super) fn add_times(&mut self, other: &Self, times: u64) {
        self.count += other.count * times;
        self.exact += other.exact * times;
        self.overflowed += other.overflowed * times;
        self.saturated += other.saturated * times;
        self.underflowed += other.underflowed * times;
        self.subnormal += other.subnormal * times;
        self.nan_in += other.nan_in * times;
        self.nan_out += other.nan_out * times;
        self.inf_in += other.inf_in * times;
        self.zero_in += other.zero_in * times;
        self.include_extremes(other);
        self.signal.add_times(&other.signal, times);
        self.noise.add_times(&other.noise, times);
    }

    /// Widens the extremes by those of another report, which may be subnormal.
    fn include_extremes(&mut self, other: &Self) {
        DefaultEnvironment::compute((self, other), |(this, other)| {
            this.amax = this.amax.max(other.amax);
            this.amin_nonzero = smallest_nonzero(this.amin_nonzero, other.amin_nonzero);
            this.max_abs_error = this.max_abs_error.max(other.max_abs_error);
            this.max_rel_error = this.max_rel_error.max(other.max_rel_error);
        });
    }
}

/// Returns the smaller number, where 0 means "none".
#[inline]
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
        self.zero_in += other.zero_in;
        self.include_extremes(other);
        self.signal += &other.signal;
        self.noise += &other.noise;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_error_the_ratio_is_infinite() {
        let mut report = CastReport::default();
        report.signal.add_square_of(3.0);
        assert_eq!(report.sqnr_db(), f64::INFINITY);
        assert!(CastReport::default().sqnr_db().is_nan());
        report += &CastReport { max_abs_error: f64::INFINITY, ..CastReport::default() };
        assert_eq!(report.sqnr_db(), f64::NEG_INFINITY);
    }

    #[test]
    fn nothing_is_not_the_smallest() {
        let mut report = CastReport::default();
        report += &CastReport { amin_nonzero: 2.0, ..CastReport::default() };
        report += &CastReport::default();
        assert_eq!(report.amin_nonzero, 2.0);
    }
}
