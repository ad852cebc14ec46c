//! Which bytes arrays occupy, and which of many arrays may share some.

#![deny(unsafe_code)]

use smallvec::{SmallVec, smallvec};

use crate::sort_few::{sort_few, sort_triples};

/// Strides that are tried to separate interleaved arrays, at most.
const MODULI: usize = 16;

/// The elements of an array, in C order. Two equal regions have the same elements in the same order, whatever their
/// shapes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    address: usize,
    /// Length and stride of each axis, as few as describe the elements.
    axes: Vec<(usize, isize)>,
    item: usize,
}

impl Region {
    /// Makes the region of an array whose first element is at `address`; items and strides are in bytes.
    #[must_use]
    pub fn new(address: usize, shape: &[usize], strides: &[isize], item: usize) -> Self {
        let mut axes: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
        if shape.contains(&0) {
            axes.push((0, 0));
            return Self { address, axes, item };
        }
        for (&length, &stride) in shape.iter().zip(strides).filter(|&(&length, _)| length != 1) {
            match axes.last_mut() {
                // The outer axis steps exactly over this one.
                Some(outer) if outer.1 == stride.wrapping_mul(length as isize) => {
                    *outer = (outer.0 * length, stride);
                }
                _ => axes.push((length, stride)),
            }
        }
        Self { address, axes, item }
    }

    /// The addresses from its first byte to one past its last; equal ones if it has no elements.
    #[must_use]
    pub fn extent(&self) -> (usize, usize) {
        extent(self.address, self.axes.iter().copied(), self.item)
    }

    /// Returns the range of its bytes modulo a number, as start and length; `None` if they may be anywhere.
    fn arc(&self, circumference: usize) -> Option<(usize, usize)> {
        let off_circle =
            |&&(_, stride): &&(usize, isize)| !stride.unsigned_abs().is_multiple_of(circumference);
        let (low, high) = extent(self.address, self.axes.iter().filter(off_circle).copied(), self.item);
        (high - low < circumference).then(|| (low % circumference, high - low))
    }
}

/// Returns the bytes between elements of an array in C order, for each axis, and the bytes of all; None for more than memory
/// can have. As in numpy, of an empty array the other lengths count.
pub(crate) fn in_c_order(shape: &[usize], item: usize) -> Option<(SmallVec<[isize; 4]>, usize)> {
    let mut strides: SmallVec<[isize; 4]> = smallvec![0; shape.len()];
    let mut bytes = item;
    for (stride, &length) in strides.iter_mut().zip(shape).rev() {
        *stride = bytes as isize;
        bytes = bytes.checked_mul(length.max(1)).filter(|&bytes| isize::try_from(bytes).is_ok())?;
    }
    Some((strides, if shape.contains(&0) { 0 } else { bytes }))
}

/// The addresses from the first byte of an array to one past its last; equal ones if it has no elements.
pub fn extent(address: usize, axes: impl Iterator<Item = (usize, isize)>, item: usize) -> (usize, usize) {
    let (mut low, mut high) = (address, address + item);
    for (length, stride) in axes {
        if length == 0 {
            return (address, address);
        }
        let reach = stride * (length as isize - 1);
        if reach < 0 {
            low = low.wrapping_add_signed(reach);
        } else {
            high = high.wrapping_add_signed(reach);
        }
    }
    (low, high)
}

/// Steps after which a layout counts as one whose elements share memory.
const MOST_STEPS: usize = 1 << 22;

/// Returns whether two elements of an array share a byte.
///
/// Returns whether two of an array's elements may share memory: sorted by stride, each axis must step over the extent
/// of the smaller ones. The few layouts that interleave without sharing count as overlapping.
#[must_use]
pub fn overlaps_itself(shape: &[usize], strides: &[isize], size: usize) -> bool {
    let axes = shape.iter().zip(strides);
    let axes = axes.map(|(&length, &stride)| (stride.unsigned_abs(), length));
    let mut axes: SmallVec<[_; 3]> = axes.filter(|&(_, length)| length > 1).collect();
    sort_few(&mut axes, |near, far| near <= far);
    if shape.contains(&0) {
        return false;
    }
    let mut reach = size;
    axes.into_iter().any(|(stride, length)| {
        let overlaps = stride < reach;
        reach = reach.saturating_add(stride.saturating_mul(length - 1));
        overlaps
    })
}

/// That is, whether the strides, each times a whole number smaller than its axis is long, and not all of these zero,
/// add up to less than an item. The largest stride is taken first: few multiples of it can then be made up for by the
/// smaller ones.
#[must_use]
pub fn shares_with_itself(shape: &[usize], strides: &[isize], item: usize) -> bool {
    if shape.contains(&0) {
        return false;
    }
    let axes = shape.iter().zip(strides).filter(|&(&length, _)| length > 1);
    let mut axes: Vec<(i128, i128)> =
        axes.map(|(&length, &stride)| (stride.unsigned_abs() as i128, length as i128 - 1)).collect();
    sort_few(&mut axes, |first, second| first >= second);
    meets(&axes, 0, false, item as i128, &mut 0)
}

/// Returns whether the multiples of strides that are left bring a distance below an item. Each axis has its stride and
/// the largest factor; `apart` says that a factor before was not zero.
fn meets(axes: &[(i128, i128)], distance: i128, apart: bool, item: i128, steps: &mut usize) -> bool {
    let Some((&(stride, most), smaller)) = axes.split_first() else {
        return apart && distance.abs() < item;
    };
    *steps += 1;
    if stride < item || *steps > MOST_STEPS {
        return true;
    }
    let reach: i128 = smaller.iter().map(|&(stride, most)| stride * most).sum::<i128>() + item - 1;
    // A pair of elements is found from either: the first factor that is not zero is positive.
    let least = if apart { -most } else { 0 };
    let low =
        (-distance - reach).div_euclid(stride) + i128::from((-distance - reach).rem_euclid(stride) != 0);
    let high = (reach - distance).div_euclid(stride);
    (low.max(least)..=high.min(most))
        .any(|factor| meets(smaller, distance + factor * stride, apart || factor != 0, item, steps))
}

/// Groups of arrays that may share memory, by their indices: no array shares any with one outside its group.
///
/// Arrays whose extents do not meet share nothing. Nor do interleaved ones, such as columns of one matrix, whose byte
/// ranges modulo their common stride are disjoint.
#[must_use]
pub fn may_share(regions: &[Region]) -> Vec<Vec<usize>> {
    let occupied = |&index: &usize| {
        let (low, high) = regions[index].extent();
        low < high
    };
    let mut pending = apart_on_line(regions, (0..regions.len()).filter(occupied).collect());
    let mut groups = Vec::new();
    while let Some(group) = pending.pop() {
        let parts = moduli(regions, &group).find_map(|modulus| apart_on_circle(regions, &group, modulus));
        match parts {
            Some(parts) => pending.extend(parts.into_iter().flat_map(|part| apart_on_line(regions, part))),
            None => groups.push(group),
        }
    }
    groups
}

/// Returns the strides of some arrays, the largest first.
fn moduli(regions: &[Region], group: &[usize]) -> impl Iterator<Item = usize> {
    let strides =
        group.iter().flat_map(|&index| &regions[index].axes).map(|&(_, stride)| stride.unsigned_abs());
    let strides: Vec<_> = strides.filter(|&stride| stride > 0).collect();
    let smaller = move |than: usize| strides.iter().copied().filter(|&stride| stride < than).max();
    std::iter::successors(smaller(usize::MAX), move |&last| smaller(last)).take(MODULI)
}

/// Returns groups of two or more arrays whose extents meet.
fn apart_on_line(regions: &[Region], group: Vec<usize>) -> Vec<Vec<usize>> {
    let extents = group.into_iter().map(|index| (regions[index].extent(), index));
    let (groups, _) = chains(extents.map(|((low, high), index)| (low, high, index)).collect());
    groups.into_iter().filter(|group| group.len() > 1).collect()
}

/// Returns groups whose byte ranges modulo the number are disjoint; `None` if all are one group.
fn apart_on_circle(regions: &[Region], group: &[usize], circumference: usize) -> Option<Vec<Vec<usize>>> {
    let arc = |&index: &usize| {
        let (low, length) = regions[index].arc(circumference)?;
        Some((low, low + length, index))
    };
    let arcs: Vec<_> = group.iter().map(arc).collect::<Option<_>>()?;
    let (mut groups, end) = chains(arcs);
    // The last group may wrap around to the start.
    let beyond = end.saturating_sub(circumference);
    let mut last = groups.pop()?;
    let is_met = |&index: &usize| regions[index].arc(circumference).is_some_and(|(low, _)| low < beyond);
    let met = groups.iter().take_while(|group| group.iter().any(is_met)).count();
    last.extend(groups.drain(..met).flatten());
    groups.push(last);
    (groups.len() > 1).then_some(groups)
}

/// Returns groups of intervals (start, end, index) that meet, in order, and the end of the last one.
fn chains(mut intervals: Vec<(usize, usize, usize)>) -> (Vec<Vec<usize>>, usize) {
    sort_triples(&mut intervals);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut end = 0;
    for (start, stop, index) in intervals {
        match groups.last_mut() {
            Some(group) if start < end => group.push(index),
            _ => groups.push(vec![index]),
        }
        end = end.max(stop);
    }
    (groups, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_is_found_as_by_looking_at_all_addresses() {
        let steps = [-12isize, -7, -3, -1, 0, 1, 2, 3, 4, 5, 6, 8, 9, 12];
        for item in [1usize, 2, 4] {
            for (a, b, c) in (0..steps.len().pow(3)).map(|i| (i % 14, i / 14 % 14, i / 196)) {
                let (shape, strides) = ([2usize, 3, 4], [steps[a], steps[b], steps[c]]);
                let mut starts: Vec<isize> = (0..24)
                    .map(|i: isize| i % 2 * strides[0] + i / 2 % 3 * strides[1] + i / 6 * strides[2])
                    .collect();
                starts.sort_unstable();
                let shared = starts.windows(2).any(|pair| pair[1] - pair[0] < item as isize);
                assert_eq!(shares_with_itself(&shape, &strides, item), shared, "{strides:?} of {item}");
            }
        }
        assert!(!shares_with_itself(&[3, 0], &[0, 0], 4));
        assert!(!shares_with_itself(&[1, 1], &[0, 0], 4));
        assert!(shares_with_itself(&[1_000_000, 1_000_000], &[4, 4], 4));
    }
    use std::collections::HashSet;

    fn bytes(region: &Region) -> HashSet<usize> {
        let mut starts = vec![region.address];
        for &(length, stride) in &region.axes {
            let steps =
                |start: usize| (0..length).map(move |step| start.wrapping_add_signed(stride * step as isize));
            starts = starts.into_iter().flat_map(steps).collect();
        }
        starts.into_iter().flat_map(|start| start..start + region.item).collect()
    }

    /// Returns small numbers from a fixed sequence.
    fn draw(state: &mut u64, below: u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) % below) as usize
    }

    #[test]
    fn arrays_in_different_groups_share_no_byte() {
        let mut state = 1;
        let (mut apart, mut together) = (0, 0);
        for _ in 0..4000 {
            let count = 2 + draw(&mut state, 6);
            let array = |_| {
                let axes = draw(&mut state, 4);
                let shape: Vec<_> = (0..axes).map(|_| draw(&mut state, 5)).collect();
                let strides: Vec<_> = (0..axes).map(|_| draw(&mut state, 60) as isize - 24).collect();
                Region::new(10_000 + draw(&mut state, 64), &shape, &strides, 1 << draw(&mut state, 4))
            };
            let regions: Vec<_> = (0..count).map(array).collect();
            let groups = may_share(&regions);
            let group_of = |index| groups.iter().position(|group| group.contains(&index));
            for one in 0..count {
                for other in 0..one {
                    let disjoint = bytes(&regions[one]).is_disjoint(&bytes(&regions[other]));
                    let same = group_of(one).is_some() && group_of(one) == group_of(other);
                    assert!(disjoint || same, "{:?} {:?}", regions[one], regions[other]);
                    apart += usize::from(disjoint && !same);
                    together += usize::from(disjoint && same);
                }
            }
        }
        assert!(apart > 2 * together, "{apart} {together}");
    }

    #[test]
    fn columns_blocks_and_every_other_row_are_taken_apart() {
        let (rows, columns, item) = (12, 1000, 4);
        let stride = columns * item;
        let part = |row: usize, column: usize, step: usize, shape: [usize; 2]| {
            let strides = [(step * stride) as isize, item as isize];
            Region::new(4096 + row * stride + column * item, &shape, &strides, item)
        };
        let single: Vec<_> = (0..columns).map(|column| part(0, column, 1, [rows, 1])).collect();
        assert!(may_share(&single).is_empty());
        let halves = |column: usize| (0..2).map(move |row| part(row, column, 2, [rows / 2, 1]));
        let mixed: Vec<_> = single.iter().take(500).cloned().chain((500..columns).flat_map(halves)).collect();
        assert!(may_share(&mixed).is_empty());
        let blocks =
            (0..rows).step_by(3).flat_map(|row| (0..columns).step_by(8).map(move |column| (row, column)));
        let blocks: Vec<_> = blocks.map(|(row, column)| part(row, column, 1, [3, 8])).collect();
        assert!(may_share(&blocks).is_empty());
        let twice: Vec<_> = single.iter().chain(&single[7..8]).cloned().collect();
        assert_eq!(may_share(&twice), [[7, columns]]);
    }

    #[test]
    fn a_region_forgets_the_shape() {
        let flat = Region::new(64, &[12], &[4], 4);
        assert_eq!(flat, Region::new(64, &[3, 1, 4], &[16, 99, 4], 4));
        assert_ne!(flat, Region::new(64, &[4, 3], &[4, 16], 4));
        assert_ne!(flat, Region::new(64, &[12], &[4], 2));
    }
}
