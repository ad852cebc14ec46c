//! Arithmetic on tiles of floats, an operation at a time, in the default floating-point environment.

use super::real::Real;
use super::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::cpu::{Level, RawKernel};
use crate::kernels::tile::{TILE, Tile};

struct Combine<T, const OPERATION: u8> {
    tile: *mut T,
    other: *const T,
    count: usize,
}

impl<T: Real, const OPERATION: u8> RawKernel for Combine<T, OPERATION> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for i in 0..self.count {
            // SAFETY: the caller of `apply` vouches for `count` elements at both pointers.
            unsafe {
                let result = (*self.tile.add(i)).combine::<OPERATION, false>(*self.other.add(i));
                *self.tile.add(i) = result;
            }
        }
    }
}

/// Applies an operation to each element of a tile and of another; `odd` rounds float64 to odd.
pub(super) fn apply<T: Real, const OPERATION: u8>(level: Level, tile: &mut [T], other: &[T], odd: bool) {
    let count = tile.len().min(other.len());
    let to = tile.as_mut_ptr();
    // SAFETY: both slices have as many elements.
    unsafe {
        if T::IS_SINGLE {
            level.run_raw(Combine::<T, OPERATION> { tile: to, other: other.as_ptr(), count });
        } else {
            let blocks = Blocks { width: 1, begun: 0 };
            by_block::<T, OPERATION>(level, (to, to, count), blocks, other, odd);
        }
    }
}

/// Elements that loops over blocks take at once: whole registers.
pub(super) const LANES: usize = 16;

/// Elements that pass through all steps together: several tiles, because blocks are short and each step is a call.
pub(super) const PIECE: usize = 8 * TILE;

/// Room for a piece.
pub(super) type Piece<T> = Tile<T, PIECE>;

/// Elements in memory: some rows of so many columns, and the bytes from row to row.
#[derive(Clone, Copy)]
pub(super) struct Area<P> {
    pub(super) first: P,
    pub(super) pitch: isize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<T> Area<*const T> {
    /// Returns where a row begins.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> *const T {
        self.first.wrapping_byte_offset(row as isize * self.pitch)
    }

    /// Sees its elements as those of another type.
    pub(super) fn cast<U>(self) -> Area<*const U> {
        let Self { first, pitch, rows, columns } = self;
        Area { first: first.cast(), pitch, rows, columns }
    }

    /// Whether its rows follow each other without gaps.
    pub(super) fn is_gapless(&self, size: usize) -> bool {
        self.rows == 1 || self.pitch == (self.columns * size) as isize
    }
}

/// The blocks of a row that a tile has elements of: each of `width` elements, the first of which has `begun` before it.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) width: usize,
    pub(super) begun: usize,
}

/// Runs a loop compiled for a level, over the values that it names. (Not a closure, which would be inlined into the functions of
/// the levels, and have their features, only if it is short.)
macro_rules! on_level {
    ($level:expr, <$T:ident: $Real:ident $(, $G:ident: $bound:ident)*>, $($name:ident: $type:ty = $value:expr),*; $body:block) => {{
        struct Loop<'a, $T, $($G,)*>($($type,)* std::marker::PhantomData<&'a ($T, $($G,)*)>);

        impl<'a, $T: $Real, $($G: $bound,)*> $crate::cpu::Kernel for Loop<'a, $T, $($G,)*> {
            type Output = ();

            #[inline(always)]
            fn run(self) {
                let Self($($name,)* _) = self;
                $body
            }
        }

        let kernel = Loop::<'_, $T, $($G,)*>($($value,)* std::marker::PhantomData);
        // SAFETY: a safe kernel has no requirements.
        unsafe { $T::run($level, kernel) };
    }};
}
pub(super) use on_level;

struct ByBlock<'a, T, const OPERATION: u8> {
    from: *const T,
    to: *mut T,
    count: usize,
    blocks: Blocks,
    operands: &'a [T],
}

impl<T: Real, const OPERATION: u8> RawKernel for ByBlock<'_, T, OPERATION> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { from, to, count, blocks: Blocks { width, begun }, operands } = self;
        let (mut start, mut end) = (0, width - begun);
        for &operand in operands {
            end = end.min(count);
            // SAFETY: the caller of `by_block` vouches for `count` elements at both.
            unsafe {
                while start + LANES <= end {
                    let mut lanes = [T::default(); LANES];
                    for (lane, result) in lanes.iter_mut().enumerate() {
                        let value = from.add(start + lane).read_unaligned();
                        *result = value.combine::<OPERATION, false>(operand);
                    }
                    to.add(start).cast::<[T; LANES]>().write_unaligned(lanes);
                    start += LANES;
                }
                while start < end {
                    *to.add(start) = from.add(start).read_unaligned().combine::<OPERATION, false>(operand);
                    start += 1;
                }
            }
            end += width;
        }
    }
}

/// Applies an operation to each element of a tile and the operand of its block; `odd` rounds float64 to odd.
///
/// # Safety
/// `count` elements are readable at the first place and writable at the second, which is the first or does not overlap
/// it.
pub(super) unsafe fn by_block<T: Real, const OPERATION: u8>(
    level: Level,
    (from, to, count): (*const T, *mut T, usize),
    blocks: Blocks,
    operands: &[T],
    odd: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if T::IS_SINGLE {
            level.run_raw(ByBlock::<T, OPERATION> { from, to, count, blocks, operands });
        } else {
            // A real that is not float32 is float64.
            let operands = std::slice::from_raw_parts(operands.as_ptr().cast(), operands.len());
            by_block_of_f64(OPERATION, odd, (from.cast(), to.cast(), count), blocks, operands);
        }
    }
}

/// Does the same for float64, one element after the other: of each operation a short loop, in one function.
///
/// # Safety
/// As for [`by_block`].
#[inline(never)]
unsafe fn by_block_of_f64(
    operation: u8,
    odd: bool,
    places: (*const f64, *mut f64, usize),
    blocks: Blocks,
    operands: &[f64],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (operation, odd) {
            (SUBTRACT, _) => each_f64::<SUBTRACT, false>(places, blocks, operands),
            (MULTIPLY, false) => each_f64::<MULTIPLY, false>(places, blocks, operands),
            (MULTIPLY, true) => each_f64::<MULTIPLY, true>(places, blocks, operands),
            (DIVIDE, false) => each_f64::<DIVIDE, false>(places, blocks, operands),
            (DIVIDE, true) => each_f64::<DIVIDE, true>(places, blocks, operands),
            (_, false) => each_f64::<ADD, false>(places, blocks, operands),
            (_, true) => each_f64::<ADD, true>(places, blocks, operands),
        }
    }
}

/// # Safety
/// As for [`by_block`].
#[inline(always)]
unsafe fn each_f64<const OPERATION: u8, const ODD: bool>(
    (from, to, count): (*const f64, *mut f64, usize),
    Blocks { width, begun }: Blocks,
    operands: &[f64],
) {
    let (mut start, mut end) = (0, width - begun);
    for &operand in operands {
        end = end.min(count);
        for place in start..end {
            // SAFETY: the caller's promise.
            unsafe {
                let value = from.add(place).read_unaligned();
                to.add(place).write_unaligned(value.combine::<OPERATION, ODD>(operand));
            }
        }
        (start, end) = (end, end + width);
    }
}

/// Applies an operation to each number and one other.
pub(super) fn with_one<T: Real, const OPERATION: u8>(level: Level, values: &mut [T], other: T, odd: bool) {
    let (to, count) = (values.as_mut_ptr(), values.len());
    let blocks = Blocks { width: count.max(1), begun: 0 };
    // SAFETY: these are the elements of the slice.
    unsafe { by_block::<T, OPERATION>(level, (to, to, count), blocks, &[other], odd) };
}

struct Limit<'a, T>(&'a mut [T], T, T);

impl<T: Real> RawKernel for Limit<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for value in self.0 {
            *value = value.limited(self.1, self.2);
        }
    }
}

/// Limits each element of a tile.
pub(super) fn limit<T: Real>(level: Level, tile: &mut [T], low: T, high: T) {
    // SAFETY: the kernel has no requirements.
    unsafe { T::run(level, Limit(tile, low, high)) };
}
