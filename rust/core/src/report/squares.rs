//! Exact sums of the squares of a tile.
//!
//! Squares are added to two float64 sums per lane. The first starts at a power of two large enough that its exponent
//! never changes, so it absorbs each square rounded to its last place; the second takes the remainders. If the roots of
//! a tile differ by no more than a factor of about 2^20, no bit is lost; where squares have few bits, the second sum is
//! enough. (Otherwise [`SquareSum`] adds squares one by one.)

use super::square_sum::{LOWEST, SquareSum};
use crate::cpu::{InstructionSet, Kernel, Level};
use crate::kernels::tile::TILE;

/// Lanes with one sum each, side by side: enough that additions do not wait for each other.
pub(super) const LANES: usize = 32;

/// Lanes with two sums each: as many as there are registers for.
const PAIRS: usize = LANES / 2;

/// The binary logarithm of the squares that one of so many lanes adds up.
const fn depth(lanes: usize) -> i32 {
    (TILE / lanes).ilog2() as i32
}

/// Bits that a float64 sum holds exactly.
const EXACT: i32 = f64::MANTISSA_DIGITS as i32;

/// Bits of the significand of float64, without the first.
const FRACTION: i32 = EXACT - 1;

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
        2 * self.above + depth(LANES) <= self.unit + EXACT
    }

    /// Returns the exponent at which first sums start; they stay below twice that power.
    fn start(self) -> i32 {
        2 * self.above + depth(PAIRS) + 1
    }

    /// Returns whether two float64 sums per lane are exact.
    pub(super) fn is_wide(self) -> bool {
        // The remainder of a square is at most half of the first sum's last place.
        self.start() - FRACTION - 1 + depth(PAIRS) <= self.unit + EXACT
    }

    /// Returns the start of first sums, and the factors that make integers of their increase and of second sums.
    pub(super) fn constants(self) -> (f64, [f64; 2]) {
        (power_of_two(self.start()), [FRACTION - self.start(), -self.unit].map(power_of_two))
    }

    /// Joins both sums, in units.
    pub(super) fn join(self, first: i64, second: i64) -> i128 {
        let distance = self.start() - FRACTION - self.unit;
        // With few bits, first sums are not used, and their last place is below the unit.
        let first = i128::from(first);
        (if distance < 0 { first >> -distance } else { first << distance }) + i128::from(second)
    }

    /// Returns whether squares and sums are far within the range of float64.
    fn is_near_one(self) -> bool {
        self.above < 400 && self.unit > -800
    }
}

/// A column of numbers, padded with zeros to a multiple of [`LANES`]: a remainder loop would keep the compiler from
/// holding sums in registers.
///
/// # Safety
/// The count is a multiple of [`LANES`].
pub(super) unsafe trait Column: Copy {
    /// Whether squares have no more bits than float64.
    const SHORT: bool;
    fn count(&self) -> usize;
    /// # Safety
    /// The index is below the count: a check would keep vectors from the loop.
    unsafe fn at(&self, index: usize) -> f64;
}

/// float64 numbers, multiplied by two powers of two.
#[derive(Clone, Copy)]
struct F64Column<'a>(&'a [f64], [f64; 2]);

impl<'a> F64Column<'a> {
    fn new(column: &'a [f64], factors: [f64; 2]) -> Self {
        assert!(column.len().is_multiple_of(LANES));
        Self(column, factors)
    }
}

// SAFETY: `new` checks the count.
unsafe impl Column for F64Column<'_> {
    const SHORT: bool = false;
    #[inline(always)]
    fn count(&self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    unsafe fn at(&self, index: usize) -> f64 {
        debug_assert!(index < self.0.len());
        // SAFETY: the caller's promise.
        unsafe { self.0.get_unchecked(index) * self.1[0] * self.1[1] }
    }
}

/// Float32 in memory.
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

    /// # Safety
    /// The index is below the count.
    #[inline(always)]
    pub(super) unsafe fn get(&self, index: usize) -> f32 {
        debug_assert!(index < self.count);
        // SAFETY: the caller's promise, and that of `new`'s.
        unsafe { self.pointer.add(index).read_unaligned() }
    }
}

// SAFETY: the promise of `new`'s caller.
unsafe impl Column for Values {
    const SHORT: bool = true;
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    #[inline(always)]
    unsafe fn at(&self, index: usize) -> f64 {
        // SAFETY: the caller's promise.
        f64::from(unsafe { self.get(index) })
    }
}

/// Sources and as many results; as a column, their differences in float32, where these are exact.
#[derive(Clone, Copy)]
pub(super) struct Errors {
    sources: Values,
    results: Values,
}

impl Errors {
    pub(super) fn new(sources: Values, results: Values) -> Self {
        assert_eq!(sources.count, results.count);
        Self { sources, results }
    }

    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.sources.count
    }

    /// Returns a source and its result.
    ///
    /// # Safety
    /// The index is below the count.
    #[inline(always)]
    pub(super) unsafe fn get(&self, index: usize) -> (f32, f32) {
        // SAFETY: the caller's promise; there are as many of both.
        unsafe { (self.sources.get(index), self.results.get(index)) }
    }
}

// SAFETY: the promise of `Values::new`'s caller.
unsafe impl Column for Errors {
    const SHORT: bool = true;
    #[inline(always)]
    fn count(&self) -> usize {
        self.sources.count
    }
    #[inline(always)]
    unsafe fn at(&self, index: usize) -> f64 {
        // SAFETY: the caller's promise.
        let (source, result) = unsafe { self.get(index) };
        f64::from(result - source)
    }
}

/// Adds the squares of a column of float32, not all of them zero, to a sum.
pub(super) fn add_f32s<C: Column>(sum: &mut SquareSum, level: Level, column: C, bounds: Bounds) {
    if bounds.is_narrow() {
        add_up::<_, false, LANES>(sum, level, column, bounds, 0);
    } else if bounds.is_wide() {
        add_up::<_, true, PAIRS>(sum, level, column, bounds, 0);
    } else {
        // SAFETY: `i` is below the count.
        (0..column.count()).for_each(|i| sum.add_square_of(unsafe { column.at(i) }));
    }
}

/// Adds the squares of a column of float64 to a sum; `largest` and `smallest` are the range of its nonzero numbers,
/// both 0 if there are none.
pub(super) fn add_f64s(sum: &mut SquareSum, level: Level, column: &[f64], largest: f64, smallest: f64) {
    if largest == 0.0 {
        return;
    }
    let bounds = Bounds::new(smallest, largest, LOWEST / 2);
    // Roots are scaled close to 1, where squares are within the range of float64.
    let shift = if bounds.is_near_one() { 0 } else { -bounds.above };
    let near = Bounds { above: bounds.above + shift, unit: bounds.unit + 2 * shift };
    if near.is_wide() {
        let factors = [shift / 2, shift - shift / 2].map(power_of_two);
        add_up::<_, true, PAIRS>(sum, level, F64Column::new(column, factors), near, shift);
    } else {
        for &root in column {
            sum.add_square_of(root);
        }
    }
}

fn add_up<C: Column, const TWO: bool, const SUMS: usize>(
    sum: &mut SquareSum,
    level: Level,
    column: C,
    bounds: Bounds,
    shift: i32,
) {
    let (start, scales) = bounds.constants();
    let [first, second] = if level.set() >= InstructionSet::Neon && C::SHORT {
        level.run(Squares::<C, TWO, true, SUMS> { column, start, scales })
    } else {
        level.run(Squares::<C, TWO, false, SUMS> { column, start, scales })
    };
    sum.add(bounds.join(first, second) as u128, bounds.unit - 2 * shift);
}

/// Computes the two sums of a tile, in units of the first's last place and of [`Bounds::unit`]. `FUSED` uses fused
/// multiply-add, which is slow on machines without the instruction.
struct Squares<C, const TWO: bool, const FUSED: bool, const SUMS: usize> {
    column: C,
    start: f64,
    scales: [f64; 2],
}

/// Adds the square of a root to the sums of a lane; without `TWO`, to the second only.
#[inline(always)]
fn take<const TWO: bool, const FUSED: bool>(root: f64, first: &mut f64, second: &mut f64) {
    if TWO {
        let next = sum_of::<FUSED>(root, root, *first);
        *second += sum_of::<FUSED>(root, root, *first - next);
        *first = next;
    } else {
        *second = sum_of::<FUSED>(root, root, *second);
    }
}

/// Returns `a * b + c`; without `FUSED` the product is exact or rounded before the addition.
#[inline(always)]
fn sum_of<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Returns the total increase of all lanes' sums, in units of `1 / scale`.
///
/// # Safety
/// Each lane's is below 2^63 of them.
#[inline(always)]
unsafe fn units<const SUMS: usize>(sums: &[f64; SUMS], start: f64, scale: f64) -> i64 {
    // SAFETY: the caller's promise. (A conversion that tests it would not be vectorised.)
    sums.iter().map(|sum| unsafe { ((sum - start) * scale).to_int_unchecked::<i64>() }).sum()
}

impl<C: Column, const TWO: bool, const FUSED: bool, const SUMS: usize> Kernel
    for Squares<C, TWO, FUSED, SUMS>
{
    type Output = [i64; 2];

    #[inline(always)]
    fn run(self) -> [i64; 2] {
        let start = if TWO { self.start } else { 0.0 };
        let (mut first, mut second) = ([start; SUMS], [0.0; SUMS]);
        for i in (0..self.column.count()).step_by(SUMS) {
            for lane in 0..SUMS {
                // SAFETY: the count is a multiple of LANES, hence of SUMS.
                let root = unsafe { self.column.at(i + lane) };
                take::<TWO, FUSED>(root, &mut first[lane], &mut second[lane]);
            }
        }
        // SAFETY: as `Bounds` says, first sums stay below twice their start, and second ones are exact: both have fewer
        // units than float64 has bits.
        unsafe { [units(&first, start, self.scales[0]), units(&second, 0.0, self.scales[1])] }
    }
}
