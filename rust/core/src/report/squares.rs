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
//!
//! Where float32 holds both arrays of a comparison, and one of them is float32, each square is rounded to the precision of
//! float32 first, which is within 2^-24 of it. Rounded squares are added exactly, so neither a tile nor a path matters.

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
        debug_assert!(count.is_multiple_of(LANES), "columns are padded");
        Self { pointer, count }
    }

    /// Returns how many there are, so that a compiler sees that a loop has no remainder.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count / LANES * LANES
    }

    pub(crate) fn pointer(&self) -> *const f32 {
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

/// Returns the bits of float64 beyond those of the squares of a lane: where none is lacking, no addition rounds.
fn spare_bits(largest: f64, grid: i32) -> i32 {
    const BITS: i32 = f64::MANTISSA_DIGITS as i32 - (TILE / LANES).ilog2() as i32;
    BITS - 2 * (exponent_of(largest) + 1 - grid)
}

/// Returns whether float64 has the bits for exact sums of squares of multiples of two to `grid`, up to the largest one.
pub(crate) fn has_bits(largest: f64, grid: i32) -> bool {
    spare_bits(largest, grid) >= 0
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
    let spare = spare_bits(largest, grid);
    if is_exact && spare < 0 {
        let mut wide = Tile([0.0; TILE]);
        for (i, wide) in wide.0[..column.count()].iter_mut().enumerate() {
            // SAFETY: `i` is below the count.
            *wide = f64::from(unsafe { column.get(i) });
        }
        return add_f64s(sum, level, &wide.0[..column.count()], largest, false);
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

/// Adds the squares of a column of float32, each rounded to the precision of float32, to a sum; `largest` is the largest
/// magnitude, not zero. From there on down, a band is added at a time; `low` has room for the roots below a band.
pub(crate) fn add_rounded_f32s(
    sum: &mut SquareSum,
    level: Level,
    mut column: Values,
    largest: f64,
    low: &mut Tile<f32>,
) {
    let mut above = exponent_of(largest) + 1;
    let low = low.0.as_mut_ptr(); // once, as the column lies there from the second round on
    loop {
        // Squares of roots that are scaled so are within the range of float32, in the two bands below.
        let shift = match above {
            ..-39 => 101,
            -39..=63 => 0,
            64.. => -70,
        };
        let tops = [above, above - RoundedSquares::BINADES];
        let bands = tops.map(|top| {
            let start = RoundedSquares::DEPTH as f64 * power_of_two(2 * (top + shift));
            (start, (power_of_two(top - RoundedSquares::BINADES) as f32).to_bits())
        });
        let factor = power_of_two(shift) as f32;
        // SAFETY: the column has at most a tile of numbers, for which there is room at `low`. It is another one, or the
        // numbers that are there already, of which none is read after another takes its place.
        let (units, count) = unsafe { level.run_raw(RoundedSquares { column, factor, bands, low }) };
        for (units, top) in units.into_iter().zip(tops) {
            sum.add(u128::from(units), 2 * top - RoundedSquares::FRACTION);
        }
        if count == 0 {
            return;
        }
        let full = count.next_multiple_of(LANES);
        // SAFETY: a tile has room for a multiple of LANES above the count; so many numbers are there.
        column = unsafe {
            low.add(count).write_bytes(0, full - count);
            Values::new(low, full)
        };
        above -= 2 * RoundedSquares::BINADES;
    }
}

/// Adds the squares of a column of float64, padded with zeros to a multiple of [`LANES`], to a sum; `largest` is the
/// largest magnitude. From there on down, a band is added at a time. Squares may be rounded to the precision of float32.
pub(crate) fn add_f64s(
    sum: &mut SquareSum,
    level: Level,
    column: &[f64],
    mut largest: f64,
    is_rounded: bool,
) {
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
        let ([first, second], rest) = if is_rounded {
            level.run(Band::<true> { column, factors, starts })
        } else {
            level.run(Band::<false> { column, factors, starts })
        };
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
fn add_square<const ROUNDED: bool>(root: f64, first: &mut f64, second: &mut f64) {
    // Products are exact or rounded before the addition: a fused one is slow where there is none.
    let square = root * root;
    // Zero, or far within the range of float32.
    let square = if ROUNDED { f64::from(square as f32) } else { square };
    let next = *first + square;
    *second += square + (*first - next);
    *first = next;
}

/// Computes by how much the two sums increase by the roots of a band: those that the factors bring below 1, and not
/// below two to minus [`BINADES`]. Returns the largest root below the band too.
/// `ROUNDED` squares have the precision of float32.
struct Band<'a, const ROUNDED: bool> {
    column: &'a [[f64; PAIRS]],
    factors: [f64; 2],
    starts: [f64; 2],
}

impl<const ROUNDED: bool> Kernel for Band<'_, ROUNDED> {
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
                add_square::<ROUNDED>(root, &mut first[lane], &mut second[lane]);
            }
        }
        let sums = [increase(&first, starts[0]), increase(&second, starts[1])];
        (sums, rest.into_iter().fold(0.0, f64::max))
    }
}

/// Adds the rounded squares of roots in two bands of binades. Returns the sums in units of two to minus
/// [`RoundedSquares::FRACTION`], if the square of a band's top is one, and how many roots are below both bands, which are
/// written to `low`.
struct RoundedSquares {
    column: Values,
    factor: f32,
    /// Where the sums of a band start, and the bits of its least root.
    bands: [(f64, u32); 2],
    low: *mut f32,
}

impl RoundedSquares {
    /// The number of squares that a lane adds up.
    const DEPTH: usize = TILE / LANES;

    /// Bits below the square of a band's top of a sum that starts at this square as often as it adds one: its exponent never
    /// changes.
    const FRACTION: i32 = FRACTION - Self::DEPTH.ilog2() as i32;

    /// Binades of a band, whose squares have no lower bits than a sum.
    const BINADES: i32 = (Self::FRACTION - (f32::MANTISSA_DIGITS as i32 - 1)) / 2;
}

/// Adds the rounded squares of roots whose bits are not below the least ones. Returns the bits of others, all in one.
#[inline(always)]
fn add_band(roots: &[u32; LANES], factor: f32, least: u32, sums: &mut [f64; LANES]) -> u32 {
    let (mut below, mut squares) = (0, [0f32; LANES]);
    for lane in 0..LANES {
        // As integers with a sign, which compilers compare in one instruction.
        let is_below = (roots[lane] as i32) < least as i32;
        below |= if is_below { roots[lane] } else { 0 };
        let root = f32::from_bits(if is_below { 0 } else { roots[lane] }) * factor;
        squares[lane] = root * root;
    }
    for lane in 0..LANES {
        sums[lane] += f64::from(squares[lane]);
    }
    below
}

/// Writes roots whose bits are below the least ones, and not zero. Returns how many there are.
///
/// # Safety
/// There is room for all roots at `low`.
#[inline(never)]
unsafe fn write_lower(roots: &[u32; LANES], least: u32, low: *mut f32) -> usize {
    let mut count = 0;
    for &root in roots {
        // SAFETY: the caller's promise.
        unsafe { low.add(count).write(f32::from_bits(root)) };
        count += usize::from((root < least) & (root != 0));
    }
    count
}

impl RawKernel for RoundedSquares {
    type Output = ([u64; 2], usize);

    #[inline(always)]
    unsafe fn run(self) -> ([u64; 2], usize) {
        let Self { column, factor, bands: [first, second], low } = self;
        let (mut sums, mut more_sums) = ([first.0; LANES], [second.0; LANES]);
        let mut count = 0;
        for start in (0..column.count()).step_by(LANES) {
            let mut roots = [0; LANES];
            for (lane, root) in roots.iter_mut().enumerate() {
                // SAFETY: the count is a multiple of LANES.
                *root = unsafe { column.get(start + lane) }.abs().to_bits();
            }
            if add_band(&roots, factor, first.1, &mut sums) == 0 {
                continue;
            }
            for root in &mut roots {
                *root = if *root < first.1 { *root } else { 0 };
            }
            if add_band(&roots, factor, second.1, &mut more_sums) == 0 {
                continue;
            }
            // SAFETY: at most as many roots were written as the column has before these, which are read already.
            count += unsafe { write_lower(&roots, second.1, low.add(count)) };
        }
        ([increase(&sums, first.0) as u64, increase(&more_sums, second.0) as u64], count)
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
                add_f64s(&mut sum, level, &column, largest, false);
                assert_eq!(sum, expected, "{level:?}, up to {largest}");
            }
        }
    }

    #[test]
    fn rounded_squares_are_those_of_float32() {
        let spread = |step: u32| (0..TILE as u32).map(move |i| f32::from_bits(i.wrapping_mul(step)));
        let mut columns: Vec<Vec<f32>> = [1, 0x0000_ffff, 0x001f_fff1, 0x9e37_79b9]
            .map(|step| spread(step).map(|root| if root.is_finite() { root } else { 0.1 }).collect())
            .to_vec();
        columns.push(vec![-f32::MAX, f32::from_bits(1), 1.5, f32::MIN_POSITIVE, 0.0]);
        columns.push((0..TILE).map(|i| 1.0 + i as f32 * f32::EPSILON).collect());
        for mut column in columns {
            let mut expected = SquareSum::default();
            for &root in column.iter().filter(|&&root| root != 0.0) {
                // Rounded to nearest, ties to even, by integers.
                let root = f64::from(root.abs());
                let exponent = exponent_of(root) - FRACTION;
                let units = (root / power_of_two(exponent_of(root))) * power_of_two(FRACTION);
                let square = (units as u128).pow(2);
                let excess = u128::BITS - square.leading_zeros() - f32::MANTISSA_DIGITS;
                let (rest, half) = (square & ((1 << excess) - 1), 1 << (excess - 1));
                let near = square >> excess;
                let up = rest > half || (rest == half && near & 1 == 1);
                expected.add(near + u128::from(up), 2 * exponent + excess as i32);
            }
            column.resize(column.len().next_multiple_of(LANES), 0.0);
            let largest = column.iter().fold(0.0, |most: f32, root| most.max(root.abs())).into();
            let wide: Vec<f64> = column.iter().map(|&root| root.into()).collect();
            for level in Level::available() {
                let (mut sum, mut low) = (SquareSum::default(), Tile([0.0; TILE]));
                // SAFETY: so many are there, which outlive the column.
                let values = unsafe { Values::new(column.as_ptr(), column.len()) };
                add_rounded_f32s(&mut sum, level, values, largest, &mut low);
                assert_eq!(sum, expected, "{level:?}, up to {largest}");
                let mut sum = SquareSum::default();
                add_f64s(&mut sum, level, &wide, largest, true);
                assert_eq!(sum, expected, "{level:?}, up to {largest}, as float64");
            }
        }
    }
}
