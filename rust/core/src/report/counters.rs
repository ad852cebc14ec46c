//! Counters and extremes of a tile, from the values before and after the cast.
//!
//! Magnitudes are compared as the bits of their floats, whose order is the same, and counts are integers: so the order
//! of elements does not matter. Every loop is one that compilers vectorize: nothing in them depends on a branch.

#![deny(unsafe_code)]

use super::cast_report::{CastReport, smallest_nonzero};
use crate::codec::encode::{INEXACT, OVERFLOW, WRAPPED};
use crate::cpu::Kernel;

/// Parallel columns of one tile.
pub(super) struct Columns<'a> {
    /// The values before, as float64.
    pub(super) sources: &'a [f64],
    /// The values after, as float64.
    pub(super) results: &'a [f64],
    /// The remainders that float64 does not hold of either.
    pub(super) rests: Option<(&'a [f64], &'a [f64])>,
    /// Room for the sources that are finite with a finite result, and zeros for the others.
    pub(super) roots: &'a mut [f64],
    /// Room for the magnitudes of their errors.
    pub(super) errors: &'a mut [f64],
    /// Room for all differences, and then for errors relative to the sources.
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

/// The bits of infinity, above which NaN are.
const INFINITY: i64 = f64::INFINITY.to_bits() as i64;

/// Returns the bits of a magnitude: as integers with a sign, which vectors compare in one instruction.
#[inline(always)]
fn bits(value: f64) -> i64 {
    value.abs().to_bits() as i64
}

#[inline]
fn number(bits: i64) -> f64 {
    f64::from_bits(bits as u64)
}

impl Kernel for Counters<'_> {
    /// The largest root and the largest error.
    type Output = [f64; 2];

    #[inline(always)]
    fn run(self) -> [f64; 2] {
        let Self { columns, report, smallest_normal, wraps } = self;
        let Columns { sources, results, rests, roots, errors, quotients, flags } = columns;
        report.count += sources.len() as u64;
        count_sources(report, sources);
        count_results(report, sources, results, flags, smallest_normal, wraps);
        for ((difference, &x), &y) in quotients.iter_mut().zip(sources).zip(results) {
            *difference = y - x;
        }
        if let Some((before, after)) = rests {
            for ((difference, &before), &after) in quotients.iter_mut().zip(before).zip(after) {
                *difference += after - before;
            }
        }
        let columns = roots.iter_mut().zip(&mut *errors).zip(&*quotients).zip(sources).zip(results);
        let (mut most_root, mut most_error, mut lost) = (0, 0, 0);
        for ((((root, error), &difference), &x), &y) in columns {
            let (from_finite, to_finite) = (bits(x) < INFINITY, bits(y) < INFINITY);
            let is_finite = from_finite & to_finite;
            lost |= u64::from(from_finite & !to_finite);
            *root = if is_finite { x } else { 0.0 };
            *error = if is_finite { difference.abs() } else { 0.0 };
            most_root = bits(*root).max(most_root);
            most_error = bits(*error).max(most_error);
        }
        if lost != 0 {
            report.max_abs_error = f64::INFINITY;
            report.max_rel_error = f64::INFINITY;
        }
        if most_error != 0 {
            report.max_abs_error = report.max_abs_error.max(number(most_error));
            // Through a column of its own: the compiler does not vectorize quotients and their maximum in one loop.
            for ((quotient, &x), &error) in quotients.iter_mut().zip(&*roots).zip(&*errors) {
                *quotient = if x == 0.0 { 0.0 } else { error / x };
            }
            let most = quotients.iter().fold(0, |most, &quotient| bits(quotient).max(most));
            report.max_rel_error = report.max_rel_error.max(number(most));
        }
        [most_root, most_error].map(number)
    }
}

#[inline(always)]
fn count_sources(report: &mut CastReport, sources: &[f64]) {
    let (mut nan, mut infinite, mut zeros) = (0, 0, 0);
    for &x in sources {
        let x = bits(x);
        nan += u64::from(x > INFINITY);
        infinite += u64::from(x == INFINITY);
        zeros += u64::from(x == 0);
    }
    report.nan_in += nan;
    report.inf_in += infinite;
    report.zero_in += zeros;
    // Subtracted so that zero wraps to the largest number, and finite ones to above all others: compilers do not
    // vectorize the extremes of a choice. A loop, as `fold` may be a function without the features of the level.
    let (mut least, mut most) = (u64::MAX, 0);
    for x in sources.iter().map(|&x| bits(x)) {
        least = (x.wrapping_sub(1) as u64).min(least);
        most = (x.wrapping_sub(INFINITY) as u64).max(most);
    }
    let ends = [least.wrapping_add(1), most.wrapping_add(INFINITY as u64)].map(|x| x as i64);
    let [least, most] = ends.map(|x| if x < INFINITY { number(x) } else { 0.0 });
    report.amax = report.amax.max(most);
    report.amin_nonzero = smallest_nonzero(report.amin_nonzero, least);
}

#[inline(always)]
fn count_results(
    report: &mut CastReport,
    sources: &[f64],
    results: &[f64],
    flags: &[u8],
    smallest_normal: f64,
    wraps: bool,
) {
    let normal = bits(smallest_normal);
    let (mut inexact, mut nan, mut subnormal) = (0, 0, 0);
    let (mut underflowed, mut beyond, mut saturated) = (0, 0, 0);
    for ((&x, &y), &flag) in sources.iter().zip(results).zip(flags) {
        let (x, y, flag) = (bits(x), bits(y), u64::from(flag));
        let overflows = flag & u64::from(OVERFLOW) != 0;
        let stops = flag & u64::from(OVERFLOW | WRAPPED) == u64::from(OVERFLOW);
        inexact += flag & u64::from(INEXACT);
        nan += u64::from(y > INFINITY);
        subnormal += u64::from((y != 0) & (y < normal));
        underflowed += u64::from((x != 0) & (x < INFINITY) & (y == 0) & !overflows);
        beyond += u64::from(overflows);
        saturated += u64::from(stops & (y < INFINITY));
    }
    report.exact += sources.len() as u64 - inexact;
    report.nan_out += nan;
    report.subnormal += subnormal;
    report.underflowed += underflowed;
    let saturated = if wraps { 0 } else { saturated };
    report.saturated += saturated;
    report.overflowed += beyond - saturated;
}
