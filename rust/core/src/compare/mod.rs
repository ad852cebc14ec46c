//! Where two arrays differ, and by how much.
//!
//! * `outcome`: what is found. `formats`: how pairs of formats are compared. `pass`: the tiles of two arrays.
//! * `differences`, `losses`: loops over a tile.

mod differences;
mod formats;
mod losses;
mod outcome;
mod pass;

pub use outcome::{Comparison, Losses};

use crate::cpu::Level;
use crate::exec::pass as walk;
use crate::layout::{Axes, Axis, INDEX, Layout, OPERANDS, SOURCE, TARGET, blocks};
use crate::plan::operands::Source;

use formats::Common;
use pass::Comparing;

/// Compares two arrays of a shape, on at most this many threads; with `measures` the losses too. The outcome depends
/// neither on threads nor on strides.
///
/// # Safety
/// All elements of both arrays are readable.
#[must_use]
pub unsafe fn compare(
    shape: &[usize],
    first: Source<'_>,
    second: Source<'_>,
    measures: bool,
    threads: usize,
) -> Comparison {
    let level = Level::active();
    let pass = Comparing::new(level, Common::of(first.format, second.format), measures);
    let arrays = [first, second].map(|array| {
        let part = array.format.component();
        walk::Readable {
            pointer: array.pointer,
            component: part.unwrap_or(array.format).item_size(),
            components: if part.is_some() { 2 } else { 1 },
            swapped: array.swapped,
        }
    });
    let mut whole = Comparison { losses: measures.then(Box::default), ..Comparison::default() };
    for layout in blocks::cut(Layout::new(axes(shape, &first, &second))) {
        // SAFETY: the caller's promise; the layouts have the elements of the arrays.
        whole.merge(&unsafe { walk::run(&pass, level, &layout, &arrays, threads) });
    }
    whole
}

/// Returns the axes to walk.
fn axes(shape: &[usize], first: &Source<'_>, second: &Source<'_>) -> Axes {
    let mut index_stride = 1isize;
    let mut axes = Axes::new();
    for (axis, &length) in shape.iter().enumerate().rev() {
        let mut strides = [0; OPERANDS];
        strides[SOURCE] = first.strides[axis];
        strides[TARGET] = second.strides[axis];
        strides[INDEX] = index_stride;
        axes.push(Axis { length, strides });
        index_stride = index_stride.wrapping_mul(length as isize);
    }
    axes.reverse();
    axes
}
