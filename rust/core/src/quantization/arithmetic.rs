//! Arithmetic on tiles of floats, an operation at a time, in the default floating-point environment.

use std::marker::PhantomData;

use crate::codec::product::odd_product;
use crate::cpu::{Kernel, Level, RawKernel};
use crate::format::Format;
use crate::plain::Plain;

/// An operation of two tiles.
pub(super) mod operation {
    pub(crate) const SUBTRACT: u8 = 0;
    pub(crate) const MULTIPLY: u8 = 1;
    pub(crate) const DIVIDE: u8 = 2;
    pub(crate) const ADD: u8 = 3;
}
use operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};

/// float32, or float64 for exact results.
pub(super) trait Real: Plain + PartialOrd + Default {
    /// The format of this name.
    const FORMAT: &'static str;
    /// 1.
    const ONE: Self;
    /// Returns a float32 as it is.
    fn from_f32(value: f32) -> Self;
    /// Returns a float64 as it is, or rounded.
    fn from_f64(value: f64) -> Self;
    /// Returns it as a float64.
    fn to_f64(self) -> f64;
    /// Returns the larger magnitude of two values, where NaN is the largest.
    fn larger(self, other: Self) -> Self;
    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Limits a number.
    fn limited(self, low: Self, high: Self) -> Self;
    /// Applies an operation; `ODD` rounds to odd, for results that are rounded once more. NaN is the positive one.
    fn combine<const OPERATION: u8, const ODD: bool>(self, other: Self) -> Self;
}

impl Real for f32 {
    const FORMAT: &'static str = "float32";
    const ONE: Self = 1.0;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    // Bits of magnitudes are in the order of their values, and integers are faster to compare.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Self::from_bits(self.abs().to_bits().max(other.abs().to_bits()))
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        self.abs() < Self::INFINITY
    }

    #[inline(always)]
    fn limited(self, low: Self, high: Self) -> Self {
        self.max(low).min(high)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn combine<const OPERATION: u8, const ODD: bool>(self, other: Self) -> Self {
        let result = match OPERATION {
            SUBTRACT => self - other,
            MULTIPLY => self * other,
            DIVIDE => self / other,
            _ => self + other,
        };
        // The sign of a NaN that an operation makes depends on the machine.
        if result.is_nan() { Self::NAN } else { result }
    }
}

impl Real for f64 {
    const FORMAT: &'static str = "float64";
    const ONE: Self = 1.0;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    // Bits of magnitudes are in the order of their values, and integers are faster to compare.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Self::from_bits(self.abs().to_bits().max(other.abs().to_bits()))
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        self.abs() < Self::INFINITY
    }

    #[inline(always)]
    fn limited(self, low: Self, high: Self) -> Self {
        self.max(low).min(high)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from(value)
    }

    #[inline(always)]
    fn combine<const OPERATION: u8, const ODD: bool>(self, other: Self) -> Self {
        let result = match (OPERATION, ODD) {
            (MULTIPLY, true) => odd_product(self, other),
            (DIVIDE, true) => odd_quotient(self, other),
            (ADD, true) => odd_sum(self, other),
            (SUBTRACT, _) => self - other,
            (MULTIPLY, _) => self * other,
            (DIVIDE, _) => self / other,
            _ => self + other,
        };
        if result.is_nan() { Self::NAN } else { result }
    }
}

/// Returns a result rounded to odd, given the one rounded to nearest and the sign of what is missing.
#[inline(always)]
fn to_odd(result: f64, missing: f64) -> f64 {
    let bits = result.to_bits();
    let grows = (missing < 0.0) == (result < 0.0);
    let odd = if grows { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let exact = missing == 0.0 || !result.is_finite() || result == 0.0;
    if exact || bits & 1 == 1 { result } else { f64::from_bits(odd) }
}

/// `a / b` rounded to odd, for numbers with the exponents of float32 or products of two of them.
#[inline(always)]
fn odd_quotient(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    let rest = quotient.mul_add(-b, a);
    to_odd(quotient, if b < 0.0 { -rest } else { rest })
}

/// `a + b` rounded to odd (the error by Knuth's two-sum).
#[inline(always)]
fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    to_odd(sum, (a - (sum - part)) + (b - part))
}

struct Combine<T, const OPERATION: u8, const ODD: bool> {
    tile: *mut T,
    other: *const T,
    count: usize,
}

impl<T: Real, const OPERATION: u8, const ODD: bool> RawKernel for Combine<T, OPERATION, ODD> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for i in 0..self.count {
            // SAFETY: the caller of `apply` vouches for `count` elements at both pointers.
            unsafe {
                let result = (*self.tile.add(i)).combine::<OPERATION, ODD>(*self.other.add(i));
                *self.tile.add(i) = result;
            }
        }
    }
}

/// Applies an operation to each element of a tile and of another; `odd` rounds float64 to odd.
pub(super) fn apply<T: Real, const OPERATION: u8>(level: Level, tile: &mut [T], other: &[T], odd: bool) {
    let count = tile.len().min(other.len());
    let (tile, other) = (tile.as_mut_ptr(), other.as_ptr());
    // SAFETY: both slices have as many elements.
    unsafe {
        if odd && size_of::<T>() == 8 {
            level.run_raw(Combine::<T, OPERATION, true> { tile, other, count });
        } else {
            level.run_raw(Combine::<T, OPERATION, false> { tile, other, count });
        }
    }
}

/// Elements that loops over blocks take at once: whole registers.
const LANES: usize = 16;

/// The blocks of a row that a tile has elements of: each of `width` elements, the first of which has `begun` before it.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) width: usize,
    pub(super) begun: usize,
}

/// `WIDE` blocks have several registers, of which four are compared at once, so that none waits for the last comparison.
struct Largest<'a, T, const WIDE: bool> {
    tile: *const T,
    count: usize,
    blocks: Blocks,
    found: &'a mut [T],
}

impl<T: Real, const WIDE: bool> RawKernel for Largest<'_, T, WIDE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { tile, count, blocks: Blocks { width, begun }, found } = self;
        let (mut start, mut end) = (0, width - begun);
        for largest in found {
            end = end.min(count);
            let mut lanes = [T::default(); LANES];
            // SAFETY: the caller of `raise_largest` vouches for `count` elements.
            unsafe {
                if WIDE {
                    let mut wide = [[T::default(); LANES]; 4];
                    while start + 4 * LANES <= end {
                        for (part, lanes) in wide.iter_mut().enumerate() {
                            // As an array, or the compiler does not vectorise four registers.
                            let from = tile.add(start + part * LANES).cast::<[T; LANES]>().read_unaligned();
                            for (found, value) in lanes.iter_mut().zip(from) {
                                *found = found.larger(value);
                            }
                        }
                        start += 4 * LANES;
                    }
                    let [a, b, c, d] = wide;
                    for (lane, found) in lanes.iter_mut().enumerate() {
                        *found = a[lane].larger(b[lane]).larger(c[lane].larger(d[lane]));
                    }
                }
                while start + LANES <= end {
                    for (lane, found) in lanes.iter_mut().enumerate() {
                        *found = found.larger(tile.add(start + lane).read_unaligned());
                    }
                    start += LANES;
                }
            }
            let mut found = lanes.iter().fold(*largest, |found, &lane| found.larger(lane));
            while start < end {
                // SAFETY: as above.
                found = found.larger(unsafe { tile.add(start).read_unaligned() });
                start += 1;
            }
            *largest = found;
            end += width;
        }
    }
}

/// Raises the largest magnitude of each block by the elements of a tile.
///
/// # Safety
/// `count` elements are readable.
pub(super) unsafe fn raise_largest<T: Real>(
    level: Level,
    (tile, count): (*const T, usize),
    blocks: Blocks,
    largest: &mut [T],
) {
    // SAFETY: the caller's promise.
    unsafe {
        if blocks.width >= 8 * LANES {
            level.run_raw(Largest::<T, true> { tile, count, blocks, found: largest });
        } else {
            level.run_raw(Largest::<T, false> { tile, count, blocks, found: largest });
        }
    }
}

/// The smallest and the largest element of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extremes<T> {
    pub(super) low: T,
    pub(super) high: T,
}

impl<T: Real> Default for Extremes<T> {
    fn default() -> Self {
        Self { low: T::from_f32(f32::INFINITY), high: T::from_f32(f32::NEG_INFINITY) }
    }
}

impl<T: Real> Extremes<T> {
    #[inline(always)]
    pub(super) fn include(&mut self, value: T) {
        self.low = if value < self.low { value } else { self.low };
        self.high = if value > self.high { value } else { self.high };
    }

    pub(super) fn with_zero(mut self) -> Self {
        self.include(T::default());
        self
    }
}

struct Widen<'a, T> {
    tile: *const T,
    count: usize,
    blocks: Blocks,
    extremes: &'a mut [Extremes<T>],
}

impl<T: Real> RawKernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { tile, count, blocks: Blocks { width, begun }, extremes } = self;
        let (mut start, mut end) = (0, width - begun);
        for extremes in extremes {
            end = end.min(count);
            let (mut low, mut high) = ([extremes.low; LANES], [extremes.high; LANES]);
            // SAFETY: the caller of `widen` vouches for `count` elements.
            unsafe {
                while start + LANES <= end {
                    let from = tile.add(start).cast::<[T; LANES]>().read_unaligned();
                    for (lane, value) in from.into_iter().enumerate() {
                        low[lane] = if value < low[lane] { value } else { low[lane] };
                        high[lane] = if value > high[lane] { value } else { high[lane] };
                    }
                    start += LANES;
                }
                // Without a whole register, these are the infinities that they began as.
                for (low, high) in low.into_iter().zip(high) {
                    extremes.low = if low < extremes.low { low } else { extremes.low };
                    extremes.high = if high > extremes.high { high } else { extremes.high };
                }
                while start < end {
                    extremes.include(tile.add(start).read_unaligned());
                    start += 1;
                }
            }
            end += width;
        }
    }
}

/// Includes the elements of a tile in the extremes of their blocks.
///
/// # Safety
/// `count` elements are readable.
pub(super) unsafe fn widen<T: Real>(
    level: Level,
    (tile, count): (*const T, usize),
    blocks: Blocks,
    extremes: &mut [Extremes<T>],
) {
    // SAFETY: the caller's promise.
    unsafe { level.run_raw(Widen { tile, count, blocks, extremes }) };
}

/// A loop over slices, compiled for a level.
struct Loop<F>(F);

impl<F: FnOnce()> Kernel for Loop<F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        (self.0)();
    }
}

/// Runs a loop compiled for a level.
pub(super) fn on_level(level: Level, body: impl FnOnce()) {
    level.run(Loop(body));
}

struct ByBlock<'a, T, const OPERATION: u8, const ODD: bool> {
    from: *const T,
    to: *mut T,
    count: usize,
    blocks: Blocks,
    operands: &'a [T],
}

impl<T: Real, const OPERATION: u8, const ODD: bool> RawKernel for ByBlock<'_, T, OPERATION, ODD> {
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
                        *result = value.combine::<OPERATION, ODD>(operand);
                    }
                    to.add(start).cast::<[T; LANES]>().write_unaligned(lanes);
                    start += LANES;
                }
                while start < end {
                    *to.add(start) = from.add(start).read_unaligned().combine::<OPERATION, ODD>(operand);
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
        if odd && size_of::<T>() == 8 {
            level.run_raw(ByBlock::<T, OPERATION, true> { from, to, count, blocks, operands });
        } else {
            level.run_raw(ByBlock::<T, OPERATION, false> { from, to, count, blocks, operands });
        }
    }
}

/// Applies an operation to each number and one other.
pub(super) fn with_one<T: Real, const OPERATION: u8>(level: Level, values: &mut [T], other: T, odd: bool) {
    let (to, count) = (values.as_mut_ptr(), values.len());
    let blocks = Blocks { width: count.max(1), begun: 0 };
    // SAFETY: these are the elements of the slice.
    unsafe { by_block::<T, OPERATION>(level, (to, to, count), blocks, &[other], odd) };
}

/// What takes the place of a division by each block's number: its reciprocal, or 0 where that does not do.
struct Quotients<'a> {
    from: *const f32,
    to: *mut f32,
    count: usize,
    blocks: Blocks,
    divisors: &'a [f32],
    reciprocals: &'a [f32],
}

impl RawKernel for Quotients<'_> {
    type Output = ();

    /// Markstein: from a correctly rounded reciprocal, one step of correction gives a quotient within an ulp, and the
    /// next one the correctly rounded quotient, while nothing underflows.
    #[inline(always)]
    unsafe fn run(self) {
        let Self { from, to, count, blocks: Blocks { width, begun }, divisors, reciprocals } = self;
        let (mut start, mut end) = (0, width - begun);
        for (&divisor, &reciprocal) in divisors.iter().zip(reciprocals) {
            end = end.min(count);
            // SAFETY: the caller of `quotients` vouches for `count` elements at both.
            unsafe {
                while reciprocal != 0.0 && start + LANES <= end {
                    let mut lanes = [0f32; LANES];
                    for (lane, result) in lanes.iter_mut().enumerate() {
                        let value = from.add(start + lane).read_unaligned();
                        let first = value * reciprocal;
                        let second = (-first).mul_add(divisor, value).mul_add(reciprocal, first);
                        let third = (-second).mul_add(divisor, value).mul_add(reciprocal, second);
                        // Sums of zeros lose the sign.
                        *result = third.copysign(first);
                    }
                    to.add(start).cast::<[f32; LANES]>().write_unaligned(lanes);
                    start += LANES;
                }
                while start < end {
                    *to.add(start) = from.add(start).read_unaligned() / divisor;
                    start += 1;
                }
            }
            end += width;
        }
    }
}

/// Returns the reciprocals of divisors with which [`quotients`] of magnitudes up to these are right; 0 for others.
pub(super) fn reciprocals(level: Level, divisors: &[f32], largest: &[f32], to: &mut Vec<f32>) {
    // Their products stay far from overflow, and what underflows is far below every code.
    const FAR: f32 = f32::from_bits((127 + 60) << 23);
    const ALL_ONES: u32 = (1 << 23) - 1;
    to.clear();
    to.extend(divisors.iter().zip(largest).map(|(&divisor, &largest)| {
        let reciprocal = 1.0 / divisor;
        let size = divisor.abs();
        let safe = size > 1.0 / FAR
            && size < FAR
            && divisor.to_bits() & ALL_ONES != ALL_ONES
            && largest * reciprocal.abs() < FAR;
        if safe && level != Level::PORTABLE { reciprocal } else { 0.0 }
    }));
}

/// Divides each element of a tile by the number of its block.
///
/// # Safety
/// As for [`by_block`].
pub(super) unsafe fn quotients(
    level: Level,
    (from, to, count): (*const f32, *mut f32, usize),
    blocks: Blocks,
    divisors: &[f32],
    reciprocals: &[f32],
) {
    // SAFETY: the caller's promise.
    unsafe { level.run_raw(Quotients { from, to, count, blocks, divisors, reciprocals }) };
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
    unsafe { level.run_raw(Limit(tile, low, high)) };
}

/// The middles between the magnitudes of E2M1.
const MIDDLES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

struct TowardsZero<'a, T>(&'a [T], &'a mut [u8]);

impl<T: Real> RawKernel for TowardsZero<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for (value, code) in self.0.iter().zip(self.1) {
            let magnitude = value.larger(T::default());
            let above = |middle: f32| u8::from(magnitude > T::from_f32(middle));
            *code = MIDDLES.into_iter().map(above).sum::<u8>() | u8::from(*value < T::default()) << 3;
        }
    }
}

/// Rounds finite numbers to codes of E2M1, ties towards zero. Zeros are positive, small negative numbers keep their sign.
pub(super) fn e2m1_towards_zero<T: Real>(level: Level, values: &[T], codes: &mut [u8]) {
    // SAFETY: the kernel has no requirements.
    unsafe { level.run_raw(TowardsZero(values, codes)) };
}

/// A code map as bounds between its entries in ascending order, and the code of each.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    middles: Vec<f32>,
    codes: Vec<u8>,
}

impl Bounds {
    /// Middles are rounded to float32, and go to the lower entry.
    pub(super) fn new(map: &[f32]) -> Self {
        let mut codes: Vec<u8> = (0..map.len()).map(|code| code as u8).collect();
        // Of equal values, as 0 and -0, the lower code comes first.
        let order = |a: f32, b: f32| a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal);
        codes.sort_by(|&a, &b| order(map[usize::from(a)], map[usize::from(b)]));
        let middle = |pair: &[u8]| f32::midpoint(map[usize::from(pair[0])], map[usize::from(pair[1])]);
        Self { middles: codes.windows(2).map(middle).collect(), codes }
    }
}

struct Nearest<'a, T>(&'a [T], &'a Bounds, &'a mut [u8]);

impl<T: Real> RawKernel for Nearest<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self(values, bounds, codes) = self;
        for (&value, code) in values.iter().zip(codes.iter_mut()) {
            let above = |&middle: &f32| u8::from(value > T::from_f32(middle));
            *code = bounds.middles.iter().map(above).sum();
        }
        for code in codes {
            *code = bounds.codes[usize::from(*code)];
        }
    }
}

/// Finds the code whose entry is nearest to each value.
pub(super) fn nearest<T: Real>(level: Level, values: &[T], bounds: &Bounds, codes: &mut [u8]) {
    // SAFETY: the kernel has no requirements.
    unsafe { level.run_raw(Nearest(values, bounds, codes)) };
}

struct Look<'a, T> {
    map: &'a [f32; 256],
    codes: *const u8,
    tile: *mut T,
    count: usize,
    real: PhantomData<T>,
}

impl<T: Real> RawKernel for Look<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for i in 0..self.count {
            // SAFETY: the slices that `look_up` was given have `count` elements.
            unsafe { *self.tile.add(i) = T::from_f32(self.map[usize::from(*self.codes.add(i))]) };
        }
    }
}

/// Replaces codes by their values in a map.
pub(super) fn look_up<T: Real>(level: Level, map: &[f32; 256], codes: &[u8], tile: &mut [T]) {
    let (count, codes, tile) = (codes.len().min(tile.len()), codes.as_ptr(), tile.as_mut_ptr());
    // SAFETY: both slices have as many elements.
    unsafe { level.run_raw(Look { map, codes, tile, count, real: PhantomData }) };
}

/// Returns the format of a real type.
pub(super) fn format<T: Real>() -> Format {
    crate::parse::find(T::FORMAT).unwrap_or_else(|| unreachable!("the table has float32 and float64"))
}
