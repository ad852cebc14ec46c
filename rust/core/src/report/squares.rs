//! Sums of the squares of a tile.
//!
//! Columns of float32 are added in float64: element `i` to lane `i % LANES`, and then the upper half of the lanes to the
//! lower one until one is left. This order is the same at every level, and squares of float32 are exact in float64, so a
//! fused multiply-add changes no bit. A lane adds up 32 squares: the sum is within 2^-48 of the exact one.
//!
//! Columns of float64 are added exactly, a band of binades at a time, as squares may differ by the range of float64. Each
//! lane has two sums. The first starts at a power of two large enough that its exponent never changes, so it absorbs each
//! square rounded to its last place; the second takes the remainders. As no exponent changes, the bits of a sum less those
//! of its start are its increase in units of its last place.

use super::square_sum::{LOWEST, SquareSum};
use crate::cpu::{Kernel, Level, RawKernel};
use crate::kernels::tile::{TILE, Tile};
use crate::simd::{Conversions, Vector, with_vectors};

/// Lanes of a sum of float32. Columns are padded to a multiple of it, so that loops have no remainder.
pub(crate) const LANES: usize = 32;

/// Lanes of the exact sums: as many as there are registers for.
const PAIRS: usize = 16;

/// The binary logarithm of the squares that a lane of an exact sum adds up.
const DEPTH: i32 = (TILE / PAIRS).ilog2() as i32;

/// Bits of the significand of float64, without the first.
const FRACTION: i32 = f64::MANTISSA_DIGITS as i32 - 1;

/// Binades of a band: as many as a second sum holds the remainders of, from its start, in the middle between two powers of
/// two, to the next of these.
const BINADES: i32 = FRACTION / 2 - DEPTH;

/// Returns the exponent of a positive number: it is at least two to this power. All subnormals get the smallest one's.
pub(crate) fn exponent_of(value: f64) -> i32 {
    let field = (value.to_bits() >> FRACTION) as i32;
    if field == 0 { 1 - 1023 - FRACTION } else { field - 1023 }
}

/// Returns two to an exponent of a normal float64; `powi` is a loop, and as slow as a pass over a tile.
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << FRACTION)
}

/// Float32 in memory, padded with zeros to a multiple of [`LANES`]: a remainder loop would keep the compiler from
/// holding sums in registers.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pointer: *const f32,
    count: usize,
}

impl Values {
    /// # Safety
    /// So many, a multiple of [`LANES`], are readable at the pointer for as long as the column is in use.
    pub(crate) unsafe fn new(pointer: *const f32, count: usize) -> Self {
        Self { pointer, count }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn pointer(&self) -> *const f32 {
        self.pointer
    }

    /// # Safety
    /// The index is below the count.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, index: usize) -> f32 {
        debug_assert!(index < self.count);
        // SAFETY: the caller's promise, and that of `new`'s.
        unsafe { self.pointer.add(index).read_unaligned() }
    }
}

/// Adds the squares of a column of float32 to a sum; `largest` is the largest magnitude, not zero, and all are multiples of
/// two to `grid`. An exact sum is asked for where the elements may be added in other tiles or otherwise.
pub(crate) fn add_f32s(
    sum: &mut SquareSum,
    level: Level,
    column: Values,
    (largest, grid): (f64, i32),
    is_exact: bool,
) {
    // Where the squares of a lane have no more bits than float64, no addition rounds.
    const BITS: i32 = f64::MANTISSA_DIGITS as i32 - (TILE / LANES).ilog2() as i32;
    let spare = BITS - 2 * (exponent_of(largest) + 1 - grid);
    if is_exact && spare < 0 {
        let mut wide = Tile([0.0; TILE]);
        for (i, wide) in wide.0[..column.count()].iter_mut().enumerate() {
            // SAFETY: `i` is below the count.
            *wide = f64::from(unsafe { column.get(i) });
        }
        return add_f64s(sum, level, &wide.0[..column.count()], largest);
    }
    // SAFETY: the vectors are there, so their features are.
    let lanes = with_vectors!(level, vectors: V => unsafe {
        vectors.run(VectorSquares::<V> { column, _vectors: vectors })
    });
    let mut lanes = lanes.unwrap_or_else(|| level.run(Squares { column }));
    let mut count = LANES;
    // A sum of two lanes has a bit more; one of integers has room for all.
    let least = if is_exact { LANES >> spare.min(LANES.ilog2() as i32) } else { 1 };
    while count > least {
        count /= 2;
        for lane in 0..count {
            lanes[lane] += lanes[lane + count];
        }
    }
    if is_exact {
        let unit = power_of_two(-2 * grid);
        let units: u64 = lanes[..count].iter().map(|lane| (lane * unit) as u64).sum();
        return sum.add(u128::from(units), 2 * grid);
    }
    // The square of a float32 is a normal float64.
    let total = lanes[0].to_bits();
    let significand = total & ((1 << FRACTION) - 1) | 1 << FRACTION;
    sum.add(u128::from(significand), exponent_of(lanes[0]) - FRACTION);
}

/// Adds the squares of a column of float64, padded with zeros to a multiple of [`LANES`], to a sum; `largest` is the
/// largest magnitude. From there on down, a band is added at a time.
pub(crate) fn add_f64s(sum: &mut SquareSum, level: Level, column: &[f64], mut largest: f64) {
    let (column, rest) = column.as_chunks();
    assert!(rest.is_empty(), "a column is padded");
    while largest != 0.0 {
        let bits = largest.to_bits();
        let field = (bits >> FRACTION) as i32;
        let subnormal = u64::BITS as i32 - bits.leading_zeros() as i32 - 1023 - (FRACTION - 1);
        let above = if field == 0 { subnormal } else { field - 1022 };
        // Roots are scaled to below 1, where squares are far within the range of float64.
        let unit = (-2 * BINADES - FRACTION).max(LOWEST - 2 * above);
        let starts = [power_of_two(DEPTH), 1.5 * power_of_two(unit + FRACTION)];
        let factors = [-(above / 2), above / 2 - above].map(power_of_two);
        let ([first, second], rest) = level.run(Band { column, factors, starts });
        // With few bits, first sums are not used, and their last place is below the unit.
        let (distance, first) = (DEPTH - FRACTION - unit, i128::from(first));
        let first = if distance < 0 { first >> -distance } else { first << distance };
        sum.add((first + i128::from(second)) as u128, unit + 2 * above);
        largest = rest;
    }
}

/// Returns the total increase of sums from their start, in units of their last place.
#[inline(always)]
fn increase(sums: &[f64], start: f64) -> i64 {
    sums.iter().fold(0, |all, sum| all + (sum.to_bits() as i64 - start.to_bits() as i64))
}

/// Adds a square to two sums.
#[inline(always)]
fn add_square(root: f64, first: &mut f64, second: &mut f64) {
    // Products are exact or rounded before the addition: a fused one is slow where there is none.
    let next = *first + root * root;
    *second += root * root + (*first - next);
    *first = next;
}

/// Computes by how much the two sums increase by the roots of a band: those that the factors bring below 1, and not
/// below two to minus [`BINADES`]. Returns the largest root below the band too.
struct Band<'a> {
    column: &'a [[f64; PAIRS]],
    factors: [f64; 2],
    starts: [f64; 2],
}

impl Kernel for Band<'_> {
    type Output = ([i64; 2], f64);

    #[inline(always)]
    fn run(self) -> ([i64; 2], f64) {
        const FROM: f64 = 1.0 / (1u64 << BINADES) as f64;
        let Self { column, factors, starts } = self;
        let ([mut first, mut second], mut rest) = (starts.map(|start| [start; PAIRS]), [0f64; PAIRS]);
        for roots in column {
            for lane in 0..PAIRS {
                let root = roots[lane].abs();
                let scaled = root * factors[0] * factors[1];
                let below = if scaled < FROM { root } else { 0.0 };
                rest[lane] = if below > rest[lane] { below } else { rest[lane] };
                let root = if scaled < 1.0 { scaled } else { 0.0 };
                let root = if scaled < FROM { 0.0 } else { root };
                add_square(root, &mut first[lane], &mut second[lane]);
            }
        }
        let sums = [increase(&first, starts[0]), increase(&second, starts[1])];
        (sums, rest.into_iter().fold(0.0, f64::max))
    }
}

/// Adds the squares of a column to lanes.
struct Squares {
    column: Values,
}

impl Kernel for Squares {
    type Output = [f64; LANES];

    #[inline(always)]
    fn run(self) -> [f64; LANES] {
        let mut sums = [0.0; LANES];
        for i in (0..self.column.count()).step_by(LANES) {
            for (lane, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the count is a multiple of LANES.
                let root = f64::from(unsafe { self.column.get(i + lane) });
                *sum += root * root;
            }
        }
        sums
    }
}

/// Does the same in registers.
struct VectorSquares<V> {
    column: Values,
    /// Their features are there.
    _vectors: V,
}

impl<V: Conversions> RawKernel for VectorSquares<V> {
    type Output = [f64; LANES];

    #[inline(always)]
    unsafe fn run(self) -> [f64; LANES] {
        let mut sums = [0.0; LANES];
        let width = V::BYTES / size_of::<f64>();
        // SAFETY: the vectors are there, so the level's features are. The count is a multiple of LANES, and LANES one of
        // the width of a register, which has two lanes or more.
        unsafe {
            let mut registers = [V::splat32(0); LANES / 2];
            for i in (0..self.column.count).step_by(LANES) {
                for (pair, lane) in
                    registers.as_chunks_mut::<2>().0.iter_mut().zip((0..LANES).step_by(2 * width))
                {
                    let [first, second] = pair;
                    let f32s = V::from_bits(V::load(self.column.pointer.add(i + lane).cast()));
                    let [low, high] = V::to_f64(f32s);
                    *first = V::product_sum_f64(low, low, *first);
                    *second = V::product_sum_f64(high, high, *second);
                }
            }
            for (register, lanes) in registers.into_iter().zip(sums.chunks_exact_mut(width)) {
                V::store(lanes.as_mut_ptr().cast(), register);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_adds_float32_in_one_order() {
        let spread = |step: u32| (0..TILE as u32).map(move |i| f32::from_bits(i.wrapping_mul(step)));
        for step in [1, 0x001f_fff1, 0x9e37_79b9] {
            let roots: Vec<f32> =
                spread(step).map(|root| if root.is_finite() { root } else { 0.1 }).collect();
            let largest = f64::from(roots.iter().fold(0.0, |most: f32, root| most.max(root.abs())));
            // SAFETY: a tile of them, which outlives the column.
            let column = unsafe { Values::new(roots.as_ptr(), TILE) };
            let sum_of = |level, is_exact| {
                let mut sum = SquareSum::default();
                add_f32s(&mut sum, level, column, (largest, -149), is_exact);
                sum
            };
            let expected = sum_of(Level::PORTABLE, false);
            let exact = sum_of(Level::PORTABLE, true);
            assert!((expected.log10() - exact.log10()).abs() < 1e-13);
            for level in Level::available() {
                assert_eq!(sum_of(level, false), expected, "{level:?}, {step}");
                assert_eq!(sum_of(level, true), exact, "{level:?}, {step}");
            }
        }
    }

    #[test]
    fn bands_add_up_every_square() {
        let spread =
            |step: u64| (0..TILE as u64).map(move |i| f64::from_bits(i.wrapping_mul(step) & (u64::MAX >> 1)));
        let is_finite = |root: &f64| root.is_finite();
        let mut columns: Vec<Vec<f64>> = [1, 0x3_ffff_ffff, 0x001f_ffff_ffff_fff1, 0x9e37_79b9_7f4a_7c15]
            .map(|step| spread(step).filter(is_finite).collect())
            .to_vec();
        columns.push(vec![-f64::MAX, f64::MAX, 5e-324, -1.0, 1.0 - f64::EPSILON, 2f64.powi(-19)]);
        for mut column in columns {
            let mut expected = SquareSum::default();
            for &root in &column {
                expected.add_square_of(root);
            }
            column.resize(column.len().next_multiple_of(LANES), 0.0);
            let largest = column.iter().fold(0.0, |most: f64, root| most.max(root.abs()));
            for level in Level::available() {
                let mut sum = SquareSum::default();
                add_f64s(&mut sum, level, &column, largest);
                assert_eq!(sum, expected, "{level:?}, up to {largest}");
            }
        }
    }
}
