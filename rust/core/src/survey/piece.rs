//! The loop over a piece of a row.
//!
//! Adding to a cell waits for the last addition to it, and most elements of a block fall into two or three binades. So the
//! eight narrowest blocks of a strip are counted by turns, each in cells of its own; sums of these, cell by cell, are those
//! of wider blocks. Magnitudes that are all normal as float32 are taken apart in lanes of 32 bits, twice as many.

#![deny(unsafe_code)]

use std::ops::{BitOr, Range};

use super::outcome::{BLOCK_WIDTHS, Blocks, DEPTH, SQUARE_BITS, Survey};
use super::tables::{
    Binades, COUNT_SHIFT, FIELDS, FRACTION, LOWEST, PackedTable, RowBinades, STEP, TOP, add_cells, field_of,
};
use crate::cpu::{Kernel, Level};

/// Elements of a piece.
pub(super) const PIECE: usize = 512;

/// Elements of a strip: a block of the widest kind.
pub(super) const STRIP: usize = BLOCK_WIDTHS[2];

/// Elements of a strip, up to which it is not worth the cells of whole strips.
const FEW: usize = 24;

/// Elements of a block of the narrowest kind.
const NARROW: usize = BLOCK_WIDTHS[0];

/// Blocks of the narrowest kind in a strip.
const BLOCKS: usize = STRIP / NARROW;

/// The smallest float64 that is not subnormal.
const SMALLEST: u64 = 1 << FRACTION;

/// The bits of a magnitude as a float.
pub(super) trait Magnitude: Copy + Ord + Default + BitOr<Output = Self> {
    /// The float.
    type Float: Copy + Default;
    /// The smallest magnitude that is not subnormal.
    const SMALLEST: Self;
    const INFINITY: Self;
    /// Whether the float is float64, which all tables are of.
    const IS_WIDEST: bool;

    fn of(value: Self::Float) -> Self;
    /// Returns the field of the exponent as float64.
    fn field(self) -> u16;
    /// Returns what an element adds to a cell.
    fn word(self) -> u64;
    /// Returns the bits of the same magnitude as float64.
    fn widen(self) -> u64;
}

/// The word of a significand, of which these bits after the first one are squared.
#[inline(always)]
fn word_of(significand: u64, bits: u32) -> u64 {
    let cut = 2 * bits - SQUARE_BITS;
    (significand * significand + (1 << (cut - 1))) >> cut | 1 << COUNT_SHIFT
}

const NARROW_FRACTION: u32 = f32::MANTISSA_DIGITS - 1;

/// What the field of an exponent as float64 exceeds that as float32 by.
const REBIAS: u16 = (f64::MAX_EXP - f32::MAX_EXP) as u16;

impl Magnitude for u32 {
    type Float = f32;
    const SMALLEST: Self = 1 << NARROW_FRACTION;
    const INFINITY: Self = f32::INFINITY.to_bits();
    const IS_WIDEST: bool = false;

    #[inline(always)]
    fn of(value: f32) -> Self {
        value.to_bits() & (Self::MAX >> 1)
    }

    #[inline(always)]
    fn field(self) -> u16 {
        (self >> NARROW_FRACTION) as u16 + REBIAS
    }

    #[inline(always)]
    fn word(self) -> u64 {
        word_of(u64::from(self & (Self::SMALLEST - 1) | Self::SMALLEST), NARROW_FRACTION)
    }

    #[inline(always)]
    fn widen(self) -> u64 {
        (u64::from(self) << (FRACTION - NARROW_FRACTION)) + (u64::from(REBIAS) << FRACTION)
    }
}

impl Magnitude for u64 {
    type Float = f64;
    const SMALLEST: Self = SMALLEST;
    const INFINITY: Self = f64::INFINITY.to_bits();
    const IS_WIDEST: bool = true;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value.to_bits() & (Self::MAX >> 1)
    }

    #[inline(always)]
    fn field(self) -> u16 {
        (self >> FRACTION) as u16
    }

    #[inline(always)]
    fn word(self) -> u64 {
        const BITS: u32 = 24;
        word_of(self >> (FRACTION - BITS) & ((1 << BITS) - 1) | 1 << BITS, BITS)
    }

    #[inline(always)]
    fn widen(self) -> u64 {
        self
    }
}

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

/// The cells of each narrow block of a strip, [`DEPTH`] of each. A place is a byte: behind the last block is room for the
/// highest place, so that no index needs a check.
struct Windows([u64; (BLOCKS - 1) * DEPTH + (1 << u8::BITS)]);

impl Default for Windows {
    fn default() -> Self {
        Self([0; (BLOCKS - 1) * DEPTH + (1 << u8::BITS)])
    }
}

/// The elements of a strip.
struct Columns {
    /// Fields of exponents as float64; 0 for what has no binade: zero, infinity, NaN, subnormal numbers.
    fields: [u16; STRIP],
    /// What they add to a cell; 0 for what has no binade, and behind the last element.
    words: [u64; STRIP],
}

impl Default for Columns {
    fn default() -> Self {
        Self { fields: [0; STRIP], words: [0; STRIP] }
    }
}

/// Elements of a piece that are in no binade.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    pub(super) zeros: u64,
    pub(super) infinities: u64,
    pub(super) nans: u64,
    pub(super) subnormals: u64,
}

impl Others {
    /// Adds elements that are in no binade.
    #[inline(always)]
    fn add<M: Magnitude>(&mut self, values: &[M::Float]) {
        // Counted in locals, of which compilers make vectors.
        let (mut zeros, mut infinities, mut nans, mut subnormals) = (0, 0, 0, 0);
        for &value in values {
            let magnitude = M::of(value);
            zeros += u64::from(magnitude == M::default());
            infinities += u64::from(magnitude == M::INFINITY);
            nans += u64::from(magnitude > M::INFINITY);
            subnormals += u64::from((magnitude > M::default()) & (magnitude < M::SMALLEST));
        }
        self.zeros += zeros;
        self.infinities += infinities;
        self.nans += nans;
        self.subnormals += subnormals;
    }
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
            survey.magnitudes.binades.entry(field as i16 + LOWEST).add(cell);
        });
        for (bits, count) in (0u8..).zip(&mut self.significant.0).filter(|(_, count)| **count > 0) {
            *survey.significant_bits.entry(bits) += std::mem::take(count);
        }
    }
}

/// A piece of a row, which begins with a block of each kind.
pub(super) struct Piece<'a, M: Magnitude> {
    /// Its elements, and room up to whole strips.
    pub(super) values: &'a mut [M::Float; PIECE],
    /// Where its elements begin and end; it begins with a strip.
    pub(super) range: Range<usize>,
    pub(super) tables: &'a mut Tables,
    pub(super) row: &'a mut RowBinades,
    /// The smallest magnitude so far.
    pub(super) smallest: &'a mut u64,
    pub(super) others: &'a mut Others,
}

/// Adds a piece; returns where the first strip begins that is not added, as it has elements without a binade that only
/// float64 tells apart.
pub(super) struct AddPiece<'a, M: Magnitude> {
    pub(super) piece: Piece<'a, M>,
    pub(super) level: Level,
    /// Adds a strip by the vectors of a level.
    pub(super) add_strip: fn(Level, AddStrip<'_>) -> u64,
}

impl<M: Magnitude> Kernel for &mut AddPiece<'_, M> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let AddPiece { piece, level, add_strip } = self;
        let Piece { values, range, tables, row, smallest, others } = piece;
        let end = range.end.min(PIECE);
        // Behind the last element are more like it, whose words are zero.
        let last = values[end - 1];
        values[end..end.next_multiple_of(STRIP)].fill(last);
        let strips = values.as_chunks::<STRIP>().0;
        for table in [&mut tables.of16, &mut tables.of32, &mut tables.of128] {
            table.reserve(end - range.start);
        }
        for start in (range.start..end).step_by(STRIP) {
            let (number, elements) = (start / STRIP, STRIP.min(end - start));
            let values = &strips[number];
            let mut extremes = split::<M, true>(values, &mut tables.columns);
            if extremes.most >= M::INFINITY || extremes.least < M::SMALLEST {
                if !M::IS_WIDEST {
                    return start;
                }
                others.add::<M>(&values[..elements]);
                extremes = split::<M, false>(values, &mut tables.columns);
            }
            if extremes.most == M::default() {
                continue;
            }
            let mut maxima = [0; BLOCKS];
            for (maximum, narrow) in maxima.iter_mut().zip(extremes.maxima) {
                *maximum = if narrow == M::default() { 0 } else { narrow.widen() };
            }
            if elements < STRIP {
                tables.columns.words[elements..].fill(0);
                maxima[elements.div_ceil(NARROW)..].fill(0);
            }
            let least = extremes.least.widen();
            **smallest = least.min(**smallest);
            let maximum = extremes.most.widen();
            let strip = Strip { number, elements, maxima, maximum, lowest: field_of(least) };
            let count = add_strip(*level, AddStrip { tables, strip: &strip, row });
            let bits = FRACTION + 1 - (extremes.bits.widen() | SMALLEST).trailing_zeros();
            tables.significant.0[bits as usize % 64] += count;
        }
        end
    }
}

/// The extremes of the magnitudes of a strip that have a binade.
struct Extremes<M> {
    /// The largest of each narrow block, or 0.
    maxima: [M; BLOCKS],
    most: M,
    least: M,
    /// All bits of them.
    bits: M,
}

/// Fills the columns of a strip. With `ALL`, every element is taken to have a binade.
#[inline(always)]
fn split<M: Magnitude, const ALL: bool>(values: &[M::Float; STRIP], columns: &mut Columns) -> Extremes<M> {
    let none = M::default();
    let Columns { fields, words, .. } = columns;
    let mut magnitudes = [none; STRIP];
    let (mut least, mut bits) = (M::INFINITY, none);
    for ((&value, magnitude), field) in values.iter().zip(&mut magnitudes).zip(fields) {
        *magnitude = M::of(value);
        let has_binade = ALL || (*magnitude >= M::SMALLEST) & (*magnitude < M::INFINITY);
        *magnitude = if has_binade { *magnitude } else { none };
        *field = if has_binade { magnitude.field() } else { 0 };
        least = least.min(if has_binade { *magnitude } else { M::INFINITY });
        bits = bits | *magnitude;
    }
    for (word, &magnitude) in words.iter_mut().zip(&magnitudes) {
        *word = if ALL || magnitude > none { magnitude.word() } else { 0 };
    }
    let maxima = largest_of_blocks(&magnitudes);
    let most = maxima.iter().fold(none, |most, &maximum| most.max(maximum));
    Extremes { maxima, most, least, bits }
}

/// Returns the largest of each narrow block. Loops over all blocks are the ones that the compiler makes vectors of.
#[inline(always)]
fn largest_of_blocks<M: Magnitude>(magnitudes: &[M; STRIP]) -> [M; BLOCKS] {
    let (mut of2, mut of4) = ([M::default(); STRIP / 2], [M::default(); STRIP / 4]);
    let (mut of8, mut of16) = ([M::default(); STRIP / 8], [M::default(); BLOCKS]);
    take_larger(magnitudes, &mut of2);
    take_larger(&of2, &mut of4);
    take_larger(&of4, &mut of8);
    take_larger(&of8, &mut of16);
    of16
}

/// Fills a slice with the larger one of each pair of others.
#[inline(always)]
fn take_larger<M: Magnitude>(pairs: &[M], larger: &mut [M]) {
    for (larger, [left, right]) in larger.iter_mut().zip(pairs.as_chunks::<2>().0) {
        *larger = *left.max(right);
    }
}

/// Adds a strip that is not empty; returns how many elements have a binade. Both widths of lanes share this kernel.
pub(super) struct AddStrip<'a> {
    tables: &'a mut Tables,
    strip: &'a Strip,
    row: &'a mut RowBinades,
}

impl AddStrip<'_> {
    /// Takes longer than the kernel, and a fifth of the code.
    pub(super) fn run_portable(&mut self) -> u64 {
        add_one_by_one(self.tables, self.strip, self.row)
    }
}

impl Kernel for &mut AddStrip<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let AddStrip { tables, strip, row } = self;
        match (field_of(strip.maximum) - strip.lowest) / STEP {
            _ if strip.elements <= FEW => add_one_by_one(tables, strip, row),
            0 | 1 => add_windows::<2>(tables, strip, row),
            2 => add_windows::<3>(tables, strip, row),
            3 | 4 => add_windows::<5>(tables, strip, row),
            5..8 => add_windows::<8>(tables, strip, row),
            _ => add_one_by_one(tables, strip, row),
        }
    }
}

/// A strip that is not empty.
pub(super) struct Strip {
    number: usize,
    elements: usize,
    /// The largest magnitude of each narrow block.
    maxima: [u64; BLOCKS],
    maximum: u64,
    /// The lowest field.
    lowest: usize,
}

/// Adds a strip whose elements are within so many steps of binades; returns how many they are.
#[inline(always)]
fn add_windows<const STEPS: usize>(tables: &mut Tables, strip: &Strip, row: &mut RowBinades) -> u64 {
    let Tables { of16, of32, of128, squares, columns, windows, .. } = tables;
    let Windows(windows) = &mut **windows;
    let &Strip { number, maxima, maximum, lowest, .. } = strip;
    let (first, highest) = (DEPTH - STEPS * STEP, field_of(maximum));
    // What has no binade adds zeros to the lowest cell.
    let depths = (STEPS * STEP - 1) as u16;
    let mut places = [0u8; STRIP];
    for (place, &field) in places.iter_mut().zip(&columns.fields) {
        *place = (depths - (highest as u16).wrapping_sub(field).min(depths)) as u8;
    }
    for element in 0..NARROW {
        for block in 0..BLOCKS {
            let element = block * NARROW + element;
            windows[block * DEPTH + usize::from(places[element])] += columns.words[element];
        }
    }
    let mut sum = [[0; STEP]; STEPS];
    let windows = windows.as_chunks_mut::<DEPTH>().0;
    for (pair, maxima) in windows.as_chunks_mut::<2>().0.iter_mut().zip(maxima.as_chunks::<2>().0) {
        let [left, right] = pair;
        add_block::<STEPS>(of16, maxima[0], highest, left);
        add_block::<STEPS>(of16, maxima[1], highest, right);
        add_cells::<STEPS>(left, right);
        add_block::<STEPS>(of32, maxima[0].max(maxima[1]), highest, left);
        add_cells::<STEPS>(sum.as_flattened_mut(), left);
        left[..STEPS * STEP].fill(0);
        right[..STEPS * STEP].fill(0);
    }
    let sum = sum.as_flattened();
    add_block::<STEPS>(of128, maximum, highest, sum);
    let field = (first + highest) as isize - TOP as isize;
    for part in [&mut squares[number], &mut row.part] {
        part.include(maximum, lowest);
        add_cells::<STEPS>(part.cells_from(field), sum);
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
    let &Strip { number, elements, ref maxima, maximum, lowest } = strip;
    let (fields, words) = (&columns.fields[..elements], &columns.words[..elements]);
    for (table, width) in [of16, of32, of128].into_iter().zip(BLOCK_WIDTHS) {
        let blocks = fields.chunks(width).zip(words.chunks(width)).zip(maxima.chunks(width / NARROW));
        for ((fields, words), maxima) in blocks {
            let maximum = maxima.iter().fold(0, |most, &maximum| most.max(maximum));
            if maximum == 0 {
                continue;
            }
            let (cells, highest) = (table.add_block(maximum), field_of(maximum));
            for (&field, &word) in fields.iter().zip(words) {
                cells[TOP - (highest - usize::from(field)).min(TOP)] += word;
            }
        }
    }
    for part in [&mut squares[number], &mut row.part] {
        part.include(maximum, lowest);
        for (&field, &word) in fields.iter().zip(words) {
            part.cells_from(field as isize)[0] += word;
        }
    }
    words.iter().map(|word| word >> COUNT_SHIFT).sum()
}

const _: () = assert!(FIELDS > DEPTH && BLOCKS == 8 && NARROW * 2 == BLOCK_WIDTHS[1]);
