//! bf16 to codes of E2M1, by a *piecewise lookup table* for each stored scale.
//!
//! The magnitudes from a first one on are divided into intervals of 32 neighbors, so small that each contains at most
//! one bound from which on the code is larger. One entry per interval tells both the code before and that bound:
//!
//! ```text
//! distance   magnitude - first, or 0
//! interval   distance >> 5
//! code       (distance + entries[interval]) >> 5, the lowest 3 bits
//! ```
//! Scales that differ by a power of two share a table: their bounds differ by whole exponents, as `first` does.

use crate::cpu::{Level, RawKernel};
use crate::simd::{INTERVALS, Intervals, MOST_BYTES, Vector, or_masked, with_vectors};

/// The magnitudes of bf16.
pub(crate) const MAGNITUDE: u16 = u16::MAX >> 1;

/// Magnitudes in an interval, and in all of a table.
const INTERVAL_BITS: u32 = 5;
pub(crate) const INTERVAL: u16 = 1 << INTERVAL_BITS;
pub(crate) const RANGE: u16 = INTERVALS as u16 * INTERVAL;

/// The sign of a code, and the bits of others.
const SIGN: u16 = 1 << 3;
const CODE: u16 = SIGN - 1;

/// The entries of intervals.
pub(crate) type Table = [u8; INTERVALS];

/// Returns the table of magnitudes from a first one on, given the bounds from which on codes are larger.
pub(crate) fn table(first: u16, bounds: &[u16]) -> Table {
    let mut rest = bounds.iter().peekable();
    let mut code = 0;
    std::array::from_fn(|interval| {
        let begin = interval as u16 * INTERVAL;
        // The magnitudes in the interval from its bound on: the distance adds those up to an element.
        let end = first + begin + INTERVAL;
        let above = rest.next_if(|&&bound| bound < end).map_or(0, |&bound| end - bound);
        let entry = (code * INTERVAL + above).wrapping_sub(begin) as u8;
        code += u16::from(above > 0);
        entry
    })
}

/// What a stored scale finds codes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    /// The first magnitude of the table, twice.
    first: u32,
    /// Where the table is, in bytes.
    table: u32,
}

impl Lookup {
    /// That of a scale whose codes are all 0; the first table of all must be.
    pub(crate) const ZEROS: Self = Self::new(MAGNITUDE, 0);

    /// Takes the first magnitude, and the number of the table.
    pub(crate) const fn new(first: u16, table: usize) -> Self {
        Self { first: first as u32 | (first as u32) << u16::BITS, table: (table * INTERVALS) as u32 }
    }

    /// Returns the largest magnitude of its table.
    pub(crate) fn last(self) -> u16 {
        self.first as u16 + (RANGE - 1)
    }
}

/// The tables of all stored scales.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    /// Those of the scales of each byte. Every number of a table is that of one.
    pub(crate) lookups: [Lookup; 1 << u8::BITS],
    pub(crate) tables: Vec<Table>,
}

impl Default for Tables {
    /// All codes are 0.
    fn default() -> Self {
        Self { lookups: [Lookup::ZEROS; 1 << u8::BITS], tables: vec![Table::default()] }
    }
}

/// How codes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A byte each.
    Bytes,
    /// Nibbles, the first one low, or high.
    LowFirst,
    HighFirst,
}

impl Form {
    /// Returns the bytes of so many codes.
    pub(crate) fn bytes(self, count: usize) -> usize {
        if self == Self::Bytes { count } else { count.div_ceil(2) }
    }

    /// Returns the factors of the two nibbles of a byte, for [`Intervals::store_nibbles`].
    pub(crate) fn weights(self) -> u16 {
        u16::from_le_bytes(if self == Self::HighFirst { [16, 1] } else { [1, 16] })
    }
}

/// Elements of a row whose blocks lie side by side, to codes of E2M1.
#[derive(Clone, Copy)]
pub(crate) struct ToE2m1<'a> {
    pub(crate) from: *const u8,
    pub(crate) to: *mut u8,
    pub(crate) count: usize,
    /// Elements of a block.
    pub(crate) width: usize,
    /// The stored scales of the blocks.
    pub(crate) scales: *const u8,
    pub(crate) tables: &'a Tables,
    pub(crate) form: Form,
}

/// The loop of a level; zeros keep their sign, or are positive.
struct Loop<'a, V, const SIGNED_ZEROS: bool>(ToE2m1<'a>, V);

/// What the elements of a register need.
#[derive(Clone, Copy)]
struct Operand<V: Intervals> {
    first: V::Integers,
    entries: V::Entries,
}

impl<V: Intervals, const SIGNED_ZEROS: bool> Loop<'_, V, SIGNED_ZEROS> {
    const LANES: usize = V::BYTES / size_of::<u16>();

    /// Returns the first magnitude of a block's table, and the table.
    ///
    /// # Safety
    /// There is such a block.
    #[inline(always)]
    unsafe fn block(&self, block: usize) -> (u32, &Table) {
        let Tables { lookups, tables } = self.0.tables;
        // SAFETY: the caller's promise; the caller of `to_e2m1` vouches for the tables of all lookups.
        unsafe {
            let Lookup { first, table } = lookups[usize::from(*self.0.scales.add(block))];
            (first, &*tables.as_ptr().byte_add(table as usize))
        }
    }

    /// Returns the operand of a block.
    ///
    /// # Safety
    /// The level's features, and there is such a block.
    #[inline(always)]
    unsafe fn of_one(&self, block: usize) -> Operand<V> {
        let (first, table) = self.block(block);
        Operand { first: V::splat32(first), entries: V::load_entries([table; 2]) }
    }

    /// Returns the operand of two blocks, a half of a register each.
    ///
    /// # Safety
    /// The level's features, and there are such blocks.
    #[inline(always)]
    unsafe fn of_two(&self, block: usize) -> Operand<V> {
        let (lower, upper) = (self.block(block), self.block(block + 1));
        let entries = V::load_entries([lower.1, upper.1]);
        Operand { first: V::splat_halves32(lower.0, upper.0), entries }
    }

    /// Returns the codes of a register, in u16.
    ///
    /// # Safety
    /// The level's features, and a register at the pointer.
    #[inline(always)]
    unsafe fn codes(from: *const u8, operand: Operand<V>) -> V::Integers {
        let bits = V::load(from);
        let distance = V::sub_saturated16(V::and(bits, V::splat16(MAGNITUDE)), operand.first);
        let entries = V::entries16(operand.entries, V::shr16(distance, INTERVAL_BITS));
        let sum = V::add16(distance, entries);
        let code = V::and(V::shr16(sum, INTERVAL_BITS), V::splat16(CODE));
        let signed = or_masked::<V>(code, V::shr16(bits, 12), V::splat16(SIGN));
        if SIGNED_ZEROS { signed } else { V::choose16(V::above16(code, V::splat16(0)), signed, code) }
    }

    /// Finds the codes of two registers.
    ///
    /// # Safety
    /// The level's features, two registers at the first place, and room for their codes at the second.
    #[inline(always)]
    unsafe fn step(&self, start: usize, first: Operand<V>, second: Operand<V>, weights: V::Integers) {
        let from = self.0.from.add(2 * start);
        let (first, second) = (Self::codes(from, first), Self::codes(from.add(V::BYTES), second));
        if self.0.form == Form::Bytes {
            V::store(self.0.to.add(start), V::in_order(V::unzip8(first, second).0));
        } else {
            V::store_nibbles(self.0.to.add(start / 2), first, second, weights);
        }
    }

    /// Finds the codes of so many elements, whole steps.
    ///
    /// # Safety
    /// The level's features, and as for [`to_e2m1`].
    #[inline(always)]
    unsafe fn steps(&self, count: usize) {
        let (lanes, width, mut start, mut block) = (Self::LANES, self.0.width, 0, 0);
        // SAFETY: the caller's promise; a step is of whole blocks, or in one.
        unsafe {
            let weights = V::splat16(self.0.form.weights());
            while start < count {
                if width > lanes {
                    let (operand, end) = (self.of_one(block), count.min(start + width));
                    while start < end {
                        self.step(start, operand, operand, weights);
                        start += 2 * lanes;
                    }
                    block += 1;
                    continue;
                }
                let (first, second, blocks) = if width == lanes {
                    (self.of_one(block), self.of_one(block + 1), 2)
                } else {
                    (self.of_two(block), self.of_two(block + 2), 4)
                };
                self.step(start, first, second, weights);
                (start, block) = (start + 2 * lanes, block + blocks);
            }
        }
    }

    /// Finds the codes of the last elements, fewer than a step.
    ///
    /// # Safety
    /// The level's features, and as for [`to_e2m1`].
    #[inline(always)]
    unsafe fn rest(&self, start: usize) {
        let ToE2m1 { from, to, count, width, scales, form, .. } = self.0;
        let (mut elements, mut codes, mut bytes) = ([0u16; MOST_BYTES], [0u8; MOST_BYTES], [0u8; 4]);
        let (left, first) = (count - start, start / width);
        // SAFETY: the caller's promise; a step has at most as many elements as the longest register has bytes, in at most
        // four blocks.
        unsafe {
            from.add(2 * start).copy_to_nonoverlapping(elements.as_mut_ptr().cast(), 2 * left);
            scales.add(first).copy_to_nonoverlapping(bytes.as_mut_ptr(), left.div_ceil(width));
            let (from, to_codes) = (elements.as_ptr().cast(), codes.as_mut_ptr());
            let whole = ToE2m1 { from, to: to_codes, scales: bytes.as_ptr(), ..self.0 };
            Loop::<V, SIGNED_ZEROS>(whole, self.1).steps(2 * Self::LANES);
            to.add(form.bytes(start)).copy_from_nonoverlapping(to_codes, form.bytes(left));
        }
    }
}

impl<V: Intervals, const SIGNED_ZEROS: bool> RawKernel for Loop<'_, V, SIGNED_ZEROS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let whole = self.0.count - self.0.count % (2 * Self::LANES);
        // SAFETY: the vectors are there; the rest is the promise of the caller of `to_e2m1`.
        unsafe {
            self.steps(whole);
            if whole < self.0.count {
                self.rest(whole);
            }
        }
    }
}

/// Whether a level has vectors for blocks of a width: whole registers, or halves of the longest ones.
pub(crate) fn fits_e2m1(level: Level, width: usize) -> bool {
    let bytes: usize = with_vectors!(level, _vectors: V => <V as Vector>::BYTES).unwrap_or_default();
    let lanes = bytes / size_of::<u16>();
    let is_half = bytes == MOST_BYTES && 2 * width == lanes;
    lanes > 0 && (is_half || width == lanes || width.is_multiple_of(2 * lanes))
}

/// Finds the codes of finite elements, none of which is beyond the table of its block.
///
/// # Safety
/// As many elements are readable, and their codes writable, apart from them; there are scales, and the tables of all
/// lookups; the width fits the level.
pub(crate) unsafe fn to_e2m1(level: Level, what: ToE2m1<'_>, signed_zeros: bool) {
    let _: Option<()> = with_vectors!(level, vectors => if signed_zeros {
        vectors.run(Loop::<_, true>(what, vectors));
    } else {
        vectors.run(Loop::<_, false>(what, vectors));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_give_the_code_and_its_bound() {
        let (first, bounds) = (1000, [1032, 1090, 1127, 1160, 1223, 1290, 1350]);
        let entries = table(first, &bounds);
        for magnitude in first..first + RANGE {
            let distance = magnitude - first;
            let sum = distance + u16::from(entries[usize::from(distance >> INTERVAL_BITS)]);
            let code = bounds.iter().filter(|&&bound| magnitude >= bound).count();
            assert_eq!(usize::from(sum >> INTERVAL_BITS & CODE), code, "{magnitude}");
        }
    }
}
