//! Exact sums of the squares of a tile.
//!
//! Squares are added to two sums per lane. The first begins at a power of two, so large that its last bit stays where
//! it is: it takes what of each square is not below that bit. The second takes the rest. Roots that differ by no more
//! than about 2^20 leave no bit that neither holds; where a square has few bits, the second sum is enough.
//! ([`SquareSum`] itself adds up the others.)

use super::square_sum::{LOWEST, SquareSum};
use crate::cpu::{InstructionSet, Kernel, Level};
use crate::kernels::tile::TILE;

/// Sums side by side.
pub(super) const LANES: usize = 16;

/// Squares that one lane adds up, as an exponent.
pub(super) const DEPTH: i32 = (TILE / LANES).ilog2() as i32;

/// Bits of what a float64 adds up without loss.
pub(super) const EXACT: i32 = f64::MANTISSA_DIGITS as i32;

/// Bits of the significand of float64, without the first.
const FRACTION: i32 = EXACT - 1;

/// What is known about all roots of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// All are below two to this.
    pub(super) above: i32,
    /// Their squares, rounded to float64's precision, are multiples of two to this.
    pub(super) unit: i32,
}

/// The exponent of a positive number: it is at least two to this. That of subnormals is the smallest that one has.
pub(super) fn exponent_of(value: f64) -> i32 {
    let field = (value.to_bits() >> FRACTION) as i32;
    if field == 0 { 1 - 1023 - FRACTION } else { field - 1023 }
}

/// Two to an exponent that a normal float64 has: without the loop of `powi`, which takes as long as a look at a tile.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << FRACTION)
}

impl Bounds {
    /// Of roots from the smallest that is not zero to the largest, all of them multiples of two to `grid`.
    pub(super) fn new(smallest: f64, largest: f64, grid: i32) -> Self {
        let above = if largest < f64::MIN_POSITIVE { 1 - 1023 } else { exponent_of(largest) + 1 };
        let unit = (2 * exponent_of(smallest) - FRACTION).max(2 * grid).max(LOWEST);
        Self { above, unit }
    }

    /// Whether one float64 per lane holds everything.
    pub(super) fn is_narrow(self) -> bool {
        2 * self.above + DEPTH <= self.unit + EXACT
    }

    /// Two to this is where first sums begin: they do not reach twice that.
    fn start(self) -> i32 {
        2 * self.above + DEPTH + 1
    }

    /// Whether two do.
    pub(super) fn is_wide(self) -> bool {
        // What is left of a square is at most half of the first sum's last bit.
        self.start() - FRACTION - 1 + DEPTH <= self.unit + EXACT
    }

    /// The first sum of a lane before the first square, and what makes integers of its increase and of the second sum.
    pub(super) fn constants(self) -> (f64, [f64; 2]) {
        (power_of_two(self.start()), [FRACTION - self.start(), -self.unit].map(power_of_two))
    }

    /// Both sums together, in units.
    pub(super) fn join(self, first: i64, second: i64) -> i128 {
        let distance = self.start() - FRACTION - self.unit;
        // Where there are few bits, the last one of first sums is below the unit, and not in use.
        let first = i128::from(first);
        (if distance < 0 { first >> -distance } else { first << distance }) + i128::from(second)
    }

    /// Whether squares and sums are far within the range of float64.
    fn is_near_one(self) -> bool {
        self.above < 400 && self.unit > -800
    }
}

/// A column of numbers, filled up with zeros to a multiple of [`LANES`]: a loop over what is left would keep the compiler
/// from holding sums in registers.
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

/// Float64, to be multiplied by two powers of two.
#[derive(Clone, Copy)]
struct F64Column<'a>(&'a [f64], [f64; 2]);

impl<'a> F64Column<'a> {
    fn new(column: &'a [f64], factors: [f64; 2]) -> Self {
        assert!(column.len().is_multiple_of(LANES));
        Self(column, factors)
    }
}

// SAFETY: `new` has looked.
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

/// Sources and as many results. As a column: what results have more than their sources, in float32, where that is exact.
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

    /// A source and its result.
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

/// Adds the squares of singles, which are not all zero, to a sum.
pub(super) fn add_f32s<C: Column>(sum: &mut SquareSum, level: Level, column: C, bounds: Bounds) {
    if bounds.is_narrow() {
        add_up::<_, false>(sum, level, column, bounds, 0);
    } else if bounds.is_wide() {
        add_up::<_, true>(sum, level, column, bounds, 0);
    } else {
        // SAFETY: `i` is below the count.
        (0..column.count()).for_each(|i| sum.add_square_of(unsafe { column.at(i) }));
    }
}

/// Adds the squares of a column to a sum, of which `largest` and `smallest` are the largest and the smallest that is not
/// zero; both are 0 if there is none.
pub(super) fn add_f64s(sum: &mut SquareSum, level: Level, column: &[f64], largest: f64, smallest: f64) {
    if largest == 0.0 {
        return;
    }
    let bounds = Bounds::new(smallest, largest, LOWEST / 2);
    // Brought close to 1, where squares are within the range of float64.
    let shift = if bounds.is_near_one() { 0 } else { -bounds.above };
    let near = Bounds { above: bounds.above + shift, unit: bounds.unit + 2 * shift };
    if near.is_wide() {
        let factors = [shift / 2, shift - shift / 2].map(power_of_two);
        add_up::<_, true>(sum, level, F64Column::new(column, factors), near, shift);
    } else {
        for &root in column {
            sum.add_square_of(root);
        }
    }
}

fn add_up<C: Column, const TWO: bool>(
    sum: &mut SquareSum,
    level: Level,
    column: C,
    bounds: Bounds,
    shift: i32,
) {
    let (start, scales) = bounds.constants();
    let [first, second] = if level.set() >= InstructionSet::Neon && C::SHORT {
        level.run(Squares::<C, TWO, true> { column, start, scales })
    } else {
        level.run(Squares::<C, TWO, false> { column, start, scales })
    };
    sum.add(bounds.join(first, second) as u128, bounds.unit - 2 * shift);
}

/// The two sums of a tile, in units of the first's last bit, and of [`Bounds::unit`]; with `FUSED` multiplication and
/// addition are one instruction, which is slow where the machine has none.
struct Squares<C, const TWO: bool, const FUSED: bool> {
    column: C,
    start: f64,
    scales: [f64; 2],
}

/// Adds the square of a root to the sums of a lane: to both, or with another `TWO` to the second.
#[inline(always)]
pub(super) fn take<const TWO: bool, const FUSED: bool>(root: f64, first: &mut f64, second: &mut f64) {
    if TWO {
        let next = sum_of::<FUSED>(root, root, *first);
        *second += sum_of::<FUSED>(root, root, *first - next);
        *first = next;
    } else {
        *second = sum_of::<FUSED>(root, root, *second);
    }
}

/// A product and a number. Where multiplication is rounded by itself, that is what is to be added.
#[inline(always)]
pub(super) fn sum_of<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// What the sums of all lanes have grown by, in units whose inverse is `scale`.
#[inline(always)]
pub(super) fn units(sums: &[f64; LANES], start: f64, scale: f64) -> i64 {
    sums.iter().map(|sum| ((sum - start) * scale) as i64).sum()
}

impl<C: Column, const TWO: bool, const FUSED: bool> Kernel for Squares<C, TWO, FUSED> {
    type Output = [i64; 2];

    #[inline(always)]
    fn run(self) -> [i64; 2] {
        let start = if TWO { self.start } else { 0.0 };
        let (mut first, mut second) = ([start; LANES], [0.0; LANES]);
        for i in (0..self.column.count()).step_by(LANES) {
            for lane in 0..LANES {
                // SAFETY: the count is a multiple of LANES.
                let root = unsafe { self.column.at(i + lane) };
                take::<TWO, FUSED>(root, &mut first[lane], &mut second[lane]);
            }
        }
        [units(&first, start, self.scales[0]), units(&second, 0.0, self.scales[1])]
    }
}
