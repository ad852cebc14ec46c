//! Multiplies or divides lanes by one number, and sums their squares.

use std::marker::PhantomData;

use crate::codec::lane::Lane;
use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::codec::product::odd_product;
use crate::cpu::{Level, RawKernel};

/// The product of two values.
pub(super) const PRODUCT: u8 = 0;
/// The product rounded to odd, for results that are rounded again.
pub(super) const ODD_PRODUCT: u8 = 1;
/// The quotient.
pub(super) const QUOTIENT: u8 = 2;

/// A pivot with the float operations.
pub(super) trait Times: FloatPivot {
    /// Returns the bits of the operation's result for two values.
    fn combine<const OPERATION: u8>(a: Self::Lane, b: Self::Lane) -> Self::Lane;
    /// The square of a value.
    fn square(bits: Self::Lane) -> f64;
}

impl Times for Binary32 {
    #[inline(always)]
    fn combine<const OPERATION: u8>(a: u32, b: u32) -> u32 {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        if OPERATION == QUOTIENT { (a / b).to_bits() } else { (a * b).to_bits() }
    }
    #[inline(always)]
    fn square(bits: u32) -> f64 {
        // Exact: twice 24 bits.
        let wide = f64::from(f32::from_bits(bits));
        wide * wide
    }
}

impl Times for Binary64 {
    #[inline(always)]
    fn combine<const OPERATION: u8>(a: u64, b: u64) -> u64 {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        match OPERATION {
            ODD_PRODUCT => odd_product(a, b).to_bits(),
            QUOTIENT => (a / b).to_bits(),
            _ => (a * b).to_bits(),
        }
    }
    #[inline(always)]
    fn square(bits: u64) -> f64 {
        let wide = f64::from_bits(bits);
        wide * wide
    }
}

/// The loops over lanes of one pivot.
pub(super) trait Multiply: Send + Sync {
    /// Writes each result, and tells whether all of them are finite.
    ///
    /// # Safety
    /// `count` lanes are readable at the source and writable at the target, which is the source or does not overlap it.
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> bool;
}

/// One operand for all lanes.
pub(super) struct Factor<P: Times, const OPERATION: u8>(P::Lane);

impl<P: Times, const OPERATION: u8> Factor<P, OPERATION> {
    pub(super) fn new(factor: P::Lane) -> Self {
        Self(factor)
    }
}

impl<P: Times, const OPERATION: u8> Multiply for Factor<P, OPERATION> {
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> bool {
        let (source, target, factor) = (source.cast(), target.cast::<P::Lane>(), self.0);
        let span = Span { source, target, count, factor };
        // Two loops: with one pointer, the compiler knows that source and target coincide exactly.
        // SAFETY: the caller's promise.
        let largest = unsafe {
            if source == target.cast_const() {
                level.run_raw(MultiplyLoop::<P, OPERATION, true>(span))
            } else {
                level.run_raw(MultiplyLoop::<P, OPERATION, false>(span))
            }
        };
        largest < P::INFINITY
    }
}

/// Returns the sum of the squares of lanes of one pivot, added in a fixed order.
///
/// # Safety
/// `count` lanes are readable.
pub(super) unsafe fn square_sum<P: Times>(level: Level, lanes: *const u8, count: usize) -> f64 {
    // SAFETY: the caller's promise.
    unsafe { level.run_raw(SquareLoop::<P>(lanes.cast(), count, PhantomData)) }
}

/// Returns the bits of the largest magnitude of lanes of one pivot, where NaN is beyond infinity.
///
/// # Safety
/// `count` lanes are readable.
pub(super) unsafe fn largest<P: Times>(level: Level, lanes: *const u8, count: usize) -> P::Lane {
    // SAFETY: the caller's promise.
    unsafe { level.run_raw(LargestLoop::<P>(lanes.cast(), count, PhantomData)) }
}

struct LargestLoop<P: Times>(*const P::Lane, usize, PhantomData<P>);

impl<P: Times> RawKernel for LargestLoop<P> {
    type Output = P::Lane;

    #[inline(always)]
    unsafe fn run(self) -> P::Lane {
        let Self(lanes, count, _) = self;
        let mut largest = P::Lane::ZERO;
        for i in 0..count {
            // SAFETY: `i < count`, for which the caller of `largest` has made the pointer valid.
            largest = largest.max(unsafe { lanes.add(i).read_unaligned() } & !P::SIGN);
        }
        largest
    }
}

struct Span<L> {
    source: *const L,
    target: *mut L,
    count: usize,
    factor: L,
}

struct MultiplyLoop<P: Times, const OPERATION: u8, const IN_PLACE: bool>(Span<P::Lane>);

impl<P: Times, const OPERATION: u8, const IN_PLACE: bool> RawKernel for MultiplyLoop<P, OPERATION, IN_PLACE> {
    type Output = P::Lane;

    /// The bits of the largest magnitude, where NaN is beyond infinity.
    #[inline(always)]
    unsafe fn run(self) -> P::Lane {
        let Span { source, target, count, factor } = self.0;
        let source = if IN_PLACE { target.cast_const() } else { source };
        let mut largest = P::Lane::ZERO;
        for i in 0..count {
            // SAFETY: `i < count`, for which `Multiply::run`'s caller has made both pointers valid.
            unsafe {
                let product = P::combine::<OPERATION>(source.add(i).read_unaligned(), factor);
                target.add(i).write_unaligned(product);
                largest = largest.max(product & !P::SIGN);
            }
        }
        largest
    }
}

/// Parallel sums, so that vectors of every width add in the same order.
const COLUMNS: usize = 32;

struct SquareLoop<P: Times>(*const P::Lane, usize, PhantomData<P>);

impl<P: Times> RawKernel for SquareLoop<P> {
    type Output = f64;

    #[inline(always)]
    unsafe fn run(self) -> f64 {
        let Self(lanes, count, _) = self;
        let mut sums = [0f64; COLUMNS];
        let whole = count - count % COLUMNS;
        for row in (0..whole).step_by(COLUMNS) {
            for (column, sum) in sums.iter_mut().enumerate() {
                // SAFETY: below `count`, for which the caller of `square_sum` has made the pointer valid.
                *sum += P::square(unsafe { lanes.add(row + column).read_unaligned() });
            }
        }
        for i in whole..count {
            // SAFETY: as above.
            sums[i - whole] += P::square(unsafe { lanes.add(i).read_unaligned() });
        }
        sums.iter().sum()
    }
}
