//! What a survey counts.

#![deny(unsafe_code)]

use std::ops::AddAssign;

use super::sorted_map::SortedMap;
use crate::cpu::DefaultEnvironment;

/// Binades below the binade of the maximum of a block that have cells of their own; all elements below are in the last.
pub const DEPTH: usize = 64;

/// A square is rounded to a multiple of four to its element's exponent, divided by two to this power.
pub const SQUARE_BITS: u32 = 28;

/// Elements of the blocks of a row.
pub const BLOCK_WIDTHS: [usize; 3] = [16, 32, 128];

/// The parts of an array that have a maximum each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocks {
    /// 16 elements of a row.
    Of16,
    /// 32 elements of a row.
    Of32,
    /// 128 elements of a row.
    Of128,
    /// 128 rows of 128 elements.
    Square,
    /// Whole rows.
    Row,
}

impl Blocks {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Of16, Self::Of32, Self::Of128, Self::Square, Self::Row];

    /// Rows and columns; 0 is the whole axis, as in the table of schemes.
    #[must_use]
    pub const fn shape(self) -> (usize, usize) {
        match self {
            Self::Of16 => (1, BLOCK_WIDTHS[0]),
            Self::Of32 => (1, BLOCK_WIDTHS[1]),
            Self::Of128 => (1, BLOCK_WIDTHS[2]),
            Self::Square => (BLOCK_WIDTHS[2], BLOCK_WIDTHS[2]),
            Self::Row => (1, 0),
        }
    }
}

/// Elements of a binade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// How many.
    pub count: u64,
    /// The sum of their squares, in units of four to their exponent, divided by two to [`SQUARE_BITS`].
    pub squares: u128,
}

impl Cell {
    /// Adds elements of the same binade.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.squares += other.squares;
    }

    /// Returns the sum of the squares, in units of four to the exponent.
    #[must_use]
    pub fn sum_of_squares(&self) -> f64 {
        self.squares as f64 / f64::from(1u32 << SQUARE_BITS)
    }
}

/// The magnitudes of finite elements that are not zero, with how many have each, as long as they are few.
///
/// An array of few values has no smooth density, from which losses could be predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FewMagnitudes(Option<SortedMap<u64, u64>>);

impl Default for FewMagnitudes {
    fn default() -> Self {
        Self(Some(SortedMap::default()))
    }
}

impl FewMagnitudes {
    /// How many may be told apart: the codes of 8 bits.
    pub const MOST: usize = 128;

    /// Makes them of magnitudes and counts; of none if there are too many.
    #[must_use]
    pub fn new(counts: Option<Vec<(f64, u64)>>) -> Self {
        let mut few = Self(counts.as_ref().map(|_| SortedMap::default()));
        counts.unwrap_or_default().iter().for_each(|&(value, count)| few.add(value.to_bits(), count));
        few
    }

    /// Returns the magnitudes, the lowest first, with their counts; None if there are too many.
    #[must_use]
    pub fn counts(&self) -> Option<Vec<(f64, u64)>> {
        let counts = self.0.as_ref()?;
        Some(counts.iter().map(|(&bits, &count)| (f64::from_bits(bits), count)).collect())
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.0.is_none()
    }

    /// Adds the elements of a piece.
    pub(super) fn add_values(&mut self, values: &[f64]) {
        let mut rest = values;
        while let Some((first, after)) = rest.split_first().filter(|_| self.0.is_some()) {
            let bits = first.to_bits() << 1 >> 1;
            let run = after.iter().take_while(|value| value.to_bits() << 1 >> 1 == bits).count();
            if bits != 0 && bits < f64::INFINITY.to_bits() {
                self.add(bits, 1 + run as u64);
            }
            rest = &after[run..];
        }
    }

    /// Adds those of other elements.
    fn merge(&mut self, other: &Self) {
        match &other.0 {
            Some(counts) => counts.iter().for_each(|(&bits, &count)| self.add(bits, count)),
            None => self.0 = None,
        }
    }

    fn add(&mut self, bits: u64, count: u64) {
        let Some(counts) = &mut self.0 else { return };
        *counts.entry(bits) += count;
        if counts.len() > Self::MOST {
            self.0 = None;
        }
    }
}

/// Blocks whose maxima are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// How many.
    pub blocks: u64,
    /// Their finite elements, not zero, by binades below that of the maximum. Squares of the last cell, which has several
    /// binades, are not counted.
    pub cells: [Cell; DEPTH],
}

impl Default for BlockRow {
    fn default() -> Self {
        Self { blocks: 0, cells: [Cell::default(); DEPTH] }
    }
}

/// Blocks of a shape, by eighths of the binade of their maximum: eight times its exponent, and 0 to 7 for the eighth.
///
/// Blocks without a finite number but zero are left out, and subnormal numbers of float64 are taken for zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockTable {
    /// Rows, by eighth.
    pub rows: SortedMap<i16, Box<BlockRow>>,
}

impl BlockTable {
    /// Returns the row of an eighth.
    pub(super) fn row(&mut self, eighth: i16) -> &mut BlockRow {
        self.rows.entry(eighth)
    }

    /// Adds other blocks.
    pub(super) fn merge(&mut self, other: &Self) {
        for (&eighth, row) in other.rows.iter() {
            let sum = self.row(eighth);
            sum.blocks += row.blocks;
            for (cell, more) in sum.cells.iter_mut().zip(&row.cells) {
                cell.add(*more);
            }
        }
    }
}

/// How large the elements of an array are.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Magnitudes {
    /// Zeros of both signs.
    pub zeros: u64,
    /// Infinities of both signs.
    pub infinities: u64,
    /// NaN.
    pub nans: u64,
    /// The largest finite magnitude; 0 without.
    pub largest: f64,
    /// The smallest magnitude that is not zero; 0 without.
    pub smallest: f64,
    /// Finite elements, not zero, by the exponent of their magnitude. Small arrays have no sums of squares.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub binades: SortedMap<i16, Cell>,
}

impl Magnitudes {
    /// Returns how many elements have each exponent, the lowest first: with an exponent of 3 those from 8 to below 16.
    #[must_use]
    pub fn binades(&self) -> impl DoubleEndedIterator<Item = (i16, u64)> {
        self.binades.iter().map(|(&exponent, cell)| (exponent, cell.count))
    }

    fn merge(&mut self, other: &Self) {
        self.zeros += other.zeros;
        self.infinities += other.infinities;
        self.nans += other.nans;
        DefaultEnvironment::compute((&mut *self, other), |(this, other)| {
            this.include(other.smallest);
            this.include(other.largest);
        });
        for (&exponent, cell) in other.binades.iter() {
            self.binades.entry(exponent).add(*cell);
        }
    }

    /// Widens the range by a magnitude, unless it is zero.
    pub(super) fn include(&mut self, magnitude: f64) {
        if magnitude > 0.0 {
            self.largest = self.largest.max(magnitude);
            self.smallest = if self.smallest == 0.0 { magnitude } else { self.smallest.min(magnitude) };
        }
    }
}

/// What the magnitudes of an array are. Surveys add up in any order.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Survey {
    /// Elements.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub count: u64,
    /// How large they are.
    pub magnitudes: Magnitudes,
    /// Finite elements, not zero, in strips of 128 of a row, by the most bits that a significand of the strip needs: 53 less
    /// the trailing zeros as float64.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub significant_bits: SortedMap<u8, u64>,
    /// The same, by their magnitude, if there are few.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub few: FewMagnitudes,
    /// By the maxima of their blocks, in the order of [`Blocks::ALL`].
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub blocks: [BlockTable; Blocks::ALL.len()],
}

impl AddAssign<&Self> for Survey {
    fn add_assign(&mut self, other: &Self) {
        self.count += other.count;
        self.magnitudes.merge(&other.magnitudes);
        for (&bits, count) in other.significant_bits.iter() {
            *self.significant_bits.entry(bits) += count;
        }
        self.few.merge(&other.few);
        for (table, more) in self.blocks.iter_mut().zip(&other.blocks) {
            table.merge(more);
        }
    }
}

impl Survey {
    /// The table of a kind of blocks.
    pub(super) fn table(&mut self, blocks: Blocks) -> &mut BlockTable {
        &mut self.blocks[blocks as usize]
    }
}
