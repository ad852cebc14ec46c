//! Shapes of matrices in blocks, and how they are shared between threads.

use std::ops::Range;

use smallvec::SmallVec;

use super::arithmetic::{Blocks, PIECE};
use super::rows::Array;
use crate::error::Error;
use crate::exec::pass::{self, Pass, Positions};

/// A stack of matrices in blocks.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) stack: SmallVec<[usize; 2]>,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows and columns of a block, at least 1.
    pub(super) block: (usize, usize),
}

impl Extent {
    /// Takes the extent of an array of single elements.
    pub(super) fn of(argument: &str, array: &Array, block: (usize, usize)) -> Result<Self, Error> {
        let Some((&[rows, columns], stack)) = array.shape.split_last_chunk::<2>().map(|(a, b)| (b, a)) else {
            return Err(Error::InvalidOption {
                message: format!("{argument} has {} axes; give it rows and columns.", array.shape.len()),
            });
        };
        let whole = |part: usize, length: usize| if part == 0 { length.max(1) } else { part };
        let block = (whole(block.0, rows), whole(block.1, columns));
        Ok(Self { stack: SmallVec::from_slice(stack), rows, columns, block })
    }

    /// How many matrices there are.
    pub(super) fn matrices(&self) -> usize {
        self.stack.iter().product()
    }

    pub(super) fn row_blocks(&self) -> usize {
        self.rows.div_ceil(self.block.0)
    }

    pub(super) fn column_blocks(&self) -> usize {
        self.columns.div_ceil(self.block.1)
    }

    /// How many blocks all matrices have.
    pub(super) fn blocks(&self) -> usize {
        self.matrices() * self.row_blocks() * self.column_blocks()
    }

    /// Returns the number of a block of a row among all blocks.
    pub(super) fn block_number(&self, matrix: usize, row: usize, block: usize) -> usize {
        (matrix * self.row_blocks() + self.row_block(row)) * self.column_blocks() + block
    }

    /// Returns the block of rows that a row is in.
    pub(super) fn row_block(&self, row: usize) -> usize {
        row / self.block.0
    }

    /// Checks that an array has the axes of the stack and so many rows; returns the items of its rows.
    pub(super) fn check(&self, argument: &str, array: &Array, rows: usize) -> Result<usize, Error> {
        let stack = self.stack.len();
        if array.shape.len() < stack + 2
            || array.shape[..stack] != self.stack[..]
            || array.shape[stack] != rows
        {
            return Err(Error::InvalidOption {
                message: format!(
                    "{argument} has shape {:?}; it must begin with {:?}, and have an axis for the items of a row.",
                    array.shape,
                    self.stack.iter().copied().chain([rows]).collect::<Vec<_>>()
                ),
            });
        }
        Ok(array.shape[stack + 1..].iter().product())
    }

    /// Reads a float32 for each matrix, if there are any.
    ///
    /// # Safety
    /// The elements are readable.
    pub(super) unsafe fn per_matrix(&self, array: Option<&Array>) -> Result<Vec<f32>, Error> {
        let Some(array) = array else { return Ok(Vec::new()) };
        let fits = array.shape[..] == self.stack[..];
        if array.format.name() != "float32" || !fits {
            return Err(Error::InvalidOption {
                message: format!(
                    "global_scale has dtype {} and shape {:?}; give a float32 for each matrix, of shape {:?}.",
                    array.format.name(),
                    array.shape,
                    self.stack
                ),
            });
        }
        let place = |mut index: usize| {
            let mut pointer = array.pointer.cast_const();
            for (&length, &stride) in array.shape.iter().zip(&array.strides).rev() {
                pointer = pointer.wrapping_offset((index % length) as isize * stride);
                index /= length;
            }
            pointer.cast::<f32>()
        };
        // SAFETY: the caller's promise.
        Ok((0..self.matrices()).map(|index| unsafe { place(index).read_unaligned() }).collect())
    }
}

/// Rows of one matrix that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) matrix: usize,
    /// The first one.
    pub(super) row: usize,
    pub(super) rows: usize,
}

impl Place {
    /// Cuts rows into those that fit into a piece together, given the elements of each.
    pub(super) fn pieces(self, elements: usize) -> impl Iterator<Item = Self> {
        let Self { matrix, row, rows } = self;
        let tall = (PIECE / elements.max(1)).max(1);
        (0..rows).step_by(tall).map(move |above| Self {
            matrix,
            row: row + above,
            rows: tall.min(rows - above),
        })
    }
}

/// Columns that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) start: usize,
    pub(super) count: usize,
}

impl Columns {
    /// Returns those of a range.
    pub(super) fn of(range: &Range<usize>) -> Self {
        Self { start: range.start, count: range.len() }
    }

    /// Cuts columns into groups of so many.
    pub(super) fn groups(self, columns: usize) -> impl Iterator<Item = Self> {
        let Self { start, count } = self;
        (0..count)
            .step_by(columns)
            .map(move |left| Self { start: start + left, count: columns.min(count - left) })
    }

    /// Returns the blocks of this width that have elements in these columns.
    pub(super) fn blocks(self, width: usize) -> BlockSpan {
        let first = self.start / width;
        BlockSpan { first, count: (self.start + self.count).div_ceil(width) - first }
    }

    /// Returns how the columns lie in their blocks, and the places of these among the blocks from a first one on.
    pub(super) fn in_blocks(self, width: usize, first: usize) -> (Blocks, Range<usize>) {
        let blocks = self.blocks(width);
        let places = blocks.first - first..blocks.first + blocks.count - first;
        (Blocks { width, begun: self.start % width }, places)
    }
}

/// Blocks side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSpan {
    pub(super) first: usize,
    pub(super) count: usize,
}

/// Some rows and columns of one matrix.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) matrix: usize,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl Item {
    /// Returns its rows.
    pub(super) fn place(&self) -> Place {
        Place { matrix: self.matrix, row: self.rows.start, rows: self.rows.len() }
    }

    /// Returns its rows, those of a row of blocks together.
    pub(super) fn block_rows(&self, extent: &Extent) -> impl Iterator<Item = Place> + use<> {
        let (matrix, tall, end) = (self.matrix, extent.block.0, self.rows.end);
        let mut row = self.rows.start;
        std::iter::from_fn(move || {
            let rows = (tall - row % tall).min(end - row);
            row += rows;
            (rows > 0).then_some(Place { matrix, row: row - rows, rows })
        })
    }
}

/// Elements of an item, about: rows of more are cut.
pub(super) const ITEM: usize = 1 << 16;

/// Elements of an item of the only row of blocks, at most, for its blocks to be whole: each item makes their tables anew.
const MOST_WHOLE: usize = 1 << 21;

/// What is done with items of a stack of matrices.
pub(super) trait ItemPass: Sync {
    /// As for [`Pass`].
    type Buffers: Default + Send + 'static;
    /// As for [`Pass`].
    type Outcome: Default + Send;

    /// Works on an item, and adds to the outcome.
    ///
    /// # Safety
    /// As for [`Pass::process`], of the rows and columns of the item.
    unsafe fn process_item(&self, item: &Item, buffers: &mut Self::Buffers, outcome: &mut Self::Outcome);

    /// As for [`Pass`].
    fn merge(outcome: &mut Self::Outcome, next: Self::Outcome);
}

/// A pass over all items.
struct Items<'a, P> {
    pass: &'a P,
    rows: usize,
    columns: usize,
    /// Rows and columns of an item.
    item: (usize, usize),
}

impl<P> Items<'_, P> {
    /// Returns how many items a matrix has down and across.
    fn numbers(&self) -> (usize, usize) {
        (self.rows.div_ceil(self.item.0), self.columns.div_ceil(self.item.1))
    }

    fn item(&self, index: usize) -> Item {
        let ((down, across), (tall, wide)) = (self.numbers(), self.item);
        let (rest, column) = (index / across, index % across);
        let (matrix, row) = (rest / down, rest % down);
        Item {
            matrix,
            rows: row * tall..self.rows.min((row + 1) * tall),
            columns: column * wide..self.columns.min((column + 1) * wide),
        }
    }
}

impl<P: ItemPass> Pass for Items<'_, P> {
    type Buffers = P::Buffers;
    type Outcome = P::Outcome;

    unsafe fn process(&self, items: Range<usize>, buffers: &mut P::Buffers, outcome: &mut P::Outcome) {
        for index in items {
            // SAFETY: the caller's promise.
            unsafe { self.pass.process_item(&self.item(index), buffers, outcome) };
        }
    }

    fn merge(outcome: &mut P::Outcome, next: P::Outcome) {
        P::merge(outcome, next);
    }
}

/// Runs a pass over all items, on at most so many threads. Items begin at a whole tile of so many columns and rows. They hold
/// whole blocks of rows. An only row of blocks is cut where it is one block, or would give an item more than [`MOST_WHOLE`]
/// elements.
///
/// # Safety
/// As for [`ItemPass::process_item`], of all items.
pub(super) unsafe fn run_items<P: ItemPass>(
    pass: &P,
    extent: &Extent,
    (tile_columns, tile_rows): (usize, usize),
    row_bytes: usize,
    threads: usize,
) -> P::Outcome {
    let Extent { rows, columns, block, .. } = *extent;
    let matrices = extent.matrices();
    if rows * columns * matrices == 0 {
        return P::Outcome::default();
    }
    let most = ITEM / tile_rows;
    let wide = if columns > most { (most / tile_columns).max(1) * tile_columns } else { columns };
    let is_whole = block.0 < rows || (block.1 < columns && rows * wide <= MOST_WHOLE);
    let least = if is_whole && block.0 > tile_rows { block.0 } else { tile_rows };
    let tall = (ITEM / wide / least).max(1) * least;
    let items = Items { pass, rows, columns, item: (tall, wide) };
    let (down, across) = items.numbers();
    let bytes = row_bytes * rows * matrices;
    let positions = Positions { count: matrices * down * across, grain: 1, bytes, turn: None };
    // SAFETY: the caller's promise; items are apart.
    unsafe { pass::run_pass(&items, positions, threads) }
}
