//! The loop over a piece of a row.
//!
//! Adding to a cell waits for the last addition to it, and most elements of a block fall into two or three binades. So the
//! eight narrowest blocks of a strip are counted by turns, each in cells of its own; sums of these, cell by cell, are those
//! of wider blocks.

#![deny(unsafe_code)]

use super::outcome::{BLOCK_WIDTHS, Blocks, DEPTH, SQUARE_BITS, Survey};
use super::tables::{
    Binades, COUNT_SHIFT, FIELDS, LOWEST, PackedTable, RowBinades, STEP, TOP, add_cells, field_of,
};
use crate::cpu::Kernel;
use crate::kernels::tile::Tile;

/// Elements of a piece.
pub(super) const PIECE: usize = 512;

/// Elements of a strip: a block of the widest kind.
pub(super) const STRIP: usize = BLOCK_WIDTHS[2];

/// Elements of a strip, up to which it is not worth the cells of whole strips.
const FEW: usize = 24;

/// Elements of a block of the narrowest kind.
const NARROW: usize = BLOCK_WIDTHS[0];

const MAGNITUDE: u64 = u64::MAX >> 1;
const INFINITY: u64 = f64::INFINITY.to_bits();
const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;

/// The smallest magnitude that is not subnormal.
const SMALLEST: u64 = 1 << FRACTION;

/// Bits of a significand that is squared, without the first.
const ROOT_BITS: u32 = 24;

/// What a piece is added to.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) of16: PackedTable,
    pub(super) of32: PackedTable,
    pub(super) of128: PackedTable,
    pub(super) of_squares: PackedTable,
    pub(super) of_rows: PackedTable,
    /// The binades of all elements.
    pub(super) all: RowBinades,
    /// The binades of each square of a piece's columns.
    pub(super) squares: [Binades; PIECE / STRIP],
    /// Elements of strips by the most bits that a significand of theirs needs.
    significant: Significant,
    columns: Columns,
    windows: Box<Windows>,
}

struct Significant([u64; 64]);

impl Default for Significant {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// The cells of each narrow block of a strip.
struct Windows([[u64; DEPTH]; STRIP / NARROW]);

impl Default for Windows {
    fn default() -> Self {
        Self([[0; DEPTH]; STRIP / NARROW])
    }
}

/// The elements of a piece, and none behind them up to whole strips.
#[derive(Default)]
struct Columns {
    /// The bits of magnitudes; 0 for what has no binade: zero, infinity, NaN, subnormal numbers.
    magnitudes: Box<Tile<u64, PIECE>>,
    /// What they add to a cell.
    words: Box<Tile<u64, PIECE>>,
}

/// Elements of a piece that are in no binade.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    pub(super) zeros: u64,
    pub(super) infinities: u64,
    pub(super) nans: u64,
    pub(super) subnormals: u64,
}

impl Tables {
    /// Moves all counts to a survey.
    pub(super) fn drain_into(&mut self, survey: &mut Survey) {
        self.of16.drain_into(survey.table(Blocks::Of16));
        self.of32.drain_into(survey.table(Blocks::Of32));
        self.of128.drain_into(survey.table(Blocks::Of128));
        self.of_squares.drain_into(survey.table(Blocks::Square));
        self.of_rows.drain_into(survey.table(Blocks::Row));
        self.all.drain(|field, cell| {
            survey.binades.entry(field as i16 + LOWEST).or_default().add(cell);
        });
        for (bits, count) in (0u8..).zip(&mut self.significant.0).filter(|(_, count)| **count > 0) {
            *survey.significant_bits.entry(bits).or_default() += std::mem::take(count);
        }
    }
}

/// A piece of a row, which begins with a block of each kind.
pub(super) struct Piece<'a> {
    pub(super) values: &'a [f64],
    pub(super) tables: &'a mut Tables,
    pub(super) row: &'a mut RowBinades,
    /// The smallest magnitude of the pieces so far.
    pub(super) smallest: &'a mut u64,
}

/// Adds a piece. Without `WINDOWS` that takes longer, and a fifth of the code.
pub(super) struct AddPiece<'a, 'b, const WINDOWS: bool>(pub(super) &'b mut Piece<'a>);

impl<const WINDOWS: bool> Kernel for AddPiece<'_, '_, WINDOWS> {
    type Output = Others;

    #[inline(always)]
    fn run(self) -> Others {
        let Piece { values, tables, row, smallest } = self.0;
        let count = values.len().min(PIECE);
        let values = &values[..count];
        for table in [&mut tables.of16, &mut tables.of32, &mut tables.of128] {
            table.reserve(count);
        }
        let mut others = Others::default();
        let (mut most, mut least) = split::<true>(values, &mut tables.columns, &mut others);
        if most >= INFINITY || least < SMALLEST {
            (most, least) = split::<false>(values, &mut tables.columns, &mut others);
        }
        if most == 0 {
            return others;
        }
        **smallest = least.min(**smallest);
        let end = count.next_multiple_of(STRIP);
        tables.columns.magnitudes.0[count..end].fill(0);
        tables.columns.words.0[count..end].fill(0);
        for strip in 0..end / STRIP {
            let elements = STRIP.min(count - strip * STRIP);
            add_strip::<WINDOWS>(tables, (strip, elements), field_of(least), row);
        }
        others
    }
}

/// Fills the columns of a piece; returns the largest and the smallest magnitude with a binade. With `ALL`, every element is
/// taken to have one.
#[inline(always)]
fn split<const ALL: bool>(values: &[f64], columns: &mut Columns, others: &mut Others) -> (u64, u64) {
    const CUT: u32 = 2 * ROOT_BITS - SQUARE_BITS;
    let (mut most, mut least) = (0, MAGNITUDE);
    let columns = columns.magnitudes.0.iter_mut().zip(&mut columns.words.0);
    for (value, (magnitude, word)) in values.iter().zip(columns) {
        let bits = value.to_bits() & MAGNITUDE;
        let root = bits >> (FRACTION - ROOT_BITS) & ((1 << ROOT_BITS) - 1) | 1 << ROOT_BITS;
        let square = (root * root + (1 << (CUT - 1))) >> CUT | 1 << COUNT_SHIFT;
        if ALL {
            (*magnitude, *word) = (bits, square);
            (most, least) = (most.max(bits), least.min(bits));
            continue;
        }
        let has_binade = (SMALLEST..INFINITY).contains(&bits);
        *magnitude = if has_binade { bits } else { 0 };
        *word = if has_binade { square } else { 0 };
        others.zeros += u64::from(bits == 0);
        others.infinities += u64::from(bits == INFINITY);
        others.nans += u64::from(bits > INFINITY);
        others.subnormals += u64::from((bits != 0) & (bits < SMALLEST));
        (most, least) = (most.max(*magnitude), least.min(if has_binade { bits } else { MAGNITUDE }));
    }
    (most, least)
}

/// Adds a strip of a piece, of so many elements, which are in this field or higher ones.
#[inline(always)]
fn add_strip<const WINDOWS: bool>(
    tables: &mut Tables,
    (strip, elements): (usize, usize),
    lowest: usize,
    row: &mut RowBinades,
) {
    let magnitudes = &tables.columns.magnitudes.0[strip * STRIP..(strip + 1) * STRIP];
    let (mut maxima, mut bits) = ([0; STRIP / NARROW], 0);
    for (maximum, magnitudes) in maxima.iter_mut().zip(magnitudes.as_chunks::<NARROW>().0) {
        *maximum = magnitudes.iter().fold(0, |most, &magnitude| most.max(magnitude));
        bits = magnitudes.iter().fold(bits, |bits, &magnitude| bits | magnitude);
    }
    let maximum = maxima.iter().fold(0, |most, &maximum| most.max(maximum));
    if maximum == 0 {
        return;
    }
    let highest = field_of(maximum);
    let lowest = lowest.min(highest);
    let strip = Strip { number: strip, elements, maxima, maximum, lowest };
    let count = match (highest - lowest) / STEP {
        _ if !WINDOWS || elements <= FEW => add_one_by_one(tables, &strip, row),
        0 | 1 => add_windows::<2>(tables, &strip, row),
        2 => add_windows::<3>(tables, &strip, row),
        3 | 4 => add_windows::<5>(tables, &strip, row),
        5..8 => add_windows::<8>(tables, &strip, row),
        _ => add_one_by_one(tables, &strip, row),
    };
    let bits = FRACTION + 1 - (bits | SMALLEST).trailing_zeros();
    tables.significant.0[bits as usize % 64] += count;
}

/// A strip that is not empty.
struct Strip {
    number: usize,
    elements: usize,
    /// The largest magnitude of each narrow block.
    maxima: [u64; STRIP / NARROW],
    maximum: u64,
    /// A field that no element is below.
    lowest: usize,
}

/// Adds a strip whose elements are within so many steps of binades; returns how many they are.
#[inline(always)]
fn add_windows<const STEPS: usize>(tables: &mut Tables, strip: &Strip, row: &mut RowBinades) -> u64 {
    let Tables { of16, of32, of128, squares, columns, windows, .. } = tables;
    let Windows(windows) = &mut **windows;
    let &Strip { number, maxima, maximum, lowest, .. } = strip;
    let range = number * STRIP..(number + 1) * STRIP;
    let (magnitudes, words) = (&columns.magnitudes.0[range.clone()], &columns.words.0[range]);
    let (first, highest) = (DEPTH - STEPS * STEP, field_of(maximum));
    // What has no binade adds zeros to the lowest cell.
    let depths = (STEPS * STEP - 1) as u64;
    let mut places = [0u64; STRIP];
    for (place, &magnitude) in places.iter_mut().zip(magnitudes) {
        *place = depths - (highest as u64).wrapping_sub(magnitude >> FRACTION).min(depths);
    }
    for element in 0..NARROW {
        for (block, window) in windows.iter_mut().enumerate() {
            let element = block * NARROW + element;
            window[places[element] as usize % DEPTH] += words[element];
        }
    }
    let mut sum = [0; DEPTH];
    for (pair, maxima) in windows.as_chunks_mut::<2>().0.iter_mut().zip(maxima.as_chunks::<2>().0) {
        let [left, right] = pair;
        add_block::<STEPS>(of16, maxima[0], highest, left);
        add_block::<STEPS>(of16, maxima[1], highest, right);
        add_cells::<STEPS>(left, right);
        add_block::<STEPS>(of32, maxima[0].max(maxima[1]), highest, left);
        add_cells::<STEPS>(&mut sum, left);
        left[..STEPS * STEP].fill(0);
        right[..STEPS * STEP].fill(0);
    }
    add_block::<STEPS>(of128, maximum, highest, &sum);
    let field = (first + highest) as isize - TOP as isize;
    for part in [&mut squares[number], &mut row.part] {
        part.include(maximum, lowest);
        add_cells::<STEPS>(part.cells_from(field), &sum);
    }
    sum.iter().map(|word| word >> COUNT_SHIFT).sum()
}

/// Adds a block of a strip, unless it is empty: the cells of its window, up to the highest field of the strip.
#[inline(always)]
fn add_block<const STEPS: usize>(table: &mut PackedTable, maximum: u64, highest: usize, window: &[u64]) {
    if maximum > 0 {
        let above = (highest - field_of(maximum)) % DEPTH;
        add_cells::<STEPS>(&mut table.add_block(maximum)[DEPTH - STEPS * STEP + above..], window);
    }
}

/// Adds a strip of few elements, or of some that are further apart; returns how many they are.
#[inline(never)]
fn add_one_by_one(tables: &mut Tables, strip: &Strip, row: &mut RowBinades) -> u64 {
    let Tables { of16, of32, of128, squares, columns, .. } = tables;
    let number = strip.number;
    let range = number * STRIP..number * STRIP + strip.elements;
    let (magnitudes, words) = (&columns.magnitudes.0[range.clone()], &columns.words.0[range]);
    for (table, width) in [of16, of32, of128].into_iter().zip(BLOCK_WIDTHS) {
        for (magnitudes, words) in magnitudes.chunks(width).zip(words.chunks(width)) {
            let maximum = magnitudes.iter().fold(0, |most, &magnitude| most.max(magnitude));
            if maximum == 0 {
                continue;
            }
            let (cells, highest) = (table.add_block(maximum), field_of(maximum));
            for (&magnitude, &word) in magnitudes.iter().zip(words) {
                cells[TOP - (highest - field_of(magnitude)).min(TOP)] += word;
            }
        }
    }
    let mut count = 0;
    for (&magnitude, &word) in magnitudes.iter().zip(words).filter(|(magnitude, _)| **magnitude > 0) {
        let field = field_of(magnitude);
        for part in [&mut squares[number], &mut row.part] {
            part.include(magnitude, field);
            part.cells_from(field as isize)[0] += word;
        }
        count += 1;
    }
    count
}

const _: () = assert!(FIELDS > DEPTH && STRIP / NARROW == 8 && NARROW * 2 == BLOCK_WIDTHS[1]);
