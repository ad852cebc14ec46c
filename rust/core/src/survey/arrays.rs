//! The pass over the rows of an array.

use std::ops::Range;

use smallvec::SmallVec;

use super::outcome::{Blocks, Cell, SQUARE_BITS, Survey};
use super::piece::{AddPiece, AddStrip, Magnitude, Others, PIECE, Piece, STRIP, Tables};
use super::sorted_map::SortedMap;
use super::tables::{LOWEST, MOST_ELEMENTS, PackedTable, RowBinades};
use crate::codec::pivot::Binary32;
use crate::cpu::Level;
use crate::exec::operand::Operand;
use crate::exec::pass::{Pass, Positions};
use crate::format::{Format, Kind};
use crate::kernels::request::pivot_format;
use crate::kernels::stages::stage::{Span, Stage};
use crate::kernels::tile::Tile;
use crate::layout::transfer::Gaps;
use crate::layout::{OPERANDS, Run, SOURCE};
use crate::plan::operands::Source;
use crate::report::tile_statistics::reader;
use crate::report::values::Values;
use crate::simd::{Vector, Vectors, with_vectors};

/// Rows of a square, which are surveyed together.
const BAND: usize = STRIP;

const _: () = assert!(BAND * PIECE <= MOST_ELEMENTS && PART <= MOST_ELEMENTS, "words hold the counts");

/// Columns that a thread surveys at a time: a row of more is put together from its parts at the end.
const PART: usize = 1 << 16;

/// A survey takes as long for a byte as a copy for so many: threads pay earlier.
const BYTES_OF_COPY: usize = 8;

/// After a piece to which lanes of 32 bits could add no strip, float64 takes this many pieces at once. Where zeros are many,
/// as in gradients, trying takes as long as half of the work.
const WIDE_PIECES: usize = 7;

/// An array whose elements are surveyed.
pub(super) struct SurveyedArray {
    level: Level,
    values: Values,
    /// Of a float format whose values are all float32.
    singles: Option<Singles>,
    operand: Operand,
    /// Lengths and strides of the axes before rows.
    stack: SmallVec<[(usize, isize); 4]>,
    rows: (usize, isize),
    columns: (usize, isize),
}

/// Reads values as float32.
enum Singles {
    Same,
    Decoded(Box<dyn Stage>),
}

impl Singles {
    fn new(format: Format, level: Level) -> Option<Self> {
        // Lanes of 32 bits gain nothing where there are no vectors.
        let is_narrow = matches!(format.kind(), Kind::Float(_))
            && format.item_size() <= size_of::<f32>()
            && !matches!(Vectors::of(level), Vectors::None);
        match is_narrow.then(|| reader(format, level))? {
            Some(stage) => Some(Self::Decoded(stage)),
            None => (pivot_format::<Binary32>() == Some(format)).then_some(Self::Same),
        }
    }

    /// # Safety
    /// `codes` is valid for as many elements as the slice is long.
    unsafe fn read(&self, level: Level, codes: *const u8, values: &mut [f32]) {
        let target = values.as_mut_ptr().cast::<u8>();
        match self {
            // SAFETY: the caller's promise; the values are ours.
            Self::Same => unsafe { codes.copy_to_nonoverlapping(target, size_of_val(values)) },
            Self::Decoded(stage) => {
                let span = Span { source: codes, target, count: values.len(), ..Span::EMPTY };
                // SAFETY: the caller's promise; the values are ours.
                unsafe { stage.run(level, span) };
            }
        }
    }
}

/// Adds a strip by the vectors of a level.
fn add_strip(level: Level, mut strip: AddStrip<'_>) -> u64 {
    // SAFETY: the vectors are there, and the kernel has no other requirements.
    let count = unsafe { with_vectors!(level, vectors => vectors.run(&mut strip)) };
    count.unwrap_or_else(|| strip.run_portable())
}

/// A band of rows, and a part of its columns.
#[derive(Clone, Copy)]
struct Position {
    matrix: usize,
    band: usize,
    part: usize,
}

impl SurveyedArray {
    pub(super) fn new(level: Level, shape: &[usize], source: &Source<'_>) -> Self {
        let mut stack: SmallVec<[(usize, isize); 4]> =
            shape.iter().copied().zip(source.strides.iter().copied()).collect();
        let size = source.format.item_size();
        let columns = stack.pop().unwrap_or((1, size as isize));
        let rows = stack.pop().unwrap_or((1, 0));
        let operand = Operand {
            pointer: source.pointer.cast_mut(),
            number: SOURCE,
            size,
            swapped: source.swapped,
            direct: !source.swapped && (columns.1 == size as isize || columns.0 <= 1),
        };
        let values = Values::new(source.format);
        Self { level, values, singles: Singles::new(source.format, level), operand, stack, rows, columns }
    }

    fn bands(&self) -> usize {
        self.rows.0.div_ceil(BAND)
    }

    fn parts(&self) -> usize {
        self.columns.0.div_ceil(PART)
    }

    pub(super) fn positions(&self) -> Positions {
        let matrices: usize = self.stack.iter().map(|axis| axis.0).product();
        let elements = matrices * self.rows.0 * self.columns.0;
        let count = if elements == 0 { 0 } else { matrices * self.bands() * self.parts() };
        let bytes = (elements * self.operand.size).saturating_mul(BYTES_OF_COPY);
        Positions { count, grain: 1, bytes, turn: None }
    }

    /// Reads at most a piece of a row of a matrix.
    ///
    /// # Safety
    /// Its elements are readable.
    pub(super) unsafe fn read<'a>(&self, row: usize, start: usize, buffers: &'a mut Buffers) -> &'a [f64] {
        let Buffers { room, values, rests, .. } = buffers;
        let count = PIECE.min(self.columns.0 - start);
        let offset = row as isize * self.rows.1 + start as isize * self.columns.1;
        let run = Run::row([offset; OPERANDS], [self.columns.1; OPERANDS], count);
        let (values, rests) = (&mut values.0[..count], &mut rests.0[..count]);
        // SAFETY: the caller's promise; the room has 8 bytes for each element of a piece.
        unsafe {
            let codes = self.operand.read(self.level, Gaps::Leave, &[run], room.0.as_mut_ptr().cast());
            self.values.read(self.level, codes, values, rests);
        }
        values
    }

    fn position(&self, index: usize) -> Position {
        let (rest, part) = (index / self.parts(), index % self.parts());
        Position { matrix: rest / self.bands(), band: rest % self.bands(), part }
    }

    /// Bytes from the first element to that of a matrix.
    fn matrix_offset(&self, mut matrix: usize) -> isize {
        let mut offset = 0;
        for &(length, stride) in self.stack.iter().rev() {
            offset += (matrix % length) as isize * stride;
            matrix /= length;
        }
        offset
    }

    /// Adds a piece; returns the index of the first element that is not added.
    fn add_piece<M: Magnitude>(&self, piece: Piece<'_, M>) -> usize {
        let mut kernel = AddPiece { piece, level: self.level, add_strip };
        // SAFETY: the vectors are there, and the kernel has no other requirements.
        let done = unsafe { with_vectors!(self.level, vectors => vectors.run(&mut kernel)) };
        // On levels without vectors there are no `singles`.
        done.unwrap_or_else(|| if M::IS_WIDEST { Level::PORTABLE.run(&mut kernel) } else { 0 })
    }

    /// Surveys a part of a band.
    ///
    /// # Safety
    /// Its elements are readable.
    unsafe fn add(&self, position: Position, buffers: &mut Buffers, survey: &mut Survey) {
        let first_row = position.band * BAND;
        let rows = BAND.min(self.rows.0 - first_row);
        let columns = position.part * PART..self.columns.0.min((position.part + 1) * PART);
        let matrix = self.matrix_offset(position.matrix);
        let Buffers { room, singles, values, rests, tables, band } = buffers;
        let (singles, values, rests) = (&mut singles.0, &mut values.0, &mut rests.0);
        let mut smallest = f64::INFINITY.to_bits();
        let mut wide_pieces = 0;
        for start in columns.clone().step_by(PIECE) {
            let count = PIECE.min(columns.end - start);
            let first = matrix + first_row as isize * self.rows.1 + start as isize * self.columns.1;
            for (number, row) in (0..).zip(&mut band[..rows]) {
                let offset = first + number * self.rows.1;
                let run = Run::row([offset; OPERANDS], [self.columns.1; OPERANDS], count);
                // SAFETY: the caller's promise; the room has 8 bytes for each element of a piece, which is the most of a
                // real format.
                let codes =
                    unsafe { self.operand.read(self.level, Gaps::Leave, &[run], room.0.as_mut_ptr().cast()) };
                let mut others = Others::default();
                let mut done = 0;
                let is_narrow = wide_pieces == 0 && survey.few.are_too_many();
                wide_pieces -= usize::from(wide_pieces > 0);
                if let Some(reader) = self.singles.as_ref().filter(|_| is_narrow) {
                    // SAFETY: the codes are readable.
                    unsafe { reader.read(self.level, codes, &mut singles[..count]) };
                    let (range, smallest, others) = (0..count, &mut smallest, &mut others);
                    let values = &mut *singles;
                    done = self.add_piece(Piece::<u32> { values, range, tables, row, smallest, others });
                    if done == 0 {
                        wide_pieces = WIDE_PIECES;
                    }
                }
                if done < count {
                    let (rest, rests) = (&mut values[done..count], &mut rests[done..count]);
                    // SAFETY: those of the codes that are not added.
                    unsafe {
                        self.values.read(self.level, codes.add(done * self.operand.size), rest, rests);
                    }
                    survey.few.add_values(&values[done..count]);
                    let (range, smallest, left) = (done..count, &mut smallest, &mut others);
                    self.add_piece(Piece::<u64> { values, range, tables, row, smallest, others: left });
                    add_others(&others, &values[done..count], survey);
                }
            }
            for (square, first) in tables.squares.iter_mut().zip((0..count).step_by(STRIP)) {
                survey.magnitudes.include(f64::from_bits(square.maximum));
                let elements = rows * STRIP.min(count - first);
                tables.all.add(square, elements);
                tables.of_squares.reserve(elements);
                square.move_into(&mut tables.of_squares);
            }
        }
        if smallest < f64::INFINITY.to_bits() {
            survey.magnitudes.include(f64::from_bits(smallest));
        }
        if self.parts() > 1 {
            band[..rows].iter_mut().for_each(RowBinades::end_part);
        }
        survey.count += (rows * columns.len()) as u64;
    }
}

/// Adds the elements of a piece that are in no binade.
fn add_others(others: &Others, values: &[f64], survey: &mut Survey) {
    survey.magnitudes.zeros += others.zeros;
    survey.magnitudes.infinities += others.infinities;
    survey.magnitudes.nans += others.nans;
    if others.subnormals > 0 {
        values
            .iter()
            .filter(|value| value.is_subnormal())
            .for_each(|value| add_subnormal(value.abs(), survey));
    }
}

#[cold]
fn add_subnormal(magnitude: f64, survey: &mut Survey) {
    let bits = magnitude.to_bits();
    let highest = bits.ilog2();
    // As if it were not subnormal.
    let root = u128::from(bits) << (63 - highest);
    let squares = (root * root) >> (126 - SQUARE_BITS);
    let exponent = highest as i16 + LOWEST + 1 - 52;
    survey.magnitudes.binades.entry(exponent).add(Cell { count: 1, squares });
    let significant_bits = highest - bits.trailing_zeros() + 1;
    *survey.significant_bits.entry(significant_bits as u8) += 1;
    survey.magnitudes.include(magnitude);
}

/// The buffers of a thread; tables are empty between calls of [`Pass::process`].
pub(super) struct Buffers {
    room: Box<Tile<u64, PIECE>>,
    singles: Box<Tile<f32, PIECE>>,
    values: Box<Tile<f64, PIECE>>,
    /// What float64 does not hold of integers, which is not looked at.
    rests: Box<Tile<f64, PIECE>>,
    tables: Tables,
    band: Vec<RowBinades>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            room: Box::default(),
            singles: Box::default(),
            values: Box::default(),
            rests: Box::default(),
            tables: Tables::default(),
            band: (0..BAND).map(|_| RowBinades::default()).collect(),
        }
    }
}

/// A survey, and the rows of bands that other threads have parts of, by matrix and band.
#[derive(Default)]
pub(super) struct Outcome {
    survey: Survey,
    parted: SortedMap<(usize, usize), Vec<RowBinades>>,
}

impl Outcome {
    /// Returns the survey of the whole array.
    pub(super) fn finish(self) -> Survey {
        let Self { mut survey, parted } = self;
        let (mut table, wide) = (PackedTable::default(), survey.table(Blocks::Row));
        for mut row in parted.into_iter().flat_map(|(_, rows)| rows) {
            row.move_into(&mut table, wide, 0);
        }
        table.drain_into(wide);
        survey
    }
}

impl Pass for SurveyedArray {
    type Buffers = Buffers;
    type Outcome = Outcome;

    unsafe fn process(&self, positions: Range<usize>, buffers: &mut Buffers, outcome: &mut Outcome) {
        let mut first_part = 0;
        for index in positions.clone() {
            let position = self.position(index);
            if index == positions.start {
                first_part = position.part;
            }
            // SAFETY: the caller's promise, for these elements.
            unsafe { self.add(position, buffers, &mut outcome.survey) };
            let is_last = position.part + 1 == self.parts();
            if is_last || index + 1 == positions.end {
                let rows = BAND.min(self.rows.0 - position.band * BAND);
                let band = &mut buffers.band[..rows];
                if is_last && first_part == 0 {
                    let (table, wide) = (&mut buffers.tables.of_rows, outcome.survey.table(Blocks::Row));
                    for row in band {
                        row.move_into(table, wide, self.columns.0.min(PART));
                    }
                } else {
                    let parted = outcome.parted.entry((position.matrix, position.band));
                    add_rows(parted, band.iter_mut().map(std::mem::take).collect());
                }
                first_part = 0;
            }
        }
        buffers.tables.drain_into(&mut outcome.survey);
    }

    fn merge(outcome: &mut Outcome, next: Outcome) {
        outcome.survey += &next.survey;
        for (band, rows) in next.parted {
            add_rows(outcome.parted.entry(band), rows);
        }
    }
}

/// Adds parts of the rows of a band.
fn add_rows(rows: &mut Vec<RowBinades>, parts: Vec<RowBinades>) {
    if rows.is_empty() {
        *rows = parts;
    } else {
        rows.iter_mut().zip(&parts).for_each(|(row, part)| row.merge(part));
    }
}
