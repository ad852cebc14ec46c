//! Exact sums of the squares of a tile as sums of integers, on levels with the multiplications for it.
//!
//! Times a power of two, the roots of most tiles are integers of few bits:
//! * up to [`NARROW`] bits they are multiplied as lanes of 32 bits, two of which share a lane of 64;
//! * so are results and errors where sources have more bits than that: the square of a source is that of its result, less
//!   twice the result's product with the error, and the error's square;
//! * up to [`WIDE`] bits they are multiplied as lanes of 64 bits.
//!
//! What is still wider is for [`super::squares`].

use std::marker::PhantomData;

use super::squares::{Bounds, Values};
use super::squares_of_both::Lossy;
use crate::cast::TILE;
use crate::cpu::{Kernel, Level};
use crate::simd::{Vector, WholeProducts, with_whole_products};
use crate::square_sum::SquareSum;

/// So many squares of these bits, and their sum, fit into a lane.
const NARROW: i32 = (u64::BITS as i32 - LANE_SUMS) / 2;

/// The same of products, which have a sign.
const PRODUCTS: i32 = i64::BITS as i32 - 1 - LANE_SUMS;

/// Bits that one multiplication takes.
const WIDE: i32 = 52;

/// Squares that a lane of 64 bits adds up, as an exponent, in the shortest registers that there are for it.
const LANE_SUMS: i32 = (TILE / 16).ilog2() as i32;

/// Exponents of factors that float32 has.
const FACTORS: std::ops::RangeInclusive<i32> = -126..=127;

/// Roots that are multiples of two to `grid`, and how many bits that makes.
#[derive(Clone, Copy)]
struct Roots {
    grid: i32,
    bits: i32,
}

impl Roots {
    fn of(bounds: Bounds) -> Self {
        // Squares of float32 are not rounded, so that their unit is that of the roots.
        let grid = bounds.unit / 2;
        Self { grid, bits: bounds.above - grid }
    }

    /// What makes integers of them.
    fn factor(self) -> f32 {
        f32::from_bits(((127 - self.grid) as u32) << (f32::MANTISSA_DIGITS - 1))
    }

    fn has_factor(self) -> bool {
        FACTORS.contains(&-self.grid)
    }
}

/// Adds the squares of singles to a sum, if there is a way here. Returns whether there is.
pub(super) fn add_singles(sum: &mut SquareSum, level: Level, singles: Values, bounds: Bounds) -> bool {
    let roots = Roots::of(bounds);
    let found = if roots.bits <= NARROW {
        run::<false, ALONE>(level, [singles; 2], [roots; 2])
    } else {
        run::<true, ALONE>(level, [singles; 2], [roots; 2])
    };
    let Some([squares, ..]) = found else { return false };
    sum.add(squares as u128, 2 * roots.grid);
    true
}

/// Adds sources and errors of a tile to the sums, if there is a way here. Returns whether there is.
pub(super) fn add_both(signal: &mut SquareSum, noise: &mut SquareSum, level: Level, tile: &Lossy) -> bool {
    let columns = [tile.sources, tile.results];
    let [sources, errors] = tile.bounds.map(Roots::of);
    // Results may be rounded up to the bound itself.
    let results = Roots { grid: tile.grid, bits: tile.bounds[0].above - tile.grid + 1 };
    let distance = results.grid - errors.grid;
    let are_narrow = |first: Roots| first.bits.max(errors.bits) <= NARROW;
    if are_narrow(results) && !are_narrow(sources) && results.bits + errors.bits <= PRODUCTS && distance >= 0
    {
        let found = run::<false, RESULTS>(level, columns, [results, errors]);
        let Some([kept, lost, products]) = found else { return false };
        let kept = (kept << (2 * distance)) - (products << (distance + 1));
        signal.add((kept + lost) as u128, 2 * errors.grid);
        noise.add(lost as u128, 2 * errors.grid);
        return true;
    }
    let found = if are_narrow(sources) {
        run::<false, SOURCES>(level, columns, [sources, errors])
    } else {
        run::<true, SOURCES>(level, columns, [sources, errors])
    };
    let Some([kept, lost, _]) = found else { return false };
    signal.add(kept as u128, 2 * sources.grid);
    noise.add(lost as u128, 2 * errors.grid);
    true
}

/// The sums of one of the kinds of [`Sums`]; `None` where there is no way here.
fn run<const IS_WIDE: bool, const KIND: u8>(
    level: Level,
    columns: [Values; 2],
    roots: [Roots; 2],
) -> Option<[i128; 3]> {
    if roots.iter().any(|roots| !roots.has_factor() || roots.bits > if IS_WIDE { WIDE } else { NARROW }) {
        return None;
    }
    let [sources, results] = columns;
    let factors = roots.map(Roots::factor);
    // SAFETY: the vectors of a level that is in use, and so available.
    with_whole_products!(level, V => unsafe {
        V::run(Sums::<V, IS_WIDE, KIND> { sources, results, factors, vectors: PhantomData })
    })
}

/// Sums of squares of sources alone,
const ALONE: u8 = 0;
/// of sources and errors,
const SOURCES: u8 = 1;
/// or of results and errors, and of their products.
const RESULTS: u8 = 2;

/// The sums of a tile.
struct Sums<V, const IS_WIDE: bool, const KIND: u8> {
    sources: Values,
    results: Values,
    /// What makes integers of sources or results, and of errors.
    factors: [f32; 2],
    vectors: PhantomData<V>,
}

impl<V: WholeProducts, const IS_WIDE: bool, const KIND: u8> Kernel for Sums<V, IS_WIDE, KIND> {
    /// Of the first squares, those of errors, and products.
    type Output = [i128; 3];

    #[inline(always)]
    fn run(self) -> [i128; 3] {
        let Self { sources, results, factors, .. } = self;
        // SAFETY: `run` has chosen vectors of a level that is available; both columns have as many values, a multiple
        // of those of a register.
        unsafe {
            let factors = [V::splat32(factors[0].to_bits()), V::splat32(factors[1].to_bits())];
            let mut sums = [[V::splat8(0); 4]; 3];
            for start in (0..sources.count()).step_by(V::BYTES / size_of::<f32>()) {
                let source = V::singles(V::load(sources.at_place(start)));
                let result =
                    if KIND == ALONE { source } else { V::singles(V::load(results.at_place(start))) };
                let error = V::difference(result, source);
                let first = V::product(if KIND == RESULTS { result } else { source }, V::singles(factors[0]));
                let error = V::product(error, V::singles(factors[1]));
                if IS_WIDE {
                    add_wide::<V>(&mut sums[0], first);
                    if KIND != ALONE {
                        add_wide::<V>(&mut sums[1], error);
                    }
                } else {
                    let first = V::whole32(first);
                    add_narrow::<V>(&mut sums[0], first, first);
                    if KIND != ALONE {
                        let error = V::whole32(error);
                        add_narrow::<V>(&mut sums[1], error, error);
                        if KIND == RESULTS {
                            add_narrow::<V>(&mut sums[2], first, error);
                        }
                    }
                }
            }
            [
                total::<V, IS_WIDE, false>(sums[0]),
                total::<V, IS_WIDE, false>(sums[1]),
                total::<V, IS_WIDE, true>(sums[2]),
            ]
        }
    }
}

/// Adds products of lanes of 32 bits: of the even ones to the first sum, of the odd ones to the second.
///
/// # Safety
/// The vectors' level.
#[inline(always)]
unsafe fn add_narrow<V: WholeProducts>(sums: &mut [V::Integers; 4], a: V::Integers, b: V::Integers) {
    // SAFETY: the caller's promise.
    unsafe {
        sums[0] = V::add_products32(sums[0], a, b);
        sums[1] = V::add_products32(sums[1], V::odd32(a), V::odd32(b));
    }
}

/// Adds squares: the lower 52 bits of each to the first two sums, the rest to the others.
///
/// # Safety
/// The vectors' level.
#[inline(always)]
unsafe fn add_wide<V: WholeProducts>(sums: &mut [V::Integers; 4], roots: V::Singles) {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitudes = V::singles(V::and(V::bits(roots), V::splat32(u32::MAX >> 1)));
        let [a, b] = V::whole64(magnitudes);
        sums[0] = V::add_low52(sums[0], a, a);
        sums[1] = V::add_low52(sums[1], b, b);
        sums[2] = V::add_high52(sums[2], a, a);
        sums[3] = V::add_high52(sums[3], b, b);
    }
}

/// All lanes of sums together.
///
/// # Safety
/// The vectors' level.
#[inline(always)]
unsafe fn total<V: WholeProducts, const IS_WIDE: bool, const SIGNED: bool>(sums: [V::Integers; 4]) -> i128 {
    let lanes = V::BYTES / size_of::<u64>();
    let mut room = [0u64; 8];
    let mut whole = 0;
    for (place, sum) in sums.into_iter().enumerate().take(if IS_WIDE { 4 } else { 2 }) {
        // SAFETY: the caller's promise, and room for the longest registers.
        unsafe { V::store(room.as_mut_ptr().cast(), sum) };
        let widen = |lane: &u64| if SIGNED { i128::from(*lane as i64) } else { i128::from(*lane) };
        let part: i128 = room[..lanes].iter().map(widen).sum();
        whole += part << if place < 2 { 0 } else { WIDE };
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::super::squares::exponent_of;
    use super::*;

    /// Numbers of either sign from two to `-range` on to 8, of so many bits.
    fn numbers(range: u32, bits: u32) -> Vec<f32> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let number = |_| {
            let significand = (1 << 23 | next() >> 1) >> (24 - bits) << (24 - bits);
            let exponent = 127 - range + next() % (range + 3);
            f32::from_bits((next() & 1) << 31 | exponent << 23 | (significand & ((1 << 23) - 1)))
        };
        (0..TILE).map(number).collect()
    }

    fn sum_of(roots: impl Iterator<Item = f32>) -> SquareSum {
        let mut sum = SquareSum::default();
        roots.for_each(|root| sum.add_square_of(f64::from(root)));
        sum
    }

    #[test]
    fn sums_are_those_of_single_squares() {
        for (range, bits, kept) in
            [(5, 8, 4), (20, 8, 3), (12, 24, 8), (10, 24, 11), (26, 24, 3), (40, 24, 8)]
        {
            let sources = numbers(range, bits);
            let results: Vec<f32> = sources
                .iter()
                .map(|x| f32::from_bits((x.to_bits() + (1 << (23 - kept))) >> (24 - kept) << (24 - kept)))
                .collect();
            let errors = || sources.iter().zip(&results).map(|(x, y)| y - x);
            let grid = 1 - range as i32 - bits as i32;
            let result_grid = 1 - range as i32 - kept;
            let largest = errors().fold(0f32, |most, error| most.max(error.abs()));
            let bounds = [8.0, f64::from(largest)].map(|most| Bounds::new(0.0, most, grid));
            assert!(exponent_of(f64::from(largest)) < 3);
            // SAFETY: as many as there are, which outlive the columns.
            let [x, y] = [&sources, &results].map(|column| unsafe { Values::new(column.as_ptr(), TILE) });
            for level in Level::available() {
                let has_way = level == Level::Avx512 && bounds[0].above - grid <= WIDE;
                let mut signal = SquareSum::default();
                assert_eq!(add_singles(&mut signal, level, x, bounds[0]), has_way);
                let tile = Lossy { sources: x, results: y, bounds, grid: result_grid };
                let mut both = [(); 2].map(|()| SquareSum::default());
                let [first, second] = &mut both;
                assert_eq!(add_both(first, second, level, &tile), has_way);
                if has_way {
                    let wanted = sum_of(sources.iter().copied());
                    assert_eq!(
                        (&signal, &both),
                        (&wanted, &[wanted.clone(), sum_of(errors())]),
                        "{range} {bits}"
                    );
                }
            }
        }
    }
}
