//! Where the magnitudes of an array lie: by binade, and by binade below the maximum of the block that they are in.
//!
//! * `outcome`: what is counted; `sorted_map`: its tables. `tables`: what a thread counts in, packed. `piece`: the loop over a
//!   piece of a row.
//! * `arrays`: the pass over the rows of an array. `magnitudes`: those of small arrays. `consistency`: whether the numbers of
//!   a saved survey agree.
//!
//! An element adds one and its square to a cell. Squares are integers in a unit of their binade, so that sums depend neither
//! on threads nor on the order of elements, and surveys of parts add up to that of the whole.

mod arrays;
mod consistency;
mod magnitudes;
mod outcome;
mod piece;
mod sorted_map;
mod tables;

pub use consistency::check;
pub use outcome::{
    BLOCK_WIDTHS, BlockRow, BlockTable, Blocks, Cell, DEPTH, FewMagnitudes, Magnitudes, SQUARE_BITS, Survey,
};
pub use sorted_map::SortedMap;

use crate::cpu::{DefaultEnvironment, Level};
use crate::error::{Error, with_room};
use crate::exec::buffers::with_buffers;
use crate::exec::pass;
use crate::plan::operands::Source;

use arrays::SurveyedArray;
use magnitudes::Counter;
use piece::PIECE;

/// Surveys an array of real numbers of a shape, on at most this many threads. Rows are those of the last axis, and the axis
/// before it counts them; blocks begin at the first element of a row, and of the first row. The outcome depends neither on
/// threads nor on strides.
///
/// # Safety
/// All elements are readable.
#[must_use]
pub unsafe fn survey(shape: &[usize], source: Source<'_>, threads: usize) -> Survey {
    let array = SurveyedArray::new(Level::active(), shape, &source);
    // SAFETY: the caller's promise.
    let outcome = unsafe { pass::run_pass(&array, array.positions(), threads) };
    outcome.finish()
}

/// Finds the magnitudes of each row of a matrix, as [`survey`] does of an array.
///
/// # Errors
/// [`Error::InvalidOption`] for more rows than there is memory for outcomes.
///
/// # Safety
/// All elements are readable.
pub unsafe fn magnitudes(shape: [usize; 2], source: Source<'_>) -> Result<Vec<Magnitudes>, Error> {
    let mut rows = with_room("x", shape[0])?;
    let _environment = DefaultEnvironment::enter();
    let array = SurveyedArray::new(Level::active(), &shape, &source);
    with_buffers(|buffers| {
        let mut counter = Counter::new();
        rows.extend((0..shape[0]).map(|row| {
            for start in (0..shape[1]).step_by(PIECE) {
                // SAFETY: the caller's promise.
                counter.add(unsafe { array.read(row, start, buffers) });
            }
            counter.finish()
        }));
    });
    Ok(rows)
}
