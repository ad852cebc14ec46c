//! Exact sums of the squares of a tile's sources and of its errors, in one pass.

use super::squares::{Bounds, DEPTH, EXACT, LANES, Values, power_of_two, sum_of, take, units};
use super::whole_squares;
use crate::cpu::{Kernel, Level};
use crate::square_sum::SquareSum;

/// Sources and results as float32, and what is known about them. Their differences are float32, too.
pub(super) struct Lossy {
    pub(super) sources: Values,
    pub(super) results: Values,
    /// Of sources and of errors.
    pub(super) bounds: [Bounds; 2],
    /// Results are multiples of two to this; they are not above the sources' bound.
    pub(super) grid: i32,
}

/// Adds sources and errors, of which there are some, to the sums.
///
/// The square of a source is that of its result, less twice the result's product with the error, and the error's square.
/// Results have few bits, so products need one sum each.
pub(super) fn add(signal: &mut SquareSum, noise: &mut SquareSum, level: Level, tile: &Lossy) {
    if whole_squares::add_both(signal, noise, level, tile) {
        return;
    }
    let [roots, errors] = tile.bounds;
    let results = Bounds { above: roots.above, unit: 2 * tile.grid };
    let distance = 2 * tile.grid - errors.unit;
    let products = roots.above + errors.above + DEPTH <= tile.grid + errors.unit / 2 + EXACT;
    if results.is_narrow() && products && (0..=60).contains(&distance) && errors.is_wide() {
        let sums = if errors.is_narrow() {
            add_both::<true, true>(level, tile)
        } else {
            add_both::<true, false>(level, tile)
        };
        let lost = errors.join(sums[2], sums[3]);
        let kept = (i128::from(sums[0]) << distance) - (i128::from(sums[1]) << (distance / 2 + 1));
        signal.add((kept + lost) as u128, errors.unit);
        noise.add(lost as u128, errors.unit);
    } else if roots.is_wide() && errors.is_wide() {
        let sums = add_both::<false, false>(level, tile);
        signal.add(roots.join(sums[0], sums[1]) as u128, roots.unit);
        noise.add(errors.join(sums[2], sums[3]) as u128, errors.unit);
    } else {
        for i in 0..tile.sources.count() {
            let (source, result) = (tile.sources.get(i), tile.results.get(i));
            signal.add_square_of(f64::from(source));
            noise.add_square_of(f64::from(result - source));
        }
    }
}

fn add_both<const PRODUCTS: bool, const NARROW: bool>(level: Level, tile: &Lossy) -> [i64; 4] {
    let [(mut start, mut scales), (start_lost, scales_lost)] = tile.bounds.map(Bounds::constants);
    if PRODUCTS {
        (start, scales) = (0.0, [-2 * tile.grid, -tile.grid - tile.bounds[1].unit / 2].map(power_of_two));
    }
    let starts = [start, if NARROW { 0.0 } else { start_lost }];
    let scales = [scales, scales_lost];
    if level >= Level::Neon {
        level.run(Both::<'_, PRODUCTS, NARROW, true> { tile, starts, scales })
    } else {
        level.run(Both::<'_, PRODUCTS, NARROW, false> { tile, starts, scales })
    }
}

/// Two sums of sources, or with `PRODUCTS` those of results' squares and of their products with errors; and those of
/// errors, of which the first is not needed if they are `NARROW`.
struct Both<'a, const PRODUCTS: bool, const NARROW: bool, const FUSED: bool> {
    tile: &'a Lossy,
    starts: [f64; 2],
    scales: [[f64; 2]; 2],
}

impl<const PRODUCTS: bool, const NARROW: bool, const FUSED: bool> Kernel
    for Both<'_, PRODUCTS, NARROW, FUSED>
{
    type Output = [i64; 4];

    #[inline(always)]
    fn run(self) -> [i64; 4] {
        let Self { tile, starts, scales } = self;
        let (sources, results) = (tile.sources, tile.results);
        let (mut first, mut second) = ([starts[0]; LANES], [0.0; LANES]);
        let (mut first_lost, mut second_lost) = ([starts[1]; LANES], [0.0; LANES]);
        let mut add = |lane: usize, source: f32, result: f32| {
            let error = f64::from(result - source);
            if PRODUCTS {
                let result = f64::from(result);
                first[lane] = sum_of::<FUSED>(result, result, first[lane]);
                second[lane] = sum_of::<FUSED>(result, error, second[lane]);
            } else {
                take::<true, FUSED>(f64::from(source), &mut first[lane], &mut second[lane]);
            }
            if NARROW {
                take::<false, FUSED>(error, &mut first_lost[lane], &mut second_lost[lane]);
            } else {
                take::<true, FUSED>(error, &mut first_lost[lane], &mut second_lost[lane]);
            }
        };
        for i in (0..sources.count()).step_by(LANES) {
            for lane in 0..LANES {
                add(lane, sources.get(i + lane), results.get(i + lane));
            }
        }
        [
            units(&first, starts[0], scales[0][0]),
            units(&second, 0.0, scales[0][1]),
            units(&first_lost, starts[1], scales[1][0]),
            units(&second_lost, 0.0, scales[1][1]),
        ]
    }
}
