//! What a survey counts.

#![deny(unsafe_code)]

use std::collections::BTreeMap;

/// Binades below the binade of the maximum of a block that have cells of their own; all elements below are in the last.
pub const DEPTH: usize = 64;

/// A square is rounded to a multiple of four to its element's exponent, divided by two to this power.
pub const SQUARE_BITS: u32 = 28;

/// Elements of the blocks of a row.
pub const BLOCK_WIDTHS: [usize; 3] = [16, 32, 128];

/// The parts of an array that have a maximum each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
pub struct BlockTable {
    /// Rows, by eighth.
    pub rows: BTreeMap<i16, BlockRow>,
}

impl BlockTable {
    /// Returns the row of an eighth.
    pub(super) fn row(&mut self, eighth: i16) -> &mut BlockRow {
        self.rows.entry(eighth).or_default()
    }

    /// Adds other blocks.
    pub(super) fn merge(&mut self, other: &Self) {
        for (&eighth, row) in &other.rows {
            let sum = self.row(eighth);
            sum.blocks += row.blocks;
            for (cell, more) in sum.cells.iter_mut().zip(&row.cells) {
                cell.add(*more);
            }
        }
    }
}

/// What the magnitudes of an array are. Surveys add up in any order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Elements.
    pub count: u64,
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
    /// Finite elements, not zero, by the exponent of their magnitude.
    pub binades: BTreeMap<i16, Cell>,
    /// The same, in strips of 128 of a row, by the most bits that a significand of the strip needs: 53 less the trailing
    /// zeros as float64.
    pub significant_bits: BTreeMap<u8, u64>,
    /// By the maxima of their blocks, in the order of [`Blocks::ALL`].
    pub blocks: [BlockTable; Blocks::ALL.len()],
}

impl Survey {
    /// Adds the survey of other elements.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.zeros += other.zeros;
        self.infinities += other.infinities;
        self.nans += other.nans;
        self.include(other.smallest);
        self.include(other.largest);
        for (&exponent, cell) in &other.binades {
            self.binades.entry(exponent).or_default().add(*cell);
        }
        for (&bits, count) in &other.significant_bits {
            *self.significant_bits.entry(bits).or_default() += count;
        }
        for (table, more) in self.blocks.iter_mut().zip(&other.blocks) {
            table.merge(more);
        }
    }

    /// Widens the range of magnitudes by one, unless it is zero.
    pub(super) fn include(&mut self, magnitude: f64) {
        if magnitude > 0.0 {
            self.largest = self.largest.max(magnitude);
            self.smallest = if self.smallest == 0.0 { magnitude } else { self.smallest.min(magnitude) };
        }
    }

    /// The table of a kind of blocks.
    pub(super) fn table(&mut self, blocks: Blocks) -> &mut BlockTable {
        &mut self.blocks[blocks as usize]
    }
}
