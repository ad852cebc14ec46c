//! Brings the items of a tensor into another order, from file to file, in blocks.
//!
//! A block is chosen so that its items stand in long runs in both files: for a matrix and its transpose a square. So the
//! memory is that of two blocks, however large and of whatever shape the tensor is.

use std::fs::File;
use std::io;

use super::items::copy_items;
use super::positioned::{read_exact_at, write_all_at};
use castwise_core::sort_few::sort_few;

/// Items further apart are read one by one.
const PAGE_BYTES: usize = 4096;

/// Runs of a block that is read with its gaps, at most.
const MAX_RUNS: usize = 1 << 16;

/// Where the items of a tensor stand in a file.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a> {
    /// The file.
    pub file: &'a File,
    /// The byte at which the first item begins.
    pub begin: u64,
    /// Bytes from one item to the next along each axis; 0 where items repeat.
    pub strides: &'a [usize],
}

/// What could not be done.
#[derive(Debug)]
pub enum Rearranging<E> {
    /// The source cannot be read; `UnexpectedEof` where it ends early.
    Read(io::Error),
    /// The target cannot be written.
    Write(io::Error),
    /// What `poll` returned.
    Stopped(E),
}

/// Copies all items of a shape to where they stand in another file, of which no two overlap. `poll` is called before each
/// block of at most about `block_bytes`.
///
/// # Errors
/// [`Rearranging`].
pub fn rearrange<E>(
    shape: &[usize],
    item: usize,
    source: Items<'_>,
    target: Items<'_>,
    block_bytes: usize,
    mut poll: impl FnMut() -> Result<(), E>,
) -> Result<(), Rearranging<E>> {
    if shape.contains(&0) {
        return Ok(());
    }
    let orders = [source.strides, target.strides].map(|strides| by_stride(shape, strides));
    let mut limits = shape.to_vec();
    let mut count = block_bytes / item;
    if let Some(&nearest) = orders[0].first()
        && source.strides[nearest] > item
    {
        // A run is read with its gaps; and there is a place for each run, however short.
        limits[nearest] = (block_bytes / source.strides[nearest]).max(1);
        count = count.min(MAX_RUNS);
    }
    let extents = extents(shape, &limits, &orders, count.max(1));
    let mut corner = vec![0; shape.len()];
    loop {
        poll().map_err(Rearranging::Stopped)?;
        let size: Vec<_> = shape
            .iter()
            .zip(&corner)
            .zip(&extents)
            .map(|((all, first), part)| (*part).min(all - first))
            .collect();
        let block = Block { shape, item, corner: &corner, size: &size };
        let read = block.read(&source, &orders[0]).map_err(Rearranging::Read)?;
        let written = reordered(&block, (&read, &orders[0]), &orders[1]).map_err(Rearranging::Write)?;
        drop(read);
        block.write(&target, &orders[1], &written).map_err(Rearranging::Write)?;
        let Some(axis) = (0..shape.len()).rev().find(|&axis| corner[axis] + extents[axis] < shape[axis])
        else {
            return Ok(());
        };
        corner[axis] += extents[axis];
        corner[axis + 1..].fill(0);
    }
}

/// Returns the axes longer than 1 from the one that varies fastest; repeated ones at the end.
fn by_stride(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] > 1).collect();
    let step = |axis: usize| strides[axis].wrapping_sub(1);
    sort_few(&mut axes, |&near, &far| step(near) <= step(far));
    axes
}

/// Returns the extents of a block of at most `count` items: the runs of both orders alike.
fn extents(shape: &[usize], limits: &[usize], orders: &[Vec<usize>; 2], count: usize) -> Vec<usize> {
    let mut extents = vec![1; shape.len()];
    loop {
        let mut runs: Vec<(usize, usize)> =
            orders.iter().filter_map(|order| open_run(order, &extents, shape)).collect();
        // Doubled, the shorter run first, as far as it goes.
        sort_few(&mut runs, |short, long| short <= long);
        let all: usize = extents.iter().product();
        let grown = runs.into_iter().find_map(|(_, axis)| {
            let extent = (2 * extents[axis]).min(shape[axis]).min(limits[axis]);
            (extent > extents[axis] && all / extents[axis] * extent <= count).then_some((axis, extent))
        });
        let Some((axis, extent)) = grown else {
            return extents;
        };
        extents[axis] = extent;
    }
}

/// Returns the items of a block's run in an order, and the axis that ends it.
fn open_run(order: &[usize], extents: &[usize], shape: &[usize]) -> Option<(usize, usize)> {
    let mut run = 1;
    order.iter().find_map(|&axis| {
        run *= extents[axis];
        (extents[axis] < shape[axis]).then_some((run, axis))
    })
}

/// The items of a block, from a corner on.
struct Block<'a> {
    shape: &'a [usize],
    item: usize,
    corner: &'a [usize],
    size: &'a [usize],
}

impl Block<'_> {
    fn bytes(&self) -> usize {
        self.size.iter().product::<usize>() * self.item
    }

    /// Returns the items of a run, all in one piece, and where each run begins; `order` is from the fastest axis on.
    fn runs(&self, items: &Items<'_>, order: &[usize]) -> (usize, Vec<u64>) {
        let (mut length, mut rest) = (1, order);
        while let [axis, slower @ ..] = rest
            && items.strides[*axis] == length * self.item
        {
            length *= self.size[*axis];
            rest = slower;
            if self.size[*axis] < self.shape[*axis] {
                break;
            }
        }
        (length, self.begins(items, rest))
    }

    /// Returns where items begin along some axes, of which the first is the fastest.
    fn begins(&self, items: &Items<'_>, axes: &[usize]) -> Vec<u64> {
        let steps =
            self.corner.iter().zip(items.strides).map(|(&place, &stride)| place as u64 * stride as u64);
        let mut begins = vec![items.begin + steps.sum::<u64>()];
        for &axis in axes {
            let step = items.strides[axis] as u64;
            begins = (0..self.size[axis] as u64)
                .flat_map(|place| begins.iter().map(move |begin| begin + place * step))
                .collect();
        }
        begins
    }

    /// Reads the items, the axes of the order from the last to the first.
    fn read(&self, source: &Items<'_>, order: &[usize]) -> io::Result<Vec<u8>> {
        let mut data = vec![0; self.bytes()];
        let gap = order.first().map_or(0, |&axis| source.strides[axis]);
        if self.item < gap && gap <= PAGE_BYTES {
            // One read for all items along the first axis, and what stands between them.
            let count = self.size[order[0]];
            let mut span = vec![0; (count - 1) * gap + self.item];
            let begins = self.begins(source, &order[1..]);
            for (run, begin) in data.chunks_exact_mut(count * self.item).zip(begins) {
                read_exact_at(source.file, &mut span, begin)?;
                let copied = copy_items(&[count], self.item, (&span, &[gap]), (run, &[self.item]));
                copied.map_err(io::Error::other)?;
            }
            return Ok(data);
        }
        let (length, begins) = self.runs(source, order);
        for (run, begin) in data.chunks_exact_mut(length * self.item).zip(begins) {
            read_exact_at(source.file, run, begin)?;
        }
        Ok(data)
    }

    /// Writes items whose axes are in the order from the last to the first.
    fn write(&self, target: &Items<'_>, order: &[usize], data: &[u8]) -> io::Result<()> {
        let (length, begins) = self.runs(target, order);
        for (run, begin) in data.chunks_exact(length * self.item).zip(begins) {
            write_all_at(target.file, run, begin).map_err(|(_, error)| error)?;
        }
        Ok(())
    }

    /// Returns the strides of the items in memory, the axes of the order from the last to the first.
    fn strides(&self, order: &[usize]) -> Vec<usize> {
        let mut strides = vec![self.item; self.size.len()];
        let mut next = self.item;
        for &axis in order {
            strides[axis] = next;
            next *= self.size[axis];
        }
        strides
    }
}

/// Brings a block from one order of its axes into another.
fn reordered(block: &Block<'_>, (data, from): (&[u8], &[usize]), to: &[usize]) -> io::Result<Vec<u8>> {
    let mut result = vec![0; data.len()];
    let (from, to) = (block.strides(from), block.strides(to));
    copy_items(block.size, block.item, (data, &from), (&mut result, &to)).map_err(io::Error::other)?;
    Ok(result)
}
