//! Exact sums of the squares of a tile.
//!
//! Squares are added to two float64 sums per lane. The first starts at a power of two large enough that its exponent
//! never changes, so it absorbs each square rounded to its last place; the second takes the remainders. If the roots of
//! a tile differ by no more than a factor of about 2^20, no bit is lost; where squares have few bits, the second sum is
//! enough. (Otherwise the larger and the smaller roots are added apart.) As no exponent changes, the bits of a sum less
//! those of its start are its increase in units of its last place.

use super::square_sum::{LOWEST, SquareSum};
use crate::cpu::{Kernel, Level, RawKernel};
use crate::kernels::tile::{TILE, Tile};
use crate::simd::{Conversions, MOST_BYTES, Rest, Vector, with_vectors};

/// Columns are padded to a multiple of this, so that loops have no remainder.
pub(super) const LANES: usize = 32;

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

/// Adds the squares of a column of float32, not all of them zero, to a sum.
pub(super) fn add_f32s(sum: &mut SquareSum, level: Level, column: Values, bounds: Bounds) {
    if bounds.is_narrow() {
        add_up::<false>(sum, level, column, bounds);
    } else if bounds.is_wide() {
        add_up::<true>(sum, level, column, bounds);
    } else {
        add_apart(sum, level, column, bounds);
    }
}

/// Adds the larger roots, and then the smaller ones.
#[cold]
fn add_apart(sum: &mut SquareSum, level: Level, column: Values, Bounds { above, unit }: Bounds) {
    /// Binades of the larger roots: with the bits of the smallest of them, as many as are [wide](Bounds::is_wide).
    const BINADES: i32 = 16;
    let from = above - BINADES;
    let mut parts = [Tile::<f32>::default(); 2];
    for i in 0..column.count() {
        // SAFETY: `i` is below the count.
        let root = unsafe { column.get(i) };
        parts[usize::from(f64::from(root.abs()) < power_of_two(from))].0[i] = root;
    }
    let [large, small] = &parts;
    let large_unit = unit.max(2 * (from - (f32::MANTISSA_DIGITS as i32 - 1)));
    for (part, bounds) in [(large, Bounds { above, unit: large_unit }), (small, Bounds { above: from, unit })]
    {
        // SAFETY: a tile is as long as the longest column.
        add_f32s(sum, level, unsafe { Values::new(part.0.as_ptr(), column.count()) }, bounds);
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
        let squares = Squares::<_, true> { column: F64Column::new(column, factors), starts: near.starts() };
        sum.add(near.join(level.run(squares)) as u128, near.unit - 2 * shift);
    } else {
        for &root in column {
            sum.add_square_of(root);
        }
    }
}

fn add_up<const TWO: bool>(sum: &mut SquareSum, level: Level, column: Values, bounds: Bounds) {
    let starts = bounds.starts();
    // SAFETY: the vectors are there, so their features are.
    let sums = with_vectors!(level, vectors: V => unsafe {
        vectors.run(VectorSquares::<V, TWO> { column, starts, _vectors: vectors })
    });
    let sums = sums.unwrap_or_else(|| level.run(Squares::<Values, TWO> { column, starts }));
    sum.add(bounds.join(sums) as u128, bounds.unit);
}

/// Computes by how much the two sums of a tile increase, in units of their last places; without `TWO`, the second only.
struct Squares<C, const TWO: bool> {
    column: C,
    starts: [f64; 2],
}

/// Returns the total increase of sums from their start, in units of their last place.
#[inline(always)]
fn increase(sums: &[f64], start: f64) -> i64 {
    sums.iter().fold(0, |all, sum| all + (sum.to_bits() as i64 - start.to_bits() as i64))
}

impl<C: Column, const TWO: bool> Kernel for Squares<C, TWO> {
    type Output = [i64; 2];

    #[inline(always)]
    fn run(self) -> [i64; 2] {
        let [mut first, mut second] = self.starts.map(|start| [start; PAIRS]);
        for i in (0..self.column.count()).step_by(PAIRS) {
            for lane in 0..PAIRS {
                // SAFETY: the count is a multiple of LANES, hence of PAIRS.
                let root = unsafe { self.column.at(i + lane) };
                if TWO {
                    // Products are exact or rounded before the addition: a fused one is slow where there is none.
                    let next = first[lane] + root * root;
                    second[lane] += root * root + (first[lane] - next);
                    first[lane] = next;
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
