//! Tests whether all elements are finite, by their codes alone, without decoding.
//!
//! Every format has a number that, added to a code's magnitude, moves infinities and NaN to the top of the range and
//! other values below. So the largest of these keys decides, and vectors can find it.

use std::marker::PhantomData;

use crate::codec::lane::Lane;
use crate::codec::pivot::FloatPivot;
use crate::cpu::{Level, RawKernel};
use crate::format::{FloatSpec, Format, Specials};

/// The test for one real format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    mask: u64,
    shift: u64,
    limit: u64,
    size: usize,
}

impl Scan {
    /// Makes the test; `None` for a format whose codes are all finite.
    pub(super) fn new(format: Format) -> Option<Self> {
        let spec = format.float()?;
        let full = u64::MAX >> (64 - 8 * format.item_size());
        let (mask, shift, limit) = match (spec.specials, spec.infinity_code()) {
            (Specials::Finite, _) => return None,
            (_, Some(infinity)) => (spec.magnitude_mask(), 0, infinity),
            // Negative zero's code, the one NaN, becomes the largest.
            (Specials::Fnuz, _) => (codes(&spec), full - spec.sign_bit(), full),
            (_, None) => (spec.magnitude_mask(), 0, spec.magnitude_mask()),
        };
        Some(Self { mask, shift, limit, size: format.item_size() })
    }

    /// Makes the test for lanes of a pivot; the largest key is then the largest magnitude.
    pub(super) fn of_lanes<P: FloatPivot>() -> Self {
        let (mask, limit) = ((!P::SIGN).to_u64(), P::INFINITY.to_u64());
        Self { mask, shift: 0, limit, size: size_of::<P::Lane>() }
    }

    /// Returns whether all of `count` native elements are finite.
    ///
    /// # Safety
    /// They are readable.
    pub(super) unsafe fn run(&self, level: Level, source: *const u8, count: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.largest(level, source, count) < self.limit }
    }

    /// Returns the largest key of `count` native elements.
    ///
    /// # Safety
    /// They are readable.
    pub(super) unsafe fn largest(&self, level: Level, source: *const u8, count: usize) -> u64 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.size {
                1 => level.run_raw(Largest::<u8>(*self, source, count, PhantomData)),
                2 => level.run_raw(Largest::<u16>(*self, source, count, PhantomData)),
                4 => level.run_raw(Largest::<u32>(*self, source, count, PhantomData)),
                _ => level.run_raw(Largest::<u64>(*self, source, count, PhantomData)),
            }
        }
    }
}

/// Returns a mask of all bits of a code.
fn codes(spec: &FloatSpec) -> u64 {
    spec.magnitude_mask() | spec.sign_bit()
}

/// Finds the largest key of some elements.
struct Largest<L>(Scan, *const u8, usize, PhantomData<L>);

impl<L: Lane> RawKernel for Largest<L> {
    type Output = u64;

    #[inline(always)]
    unsafe fn run(self) -> u64 {
        let Self(scan, source, count, _) = self;
        let source = source.cast::<L>();
        let (mask, shift) = (L::from_i64(scan.mask as i64), L::from_i64(scan.shift as i64));
        let mut largest = L::ZERO;
        for i in 0..count {
            // SAFETY: `i < count`, for which `Scan::run`'s caller has made the pointer valid.
            let code = unsafe { source.add(i).read_unaligned() };
            largest = largest.max((code & mask).add(shift));
        }
        largest.to_u64()
    }
}
