//! Where elements lie: several strided operands walked together, in the order that suits the target.

pub(super) mod blocks;
pub mod region;
pub(super) mod streaming;
pub(super) mod transfer;
pub(super) mod transpose;

use smallvec::{SmallVec, smallvec};

/// Operands that are walked together.
pub(super) const OPERANDS: usize = 4;
/// The source, in bytes.
pub(super) const SOURCE: usize = 0;
/// The target, in bytes.
pub(super) const TARGET: usize = 1;
/// The flat index of an element in C order, in elements.
pub(super) const INDEX: usize = 2;
/// The scale, in bytes.
pub(super) const SCALE: usize = 3;

/// An axis: its length and each operand's stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) length: usize,
    pub(super) strides: [isize; OPERANDS],
}

/// As many as arrays usually have cost no allocation, which would take longer than many a small cast.
pub(super) type Axes = SmallVec<[Axis; 3]>;

/// Axes from the slowest to the fastest, as few as describe the same elements.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) axes: Axes,
    /// Each operand's offset of the first element walked.
    pub(super) origin: [isize; OPERANDS],
    /// Elements in all.
    pub(super) count: usize,
}

impl Layout {
    /// Elements of these sizes that follow each other without gaps.
    pub(super) fn dense(count: usize, source_size: usize, target_size: usize) -> Self {
        let strides = [source_size as isize, target_size as isize, 0, 0];
        Self { axes: smallvec![Axis { length: count, strides }], origin: [0; OPERANDS], count }
    }

    /// Walked in the order of these axes, from an offset of each operand.
    pub(super) fn in_this_order(mut axes: Axes, origin: [isize; OPERANDS]) -> Self {
        let count = axes.iter().map(|axis| axis.length).product();
        axes.retain(|axis| axis.length != 1);
        Self { axes: merge(axes), origin, count }
    }

    /// Reorders, flips and merges axes so that the target is walked forwards.
    pub(super) fn new(mut axes: Axes) -> Self {
        let count = axes.iter().map(|axis| axis.length).product();
        let mut origin = [0; OPERANDS];
        axes.retain(|axis| axis.length != 1);
        if count == 0 {
            axes.clear();
        }
        for axis in &mut axes {
            if axis.strides[TARGET] < 0 {
                for (start, stride) in origin.iter_mut().zip(&mut axis.strides) {
                    *start += *stride * (axis.length as isize - 1);
                    *stride = -*stride;
                }
            }
        }
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.strides[TARGET]));
        Self { axes: merge(axes), origin, count }
    }

    /// Keeps the order of the axes: elements are walked in C order.
    pub(super) fn in_c_order(mut axes: Axes) -> Self {
        let count = axes.iter().map(|axis| axis.length).product();
        axes.retain(|axis| axis.length != 1 && count != 0);
        Self { axes: merge(axes), origin: [0; OPERANDS], count }
    }

    /// The one stride of an operand, if a single one describes all its elements.
    pub(super) fn line(&self, operand: usize) -> Option<isize> {
        match self.axes.as_slice() {
            [] => Some(0),
            [axis] => Some(axis.strides[operand]),
            axes => axes.iter().all(|axis| axis.strides[operand] == 0).then_some(0),
        }
    }

    /// Whether an operand's elements of this size follow each other without gaps, in the order walked.
    pub(super) fn is_dense(&self, operand: usize, size: usize) -> bool {
        self.count <= 1 || (self.axes.len() == 1 && self.line(operand) == Some(size as isize))
    }

    /// Splits positions `start..start + count` into runs along the fastest axis.
    pub(super) fn runs(&self, start: usize, count: usize, runs: &mut Vec<Run>) {
        runs.clear();
        let Some((fastest, outer)) = self.axes.split_last() else {
            if count > 0 {
                runs.push(Run { offsets: self.origin, strides: [0; OPERANDS], count });
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
        let mut left = count;
        while left > 0 {
            let length = left.min(fastest.length - column);
            let mut first = offsets;
            advance(&mut first, &fastest.strides, column as isize);
            runs.push(Run { offsets: first, strides: fastest.strides, count: length });
            column = 0;
            left -= length;
            for (axis, coordinate) in outer.iter().zip(&mut coordinates).rev() {
                *coordinate += 1;
                advance(&mut offsets, &axis.strides, 1);
                if *coordinate < axis.length {
                    break;
                }
                *coordinate = 0;
                advance(&mut offsets, &axis.strides, -(axis.length as isize));
            }
        }
    }
}

/// Joins axes that step exactly over the ones within them.
fn merge(axes: Axes) -> Axes {
    let mut merged = Axes::new();
    for axis in axes {
        match merged.last_mut() {
            Some(outer) if continues(outer, &axis) => {
                *outer = Axis { length: outer.length * axis.length, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
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

/// Elements along one axis: each operand's first offset and stride.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) offsets: [isize; OPERANDS],
    pub(super) strides: [isize; OPERANDS],
    pub(super) count: usize,
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
}
