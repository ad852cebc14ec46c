//! What a tile lost, found in one pass over its values before and after, as float32.
//!
//! Squares are added in float32 within a strip, a lane at a time and in the order of a tree: beside that of the squares, the sum
//! of a lane has [`ROWS`]`.ilog2()` roundings. The lanes are widened to float64, in which strips are added; at the end, the upper
//! half of the lanes is added to the lower one until one is left. This order is the same at every level, and products and
//! sums are not fused. A sum is within 2^-21.6 of the exact one, and mostly within 2^-27.
//!
//! In binary, the root of the rounded square of a number is its magnitude, unless the square over- or underflows (Boldo,
//! "Stupid is as stupid does: taking the square root of the square of a floating-point number", 2015). So the extremes of
//! squares are those of magnitudes.

use super::squares::Values;
use crate::cpu::{Kernel, Level, RawKernel};
use crate::simd::{Conversions, Vector, with_vectors};

/// Lanes of a strip.
const LANES: usize = 16;

/// Elements of a lane of a strip.
const ROWS: usize = 16;

/// Elements of a strip. Columns are padded with zeros to a multiple of it.
pub(crate) const STRIP: usize = LANES * ROWS;

/// From here up to [`MOST`], squares neither over- nor underflow, nor do their sums.
const LEAST: f32 = power_of_two(-120);

/// The largest square: the sum of a tile of it is within float32.
const MOST: f32 = power_of_two(110);

/// From here on, squares that underflow do not change a sum with such a one by more than 2^-40 of it.
const LEAST_SUM: f32 = power_of_two(-96);

/// From such sources on, neither an error that is not zero nor its product with a relative error has a square that underflows:
/// a difference is at least 2^-25 of both numbers.
pub(crate) const LEAST_SOURCE: f32 = power_of_two(-37);

const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << (f32::MANTISSA_DIGITS - 1))
}

/// What is found of a tile. If a number is NaN or infinite, so is one of the sums, and nothing else means anything.
#[derive(Default)]
pub(crate) struct TileLosses {
    /// The sums of the squares of sources and of errors.
    signal: f64,
    noise: f64,
    /// The largest and the smallest square of a source.
    most: f32,
    least: f32,
    /// The largest square of an error.
    error: f32,
    /// How many errors are zero.
    pub(crate) equal: u32,
    /// Whether a relative error may exceed the one whose square was given, if no source but zero is below [`LEAST_SOURCE`].
    pub(crate) may_exceed: bool,
}

impl TileLosses {
    /// Finds it, given the sources and the results, and a number near the square of the largest relative error before.
    pub(crate) fn find(&mut self, level: Level, columns: &[Values; 2], ratio: f32) {
        let count = columns[0].count();
        assert!(count.is_multiple_of(STRIP) && columns[1].count() == count, "both columns are padded");
        let (are_equal, losses) = (columns[0].pointer() == columns[1].pointer(), &mut *self);
        // SAFETY: the vectors are there, so their features are.
        let is_found = with_vectors!(level, vectors: V => unsafe {
            if are_equal {
                vectors.run(VectorPass::<V, true> { columns, ratio, losses, _vectors: vectors });
            } else {
                vectors.run(VectorPass::<V, false> { columns, ratio, losses, _vectors: vectors });
            }
        });
        if is_found.is_none() {
            level.run(Pass { columns, ratio, losses: self });
        }
    }

    /// Returns whether all numbers are finite, and so are their squares.
    fn are_finite(&self) -> bool {
        self.signal.is_finite() && self.noise.is_finite()
    }

    /// Returns the smallest and the largest magnitude of the sources, unless one is zero or squares do not tell it.
    pub(crate) fn extremes(&self) -> Option<[f32; 2]> {
        let are_told = self.are_finite() && self.least >= LEAST && self.most <= MOST;
        are_told.then(|| [self.least, self.most].map(f32::sqrt))
    }

    /// Returns the largest magnitude of an error, unless its square does not tell it.
    pub(crate) fn largest_error(&self) -> Option<f32> {
        (self.noise.is_finite() && (LEAST..=MOST).contains(&self.error)).then(|| self.error.sqrt())
    }

    /// Returns the sum of the squares of the sources, unless they over- or underflow.
    pub(crate) fn signal(&self) -> Option<f64> {
        (self.signal.is_finite() && (LEAST_SUM..=MOST).contains(&self.most)).then_some(self.signal)
    }

    /// Returns the sum of the squares of the errors, unless they over- or underflow.
    pub(crate) fn noise(&self) -> Option<f64> {
        (self.noise.is_finite() && (LEAST_SUM..=MOST).contains(&self.error)).then_some(self.noise)
    }
}

/// Adds the upper half of lanes to the lower one until one is left.
fn add_up(mut lanes: [f64; LANES]) -> f64 {
    let mut count = LANES;
    while count > 1 {
        count /= 2;
        for lane in 0..count {
            lanes[lane] += lanes[lane + count];
        }
    }
    lanes[0]
}

/// Adds the sum of a pair of rows to those of the pairs before, in the order of a tree.
///
/// # Safety
/// The features of the vectors.
#[inline(always)]
unsafe fn add_row<V: Vector>(sums: &mut [V::F32s], mut row: V::F32s, pair: usize) {
    let whole = pair.trailing_ones() as usize;
    for &sum in &sums[..whole] {
        // SAFETY: the caller's promise.
        row = unsafe { V::sum(sum, row) };
    }
    sums[whole] = row;
}

/// The pass in registers; `EQUAL` columns have no errors.
struct VectorPass<'a, V, const EQUAL: bool> {
    columns: &'a [Values; 2],
    ratio: f32,
    losses: &'a mut TileLosses,
    /// Their features are there.
    _vectors: V,
}

impl<V: Conversions, const EQUAL: bool> RawKernel for VectorPass<'_, V, EQUAL> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { columns: [sources, results], ratio, losses, .. } = self;
        let width = V::BYTES / size_of::<f32>();
        // SAFETY: the vectors are there, so the level's features are. Both columns are whole strips, whose lanes are a multiple
        // of the width of a register.
        unsafe {
            let [zero, ratio, top] =
                [0.0, -ratio, f32::MAX].map(|number: f32| V::from_bits(V::splat32(number.to_bits())));
            let (mut most, mut least, mut error, mut excess) = (zero, top, zero, zero);
            let mut equal = V::splat32(0);
            // As many of these as there are lanes are in use.
            let (mut signal, mut noise) = ([V::splat32(0); LANES / 2], [V::splat32(0); LANES / 2]);
            for start in (0..sources.count()).step_by(STRIP) {
                for lane in (0..LANES).step_by(width) {
                    // Sums of 2, 4 and more rows, until as many more are there.
                    let (mut squares, mut errors) =
                        ([zero; ROWS.ilog2() as usize], [zero; ROWS.ilog2() as usize]);
                    for pair in 0..ROWS / 2 {
                        let place = start + 2 * pair * LANES + lane;
                        let load = |column: &Values, row: usize| {
                            V::from_bits(V::load(column.pointer().add(place + row * LANES).cast()))
                        };
                        // Pairs first, as each extreme waits for the one before.
                        let [x, next_x] = [load(sources, 0), load(sources, 1)];
                        let [p, next_p] = [V::product(x, x), V::product(next_x, next_x)];
                        most = V::larger(V::larger(p, next_p), most);
                        least = V::smaller(V::smaller(p, next_p), least);
                        add_row::<V>(&mut squares, V::sum(p, next_p), pair);
                        if EQUAL {
                            continue;
                        }
                        let e = V::difference(load(results, 0), x);
                        let next_e = V::difference(load(results, 1), next_x);
                        let [q, next_q] = [V::product(e, e), V::product(next_e, next_e)];
                        error = V::larger(V::larger(q, next_q), error);
                        equal = V::count_zeros(V::count_zeros(equal, e), next_e);
                        // Fused, as no bit of the result depends on it.
                        let more =
                            V::larger(V::product_sum(ratio, p, q), V::product_sum(ratio, next_p, next_q));
                        excess = V::larger(more, excess);
                        add_row::<V>(&mut errors, V::sum(q, next_q), pair);
                    }
                    let pair = 2 * lane / width;
                    for (sums, rows) in [(&mut signal, squares), (&mut noise, errors)] {
                        let [low, high] = V::to_f64(rows[rows.len() - 1]);
                        sums[pair] = V::sum_f64(sums[pair], low);
                        sums[pair + 1] = V::sum_f64(sums[pair + 1], high);
                    }
                }
            }
            [losses.signal, losses.noise] = [signal, noise].map(|sums| {
                let mut lanes = [0.0; LANES];
                for (lanes, register) in lanes.chunks_exact_mut(width / 2).zip(sums) {
                    V::store(lanes.as_mut_ptr().cast(), register);
                }
                add_up(lanes)
            });
            let mut counts = [0u32; LANES];
            V::store(counts.as_mut_ptr().cast(), equal);
            let [most, error, excess] = [most, error, excess].map(|lanes| V::most32(V::bits(lanes)));
            losses.most = f32::from_bits(most);
            losses.least = f32::from_bits(V::least32(V::bits(least)));
            losses.error = f32::from_bits(error);
            losses.equal = if EQUAL { sources.count() as u32 } else { counts.iter().sum() };
            losses.may_exceed = excess > 0;
        }
    }
}

/// The same pass without registers.
struct Pass<'a> {
    columns: &'a [Values; 2],
    ratio: f32,
    losses: &'a mut TileLosses,
}

impl Kernel for Pass<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { columns: [sources, results], ratio, losses } = self;
        let (mut most, mut least, mut error) = (0, u32::MAX, 0);
        let (mut equal, mut may_exceed) = (0, false);
        let (mut signal, mut noise) = ([0.0; LANES], [0.0; LANES]);
        assert!(sources.count() == results.count());
        for start in (0..sources.count()).step_by(STRIP) {
            for lane in 0..LANES {
                let (mut squares, mut errors) = ([0.0; ROWS], [0.0; ROWS]);
                for row in 0..ROWS {
                    let place = start + row * LANES + lane;
                    // SAFETY: columns are whole strips.
                    let (x, y) = unsafe { (sources.get(place), results.get(place)) };
                    let difference = y - x;
                    let (p, q) = (x * x, difference * difference);
                    most = p.to_bits().max(most);
                    least = p.to_bits().min(least);
                    error = q.to_bits().max(error);
                    equal += u32::from(difference == 0.0);
                    may_exceed |= q - ratio * p > 0.0;
                    (squares[row], errors[row]) = (p, q);
                }
                for (sums, mut rows) in [(&mut signal, squares), (&mut noise, errors)] {
                    let mut count = ROWS;
                    while count > 1 {
                        count /= 2;
                        for row in 0..count {
                            rows[row] = rows[2 * row] + rows[2 * row + 1];
                        }
                    }
                    sums[lane] += f64::from(rows[0]);
                }
            }
        }
        let [signal, noise] = [signal, noise].map(add_up);
        let [most, least, error] = [most, least, error].map(f32::from_bits);
        *losses = TileLosses { signal, noise, most, least, error, equal, may_exceed };
    }
}
