//! What the second values of a tile lost of the first.

#![deny(unsafe_code)]

use super::outcome::Losses;
use crate::cpu::{InstructionSet, Kernel, Level};
use crate::kernels::tile::Tile;
use crate::report::squares;

/// Counts and magnitudes of a tile. Columns of the squares' roots are filled in.
///
/// Magnitudes are compared as the bits of their floats, and counts are apart from the losses: compilers vectorize neither
/// extremes of floats nor sums in memory. With `FUSED` multiply-add elements are divided only where a relative error may
/// exceed the largest before; with `RESTS` what float64 does not hold of integers counts.
struct Counters<'a, const FUSED: bool, const RESTS: bool> {
    before: &'a [f64],
    after: &'a [f64],
    rests: [&'a [f64]; 2],
    /// Values that are finite in both arrays, and zeros for others.
    roots: &'a mut [f64],
    /// The magnitudes of their differences.
    errors: &'a mut [f64],
    /// Room for these relative to the values.
    quotients: &'a mut [f64],
    /// The largest of these before.
    known: f64,
    /// Whether elements are counted, and the extremes found, beside what is summed.
    counts: bool,
    losses: &'a mut Losses,
}

/// What is found of a tile beside what is counted.
struct Largest {
    root: f64,
    error: f64,
    quotient: f64,
    /// Whether a value is finite in the first array only.
    is_lost: bool,
}

/// Bits of a number below which the errors of fused multiply-add may underflow.
const TINY: u64 = f64::to_bits(1e-280);

/// The bits of infinity, above which NaN are.
const INFINITY: i64 = f64::INFINITY.to_bits() as i64;

/// Returns the bits of a magnitude.
#[inline(always)]
fn bits(value: f64) -> i64 {
    value.abs().to_bits() as i64
}

#[inline]
fn number(bits: i64) -> f64 {
    f64::from_bits(bits as u64)
}

impl<const FUSED: bool, const RESTS: bool> Kernel for Counters<'_, FUSED, RESTS> {
    type Output = Largest;

    #[inline(always)]
    fn run(self) -> Largest {
        let Self { before, after, rests: [r, s], roots, errors, quotients, known, counts, losses } = self;
        let rest = |(r, s): (&f64, &f64)| if RESTS { s - r } else { 0.0 };
        let report = &mut losses.report;
        let (mut exact, mut zeroed, mut nan, mut nan_after, mut infinite, mut zeros) = (0, 0, 0, 0, 0, 0);
        let (mut finite, mut equal) = (0, 0);
        let counted = if counts { before } else { &[] };
        for ((&x, &y), rests) in counted.iter().zip(after).zip(r.iter().zip(s)) {
            let is_equal = (x == y) & (rest(rests) == 0.0);
            let (from, to) = (bits(x), bits(y));
            let is_finite = (from < INFINITY) & (to < INFINITY);
            exact += u64::from(is_equal);
            zeroed += u64::from((to == 0) & (from != 0));
            nan += u64::from(from > INFINITY);
            nan_after += u64::from(to > INFINITY);
            infinite += u64::from(from == INFINITY);
            zeros += u64::from(from == 0);
            finite += u64::from(is_finite);
            equal += u64::from(is_finite & is_equal);
        }
        let (mut root_largest, mut error_largest, mut overflows, mut lost) = (0, 0, 0, 0);
        let mut excess = 0;
        let columns = before.iter().zip(after).zip(r.iter().zip(s)).zip(&mut *roots).zip(&mut *errors);
        for ((((&x, &y), rests), root), error) in columns {
            let is_finite = (bits(x) < INFINITY) & (bits(y) < INFINITY);
            let difference = ((y - x) + rest(rests)).abs();
            // Of finite numbers: their difference may be beyond float64.
            let is_summed = is_finite & (bits(difference) < INFINITY);
            overflows |= u64::from(is_finite & !is_summed);
            lost += u64::from((bits(x) < INFINITY) & (bits(y) >= INFINITY));
            *root = if is_finite { x } else { 0.0 };
            *error = if is_summed { difference } else { 0.0 };
            root_largest = bits(*root).max(root_largest);
            error_largest = bits(*error).max(error_largest);
            if FUSED {
                // Its sign is right, but for the tiny. As integers, the bits of floats keep it.
                let more = (-known).mul_add(root.abs(), *error).to_bits() as i64;
                let is_tiny = error.to_bits().wrapping_sub(1) < TINY;
                excess = more.max(i64::from(is_tiny)).max(excess);
            }
        }
        let mut quotient_largest = 0;
        if !FUSED || excess > 0 || overflows != 0 {
            for ((&root, &error), quotient) in roots.iter().zip(&*errors).zip(&mut *quotients) {
                *quotient = if root == 0.0 { 0.0 } else { (error / root).abs() };
            }
            if overflows != 0 {
                // The quarters of finite numbers do not differ by more than float64 holds.
                for ((&x, &y), quotient) in before.iter().zip(after).zip(&mut *quotients) {
                    if x.is_finite() && y.is_finite() && (y - x).is_infinite() {
                        *quotient = ((y / 4.0 - x / 4.0) / (x / 4.0)).abs();
                    }
                }
            }
            quotient_largest = quotients.iter().fold(0, |most, &quotient| bits(quotient).max(most));
        }
        // Less one, zero wraps to the largest number; less infinity, finite ones are above all others. A loop, as `fold` may
        // be a function of its own, which has not the features of the level.
        let (mut least, mut most) = (u64::MAX, 0);
        for x in counted.iter().map(|&x| bits(x)) {
            least = (x.wrapping_sub(1) as u64).min(least);
            most = (x.wrapping_sub(INFINITY) as u64).max(most);
        }
        let [smallest, largest] =
            [least.wrapping_add(1), most.wrapping_add(INFINITY as u64)].map(|x| x as i64);
        losses.finite += finite;
        losses.finite_equal += equal;
        report.count += counted.len() as u64;
        report.exact += exact;
        report.overflowed += lost;
        report.underflowed += zeroed;
        report.nan_in += nan;
        report.nan_out += nan_after;
        report.inf_in += infinite;
        report.zero_in += zeros;
        let is_lost = lost > 0;
        let limit = if is_lost || overflows != 0 { f64::INFINITY } else { 0.0 };
        report.max_abs_error = report.max_abs_error.max(number(error_largest)).max(limit);
        report.max_rel_error = report.max_rel_error.max(number(quotient_largest)).max(limit);
        let [smallest, largest] = [smallest, largest].map(|x| if x < INFINITY { number(x) } else { 0.0 });
        report.amax = report.amax.max(largest);
        if smallest > 0.0 && (report.amin_nonzero == 0.0 || smallest < report.amin_nonzero) {
            report.amin_nonzero = smallest;
        }
        let [root, error, quotient] = [root_largest, error_largest, quotient_largest].map(number);
        Largest { root, error, quotient, is_lost }
    }
}

/// The columns of a tile, used again for all tiles.
#[derive(Default)]
pub(super) struct Room {
    roots: Box<Tile<f64>>,
    errors: Box<Tile<f64>>,
    /// Errors over values, where one may exceed the largest that was known.
    pub(super) quotients: Box<Tile<f64>>,
}

/// A tile whose losses are added.
pub(super) struct LossTile<'a> {
    pub(super) before: &'a [f64],
    pub(super) after: &'a [f64],
    /// What float64 does not hold of integers; None for formats without such numbers.
    pub(super) rests: Option<[&'a [f64]; 2]>,
    /// The largest relative error before.
    pub(super) known: f64,
    /// Whether elements are counted, too.
    pub(super) counts: bool,
    /// Whether squares are rounded to the precision of float32.
    pub(super) rounds: bool,
}

/// Adds a tile to the losses. Returns whether a value is finite in the first array only, and the largest relative error, if
/// that exceeds the one before.
pub(super) fn add(
    level: Level,
    tile: &LossTile<'_>,
    room: &mut Room,
    losses: &mut Losses,
) -> (bool, Option<f64>) {
    let count = tile.before.len();
    let Largest { root, error, quotient, is_lost } = match tile.rests {
        Some(_) => count_losses::<false, true>(level, tile, room, losses),
        None if level.set() >= InstructionSet::Neon => count_losses::<true, false>(level, tile, room, losses),
        None => count_losses::<false, false>(level, tile, room, losses),
    };
    let padded = count.next_multiple_of(squares::LANES);
    let sums = [&mut losses.report.signal, &mut losses.report.noise];
    let columns = [&mut room.roots.0, &mut room.errors.0];
    for ((sum, column), largest) in sums.into_iter().zip(columns).zip([root, error]) {
        column[count..padded].fill(0.0);
        squares::add_f64s(sum, level, &column[..padded], largest, tile.rounds);
    }
    (is_lost, Some(quotient).filter(|&quotient| quotient > tile.known))
}

fn count_losses<const FUSED: bool, const RESTS: bool>(
    level: Level,
    tile: &LossTile<'_>,
    room: &mut Room,
    losses: &mut Losses,
) -> Largest {
    let &LossTile { before, after, rests, known, counts, .. } = tile;
    let count = before.len();
    level.run(Counters::<FUSED, RESTS> {
        before,
        after,
        rests: rests.unwrap_or([before, after]),
        roots: &mut room.roots.0[..count],
        errors: &mut room.errors.0[..count],
        quotients: &mut room.quotients.0[..count],
        known,
        counts,
        losses,
    })
}
