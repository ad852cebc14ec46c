//! Moving elements between strided memory and a tile, without looking at them (but for their byte order).

use std::marker::PhantomData;

use super::transpose::{SQUARE, transpose};
use super::{OPERANDS, Run, TARGET};
use crate::cpu::{Kernel, Level};

/// Copies the elements of the runs of one operand into a dense tile.
///
/// # Safety
/// Every element of the runs, at `base` plus its offset, is readable; `tile` has room for all of them.
pub(in crate::cast) unsafe fn gather(
    base: *const u8,
    operand: usize,
    runs: &[Run],
    (size, swapped): (usize, bool),
    tile: *mut u8,
) {
    let mut done = 0;
    let mut rest = runs;
    while let [run, ..] = rest {
        let alike = if swapped { 1 } else { adjacent(rest, operand, size) };
        // SAFETY: the caller's promises, for these runs and the part of the tile that follows the previous ones.
        unsafe {
            let (from, stride) = (base.offset(run.offsets[operand]), run.strides[operand]);
            let to = tile.add(done * size);
            if alike > 1 {
                transpose(size, (from, stride), (run.count, alike), to);
            } else {
                strided(size, (from, stride), (to, size as isize), run.count, swapped);
            }
        }
        done += run.count * alike;
        rest = &rest[alike..];
    }
}

/// How many runs, from the first on, are equally long and each one element further than the last: together they read
/// lines of adjacent elements, crosswise.
fn adjacent(runs: &[Run], operand: usize, size: usize) -> usize {
    if runs[0].strides[operand] == size as isize {
        return 1;
    }
    let next = |pair: &&[Run]| {
        let [one, other] = pair else { return false };
        one.count == other.count && other.offsets[operand] - one.offsets[operand] == size as isize
    };
    let found = 1 + runs.windows(2).take_while(next).count();
    if found < SQUARE / size { 1 } else { found }
}

/// Copies a dense tile to the elements of the runs of one operand.
///
/// # Safety
/// Every element of the runs, at `base` plus its offset, is writable; `tile` holds as many elements.
pub(in crate::cast) unsafe fn scatter(
    tile: *const u8,
    base: *mut u8,
    operand: usize,
    runs: &[Run],
    (size, swapped): (usize, bool),
) {
    let mut done = 0;
    for run in runs {
        // SAFETY: the caller's promises, for this run and the part of the tile that follows the previous ones.
        unsafe {
            let from = tile.add(done * size);
            let to = base.offset(run.offsets[operand]);
            strided(size, (from, size as isize), (to, run.strides[operand]), run.count, swapped);
        }
        done += run.count;
    }
}

/// Copies a dense tile of real parts to complex elements, whose imaginary parts become +0.
///
/// # Safety
/// As for [`scatter`], with elements of twice the size at the target.
pub(in crate::cast) unsafe fn scatter_real(
    level: Level,
    tile: *const u8,
    base: *mut u8,
    runs: &[Run],
    (size, swapped): (usize, bool),
) {
    let mut done = 0;
    for run in runs {
        // SAFETY: the caller's promises, for this run and the part of the tile that follows the previous ones.
        unsafe {
            let from = tile.add(done * size);
            let (to, stride) = (base.offset(run.offsets[TARGET]), run.strides[TARGET]);
            let pairs = Pairs { from, to, stride, count: run.count, swapped };
            match size {
                2 => level.run(OfReal::<u16>(pairs, PhantomData)),
                4 => level.run(OfReal::<u32>(pairs, PhantomData)),
                8 => level.run(OfReal::<u64>(pairs, PhantomData)),
                _ => unreachable!("components take 2, 4 or 8 bytes"),
            }
        }
        done += run.count;
    }
}

/// As [`scatter_real`], to elements in native byte order that follow each other.
///
/// # Safety
/// `count` parts are readable at the tile, and elements of twice the size writable at the target.
pub(in crate::cast) unsafe fn spread(
    level: Level,
    tile: *const u8,
    target: *mut u8,
    size: usize,
    count: usize,
) {
    let run = Run { offsets: [0; OPERANDS], strides: [2 * size as isize; OPERANDS], count };
    // SAFETY: passed on.
    unsafe { scatter_real(level, tile, target, &[run], (size, false)) };
}

/// Where real parts come from, and where pairs of a real part and zero go.
struct Pairs {
    from: *const u8,
    to: *mut u8,
    stride: isize,
    count: usize,
    swapped: bool,
}

struct OfReal<T>(Pairs, PhantomData<T>);

impl<T: Real> Kernel for OfReal<T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Pairs { from, to, stride, count, swapped } = self.0;
        let (from, to) = ((from, size_of::<T>() as isize), (to, stride));
        // SAFETY: `scatter_real`'s caller vouches for both pointers.
        unsafe {
            if swapped {
                words(from, to, count, |real: T| real.swap().with_zero());
            } else {
                words(from, to, count, T::with_zero);
            }
        }
    }
}

/// The bits of a real part.
trait Real: Copy {
    /// Twice as wide: a real part, then zero, in memory.
    type Complex: Copy;
    fn swap(self) -> Self;
    fn with_zero(self) -> Self::Complex;
}

macro_rules! real {
    ($($word:ty, $complex:ty, $with_zero:expr;)*) => {$(
        impl Real for $word {
            type Complex = $complex;

            #[inline(always)]
            fn swap(self) -> Self {
                self.swap_bytes()
            }
            #[inline(always)]
            fn with_zero(self) -> $complex {
                $with_zero(self)
            }
        }
    )*};
}
// Widening is what vectors do best, where there is a word to widen to; its low half is first in memory.
real! {
    u16, u32, |real: u16| u32::from_le(u32::from(real.to_le()));
    u32, u64, |real: u32| u64::from_le(u64::from(real.to_le()));
    u64, [u64; 2], |real: u64| [real, 0];
}

/// Copies elements at a stride to as many others, at the same stride.
///
/// # Safety
/// They are readable at the first pointer and writable at the second, and none is both.
pub(in crate::cast) unsafe fn copy_run(
    size: usize,
    (from, to): (*const u8, *mut u8),
    (stride, count): (isize, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if stride == size as isize {
            to.copy_from_nonoverlapping(from, count * size);
        } else if size == 16 {
            words((from, stride), (to, stride), count, |word: u128| word);
        } else {
            strided(size, (from, stride), (to, stride), count, false);
        }
    }
}

/// # Safety
/// `count` elements of `size` bytes are readable at the first pointer and writable at the second, at their strides.
unsafe fn strided(size: usize, from: (*const u8, isize), to: (*mut u8, isize), count: usize, swapped: bool) {
    // SAFETY: passed on.
    unsafe {
        match (size, swapped) {
            (1, _) => words(from, to, count, |word: u8| word),
            (2, false) => words(from, to, count, |word: u16| word),
            (2, true) => words(from, to, count, u16::swap_bytes),
            (4, false) => words(from, to, count, |word: u32| word),
            (4, true) => words(from, to, count, u32::swap_bytes),
            (8, false) => words(from, to, count, |word: u64| word),
            (8, true) => words(from, to, count, u64::swap_bytes),
            _ => unreachable!("real formats take 1, 2, 4 or 8 bytes"),
        }
    }
}

/// # Safety
/// As for [`strided`], with elements of type `S` and `T`.
#[inline(always)]
unsafe fn words<S: Copy, T: Copy>(
    (from, from_stride): (*const u8, isize),
    (to, to_stride): (*mut u8, isize),
    count: usize,
    change: impl Fn(S) -> T,
) {
    if from_stride == size_of::<S>() as isize && to_stride == size_of::<T>() as isize {
        // The same loop, where the compiler sees that elements are adjacent.
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
