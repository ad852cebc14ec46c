//! Tables that a thread counts in, a word per cell: how many elements, and the sum of their squares.

#![deny(unsafe_code)]

use super::outcome::{BlockRow, BlockTable, Cell, DEPTH};
use super::sorted_map::SortedMap;

/// Where the count of a word begins; below are squares, each of which has less than 30 bits.
pub(super) const COUNT_SHIFT: u32 = 46;

/// Elements whose words may be added up: sums of as many squares stay below the count, and as high a count within a word.
pub(super) const MOST_ELEMENTS: usize = 1 << 16;

/// Binades of float64: the field of an exponent.
pub(super) const FIELDS: usize = 1 << 11;

/// Bits below the exponent of a magnitude, and below its eighth of a binade.
pub(super) const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;
const EIGHTH: u32 = FRACTION - 3;

/// The exponent of the binade whose field is 0.
pub(super) const LOWEST: i16 = -1023;

/// Eighths of binades.
const EIGHTHS: usize = FIELDS * 8;

/// Cells that are added at a time.
pub(super) const STEP: usize = 8;

/// Cells that follow each other, upwards to the binade of a maximum. Behind them is room for zeros, if cells of a lower maximum
/// are added.
pub(super) type Window = [u64; 2 * DEPTH];

/// The last place of a window that counts.
pub(super) const TOP: usize = DEPTH - 1;

/// Returns what a word counts.
pub(super) fn unpack(word: u64) -> Cell {
    Cell { count: word >> COUNT_SHIFT, squares: u128::from(word & ((1 << COUNT_SHIFT) - 1)) }
}

/// Returns the field of a magnitude as float64.
#[inline(always)]
pub(super) fn field_of(magnitude: u64) -> usize {
    (magnitude >> FRACTION) as usize % FIELDS
}

/// Returns the eighth of a binade that a magnitude as float64 is in.
#[inline(always)]
pub(super) fn eighth_of(magnitude: u64) -> i16 {
    (magnitude >> EIGHTH) as i16 + 8 * LOWEST
}

/// Adds so many steps of cells to others.
#[inline(always)]
pub(super) fn add_cells<const STEPS: usize>(to: &mut [u64], from: &[u64]) {
    let (to, from) = (&mut to[..STEPS * STEP], &from[..STEPS * STEP]);
    for (to, from) in to.as_chunks_mut::<STEP>().0.iter_mut().zip(from.as_chunks::<STEP>().0) {
        // Loaded as a whole: the compiler does not see that the two are apart.
        let mut sum = [0; STEP];
        for place in 0..STEP {
            sum[place] = to[place] + from[place];
        }
        *to = sum;
    }
}

/// Blocks whose maxima are in an eighth of a binade.
struct PackedRow {
    eighth: i16,
    blocks: u64,
    cells: Window,
}

/// Blocks of a shape, by eighths of binades: counted in words, and moved to a wide table before one overflows.
pub(super) struct PackedTable {
    /// The place of a row plus one, or 0.
    places: Box<[u16; EIGHTHS]>,
    rows: Vec<PackedRow>,
    /// Elements that words count.
    elements: usize,
    wide: BlockTable,
}

impl Default for PackedTable {
    fn default() -> Self {
        let places = vec![0; EIGHTHS].try_into().expect("so many");
        Self { places, rows: Vec::new(), elements: 0, wide: BlockTable::default() }
    }
}

impl PackedTable {
    /// Makes room for the words of so many elements.
    #[inline(always)]
    pub(super) fn reserve(&mut self, elements: usize) {
        debug_assert!(elements <= MOST_ELEMENTS);
        if self.elements + elements > MOST_ELEMENTS {
            self.widen();
        }
        self.elements += elements;
    }

    /// Adds a block with this maximum; returns its cells.
    #[inline(always)]
    pub(super) fn add_block(&mut self, maximum: u64) -> &mut Window {
        let eighth = (maximum >> EIGHTH) as usize % EIGHTHS;
        if self.places[eighth] == 0 {
            self.add_row(maximum);
        }
        let row = &mut self.rows[usize::from(self.places[eighth]) - 1];
        row.blocks += 1;
        &mut row.cells
    }

    #[cold]
    #[inline(never)]
    fn add_row(&mut self, maximum: u64) {
        self.rows.push(PackedRow { eighth: eighth_of(maximum), blocks: 0, cells: [0; 2 * DEPTH] });
        self.places[(maximum >> EIGHTH) as usize % EIGHTHS] = self.rows.len() as u16;
    }

    /// Moves the counts of words to the wide table.
    #[cold]
    #[inline(never)]
    fn widen(&mut self) {
        for row in self.rows.iter_mut().filter(|row| row.blocks > 0) {
            let sum = self.wide.row(row.eighth);
            sum.blocks += std::mem::take(&mut row.blocks);
            let words = row.cells[..DEPTH].iter_mut().rev().enumerate();
            for (depth, word) in words.filter(|(_, word)| **word != 0) {
                add(sum, depth, unpack(std::mem::take(word)));
            }
        }
        self.elements = 0;
    }

    /// Moves all counts to a table.
    pub(super) fn drain_into(&mut self, table: &mut BlockTable) {
        self.widen();
        let wide = std::mem::take(&mut self.wide);
        if table.rows.is_empty() {
            *table = wide;
        } else {
            table.merge(&wide);
        }
    }
}

/// Adds elements, so many binades below that of the maximum.
fn add(row: &mut BlockRow, depth: usize, elements: Cell) {
    let depth = depth.min(DEPTH - 1);
    let squares = if depth == DEPTH - 1 { 0 } else { elements.squares };
    row.cells[depth].add(Cell { squares, ..elements });
}

/// The binades of a part of an array, of at most [`MOST_ELEMENTS`], and the largest magnitude in it.
pub(super) struct Binades {
    /// By field, from [`DEPTH`] on.
    words: Box<[u64; FIELDS + 2 * DEPTH]>,
    pub(super) maximum: u64,
    lowest: usize,
}

impl Default for Binades {
    fn default() -> Self {
        let words = vec![0; FIELDS + 2 * DEPTH].try_into().expect("so many");
        Self { words, maximum: 0, lowest: FIELDS }
    }
}

impl Binades {
    /// Widens the range of magnitudes.
    #[inline(always)]
    pub(super) fn include(&mut self, maximum: u64, lowest: usize) {
        (self.maximum, self.lowest) = (self.maximum.max(maximum), self.lowest.min(lowest));
    }

    /// Returns the cells from a field on.
    #[inline(always)]
    pub(super) fn cells_from(&mut self, field: isize) -> &mut [u64] {
        &mut self.words[(field + DEPTH as isize) as usize..]
    }

    /// Returns the fields that have elements.
    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, Cell)> {
        let end = if self.maximum > 0 { field_of(self.maximum) + 1 } else { 0 };
        let words = (self.lowest..end).map(|field| (field, self.words[field + DEPTH]));
        words.filter(|(_, word)| *word != 0).map(|(field, word)| (field, unpack(word)))
    }

    /// Moves all counts, field by field.
    fn drain(&mut self, mut call: impl FnMut(usize, Cell)) {
        self.cells().for_each(|(field, cell)| call(field, cell));
        if self.maximum > 0 {
            self.words[self.lowest + DEPTH..=field_of(self.maximum) + DEPTH].fill(0);
        }
        (self.maximum, self.lowest) = (0, FIELDS);
    }

    /// Moves all counts to a table, as those of one block; there is room for them.
    pub(super) fn move_into(&mut self, table: &mut PackedTable) {
        if self.maximum > 0 {
            let highest = field_of(self.maximum);
            let cells = table.add_block(self.maximum);
            for field in self.lowest..=highest {
                cells[TOP - (highest - field).min(TOP)] += std::mem::take(&mut self.words[field + DEPTH]);
            }
        }
        (self.maximum, self.lowest) = (0, FIELDS);
    }
}

/// The binades of a row, or of all elements, as many as there may be.
#[derive(Default)]
pub(super) struct RowBinades {
    /// Those of a part of them, of at most [`MOST_ELEMENTS`].
    pub(super) part: Binades,
    /// Elements of the part, where they are counted.
    elements: usize,
    /// Those of parts before, by field.
    cells: SortedMap<usize, Cell>,
    maximum: u64,
}

impl RowBinades {
    /// Adds the binades of some elements, but not their maximum.
    pub(super) fn add(&mut self, binades: &Binades, elements: usize) {
        if self.elements + elements > MOST_ELEMENTS {
            self.end_part();
        }
        self.elements += elements;
        if binades.maximum > 0 {
            self.part.include(binades.maximum, binades.lowest);
            for field in binades.lowest..=field_of(binades.maximum) {
                self.part.words[field + DEPTH] += binades.words[field + DEPTH];
            }
        }
    }

    /// Moves all counts to a function of fields.
    pub(super) fn drain(&mut self, mut call: impl FnMut(usize, Cell)) {
        self.end_part();
        self.maximum = 0;
        for (field, cell) in std::mem::take(&mut self.cells) {
            call(field, cell);
        }
    }

    /// Counts the part to those before.
    pub(super) fn end_part(&mut self) {
        self.maximum = self.maximum.max(self.part.maximum);
        self.part.drain(|field, cell| self.cells.entry(field).add(cell));
        self.elements = 0;
    }

    /// Adds another part of the same row.
    pub(super) fn merge(&mut self, other: &Self) {
        self.maximum = self.maximum.max(other.maximum);
        for (&field, &cell) in other.cells.iter() {
            self.cells.entry(field).add(cell);
        }
    }

    /// Moves all counts to a table of rows; `elements` are those of the part, for which it makes room.
    pub(super) fn move_into(&mut self, table: &mut PackedTable, wide: &mut BlockTable, elements: usize) {
        if self.cells.is_empty() {
            table.reserve(elements);
            self.part.move_into(table);
            return;
        }
        self.end_part();
        let (maximum, cells) = (std::mem::take(&mut self.maximum), std::mem::take(&mut self.cells));
        let (highest, sum) = (field_of(maximum), wide.row(eighth_of(maximum)));
        sum.blocks += 1;
        for (field, cell) in cells {
            add(sum, highest - field, cell);
        }
    }
}
