//! bf16 to codes of few bits, by cells of magnitudes.
//!
//! Neighbouring magnitudes share codes: within a cell of 2^n of them the code grows at most once, by one. So the sum of the
//! codes of a cell tells where that is, and a table of sums is all that is needed:
//!
//! ```text
//! code = (sum[cell] + place in the cell) >> n
//! ```
//! A scale moves the bounds between codes. What moves them by whole exponents leaves the sums as they are.

use crate::cpu::{Level, RawKernel};
use crate::simd::{CELLS, Cells, MOST_BYTES, Vector, with_vectors};

/// The sums of a table's cells.
pub(crate) type Sums = [u8; CELLS];

/// The magnitudes of bf16, and the bits of a mantissa.
const MAGNITUDE: u16 = u16::MAX >> 1;
const MANTISSA: u32 = 7;

/// The bits of a place in a cell of E2M1, and in one of E4M3.
pub(crate) const E2M1_CELL: u32 = 5;
pub(crate) const E4M3_CELL: u32 = 3;

/// The largest finite code of E4M3, and how many exponents there are.
const E4M3_MAX: u8 = 0x7e;
const E4M3_EXPONENTS: u8 = 16;

/// The sign of a byte.
const SIGN: u8 = 1 << 7;

/// Where the cells of a scale begin: none of the first one has a code above 0. And where their table does, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) base: u16,
    pub(crate) table: u16,
}

/// The place of a scale without cells.
pub(crate) const NOWHERE: Place = Place { base: !MAGNITUDE, table: 0 };

/// The place of a scale whose codes are all 0.
pub(crate) const BEYOND_ALL: Place = Place { base: MAGNITUDE, table: 0 };

/// Elements of a row whose blocks lie side by side, to codes of E2M1, a byte each.
#[derive(Clone, Copy)]
pub(crate) struct ToE2m1<'a> {
    pub(crate) from: *const u8,
    pub(crate) to: *mut u8,
    pub(crate) count: usize,
    pub(crate) width: usize,
    /// The stored scales of the blocks.
    pub(crate) scales: *const u8,
    pub(crate) places: &'a [Place; 1 << u8::BITS],
    pub(crate) tables: &'a [Sums],
}

struct E2m1Loop<'a, V>(ToE2m1<'a>, V);

/// What a register needs.
#[derive(Clone, Copy)]
struct Operand<V: Cells> {
    base: V::Integers,
    cells: V::Cells,
}

impl<V: Cells> E2m1Loop<'_, V> {
    /// Returns the place and the table of a block.
    ///
    /// # Safety
    /// There is such a block.
    #[inline(always)]
    unsafe fn block(&self, block: usize) -> (u16, &Sums) {
        // SAFETY: the caller's promise; the caller of `to_e2m1` vouches for the tables of all places.
        unsafe {
            let Place { base, table } = self.0.places[usize::from(*self.0.scales.add(block))];
            (base, &*self.0.tables.as_ptr().cast::<u8>().add(usize::from(table)).cast::<Sums>())
        }
    }

    /// Returns the operand of a block.
    ///
    /// # Safety
    /// The level's features, and there is such a block.
    #[inline(always)]
    unsafe fn of_one(&self, block: usize) -> Operand<V> {
        // SAFETY: the caller's promise.
        unsafe {
            let (base, sums) = self.block(block);
            Operand { base: V::splat16(base), cells: V::load_cells([sums; 2]) }
        }
    }

    /// Returns the operand of two blocks, a half of a register each.
    ///
    /// # Safety
    /// The level's features, and there are such blocks.
    #[inline(always)]
    unsafe fn of_two(&self, block: usize) -> Operand<V> {
        // SAFETY: the caller's promise.
        unsafe {
            let (lower, upper) = (self.block(block), self.block(block + 1));
            let cells = V::load_cells([lower.1, upper.1]);
            Operand { base: V::splat_halves16([lower.0, upper.0]), cells }
        }
    }

    /// Returns the codes of a register, in u16.
    ///
    /// # Safety
    /// The level's features, and a register at the pointer.
    #[inline(always)]
    unsafe fn codes(from: *const u8, operand: Operand<V>) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = V::load(from);
            let above = V::sub_saturated16(V::and(bits, V::splat16(MAGNITUDE)), operand.base);
            let above = V::min16(above, V::splat16(((CELLS << E2M1_CELL) - 1) as u16));
            let sums = V::entries16(operand.cells, V::shr16::<E2M1_CELL>(above));
            let sums = V::add16(sums, V::and(above, V::splat16((1 << E2M1_CELL) - 1)));
            V::or_masked(V::shr16::<E2M1_CELL>(sums), V::shr16::<12>(bits), V::splat16(8))
        }
    }

    /// Finds the codes of two registers.
    ///
    /// # Safety
    /// The level's features, two registers at the first place, and room for one at the second.
    #[inline(always)]
    unsafe fn step(&self, start: usize, first: Operand<V>, second: Operand<V>) {
        // SAFETY: the caller's promise.
        unsafe {
            let from = self.0.from.add(2 * start);
            let (first, second) = (Self::codes(from, first), Self::codes(from.add(V::BYTES), second));
            V::store(self.0.to.add(start), V::in_order(V::unzip8(first, second).0));
        }
    }
}

impl<V: Cells> RawKernel for E2m1Loop<'_, V> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run(self) -> bool {
        let ToE2m1 { count, width, .. } = self.0;
        let (lanes, mut start, mut block) = (V::BYTES / size_of::<u16>(), 0, 0);
        // SAFETY: the vectors are there; the caller of `to_e2m1` vouches for whole steps and their blocks.
        unsafe {
            let mut bases = V::splat16(0);
            while start < count {
                if width <= lanes {
                    let (first, second) = if width == lanes {
                        (self.of_one(block), self.of_one(block + 1))
                    } else {
                        (self.of_two(block), self.of_two(block + 2))
                    };
                    bases = V::or(bases, V::or(first.base, second.base));
                    self.step(start, first, second);
                    (start, block) = (start + 2 * lanes, block + if width == lanes { 2 } else { 4 });
                } else {
                    let (operand, end) = (self.of_one(block), count.min(start + width));
                    bases = V::or(bases, operand.base);
                    while start < end {
                        self.step(start, operand, operand);
                        start += 2 * lanes;
                    }
                    block += 1;
                }
            }
            !V::any16(V::above16(V::splat16(0), bases))
        }
    }
}

/// Returns the elements of a step of a level, if it has vectors and blocks are whole registers, or halves of the longest
/// ones.
pub(crate) fn e2m1_step(level: Level, width: usize) -> Option<usize> {
    let bytes = with_vectors!(level, _vectors: V => <V as Vector>::BYTES)?;
    let lanes = bytes / size_of::<u16>();
    let is_half = bytes == MOST_BYTES && 2 * width == lanes;
    (is_half || width == lanes || width.is_multiple_of(2 * lanes)).then_some(2 * lanes)
}

/// Finds the codes of whole steps; returns whether all blocks have places.
///
/// # Safety
/// As many elements are readable, as many codes writable, and the tables of all places are there.
pub(crate) unsafe fn to_e2m1(level: Level, what: ToE2m1<'_>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { with_vectors!(level, vectors => vectors.run(E2m1Loop(what, vectors))) }.unwrap_or(false)
}

/// The codes of E4M3 of a block: its sums are those of the mantissas of one exponent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct E4m3Cells {
    /// 16 sums, twice.
    pub(crate) sums: Sums,
    /// The exponent whose codes are from 0 on, all of those from the next one on are normal; or [`NO_CELLS`].
    pub(crate) exponent: u8,
}

/// The exponent of a block whose elements are left.
pub(crate) const NO_CELLS: u8 = u8::MAX;

/// Rows of blocks that lie side by side, to codes of E4M3.
#[derive(Clone, Copy)]
pub(crate) struct ToE4m3<'a> {
    pub(crate) from: *const u8,
    pub(crate) pitch: isize,
    pub(crate) to: *mut u8,
    pub(crate) to_pitch: isize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Columns of the first block, and of the others but the last.
    pub(crate) first: usize,
    pub(crate) width: usize,
    pub(crate) blocks: &'a [E4m3Cells],
}

/// Some columns of a row that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) row: usize,
    pub(crate) start: usize,
    pub(crate) count: usize,
}

struct E4m3Loop<'a, V>(ToE4m3<'a>, &'a mut Vec<Left>, V);

impl<V: Cells> RawKernel for E4m3Loop<'_, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let ToE4m3 { from, pitch, to, to_pitch, rows, columns, first, width, blocks } = self.0;
        let (mut start, mut end) = (0, first.min(columns));
        for block in blocks {
            // SAFETY: the vectors are there; the caller of `to_e4m3` vouches for the elements.
            unsafe {
                let cells = V::load_cells([&block.sums; 2]);
                let (least, first) =
                    (V::splat8(block.exponent.saturating_add(1)), V::splat8(block.exponent));
                // Larger ones have no codes, which a scale that saturates leaves.
                let largest = V::splat8(E4M3_EXPONENTS);
                let (one, rest) = (V::splat8(1), V::splat8((1 << E4M3_CELL) - 1));
                let (low, most, sign) = (V::splat8(0x0f), V::splat8(E4M3_MAX), V::splat8(SIGN));
                for row in 0..rows {
                    let from = from.offset(row as isize * pitch);
                    let to = to.offset(row as isize * to_pitch);
                    let mut column = start;
                    while column + V::BYTES <= end && block.exponent != NO_CELLS {
                        let place = from.add(2 * column);
                        let (even, odd) = V::unzip8(V::load(place), V::load(place.add(V::BYTES)));
                        let sums = V::entries8(cells, V::and(V::shr16::<E4M3_CELL>(even), low));
                        let sums = V::add8(sums, V::and(even, rest));
                        // At most 16 cells of codes below 16: the byte before has no bits that matter.
                        let above = V::and(V::shr16::<E4M3_CELL>(sums), V::splat8(0x1f));
                        let exponents = V::or_masked(V::add8(odd, odd), V::shr16::<MANTISSA>(even), one);
                        let twice = V::min8(V::sub_saturated8(exponents, first), largest);
                        let twice = V::add8(twice, twice);
                        let twice = V::add8(twice, twice);
                        let codes = V::min8(V::add8(V::add8(twice, twice), above), most);
                        V::store(to.add(column), V::in_order(V::or_masked(codes, odd, sign)));
                        let below = V::min16(V::sub_saturated8(least, exponents), V::splat16(1));
                        if V::any16(V::above16(below, V::splat16(0))) {
                            self.1.push(Left { row, start: column, count: V::BYTES });
                        }
                        column += V::BYTES;
                    }
                    if column < end {
                        self.1.push(Left { row, start: column, count: end - column });
                    }
                }
            }
            (start, end) = (end, (end + width).min(columns));
        }
    }
}

/// Finds the codes of most elements, and adds the others, of which some are subnormal as codes, to those that are left.
/// Returns whether the level can.
///
/// # Safety
/// The elements are readable, and as many codes writable.
pub(crate) unsafe fn to_e4m3(level: Level, what: ToE4m3<'_>, left: &mut Vec<Left>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { with_vectors!(level, vectors => vectors.run(E4m3Loop(what, left, vectors))) }.is_some()
}
