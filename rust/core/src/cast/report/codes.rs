//! Sources of a byte that lose nothing: their range and the sum of their squares, from tables of what each code is.
//!
//! The magnitudes of a format are ranked, from zero on: the largest and the smallest rank of an array tell its range.
//! Squares are integers of some bytes in units of the smallest; a table for each of these bytes tells that of each code,
//! and bytes are added up sixty-four at a time.

use std::marker::PhantomData;

use super::squares::{EXACT, exponent_of};
use crate::cached_once::CachedOnce;
use crate::cpu::{Kernel, Level};
use crate::format::Format;
use crate::report::{CastReport, smallest_nonzero};
use crate::simd::{Amounts, Rest, TABLE_BYTES, Vector, with_amounts};

/// Tables found so far, or that a format has none.
static CODES: CachedOnce<Option<Codes>, { Format::COUNT }> = CachedOnce::new();

/// The rank of what is not finite; half tables do not tell it from others.
const SPECIAL: u8 = u8::MAX;

/// Ranks that half a table has entries for.
const HALF: usize = TABLE_BYTES / 2;

/// The most bytes of a square.
const MOST: usize = 8;

/// Bytes of squares that whole tables are kept in registers for.
const FEW: usize = 2;

/// Bytes of a register, or of several.
const BLOCK: usize = 64;

type Bytes = [u8; TABLE_BYTES];

/// What each code of a format is.
pub(super) struct Codes {
    ranks: Bytes,
    /// Of each rank.
    magnitudes: [f64; TABLE_BYTES],
    /// Bytes of squares from the lowest: by rank if there are few of these, else by code.
    planes: [Bytes; MOST],
    /// Of these may be more than zero.
    count: usize,
    by_rank: bool,
    /// Squares are in units of two to this.
    unit: i32,
}

impl Codes {
    /// Of a format whose codes have these values.
    pub(super) fn of(
        format: Format,
        level: Level,
        values: impl FnOnce() -> [f32; TABLE_BYTES],
    ) -> Option<&'static Self> {
        let _: Level = with_amounts!(level, V => V::LEVEL)?;
        let kept = CODES.get(format.index());
        kept.unwrap_or_else(|| CODES.store(format.index(), Self::new(&values()))).as_ref()
    }

    /// `None` where there is no code of zero, or too many ranks or bytes.
    fn new(values: &[f32; TABLE_BYTES]) -> Option<Self> {
        let mut sizes: Vec<f32> =
            values.iter().map(|value| value.abs()).filter(|size| size.is_finite()).collect();
        sizes.sort_by(f32::total_cmp);
        sizes.dedup();
        let unit = sizes.iter().filter(|&&size| size != 0.0).map(|&size| last_bit(f64::from(size))).min()?;
        let largest = f64::from(*sizes.last()?);
        let is_short = 2 * (exponent_of(largest) + 1 - unit) <= (8 * MOST) as i32;
        if values[0] != 0.0 || sizes.len() > usize::from(SPECIAL) || !is_short {
            return None;
        }
        let square = |size: f32| ((f64::from(size) * 2f64.powi(-unit)) as u64).pow(2).to_le_bytes();
        let count = square(*sizes.last()?).iter().rposition(|&byte| byte != 0)? + 1;
        let by_rank = sizes.len() <= HALF;
        let mut codes = Self {
            ranks: [SPECIAL; TABLE_BYTES],
            magnitudes: [0.0; TABLE_BYTES],
            planes: [[0; TABLE_BYTES]; MOST],
            count,
            by_rank,
            unit: 2 * unit,
        };
        for (code, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let Ok(rank) = sizes.binary_search_by(|size| size.total_cmp(&value.abs())) else { continue };
            codes.ranks[code] = rank as u8;
            codes.magnitudes[rank] = f64::from(sizes[rank]);
            for (plane, byte) in codes.planes.iter_mut().zip(square(sizes[rank])) {
                plane[if by_rank { rank } else { code }] = byte;
            }
        }
        (by_rank || count <= FEW).then_some(codes)
    }

    /// The smallest and the largest magnitude but zero.
    pub(super) fn range(&self) -> [f64; 2] {
        [self.magnitudes[1], self.magnitudes.iter().copied().fold(0.0, f64::max)]
    }

    /// Counts codes in, unless some of them are not finite. Returns whether it did.
    ///
    /// # Safety
    /// `count` codes are readable.
    pub(super) unsafe fn look(
        &self,
        level: Level,
        codes: *const u8,
        count: usize,
        amounts: &mut Tally,
    ) -> bool {
        // SAFETY: the caller's promise; `of` gives tables of a level that is available.
        with_amounts!(level, V => unsafe {
            match (self.by_rank, self.count) {
                (false, _) => V::run(Look::<V, FEW, false> { table: self, codes, count, amounts, vectors: PhantomData }),
                (true, 0..=FEW) => V::run(Look::<V, FEW, true> { table: self, codes, count, amounts, vectors: PhantomData }),
                (true, 3..=5) => V::run(Look::<V, 5, true> { table: self, codes, count, amounts, vectors: PhantomData }),
                _ => V::run(Look::<V, MOST, true> { table: self, codes, count, amounts, vectors: PhantomData }),
            }
        })
        .unwrap_or(false)
    }

    /// Adds to a report what was counted in.
    pub(super) fn tell(&self, amounts: &Tally, report: &mut CastReport) {
        report.count += amounts.count;
        report.exact += amounts.count;
        let magnitude = |rank: u8| self.magnitudes[usize::from(rank)];
        let largest = amounts.largest.iter().copied().max().unwrap_or(0);
        let below = amounts.below.iter().copied().min().unwrap_or(u8::MAX);
        report.amax = report.amax.max(magnitude(largest));
        report.amin_nonzero = smallest_nonzero(report.amin_nonzero, magnitude(below.wrapping_add(1)));
        for (plane, sums) in amounts.sums.iter().enumerate() {
            let sum: u128 = sums.iter().map(|&sum| u128::from(sum)).sum();
            report.signal.add(sum << (8 * plane), self.unit);
        }
    }
}

/// What was counted in.
#[repr(align(64))]
pub(super) struct Tally {
    /// Of each byte of squares, in parts.
    sums: [[u64; BLOCK / 8]; MOST],
    /// Ranks, in parts.
    largest: [u8; BLOCK],
    /// One less than ranks, which for zero is the largest.
    below: [u8; BLOCK],
    count: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { sums: Default::default(), largest: [0; BLOCK], below: [u8::MAX; BLOCK], count: 0 }
    }
}

/// A look at codes, whose squares have so many bytes at most.
struct Look<'a, V, const PLANES: usize, const BY_RANK: bool> {
    table: &'a Codes,
    codes: *const u8,
    count: usize,
    amounts: &'a mut Tally,
    vectors: PhantomData<V>,
}

impl<V: Amounts, const PLANES: usize, const BY_RANK: bool> Kernel for Look<'_, V, PLANES, BY_RANK> {
    /// Whether all codes are finite, and so were counted in.
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { table, codes, count, amounts, .. } = self;
        let whole = count - count % V::BYTES;
        let mut rest = Rest::<BLOCK>::new();
        // SAFETY: `look`'s caller vouches for the codes, and `with_amounts` for the level; tables and rooms are as long
        // as what is read and written. What is left of the last register is zero, the code of zero.
        unsafe {
            codes.add(whole).copy_to_nonoverlapping(rest.0.as_mut_ptr(), count - whole);
            let ranks = V::load_table(&table.ranks);
            let whole_tables = [0, 1].map(|plane| V::load_table(&table.planes[plane]));
            let mut half_tables = [V::load_half_table(&table.planes[0]); PLANES];
            for (half, plane) in half_tables.iter_mut().zip(&table.planes) {
                *half = V::load_half_table(plane);
            }
            let (zero, all) = (V::splat8(0), V::splat8(u8::MAX));
            let (mut largest, mut below, mut sums) = (zero, all, [zero; PLANES]);
            for start in (0..count).step_by(V::BYTES) {
                // No closure: it would not be compiled for the level.
                let block = if start < whole { codes.add(start) } else { rest.0.as_ptr() };
                let block = V::load(block);
                let rank = V::lookup(ranks, block);
                largest = V::max8(largest, rank);
                below = V::min8(below, V::add8(rank, all));
                for plane in 0..PLANES {
                    let bytes = if BY_RANK {
                        V::lookup_half(half_tables[plane], rank)
                    } else {
                        V::lookup(whole_tables[plane], block)
                    };
                    sums[plane] = V::add_up8(sums[plane], bytes);
                }
            }
            if V::any8(V::above8(largest, V::splat8(SPECIAL - 1))) {
                return false;
            }
            let place = amounts.largest.as_mut_ptr();
            V::store(place, V::max8(largest, V::load(place)));
            let place = amounts.below.as_mut_ptr();
            V::store(place, V::min8(below, V::load(place)));
            for (sum, row) in sums.into_iter().zip(&mut amounts.sums) {
                let place = row.as_mut_ptr().cast::<u8>();
                V::store(place, V::add64(sum, V::load(place)));
            }
        }
        amounts.count += count as u64;
        true
    }
}

/// The exponent of the last bit that is set in a number: it is a multiple of two to this.
fn last_bit(value: f64) -> i32 {
    let significand = value.to_bits() | 1 << (EXACT - 1);
    exponent_of(value) - (EXACT - 1) + significand.trailing_zeros() as i32
}

#[cfg(test)]
mod tests {
    use super::{Codes, last_bit};

    #[test]
    fn the_last_bit_of_a_number() {
        assert_eq!([1.0, 6.0, 0.375, 2f64.powi(-149)].map(last_bit), [0, 1, -3, -149]);
    }

    #[test]
    fn squares_of_many_bytes_have_no_tables() {
        let mut values = [0.0; 256];
        values[1..3].copy_from_slice(&[1.0, 65535.0]);
        assert!(Codes::new(&values).is_some_and(|codes| codes.count == 4 && codes.by_rank));
        values[3] = 2f32.powi(-17);
        assert!(Codes::new(&values).is_none());
        assert!(Codes::new(&[1.0; 256]).is_none());
    }
}
