//! Moves elements between strided memory and a tile, unchanged except for their byte order.

use std::marker::PhantomData;

use num_traits::PrimInt;

use super::channels::{CHANNELS, Groups, deinterleave};
use super::row_places::Rows;
pub(crate) use super::rows::Gaps;
use super::rows::{self, strided};
use super::thirds;
use super::transpose::transpose;
use super::{OPERANDS, Run, TARGET};
use crate::cpu::{Level, RawKernel};
use crate::plain::Plain;
use crate::tuning::ADJACENT;

/// Copies the elements of the runs of one operand into a dense tile.
///
/// # Safety
/// Every element of the runs, at `base` plus its offset, is readable, and with [`Gaps::Read`] memory between them is
/// too; `tile` has room for all elements.
pub(crate) unsafe fn gather(
    level: Level,
    (base, gaps): (*const u8, Gaps),
    operand: usize,
    runs: &[Run],
    (size, swapped): (usize, bool),
    tile: *mut u8,
) {
    let mut done = 0;
    for run in runs {
        let shape = Shape::of(run, operand, (size, swapped));
        // SAFETY: the caller's promises, for this run and the part of the tile that follows the previous ones.
        unsafe {
            let (first, to) = (base.offset(run.offsets[operand]), tile.add(done * size));
            if let Some(groups) = shape.groups((first, gaps), to, swapped) {
                deinterleave(shape.size, thirds::taken(level, shape.size, groups));
            } else if shape.is_crosswise(swapped) {
                let lines = (shape.count, shape.rows);
                transpose(level, shape.size, (first, shape.stride), lines, (to, shape.row_size()));
            } else {
                rows::copy(
                    level,
                    (shape.size, swapped),
                    (shape.at(first), gaps),
                    shape.dense(to),
                    shape.counts(),
                );
            }
        }
        done += run.len();
    }
}

/// Copies a dense tile to the elements of the runs of one operand.
///
/// # Safety
/// Every element of the runs, at `base` plus its offset, is writable; `tile` holds as many elements.
pub(crate) unsafe fn scatter(
    level: Level,
    tile: *const u8,
    base: *mut u8,
    operand: usize,
    runs: &[Run],
    (size, swapped): (usize, bool),
) {
    let mut done = 0;
    for run in runs {
        let shape = Shape::of(run, operand, (size, swapped));
        // SAFETY: the caller's promises, for this run and the part of the tile that follows the previous ones.
        unsafe {
            let (from, first) = (tile.add(done * size), base.offset(run.offsets[operand]));
            if shape.is_crosswise(swapped) {
                let lines = (shape.rows, shape.count);
                transpose(level, shape.size, (from, shape.row_size()), lines, (first, shape.stride));
            } else {
                rows::copy(
                    level,
                    (shape.size, swapped),
                    (shape.dense(from), Gaps::Leave),
                    shape.at(first),
                    shape.counts(),
                );
            }
        }
        done += run.len();
    }
}

/// The layout of one operand's elements of a run, in as few rows of as large elements as describe them.
#[derive(Clone, Copy)]
struct Shape {
    size: usize,
    stride: isize,
    row_stride: isize,
    count: usize,
    rows: usize,
}

impl Shape {
    fn of(run: &Run, operand: usize, (size, swapped): (usize, bool)) -> Self {
        let (stride, row_stride) = (run.strides[operand], run.row_strides[operand]);
        let &Run { count, rows, .. } = run;
        let row = count * size;
        if rows == 1 || row_stride == stride * count as isize {
            Self { size, stride, row_stride: 0, count: run.len(), rows: 1 }
        } else if stride == size as isize && [2, 4, 8, 16].contains(&row) && !swapped {
            // A row is one larger element: the two parts of a complex number.
            Self { size: row, stride: row_stride, row_stride: 0, count: rows, rows: 1 }
        } else {
            Self { size, stride, row_stride, count, rows }
        }
    }

    /// Returns whether consecutive rows are adjacent in memory, and wide enough for a transpose to pay.
    fn is_crosswise(&self, swapped: bool) -> bool {
        let is_element = self.size <= size_of::<u64>() && !swapped;
        is_element && self.rows * self.size >= ADJACENT && self.row_stride == self.size as isize
    }

    /// Returns the groups of adjacent elements whose channels are the rows, if they are such.
    fn groups(&self, (first, gaps): (*const u8, Gaps), to: *mut u8, swapped: bool) -> Option<Groups> {
        let size = self.size as isize;
        let elements =
            usize::try_from(self.stride / size).ok().filter(|elements| (2..=CHANNELS).contains(elements))?;
        let is_element = self.size <= size_of::<u64>() && !swapped && self.stride % size == 0;
        let channels = self.rows;
        let adjacent = self.row_stride.abs() == size && (2..=elements).contains(&channels);
        if !is_element || !adjacent || (channels < elements && gaps == Gaps::Leave) {
            return None;
        }
        let (mut from, mut to, mut to_stride) = (first, to, self.row_size());
        if self.row_stride < 0 {
            // The last channel is the first in memory.
            let others = channels as isize - 1;
            from = from.wrapping_offset(others * self.row_stride);
            to = to.wrapping_offset(others * to_stride);
            to_stride = -to_stride;
        }
        Some(Groups { from, count: self.count, elements, channels, to, to_stride })
    }

    /// Returns the bytes of a row without gaps.
    fn row_size(&self) -> isize {
        (self.count * self.size) as isize
    }

    fn counts(&self) -> (usize, usize) {
        (self.rows, self.count)
    }

    /// Returns their places, from the first on.
    fn at<P>(&self, first: P) -> Rows<P> {
        Rows { first, stride: self.stride, row_stride: self.row_stride }
    }

    /// Returns the places of as many without gaps.
    fn dense<P>(&self, first: P) -> Rows<P> {
        Rows { first, stride: self.size as isize, row_stride: self.row_size() }
    }
}

/// Copies a dense tile of real parts to complex elements, whose imaginary parts become +0.
///
/// # Safety
/// As for [`scatter`], with elements of twice the size at the target.
pub(crate) unsafe fn scatter_real(
    level: Level,
    tile: *const u8,
    base: *mut u8,
    runs: &[Run],
    (size, swapped): (usize, bool),
) {
    let mut done = 0;
    for run in runs.iter().flat_map(Run::each_row) {
        // SAFETY: the caller's promises, for this run and the part of the tile that follows the previous ones.
        unsafe {
            let from = tile.add(done * size);
            let (to, stride) = (base.offset(run.offsets[TARGET]), run.strides[TARGET]);
            let pairs = Pairs { from, to, stride, count: run.count, swapped };
            match size {
                2 => level.run_raw(OfReal::<u16>(pairs, PhantomData)),
                4 => level.run_raw(OfReal::<u32>(pairs, PhantomData)),
                8 => level.run_raw(OfReal::<u64>(pairs, PhantomData)),
                _ => unreachable!("components take 2, 4 or 8 bytes"),
            }
        }
        done += run.count;
    }
}

/// Does the same as [`scatter_real`] for adjacent elements in native byte order.
///
/// # Safety
/// `count` parts are readable at the tile, and elements of twice the size writable at the target.
pub(crate) unsafe fn spread(level: Level, tile: *const u8, target: *mut u8, size: usize, count: usize) {
    let run = Run::row([0; OPERANDS], [2 * size as isize; OPERANDS], count);
    // SAFETY: passed on.
    unsafe { scatter_real(level, tile, target, &[run], (size, false)) };
}

/// The places of real parts, and of pairs of a real part and zero.
struct Pairs {
    from: *const u8,
    to: *mut u8,
    stride: isize,
    count: usize,
    swapped: bool,
}

struct OfReal<T>(Pairs, PhantomData<T>);

impl<T: Real> RawKernel for OfReal<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Pairs { from, to, stride, count, swapped } = self.0;
        let (from, to) = ((from, size_of::<T>() as isize), (to, stride));
        // SAFETY: `scatter_real`'s caller vouches for both pointers.
        unsafe {
            if swapped {
                strided(from, to, count, |real: T| real.swap_bytes().with_zero());
            } else {
                strided(from, to, count, T::with_zero);
            }
        }
    }
}

/// The bits of a real part.
trait Real: Plain + PrimInt {
    /// Twice as wide: a real part, then zero, in memory.
    type Complex: Plain;
    fn with_zero(self) -> Self::Complex;
}

// Where a type of twice the width exists, widening is the fastest way; its low half is first in memory.
impl Real for u16 {
    type Complex = u32;

    #[inline(always)]
    fn with_zero(self) -> u32 {
        u32::from_le(u32::from(self.to_le()))
    }
}

impl Real for u32 {
    type Complex = u64;

    #[inline(always)]
    fn with_zero(self) -> u64 {
        u64::from_le(u64::from(self.to_le()))
    }
}

impl Real for u64 {
    type Complex = [u64; 2];

    #[inline(always)]
    fn with_zero(self) -> [u64; 2] {
        [self, 0]
    }
}

/// Copies elements at a stride to as many others, at the same stride.
///
/// # Safety
/// They are readable at the first pointer and writable at the second, and the two do not overlap.
pub(crate) unsafe fn copy_run(
    size: usize,
    (from, to): (*const u8, *mut u8),
    (stride, count): (isize, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (from, to) = ((from, stride), (to, stride));
        match size {
            _ if stride == size as isize => to.0.copy_from_nonoverlapping(from.0, count * size),
            1 => strided(from, to, count, |word: u8| word),
            2 => strided(from, to, count, |word: u16| word),
            4 => strided(from, to, count, |word: u32| word),
            8 => strided(from, to, count, |word: u64| word),
            16 => strided(from, to, count, |word: u128| word),
            _ => unreachable!("elements take a power of two of bytes, 16 at most"),
        }
    }
}
