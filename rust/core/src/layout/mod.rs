//! Where elements lie: several strided operands walked together, in the order that suits the target.

pub(crate) mod blocks;
mod channels;
mod deinterleave;
pub mod region;
mod row_places;
mod rows;
mod shuffle;
pub(crate) mod streaming;
mod thirds;
pub(crate) mod transfer;
pub(crate) mod transpose;

use smallvec::{SmallVec, smallvec};

use crate::kernels::tile::TILE;
use crate::sort_few::sort_few;

/// Operands that are walked together.
pub(crate) const OPERANDS: usize = 4;
/// The source, in bytes.
pub(crate) const SOURCE: usize = 0;
/// The target, in bytes.
pub(crate) const TARGET: usize = 1;
/// The flat index of an element in C order, in elements.
pub(crate) const INDEX: usize = 2;
/// The scale, in bytes.
pub(crate) const SCALE: usize = 3;

/// An axis: its length and each operand's stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) length: usize,
    pub(crate) strides: [isize; OPERANDS],
}

/// Up to three axes need no allocation, which would take longer than a small cast.
pub(crate) type Axes = SmallVec<[Axis; 3]>;

/// Axes from the slowest to the fastest, as few as describe the same elements.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) axes: Axes,
    /// Each operand's offset of the first element walked.
    pub(crate) origin: [isize; OPERANDS],
    /// Elements in all.
    pub(crate) count: usize,
    /// Elements that fill a tile: whole blocks, if they are walked in blocks.
    pub(crate) tile: usize,
}

impl Layout {
    /// Makes the layout of elements of these sizes without gaps.
    pub(crate) fn dense(count: usize, source_size: usize, target_size: usize) -> Self {
        let strides = [source_size as isize, target_size as isize, 0, 0];
        Self { axes: smallvec![Axis { length: count, strides }], origin: [0; OPERANDS], count, tile: TILE }
    }

    /// Makes a layout walked in the order of these axes, from an offset of each operand.
    pub(crate) fn in_this_order(mut axes: Axes, origin: [isize; OPERANDS]) -> Self {
        let count = axes.iter().map(|axis| axis.length).product();
        axes.retain(|axis| axis.length != 1 && count != 0);
        Self { axes: merge(axes), origin, count, tile: TILE }
    }

    /// Reorders, flips and merges axes so that the target is walked forwards.
    pub(crate) fn new(mut axes: Axes) -> Self {
        let mut origin = [0; OPERANDS];
        for axis in &mut axes {
            if axis.strides[TARGET] < 0 && axis.length > 1 {
                for (start, stride) in origin.iter_mut().zip(&mut axis.strides) {
                    *start += *stride * (axis.length as isize - 1);
                    *stride = -*stride;
                }
            }
        }
        sort_few(&mut axes, |far, near| far.strides[TARGET] >= near.strides[TARGET]);
        Self::in_this_order(axes, origin)
    }

    /// Returns the stride of an operand, if a single one describes all its elements.
    pub(crate) fn line(&self, operand: usize) -> Option<isize> {
        match self.axes.as_slice() {
            [] => Some(0),
            [axis] => Some(axis.strides[operand]),
            axes => axes.iter().all(|axis| axis.strides[operand] == 0).then_some(0),
        }
    }

    /// Returns whether an operand's elements of this size have no gaps, in the order walked.
    pub(crate) fn is_dense(&self, operand: usize, size: usize) -> bool {
        let mut wanted = size as isize;
        self.count <= 1
            || self.axes.iter().rev().all(|axis| {
                let found = axis.strides[operand];
                let follows = found == wanted;
                wanted = found.wrapping_mul(axis.length as isize);
                follows
            })
    }

    /// Splits positions `start..start + count` into runs: as many whole rows of the fastest axis as follow each other
    /// along the next one, and partial rows before and after them.
    pub(crate) fn runs(&self, start: usize, count: usize, runs: &mut Vec<Run>) {
        runs.clear();
        let Some((fastest, outer)) = self.axes.split_last() else {
            if count > 0 {
                runs.push(Run::row(self.origin, [0; OPERANDS], count));
            }
            return;
        };
        // The row's coordinates and offsets, from the second fastest axis on; each next row steps from the last.
        let (mut row, mut column) = (start / fastest.length, start % fastest.length);
        let mut offsets = self.origin;
        let mut coordinates: SmallVec<[usize; 6]> = smallvec![0; outer.len()];
        for (axis, coordinate) in outer.iter().zip(&mut coordinates).rev() {
            *coordinate = row % axis.length;
            row /= axis.length;
            advance(&mut offsets, &axis.strides, *coordinate as isize);
        }
        let row_strides = outer.last().map_or([0; OPERANDS], |axis| axis.strides);
        let mut left = count;
        while left > 0 {
            let whole = column == 0 && left >= fastest.length;
            let (rows, length) = if whole {
                let ahead = outer.iter().zip(&coordinates).next_back();
                let ahead = ahead.map_or(1, |(axis, coordinate)| axis.length - coordinate);
                (ahead.min(left / fastest.length), fastest.length)
            } else {
                (1, left.min(fastest.length - column))
            };
            let mut first = offsets;
            advance(&mut first, &fastest.strides, column as isize);
            runs.push(Run { offsets: first, strides: fastest.strides, count: length, row_strides, rows });
            column = 0;
            left -= length * rows;
            let mut steps = rows;
            for (axis, coordinate) in outer.iter().zip(&mut coordinates).rev() {
                *coordinate += steps;
                advance(&mut offsets, &axis.strides, steps as isize);
                if *coordinate < axis.length {
                    break;
                }
                *coordinate = 0;
                advance(&mut offsets, &axis.strides, -(axis.length as isize));
                steps = 1;
            }
        }
    }
}

/// Joins axes that step exactly over the ones within them.
fn merge(mut axes: Axes) -> Axes {
    axes.dedup_by(|axis, outer| {
        let joins = continues(outer, axis);
        if joins {
            *outer = Axis { length: outer.length * axis.length, ..*axis };
        }
        joins
    });
    axes
}

fn advance(offsets: &mut [isize; OPERANDS], strides: &[isize; OPERANDS], steps: isize) {
    for (offset, stride) in offsets.iter_mut().zip(strides) {
        *offset += stride * steps;
    }
}

/// Whether `outer` steps exactly over all of `inner`, for every operand.
fn continues(outer: &Axis, inner: &Axis) -> bool {
    let steps = outer.strides.iter().zip(&inner.strides);
    steps.into_iter().all(|(&far, &near)| far == near * inner.length as isize)
}

/// Rows of elements along one axis, one after the other along the next: each operand's first offset and strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) offsets: [isize; OPERANDS],
    /// From element to element.
    pub(crate) strides: [isize; OPERANDS],
    /// Elements of a row.
    pub(crate) count: usize,
    /// From row to row.
    pub(crate) row_strides: [isize; OPERANDS],
    pub(crate) rows: usize,
}

impl Run {
    /// Makes a run of a single row.
    pub(crate) fn row(offsets: [isize; OPERANDS], strides: [isize; OPERANDS], count: usize) -> Self {
        Self { offsets, strides, count, row_strides: [0; OPERANDS], rows: 1 }
    }

    /// Returns the number of elements of all rows.
    pub(crate) fn len(&self) -> usize {
        self.count * self.rows
    }

    /// Returns whether an operand's elements of this size have no gaps.
    pub(crate) fn is_dense(&self, operand: usize, size: usize) -> bool {
        let (stride, row_stride) = (self.strides[operand], self.row_strides[operand]);
        let row = (self.count * size) as isize;
        (self.count <= 1 || stride == size as isize) && (self.rows <= 1 || row_stride == row)
    }

    /// Returns its rows, each as a run.
    pub(crate) fn each_row(&self) -> impl Iterator<Item = Self> {
        (0..self.rows).map(|row| {
            let mut offsets = self.offsets;
            advance(&mut offsets, &self.row_strides, row as isize);
            Self::row(offsets, self.strides, self.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(length: usize, source: isize, target: isize) -> Axis {
        Axis { length, strides: [source, target, 0, 0] }
    }

    #[test]
    fn dense_axes_merge_into_one() {
        let layout = Layout::new(smallvec![axis(3, 20, 40), axis(1, 7, 7), axis(5, 4, 8)]);
        assert_eq!(layout.axes.as_slice(), [axis(15, 4, 8)]);
        assert!(layout.is_dense(SOURCE, 4) && layout.is_dense(TARGET, 8));
    }

    #[test]
    fn each_operand_is_dense_by_itself() {
        let layout = Layout::new(smallvec![axis(3, 4, 10), axis(5, 12, 2)]);
        assert!(layout.axes.len() == 2 && layout.is_dense(TARGET, 2) && !layout.is_dense(SOURCE, 4));
        let gaps = Layout::new(smallvec![axis(3, 4, 12), axis(5, 12, 2)]);
        assert!(!gaps.is_dense(TARGET, 2));
    }

    #[test]
    fn a_reversed_target_is_walked_forwards() {
        let layout = Layout::new(smallvec![axis(4, 2, -1)]);
        assert_eq!(layout.axes.as_slice(), [axis(4, -2, 1)]);
        assert_eq!(layout.origin, [6, -3, 0, 0]);
    }

    #[test]
    fn runs_cover_every_position_once() {
        let layout = Layout::new(smallvec![axis(3, 100, 50), axis(4, 10, 4)]);
        let mut runs = Vec::new();
        layout.runs(2, 9, &mut runs);
        let found: Vec<_> =
            runs.iter().map(|run| (run.offsets[SOURCE], run.offsets[TARGET], run.count)).collect();
        assert_eq!(found, [(20, 8, 2), (100, 50, 4), (200, 100, 3)]);
    }

    #[test]
    fn whole_rows_are_one_run_as_far_as_they_step_alike() {
        let layout = Layout::new(smallvec![axis(2, 1000, 700), axis(3, 100, 50), axis(4, 10, 4)]);
        let mut runs = Vec::new();
        for (start, count, wanted) in [
            (0, 24, &[(0, 4, 3), (1000, 4, 3)][..]),
            (4, 13, &[(100, 4, 2), (1000, 4, 1), (1100, 1, 1)]),
            (3, 9, &[(30, 1, 1), (100, 4, 2)]),
        ] {
            layout.runs(start, count, &mut runs);
            let found: Vec<_> = runs.iter().map(|run| (run.offsets[SOURCE], run.count, run.rows)).collect();
            assert_eq!(found, wanted);
            let each = |run: &Run| run.each_row().map(|row| row.offsets[SOURCE]).collect::<Vec<_>>();
            assert_eq!(each(&runs[0])[0], runs[0].offsets[SOURCE]);
            assert_eq!(runs.iter().map(Run::len).sum::<usize>(), count);
        }
    }
}
