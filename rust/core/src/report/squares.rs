//! Exact sums of the squares of a tile.
//!
//! Squares are added to two float64 sums per lane. The first starts at a power of two large enough that its exponent
//! never changes, so it absorbs each square rounded to its last place; the second takes the remainders. If the roots of
//! a tile differ by no more than a factor of about 2^20, no bit is lost; where squares have few bits, the second sum is
//! enough. (Otherwise each band of that many binades is added apart.) As no exponent changes, the bits of a sum less
//! those of its start are its increase in units of its last place.

use super::square_sum::{LOWEST, SquareSum};
use crate::cpu::{Kernel, Level, RawKernel};
use crate::kernels::tile::{TILE, Tile};
use crate::simd::{Conversions, MOST_BYTES, Rest, Vector, with_vectors};

/// Columns are padded to a multiple of this, so that loops have no remainder.
pub(crate) const LANES: usize = 32;

/// Lanes of the loop that the compiler vectorises: as many as there are registers for.
const PAIRS: usize = LANES / 2;

/// Registers of each sum, side by side, so that additions do not wait for each other.
const REGISTERS: usize = 4;

/// The binary logarithm of the squares that a lane adds up: registers have two lanes or more.
const DEPTH: i32 = (TILE / (2 * REGISTERS)).ilog2() as i32;

/// Bits of the significand of float64, without the first.
const FRACTION: i32 = f64::MANTISSA_DIGITS as i32 - 1;

/// Bits by which a second sum may differ from its start, in the middle between two powers of two.
const EXACT: i32 = FRACTION - 1;

/// Binades of a band: squares of its roots, rounded to float64's precision, are as many as are [wide](Bounds::is_wide).
const BINADES: i32 = (EXACT + 1) / 2 - DEPTH;

/// Bounds of all roots of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// All are below two to this power.
    pub(super) above: i32,
    /// Their squares, rounded to float64's precision, are multiples of two to this power.
    pub(super) unit: i32,
}

/// Returns the exponent of a positive number: it is at least two to this power. All subnormals get the smallest one's.
pub(super) fn exponent_of(value: f64) -> i32 {
    let field = (value.to_bits() >> FRACTION) as i32;
    if field == 0 { 1 - 1023 - FRACTION } else { field - 1023 }
}

/// Returns two to an exponent of a normal float64; `powi` is a loop, and as slow as a pass over a tile.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << FRACTION)
}

impl Bounds {
    /// Makes the bounds from the smallest nonzero root and the largest, all roots being multiples of two to `grid`.
    pub(super) fn new(smallest: f64, largest: f64, grid: i32) -> Self {
        let above = if largest < f64::MIN_POSITIVE { 1 - 1023 } else { exponent_of(largest) + 1 };
        let unit = (2 * exponent_of(smallest) - FRACTION).max(2 * grid).max(LOWEST);
        Self { above, unit }
    }

    /// Returns whether one float64 sum per lane is exact.
    pub(super) fn is_narrow(self) -> bool {
        2 * self.above + DEPTH <= self.unit + EXACT
    }

    /// Returns the exponent at which first sums start; they do not exceed twice that power.
    fn start(self) -> i32 {
        2 * self.above + DEPTH
    }

    /// Returns whether two float64 sums per lane are exact.
    pub(super) fn is_wide(self) -> bool {
        // The remainder of a square is at most half of the first sum's last place.
        self.start() - FRACTION - 1 + DEPTH <= self.unit + EXACT
    }

    /// Returns where both sums start.
    fn starts(self) -> [f64; 2] {
        [power_of_two(self.start()), 1.5 * power_of_two(self.unit + FRACTION)]
    }

    /// Joins both sums, in units.
    fn join(self, [first, second]: [i64; 2]) -> i128 {
        let distance = self.start() - FRACTION - self.unit;
        // With few bits, first sums are not used, and their last place is below the unit.
        let first = i128::from(first);
        (if distance < 0 { first >> -distance } else { first << distance }) + i128::from(second)
    }
}

/// Float32 in memory, padded with zeros to a multiple of [`LANES`]: a remainder loop would keep the compiler from
/// holding sums in registers.
#[derive(Clone, Copy)]
pub(super) struct Values {
    pointer: *const f32,
    count: usize,
}

impl Values {
    /// # Safety
    /// So many, a multiple of [`LANES`], are readable at the pointer for as long as the column is in use.
    pub(super) unsafe fn new(pointer: *const f32, count: usize) -> Self {
        Self { pointer, count }
    }

    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn pointer(&self) -> *const f32 {
        self.pointer
    }

    /// # Safety
    /// The index is below the count.
    #[inline(always)]
    pub(super) unsafe fn get(&self, index: usize) -> f32 {
        debug_assert!(index < self.count);
        // SAFETY: the caller's promise, and that of `new`'s.
        unsafe { self.pointer.add(index).read_unaligned() }
    }
}

/// Adds the squares of a column of float32 to a sum; `largest` is the largest magnitude, not zero.
pub(super) fn add_f32s(sum: &mut SquareSum, level: Level, column: Values, bounds: Bounds, largest: f64) {
    if bounds.is_narrow() {
        add_up::<false>(sum, level, column, bounds);
    } else if bounds.is_wide() {
        add_up::<true>(sum, level, column, bounds);
    } else {
        let mut wide = Tile::default();
        for (i, wide) in wide.0[..column.count()].iter_mut().enumerate() {
            // SAFETY: `i` is below the count.
            *wide = f64::from(unsafe { column.get(i) });
        }
        add_f64s(sum, level, &wide.0[..column.count()], largest);
    }
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
        let bounds = Bounds { above: 0, unit };
        let factors = [-(above / 2), above / 2 - above].map(power_of_two);
        let (sums, rest) = level.run(Band { column, factors, starts: bounds.starts() });
        sum.add(bounds.join(sums) as u128, unit + 2 * above);
        largest = rest;
    }
}

fn add_up<const TWO: bool>(sum: &mut SquareSum, level: Level, column: Values, bounds: Bounds) {
    let starts = bounds.starts();
    // SAFETY: the vectors are there, so their features are.
    let sums = with_vectors!(level, vectors: V => unsafe {
        vectors.run(VectorSquares::<V, TWO> { column, starts, _vectors: vectors })
    });
    let sums = sums.unwrap_or_else(|| level.run(Squares::<TWO> { column, starts }));
    sum.add(bounds.join(sums) as u128, bounds.unit);
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

/// Computes by how much the two sums of a tile increase, in units of their last places; without `TWO`, the second only.
struct Squares<const TWO: bool> {
    column: Values,
    starts: [f64; 2],
}

impl<const TWO: bool> Kernel for Squares<TWO> {
    type Output = [i64; 2];

    #[inline(always)]
    fn run(self) -> [i64; 2] {
        let [mut first, mut second] = self.starts.map(|start| [start; PAIRS]);
        for i in (0..self.column.count()).step_by(PAIRS) {
            for lane in 0..PAIRS {
                // SAFETY: the count is a multiple of LANES, hence of PAIRS.
                let root = f64::from(unsafe { self.column.get(i + lane) });
                if TWO {
                    add_square(root, &mut first[lane], &mut second[lane]);
                } else {
                    second[lane] += root * root;
                }
            }
        }
        [increase(&first, self.starts[0]), increase(&second, self.starts[1])]
    }
}

/// Does the same in registers.
struct VectorSquares<V, const TWO: bool> {
    column: Values,
    starts: [f64; 2],
    /// Their features are there.
    _vectors: V,
}

impl<V: Conversions, const TWO: bool> RawKernel for VectorSquares<V, TWO> {
    type Output = [i64; 2];

    #[inline(always)]
    unsafe fn run(self) -> [i64; 2] {
        let Self { column, starts, .. } = self;
        let starts = if TWO { starts } else { [starts[1]; 2] };
        let mut room = Rest::<{ MOST_BYTES * REGISTERS }>::new();
        let lanes = V::BYTES / size_of::<f64>();
        // SAFETY: the vectors are there, so the level's features are. The count is a multiple of LANES, hence of the
        // lanes of all registers, which the room is for.
        unsafe {
            let mut first = [V::splat_f64(starts[0]); REGISTERS];
            let mut second = [V::splat_f64(starts[1]); REGISTERS];
            for i in (0..column.count).step_by(LANES) {
                for (place, lane) in (0..LANES).step_by(lanes).enumerate() {
                    let register = place % REGISTERS;
                    let (first, second) = (&mut first[register], &mut second[register]);
                    let root = V::load_f32_as_f64(column.pointer.add(i + lane).cast());
                    if TWO {
                        let next = V::product_sum_f64(root, root, *first);
                        let rest = V::product_sum_f64(root, root, V::sub_f64(*first, next));
                        *second = V::add_f64(*second, rest);
                        *first = next;
                    } else {
                        // By turns, so that additions wait even less.
                        let sum = if place < REGISTERS { first } else { second };
                        *sum = V::product_sum_f64(root, root, *sum);
                    }
                }
            }
            let mut sums = [0; 2];
            for ((sum, registers), start) in sums.iter_mut().zip([first, second]).zip(starts) {
                for (register, lanes) in registers.into_iter().zip(room.0.chunks_exact_mut(V::BYTES)) {
                    V::store(lanes.as_mut_ptr(), register);
                }
                let (lanes, _) = room.0[..REGISTERS * V::BYTES].as_chunks();
                *sum = lanes
                    .iter()
                    .fold(0, |all, &lane| all + i64::from_ne_bytes(lane) - start.to_bits() as i64);
            }
            if !TWO {
                sums = [0, sums[0] + sums[1]];
            }
            sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_add_up_every_square() {
        let spread = |step: u64| (0..TILE as u64).map(move |i| f64::from_bits(i.wrapping_mul(step) & (u64::MAX >> 1)));
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
