//! What the second values of a tile lost of the first.

#![deny(unsafe_code)]

use super::outcome::Losses;
use crate::cpu::{Kernel, Level};
use crate::kernels::tile::Tile;
use crate::report::squares;

/// Counts and magnitudes of a tile. Columns of the squares' roots are filled in.
struct Counters<'a> {
    before: &'a [f64],
    after: &'a [f64],
    /// Values that are finite in both arrays, and zeros for others.
    roots: &'a mut [f64],
    /// The magnitudes of their differences.
    errors: &'a mut [f64],
    losses: &'a mut Losses,
}

/// What is found of a tile beside what is counted.
struct Largest {
    root: f64,
    error: f64,
    /// Whether a value is finite in the first array only.
    is_lost: bool,
}

impl Kernel for Counters<'_> {
    type Output = Largest;

    #[inline(always)]
    fn run(self) -> Largest {
        let Self { before, after, roots, errors, losses } = self;
        let report = &mut losses.report;
        let (mut largest, mut smallest) = (0.0, f64::INFINITY);
        let (mut root_largest, mut error_largest, mut quotient_largest) = (0.0, 0.0, 0.0);
        let (mut overflows, mut lost) = (false, 0);
        for (((&x, &y), root), error) in before.iter().zip(after).zip(&mut *roots).zip(&mut *errors) {
            let (size, is_known, is_finite) = (x.abs(), x.is_finite(), x.is_finite() & y.is_finite());
            report.exact += u64::from(x == y);
            report.underflowed += u64::from((y == 0.0) & (x != 0.0));
            report.nan_in += u64::from(x.is_nan());
            report.nan_out += u64::from(y.is_nan());
            report.inf_in += u64::from(size == f64::INFINITY);
            report.zero_in += u64::from(x == 0.0);
            lost += u64::from(is_known & !y.is_finite());
            losses.finite += u64::from(is_finite);
            losses.finite_equal += u64::from(is_finite & (x == y));
            largest = if is_known & (size > largest) { size } else { largest };
            smallest = if (size > 0.0) & (size < smallest) { size } else { smallest };
            let difference = (y - x).abs();
            // Of finite numbers: their difference may be beyond float64.
            overflows |= is_finite & (difference == f64::INFINITY);
            let is_summed = is_finite & (difference < f64::INFINITY);
            *root = if is_finite { x } else { 0.0 };
            *error = if is_summed { difference } else { 0.0 };
            root_largest = if root.abs() > root_largest { root.abs() } else { root_largest };
            error_largest = if *error > error_largest { *error } else { error_largest };
            let quotient = if *root == 0.0 { 0.0 } else { *error / root.abs() };
            quotient_largest = if quotient > quotient_largest { quotient } else { quotient_largest };
        }
        report.count += before.len() as u64;
        report.overflowed += lost;
        let is_lost = lost > 0;
        let limit = if is_lost | overflows { f64::INFINITY } else { 0.0 };
        report.max_abs_error = report.max_abs_error.max(error_largest).max(limit);
        report.max_rel_error = report.max_rel_error.max(quotient_largest).max(limit);
        report.amax = report.amax.max(largest);
        if smallest < f64::INFINITY && (report.amin_nonzero == 0.0 || smallest < report.amin_nonzero) {
            report.amin_nonzero = smallest;
        }
        Largest { root: root_largest, error: error_largest, is_lost }
    }
}

/// The columns of a tile, used again for all tiles.
#[derive(Default)]
pub(super) struct Room {
    roots: Tile<f64>,
    errors: Tile<f64>,
}

/// Adds a tile to the losses. Returns whether a value is finite in the first array only.
pub(super) fn add(level: Level, [before, after]: [&[f64]; 2], room: &mut Room, losses: &mut Losses) -> bool {
    let count = before.len();
    let Room { roots, errors } = room;
    let counters = Counters {
        before,
        after,
        roots: &mut roots.0[..count],
        errors: &mut errors.0[..count],
        losses: &mut *losses,
    };
    let Largest { root, error, is_lost } = level.run(counters);
    let padded = count.next_multiple_of(squares::LANES);
    let sums = [&mut losses.report.signal, &mut losses.report.noise];
    for ((sum, column), largest) in sums.into_iter().zip([roots, errors]).zip([root, error]) {
        column.0[count..padded].fill(0.0);
        squares::add_f64s(sum, level, &column.0[..padded], largest);
    }
    is_lost
}
