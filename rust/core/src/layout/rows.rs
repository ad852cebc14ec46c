//! Copying rows of elements from one place and stride to another, as they are or with their bytes swapped.

use std::marker::PhantomData;

use num_traits::PrimInt;

use super::deinterleave;
use super::row_places::Rows;
use crate::cpu::{Level, RawKernel};
use crate::plain::Plain;
use crate::tuning::ROW_COPY;

/// Whether memory between elements may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// It may be read, and is ignored.
    Read,
    /// It must not be read: other threads of ours may be writing to it.
    Leave,
}

/// Copies so many rows of so many elements.
///
/// # Safety
/// They are readable at the first place and writable at the second, and the two do not overlap. With [`Gaps::Read`],
/// memory between neighbors in a row of the first is readable too.
pub(super) unsafe fn copy(
    level: Level,
    (size, swapped): (usize, bool),
    (from, gaps): (Rows<*const u8>, Gaps),
    to: Rows<*mut u8>,
    (rows, count): (usize, usize),
) {
    let (mut from, mut to, mut count) = (from, to, count);
    let adjacent = to.stride == size as isize;
    if adjacent && from.stride == 2 * to.stride && gaps == Gaps::Read && !swapped && size <= 8 {
        // SAFETY: the caller's promise.
        let done = unsafe { deinterleave::copy(level, size, from, to, (rows, count)) };
        from.first = from.first.wrapping_offset(done as isize * from.stride);
        to.first = to.first.wrapping_offset(done as isize * to.stride);
        count -= done;
    }
    let copy = Copying { from, to, rows, count };
    // SAFETY: the caller's promise.
    unsafe {
        match (size, swapped) {
            (1, _) => level.run_moves(Unchanged::<u8>(copy, PhantomData)),
            (2, false) => level.run_moves(Unchanged::<u16>(copy, PhantomData)),
            (2, true) => level.run_moves(Swapped::<u16>(copy, PhantomData)),
            (4, false) => level.run_moves(Unchanged::<u32>(copy, PhantomData)),
            (4, true) => level.run_moves(Swapped::<u32>(copy, PhantomData)),
            (8, false) => level.run_moves(Unchanged::<u64>(copy, PhantomData)),
            (8, true) => level.run_moves(Swapped::<u64>(copy, PhantomData)),
            (16, false) => level.run_moves(Unchanged::<u128>(copy, PhantomData)),
            _ => unreachable!("real formats take 1, 2, 4 or 8 bytes, complex ones twice as many"),
        }
    }
}

struct Copying {
    from: Rows<*const u8>,
    to: Rows<*mut u8>,
    rows: usize,
    count: usize,
}

impl Copying {
    /// Returns where each row begins.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = (*const u8, *mut u8)> {
        let Self { from, to, rows, .. } = *self;
        (0..rows as isize).map(move |row| {
            let (first, second) = (row * from.row_stride, row * to.row_stride);
            (from.first.wrapping_offset(first), to.first.wrapping_offset(second))
        })
    }
}

/// Copies elements unchanged, as values of a type of their size.
struct Unchanged<T>(Copying, PhantomData<T>);

impl<T: Plain> RawKernel for Unchanged<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let size = size_of::<T>();
        let count = self.0.count;
        let [stride, to_stride] = [self.0.from.stride, self.0.to.stride];
        let dense = to_stride == size as isize;
        for (from, to) in self.0.rows() {
            // SAFETY: the promise of `copy`'s caller, for each row.
            unsafe {
                if dense && stride == to_stride {
                    adjacent(from, to, count * size);
                } else {
                    unchanged::<T>((from, stride), (to, to_stride), count);
                }
            }
        }
    }
}

/// Copies integers of a type with their bytes swapped.
struct Swapped<T>(Copying, PhantomData<T>);

impl<T: Plain + PrimInt> RawKernel for Swapped<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let [stride, to_stride] = [self.0.from.stride, self.0.to.stride];
        for (from, to) in self.0.rows() {
            // SAFETY: the promise of `copy`'s caller, for each row.
            unsafe { strided((from, stride), (to, to_stride), self.0.count, T::swap_bytes) };
        }
    }
}

/// Copies the bytes of a short row, for which a call of `memcpy` would take longer than the copy.
///
/// # Safety
/// They are readable at the first place and writable at the second, which do not overlap.
#[inline(always)]
unsafe fn adjacent(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. Pieces lie within the bytes; the last may overlap the one before it.
    unsafe {
        match bytes {
            ROW_COPY.. => to.copy_from_nonoverlapping(from, bytes),
            32.. => pieces::<[u64; 4]>(from, to, bytes),
            16.. => pieces::<[u64; 2]>(from, to, bytes),
            8.. => pieces::<u64>(from, to, bytes),
            4.. => pieces::<u32>(from, to, bytes),
            2.. => pieces::<u16>(from, to, bytes),
            1 => to.write(from.read()),
            0 => {}
        }
    }
}

/// # Safety
/// As for [`adjacent`], with at least as many bytes as `T` has.
#[inline(always)]
unsafe fn pieces<T: Plain>(from: *const u8, to: *mut u8, bytes: usize) {
    let last = bytes - size_of::<T>();
    let mut i = 0;
    // SAFETY: `i + size_of::<T>() <= bytes`.
    unsafe {
        while i < last {
            to.add(i).cast::<T>().write_unaligned(from.add(i).cast::<T>().read_unaligned());
            i += size_of::<T>();
        }
        to.add(last).cast::<T>().write_unaligned(from.add(last).cast::<T>().read_unaligned());
    }
}

/// Copies elements at a stride. Compiled for the baseline only: gather instructions, which the compiler would use, are
/// slower than single loads.
///
/// # Safety
/// As for [`strided`].
#[inline(never)]
unsafe fn unchanged<T: Plain>(from: (*const u8, isize), to: (*mut u8, isize), count: usize) {
    // SAFETY: passed on.
    unsafe { strided(from, to, count, |word: T| word) };
}

/// Copies elements at a stride, each changed by a function.
///
/// # Safety
/// `count` elements are readable at the first place and writable at the second, at their strides.
#[inline(always)]
pub(super) unsafe fn strided<S: Plain, T: Plain>(
    (from, from_stride): (*const u8, isize),
    (to, to_stride): (*mut u8, isize),
    count: usize,
    change: impl Fn(S) -> T,
) {
    if from_stride == size_of::<S>() as isize && to_stride == size_of::<T>() as isize {
        // The same loop for adjacent elements, which the compiler vectorizes.
        for i in 0..count {
            // SAFETY: `i < count`.
            unsafe {
                let word = from.cast::<S>().add(i).read_unaligned();
                to.cast::<T>().add(i).write_unaligned(change(word));
            }
        }
        return;
    }
    for i in 0..count as isize {
        // SAFETY: `i < count`.
        unsafe {
            let word = from.offset(i * from_stride).cast::<S>().read_unaligned();
            to.offset(i * to_stride).cast::<T>().write_unaligned(change(word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stride_and_length_at_every_level() {
        for level in Level::available() {
            for (size, swapped) in [1, 2, 4, 8].into_iter().flat_map(|size| [(size, false), (size, true)]) {
                for (step, to_step) in [(1, 1), (2, 1), (3, 1), (-1, 1), (-2, 2), (1, 3), (0, 1)] {
                    for count in [1, 2, 3, 5, 16, 17, 33, 100, 700] {
                        check(level, (size, swapped), (step, to_step), count);
                    }
                }
            }
        }
    }

    /// Checks three rows, between bytes that must not change.
    fn check(level: Level, (size, swapped): (usize, bool), (step, to_step): (isize, isize), count: usize) {
        let reach = |step: isize| (count - 1) * step.unsigned_abs() * size + size;
        let (pitch, to_pitch) = (reach(step) + 3, reach(to_step) + 5);
        // The buffer has no spare bytes, so that sanitizers see any read beyond it.
        let memory: Vec<u8> = (0..2 * pitch + reach(step)).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut found = vec![0xa5; 2 * to_pitch + reach(to_step)];
        let mut wanted = found.clone();
        let first = |step: isize| if step < 0 { reach(step) - size } else { 0 };
        for row in 0..3 {
            for i in 0..count as isize {
                let at = |start: usize, step: isize| start.strict_add_signed(step * i * size as isize);
                let from = at(row * pitch + first(step), step);
                let to = at(row * to_pitch + first(to_step), to_step);
                let value = &mut wanted[to..to + size];
                value.copy_from_slice(&memory[from..from + size]);
                if swapped {
                    value.reverse();
                }
            }
        }
        let stride = |step: isize| step * size as isize;
        let from =
            Rows { first: memory[first(step)..].as_ptr(), stride: stride(step), row_stride: pitch as isize };
        let to = Rows {
            first: found[first(to_step)..].as_mut_ptr(),
            stride: stride(to_step),
            row_stride: to_pitch as isize,
        };
        for gaps in [Gaps::Read, Gaps::Leave] {
            // SAFETY: the vectors have these sizes.
            unsafe { copy(level, (size, swapped), (from, gaps), to, (3, count)) };
            assert_eq!(found, wanted, "{level:?} {size} {swapped} {step} {to_step} {count} {gaps:?}");
        }
    }
}
