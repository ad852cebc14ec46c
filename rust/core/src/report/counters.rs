//! Counters and extremes of a tile, from the values before and after the cast.
//!
//! Magnitudes are compared as the bits of their floats, whose order is the same, and counts are integers: so the order
//! of elements does not matter. Most tiles have no infinity, NaN or overflow; the others are also counted element by
//! element.

#![deny(unsafe_code)]

use super::cast_report::{CastReport, smallest_nonzero};
use crate::codec::encode::{INEXACT, OVERFLOW, WRAPPED};
use crate::cpu::Kernel;

/// Parallel columns of one tile.
pub(super) struct Columns<'a> {
    /// The values before, as float64.
    pub(super) sources: &'a mut [f64],
    /// The values after, as float64.
    pub(super) results: &'a [f64],
    /// The remainders that float64 does not hold of either.
    pub(super) rests: Option<(&'a [f64], &'a [f64])>,
    /// Room for the differences.
    pub(super) errors: &'a mut [f64],
    /// Room for the differences relative to the sources.
    pub(super) quotients: &'a mut [f64],
    /// The encoder's flags.
    pub(super) flags: &'a [u8],
}

/// The counters of one tile; sums of squares are separate.
pub(super) struct Counters<'a> {
    pub(super) columns: Columns<'a>,
    pub(super) report: &'a mut CastReport,
    /// Below this a nonzero result is a subnormal.
    pub(super) smallest_normal: f64,
    /// Values beyond the range wrap, rather than stop at its limit.
    pub(super) wraps: bool,
}

/// The range of nonzero magnitudes in a column; both ends are 0 if there are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) largest: f64,
    pub(super) smallest_nonzero: f64,
}

impl Range {
    #[inline(always)]
    fn of(column: &[f64]) -> Self {
        // One is subtracted, so that zero wraps to the largest number.
        let below = column.iter().fold(u64::MAX, |least, &value| least.min(bits(value).wrapping_sub(1)));
        Self {
            largest: f64::from_bits(largest(column)),
            smallest_nonzero: f64::from_bits(below.wrapping_add(1)),
        }
    }
}

const INFINITY: u64 = f64::INFINITY.to_bits();

/// Returns the bits of a magnitude.
#[inline(always)]
fn bits(value: f64) -> u64 {
    value.abs().to_bits()
}

/// Returns the largest magnitude of a column, as bits.
#[inline(always)]
fn largest(column: &[f64]) -> u64 {
    column.iter().fold(0, |most, &value| most.max(bits(value)))
}

impl Kernel for Counters<'_> {
    /// The ranges of sources and of errors, over elements whose source and result are finite.
    type Output = [Range; 2];

    #[inline(always)]
    fn run(self) -> [Range; 2] {
        let Self { columns, report, smallest_normal, wraps } = self;
        let Columns { sources, results, rests, errors, quotients, flags } = columns;
        let count = sources.len();
        for ((error, &x), &y) in errors.iter_mut().zip(&*sources).zip(results) {
            *error = (y - x).abs();
        }
        if let Some((before, after)) = rests {
            for i in 0..count {
                errors[i] = ((results[i] - sources[i]) + (after[i] - before[i])).abs();
            }
        }
        report.count += count as u64;
        // Before those that are not finite become zero.
        report.zero_in += sources.iter().map(|&x| u64::from(bits(x) == 0)).sum::<u64>();
        let subnormals = bits(smallest_normal);
        report.subnormal +=
            results.iter().map(|&y| u64::from((bits(y) != 0) & (bits(y) < subnormals))).sum::<u64>();
        report.exact += count as u64 - flags.iter().map(|flag| u64::from(flag & INEXACT)).sum::<u64>();
        let beyond = flags.iter().fold(0, |all, flag| all | flag) & OVERFLOW != 0;
        if beyond || largest(sources) >= INFINITY || largest(results) >= INFINITY {
            count_special(report, sources, results, errors, flags, wraps);
        } else {
            let vanished = |(&x, &y): (&f64, &f64)| u64::from((bits(x) != 0) & (bits(y) == 0));
            report.underflowed += sources.iter().zip(results).map(vanished).sum::<u64>();
        }
        let [roots, lost] = [Range::of(sources), Range::of(errors)];
        // Elements that are not finite are zero by now; finite sources with results that are not were counted there.
        report.amax = report.amax.max(roots.largest);
        report.amin_nonzero = smallest_nonzero(report.amin_nonzero, roots.smallest_nonzero);
        if lost.largest != 0.0 {
            report.max_abs_error = report.max_abs_error.max(lost.largest);
            // Through a column of its own: the compiler does not vectorise quotients and their maximum in one loop.
            for ((quotient, &x), &error) in quotients.iter_mut().zip(&*sources).zip(&*errors) {
                *quotient = if x == 0.0 { 0.0 } else { error / x };
            }
            report.max_rel_error = report.max_rel_error.max(f64::from_bits(largest(quotients)));
        }
        [roots, lost]
    }
}

/// Counts infinities, NaN and overflows element by element, and clears the columns where source or result is not
/// finite, so that they do not enter errors and sums.
fn count_special(
    report: &mut CastReport,
    sources: &mut [f64],
    results: &[f64],
    errors: &mut [f64],
    flags: &[u8],
    wraps: bool,
) {
    for (i, (source, error)) in sources.iter_mut().zip(errors).enumerate() {
        let (x, y) = (*source, results[i]);
        let beyond = flags[i] & OVERFLOW != 0;
        let limited = y.is_finite() && !wraps && flags[i] & WRAPPED == 0;
        report.overflowed += u64::from(beyond && !limited);
        report.saturated += u64::from(beyond && limited);
        report.underflowed += u64::from(x.is_finite() && x != 0.0 && y == 0.0 && !beyond);
        report.nan_in += u64::from(x.is_nan());
        report.nan_out += u64::from(y.is_nan());
        report.inf_in += u64::from(x.is_infinite());
        if !(x.is_finite() && y.is_finite()) {
            if x.is_finite() && x != 0.0 {
                report.amax = report.amax.max(x.abs());
                report.amin_nonzero = smallest_nonzero(report.amin_nonzero, x.abs());
            }
            (*source, *error) = (0.0, 0.0);
        }
    }
}
