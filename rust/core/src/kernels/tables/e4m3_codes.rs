//! bf16 to codes of E4M3, by a *piecewise lookup table* for each block.
//!
//! The mantissas of bf16 are divided into intervals of 8, so small that each contains at most one bound from which on the
//! code is larger. One entry per interval tells both the code before and that bound; exponents add to it:
//!
//! ```text
//! interval   mantissa >> 3
//! code       (exponent - first) * 8 + ((mantissa & 7) + entries[interval]) >> 3
//! ```
//! Results must be normal: elements with others are left.

use crate::cpu::{Level, RawKernel};
use crate::simd::{INTERVALS, Intervals, Vector, or_masked, with_vectors};

/// The bits of a mantissa of bf16, and of a place in an interval.
const MANTISSA: u32 = 7;
const INTERVAL_BITS: u32 = 3;

/// The largest finite code of E4M3, and how many exponents there are.
pub(crate) const MOST: u8 = 0x7e;
const EXPONENTS: u8 = 16;

/// The sign of a byte.
const SIGN: u8 = 1 << 7;

/// The table of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    /// 16 entries, twice.
    entries: [u8; INTERVALS],
    /// The exponent of elements for which codes would begin at 0: normal ones begin after it.
    first: u8,
}

impl Lookup {
    /// That of a block whose elements are left.
    pub(crate) const NONE: Self = Self { entries: [0; INTERVALS], first: u8::MAX };

    /// Makes the table for the codes of the mantissas of an exponent, which are normal.
    pub(crate) fn new(exponent: i32, codes: &[u8; 1 << MANTISSA]) -> Option<Self> {
        let least = codes[0] >> INTERVAL_BITS;
        let first = u8::try_from(exponent - i32::from(least)).ok()?;
        let mut entries = [0; INTERVALS];
        for (interval, codes) in codes.chunks_exact(1 << INTERVAL_BITS).enumerate() {
            let sum: u8 = codes.iter().map(|code| code - (least << INTERVAL_BITS)).sum();
            (entries[interval], entries[interval + INTERVALS / 2]) = (sum, sum);
        }
        (1..u8::MAX - 1).contains(&first).then_some(Self { entries, first })
    }
}

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
    pub(crate) blocks: &'a [Lookup],
}

/// Some columns of a row that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) row: usize,
    pub(crate) start: usize,
    pub(crate) count: usize,
}

struct Loop<'a, V>(ToE4m3<'a>, &'a mut Vec<Left>, V);

impl<V: Intervals> RawKernel for Loop<'_, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let ToE4m3 { from, pitch, to, to_pitch, rows, columns, first, width, blocks } = self.0;
        let (mut start, mut end) = (0, first.min(columns));
        for block in blocks {
            // SAFETY: the vectors are there; the caller of `to_e4m3` vouches for the elements.
            unsafe {
                let entries = V::load_entries([&block.entries; 2]);
                let (least, first) = (V::splat8(block.first.saturating_add(1)), V::splat8(block.first));
                // A scale that saturates leaves larger exponents than there are.
                let largest = V::splat8(EXPONENTS);
                let (one, rest) = (V::splat8(1), V::splat8((1 << INTERVAL_BITS) - 1));
                let (low, most, sign) = (V::splat8(0x0f), V::splat8(MOST), V::splat8(SIGN));
                for row in 0..rows {
                    let from = from.offset(row as isize * pitch);
                    let to = to.offset(row as isize * to_pitch);
                    let mut column = start;
                    while column + V::BYTES <= end && block.first != Lookup::NONE.first {
                        let place = from.add(2 * column);
                        let (even, odd) = V::unzip8(V::load(place), V::load(place.add(V::BYTES)));
                        let sums = V::entries8(entries, V::and(V::shr16(even, INTERVAL_BITS), low));
                        let sums = V::add8(sums, V::and(even, rest));
                        // At most 16 intervals of codes below 16: the byte before has no bits that matter.
                        let above = V::and(V::shr16(sums, INTERVAL_BITS), V::splat8(0x1f));
                        let exponents = or_masked::<V>(V::add8(odd, odd), V::shr16(even, MANTISSA), one);
                        let codes = V::min8(V::sub_saturated8(exponents, first), largest);
                        let codes = V::add8(codes, codes);
                        let codes = V::add8(codes, codes);
                        let codes = V::min8(V::add8(V::add8(codes, codes), above), most);
                        V::store(to.add(column), V::in_order(or_masked::<V>(codes, odd, sign)));
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

/// Finds the codes of most elements, and adds the others to those that are left. Returns whether the level can.
///
/// # Safety
/// The elements are readable, and as many codes writable.
pub(crate) unsafe fn to_e4m3(level: Level, what: ToE4m3<'_>, left: &mut Vec<Left>) -> bool {
    let done: Option<()> = with_vectors!(level, vectors => vectors.run(Loop(what, left, vectors)));
    done.is_some()
}
