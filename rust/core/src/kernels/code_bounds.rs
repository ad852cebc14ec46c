//! Checks that all codes lie within bounds: one fast pass over the source, which most arrays pass.

use std::marker::PhantomData;

use num_traits::{AsPrimitive, PrimInt, Unsigned, WrappingNeg, WrappingSub};

use crate::cpu::{Level, RawKernel};
use crate::plain::Plain;

/// Bounds of codes, as numbers ordered as the values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeBounds {
    /// The bits that are compared.
    pub(crate) mask: u64,
    /// Bits that are flipped: the sign of integers.
    pub(crate) flip: u64,
    /// Subtracted from the result.
    pub(crate) base: u64,
    /// The lowest number within the bounds, except 0, which always is. Above 1 only where `flip` and `base` are 0.
    pub(crate) low: u64,
    /// The highest number within the bounds.
    pub(crate) high: u64,
    /// Bytes of a code.
    pub(crate) size: usize,
}

impl CodeBounds {
    /// Returns whether all of `count` dense codes in native byte order are within the bounds.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn holds(&self, level: Level, codes: *const u8, count: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            match self.size {
                1 => level.run_raw(Holds::<u8, ORDERED>(*self, codes, count, PhantomData)),
                2 => self.find::<u16>(level, codes, count),
                4 => self.find::<u32>(level, codes, count),
                _ => self.find::<u64>(level, codes, count),
            }
        }
    }

    /// # Safety
    /// As for [`CodeBounds::holds`].
    unsafe fn find<T: Word>(self, level: Level, codes: *const u8, count: usize) -> bool
    where
        u64: AsPrimitive<T>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.low > 1, self.flip | self.base) {
                (true, _) => level.run_raw(Holds::<T, LOW>(self, codes, count, PhantomData)),
                (false, 0) => level.run_raw(Holds::<T, PLAIN>(self, codes, count, PhantomData)),
                (false, _) => level.run_raw(Holds::<T, ORDERED>(self, codes, count, PhantomData)),
            }
        }
    }
}

/// Numbers are masked codes, compared with the highest.
const PLAIN: u8 = 0;
/// They are compared with the lowest too.
const LOW: u8 = 1;
/// They are flipped, and the base is subtracted.
const ORDERED: u8 = 2;

struct Holds<T, const WAY: u8>(CodeBounds, *const u8, usize, PhantomData<T>);

/// An unsigned integer of a code's size.
trait Word: Plain + PrimInt + Unsigned + WrappingSub + WrappingNeg + AsPrimitive<u64> {}
impl<T: Plain + PrimInt + Unsigned + WrappingSub + WrappingNeg + AsPrimitive<u64>> Word for T {}

impl<T: Word, const WAY: u8> RawKernel for Holds<T, WAY>
where
    u64: AsPrimitive<T>,
{
    type Output = bool;

    #[inline(always)]
    unsafe fn run(self) -> bool {
        let Self(CodeBounds { mask, flip, base, low, high, .. }, codes, count, _) = self;
        let codes = codes.cast::<T>();
        let (mask, flip, base): (T, T, T) = (mask.as_(), flip.as_(), base.as_());
        let (mut largest, mut smallest) = (T::zero(), T::zero());
        for i in 0..count {
            // SAFETY: `i < count`, for which `CodeBounds::holds`'s caller has made the pointer valid.
            let code = unsafe { codes.add(i).read_unaligned() };
            let mut number = code & mask;
            if WAY == ORDERED {
                number = (number ^ flip).wrapping_sub(&base);
            }
            largest = largest.max(number);
            if WAY == LOW {
                // The smaller a nonzero number, the larger its negation; zero stays zero.
                smallest = smallest.max(number.wrapping_neg());
            }
        }
        let low: T = low.as_();
        largest.as_() <= high && (WAY != LOW || smallest.as_() <= low.wrapping_neg().as_())
    }
}

/// Finds the first number in `start..end` for which a monotonic condition holds, by bisection; `end` if there is none.
pub(crate) fn first_in(start: u64, end: u64, is_true: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (start, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_true(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
