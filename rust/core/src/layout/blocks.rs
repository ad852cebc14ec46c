//! Transposing: where source and target run along different axes, walked block by block.
//!
//! Elements that are neighbors in the target then lie far apart in the source. One after the other, each would fetch a
//! cache line that is evicted before its next element is needed. So two axes are cut into blocks that fill a tile:
//! along one the source is read by whole cache lines, along the other the target is written by whole cache lines.

#![deny(unsafe_code)]

use smallvec::{SmallVec, smallvec};

use super::{Axes, Axis, Layout, SOURCE, TARGET};
use crate::kernels::tile::TILE;
use crate::tuning::{BLOCK_RUN, CACHE_LINE, TRANSPOSED_BLOCKS};

/// The parts of a layout, each walked block by block; together they have all its elements, once.
pub(super) type Parts = SmallVec<[Layout; 1]>;

/// Cuts a layout, if it transposes.
pub(crate) fn cut(layout: Layout) -> Parts {
    let Some((across, along)) = transposed(&layout) else { return smallvec![layout] };
    let (rows, columns) = shape_of_block(&layout, across, along);
    let mut parts = Parts::new();
    for across_part in pieces(layout.axes[across], rows) {
        for along_part in pieces(layout.axes[along], columns) {
            let others = (0..layout.axes.len()).filter(|&axis| axis != across && axis != along);
            let mut axes: Axes = others.map(|axis| layout.axes[axis]).collect();
            axes.extend([across_part.blocks, along_part.blocks]);
            // Runs along the target are written as they are, unless they would be very short.
            let inner = [across_part.inner, along_part.inner];
            axes.extend(if columns < BLOCK_RUN { [inner[1], inner[0]] } else { inner });
            let mut origin = layout.origin;
            for (operand, start) in origin.iter_mut().enumerate() {
                *start += layout.axes[across].strides[operand] * across_part.start;
                *start += layout.axes[along].strides[operand] * along_part.start;
            }
            let block = across_part.inner.length * along_part.inner.length;
            parts.push(Layout { tile: TILE / block * block, ..Layout::in_this_order(axes, origin) });
        }
    }
    parts
}

/// Returns the lengths of a block along both axes: a cache line of target elements, and as many times that as a tile
/// holds; one is longer where the axis of the other is short.
fn shape_of_block(layout: &Layout, across: usize, along: usize) -> (usize, usize) {
    // Long rows fill the longest registers, so that none is padded.
    let whole = |length: usize| match length {
        0..16 => length,
        16..64 => length / 16 * 16,
        _ => length / 64 * 64,
    };
    let line = (CACHE_LINE / layout.axes[along].strides[TARGET].unsigned_abs().max(1)).clamp(32, 64);
    let columns = line.min(layout.axes[along].length);
    let rows = whole(TILE / columns).min(layout.axes[across].length);
    (rows, columns.max(whole(TILE / rows)))
}

/// Returns the axis with the source's smallest stride, and the fastest axis, if they differ.
fn transposed(layout: &Layout) -> Option<(usize, usize)> {
    let along = layout.axes.len().checked_sub(1)?;
    let reach = |axis: usize| layout.axes[axis].strides[SOURCE].unsigned_abs();
    let across = (0..along).filter(|&axis| reach(axis) > 0).min_by_key(|&axis| reach(axis))?;
    // Fewer are in the caches, unless a tile reads a line of cache for every element.
    let pays = layout.count > TRANSPOSED_BLOCKS || layout.axes[along].length >= TILE;
    (pays && reach(across) < reach(along)).then_some((across, along))
}

/// One part of an axis: whole blocks, or what is left over.
struct Piece {
    /// Its first coordinate.
    start: isize,
    /// From block to block.
    blocks: Axis,
    /// Within a block.
    inner: Axis,
}

fn pieces(axis: Axis, block: usize) -> impl Iterator<Item = Piece> {
    let (blocks, rest) = (axis.length / block, axis.length % block);
    let piece = move |start: usize, blocks: usize, length: usize| Piece {
        start: start as isize,
        blocks: Axis { length: blocks, strides: axis.strides.map(|stride| stride * block as isize) },
        inner: Axis { length, ..axis },
    };
    let found = [piece(0, blocks, block), piece(blocks * block, 1, rest)];
    found.into_iter().filter(|piece| piece.blocks.length * piece.inner.length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Run, SOURCE};

    fn positions(layout: &Layout) -> Vec<(isize, isize)> {
        let mut runs = Vec::new();
        layout.runs(0, layout.count, &mut runs);
        let steps =
            |run: &Run, operand: usize, i: usize| run.offsets[operand] + run.strides[operand] * i as isize;
        let of_run = |run: &Run| -> Vec<_> {
            (0..run.count).map(|i| (steps(run, SOURCE, i), steps(run, TARGET, i))).collect()
        };
        runs.iter().flat_map(Run::each_row).flat_map(|run| of_run(&run)).collect()
    }

    #[test]
    fn parts_have_every_element_once() {
        for (rows, columns) in
            [(128, 128), (300, 33), (3, 5000), (5000, 3), (1024, 17), (2, 5130), (31, 1000)]
        {
            let axis = |length, source, target| Axis { length, strides: [source, target, 0, 0] };
            let plane = (rows * columns) as isize;
            let layout = Layout::new(smallvec![
                axis(2, 4 * plane, 2 * plane),
                axis(rows, 4, 2 * columns as isize),
                axis(columns, 4 * rows as isize, 2),
            ]);
            let mut whole = positions(&layout);
            let parts = cut(layout);
            let mut found: Vec<_> = parts.iter().flat_map(positions).collect();
            whole.sort_unstable();
            found.sort_unstable();
            assert_eq!(whole, found);
            assert!(parts.len() <= 4 && parts[0].axes.len() > 2);
            for part in parts {
                let mut runs = Vec::new();
                part.runs(0, part.tile.min(part.count), &mut runs);
                assert!(part.tile <= TILE && part.tile > TILE / 2);
                assert!(runs.iter().all(|run| run.count == runs[0].count), "{runs:?}");
            }
        }
    }

    #[test]
    fn what_runs_alike_stays_whole() {
        let layout = Layout::new(smallvec![
            Axis { length: 640, strides: [1000, 500, 0, 0] },
            Axis { length: 64, strides: [4, 2, 0, 0] },
        ]);
        assert_eq!(cut(layout).len(), 1);
    }
}
