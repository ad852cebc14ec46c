//! Codes that the table of formats has no rounding for: of E2M1 with ties towards zero, and indices into a code map.
//!
//! Codes are written through pointers, because they may lie in new memory of a host, which no reference may name. A code
//! is written before it is read: by the function itself, or by the caller of `limit_codes`.

use std::cmp::Ordering;
use std::marker::PhantomData;

use super::real::Real;
use crate::cpu::{Level, RawKernel};
use crate::sort_few::sort_few;

/// The middles between the magnitudes of E2M1.
pub(super) const MIDDLES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

struct TowardsZero<'a, T>(&'a [T], *mut u8);

impl<T: Real> RawKernel for TowardsZero<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for (index, value) in self.0.iter().enumerate() {
            let magnitude = value.larger(T::default());
            let above = |middle: f32| u8::from(magnitude > T::from_f32(middle));
            let code = MIDDLES.into_iter().map(above).sum::<u8>() | u8::from(*value < T::default()) << 3;
            // SAFETY: `e2m1_towards_zero`'s caller has made room for as many codes as values.
            unsafe { self.1.add(index).write(code) };
        }
    }
}

/// Rounds finite numbers to codes of E2M1, ties towards zero. Zeros are positive, small negative numbers keep their sign.
///
/// # Safety
/// As many codes as values are writable.
pub(super) unsafe fn e2m1_towards_zero<T: Real>(level: Level, values: &[T], codes: *mut u8) {
    // SAFETY: the kernel requires no more than this function.
    unsafe { T::run(level, TowardsZero(values, codes)) };
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
        let order = |low: u8, high: u8| map[usize::from(low)].partial_cmp(&map[usize::from(high)]);
        sort_few(&mut codes, |&low, &high| order(low, high) != Some(Ordering::Greater));
        let middle = |pair: &[u8]| f32::midpoint(map[usize::from(pair[0])], map[usize::from(pair[1])]);
        Self { middles: codes.windows(2).map(middle).collect(), codes }
    }
}

/// Elements that stay in the innermost cache while they are compared with all middles.
const CHUNK: usize = 512;

struct Nearest<'a, T>(&'a [T], &'a Bounds, *mut u8);

impl<T: Real> RawKernel for Nearest<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self(values, bounds, codes) = self;
        for (start, values) in (0..).step_by(CHUNK).zip(values.chunks(CHUNK)) {
            // SAFETY: `nearest`'s caller has made room for as many codes as values; zeros are written first.
            unsafe {
                let codes = codes.add(start);
                codes.write_bytes(0, values.len());
                // All elements for each middle: this the compiler vectorizes.
                for &middle in &bounds.middles {
                    let middle = T::from_f32(middle);
                    for (index, &value) in values.iter().enumerate() {
                        *codes.add(index) += u8::from(value > middle);
                    }
                }
            }
        }
        if !bounds.codes.is_sorted() {
            for index in 0..values.len() {
                // SAFETY: as many codes as values were written above.
                unsafe { *codes.add(index) = bounds.codes[usize::from(*codes.add(index))] };
            }
        }
    }
}

/// Finds the code whose entry is nearest to each value.
///
/// # Safety
/// As many codes as values are writable.
pub(super) unsafe fn nearest<T: Real>(level: Level, values: &[T], bounds: &Bounds, codes: *mut u8) {
    // SAFETY: the kernel requires no more than this function.
    unsafe { T::run(level, Nearest(values, bounds, codes)) };
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
            // SAFETY: the tile has `count` elements, and the caller of `look_up` vouches for as many codes.
            unsafe { *self.tile.add(i) = T::from_f32(self.map[usize::from(*self.codes.add(i))]) };
        }
    }
}

/// Fills a tile with the values of codes in a map.
///
/// # Safety
/// As many codes are readable.
pub(super) unsafe fn look_up<T: Real>(level: Level, map: &[f32; 256], codes: *const u8, tile: &mut [T]) {
    let (count, tile) = (tile.len(), tile.as_mut_ptr());
    // SAFETY: the caller's promise.
    unsafe { T::run(level, Look { map, codes, tile, count, real: PhantomData }) };
}

struct Whole<'a>(&'a [u16], (f32, f32), u8, *mut u8);

impl RawKernel for Whole<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        /// Added to a small float32, it leaves the nearest integer in the low bits.
        const MAGIC: f32 = 1.5 / f32::EPSILON;
        let Self(values, (low, high), added, codes) = self;
        for (index, &bits) in values.iter().enumerate() {
            let value = f32::from_bits(u32::from(bits) << u16::BITS);
            let value = if value > low { value } else { low };
            let value = if value < high { value } else { high };
            // SAFETY: `whole`'s caller has made room for as many codes as values.
            unsafe { codes.add(index).write(((value + MAGIC).to_bits() as u8).wrapping_add(added)) };
        }
    }
}

/// Rounds bf16 to the nearest integers, ties to even, between two of less than 2^15, and adds a number to the codes.
///
/// # Safety
/// As many codes as values are writable.
pub(super) unsafe fn whole(level: Level, values: &[u16], limits: (f32, f32), added: u8, codes: *mut u8) {
    // SAFETY: the kernel requires no more than this function.
    unsafe { level.run_raw(Whole(values, limits, added, codes)) };
}

struct LimitCodes<const SIGNED: bool>((*mut u8, usize), (u8, u8), u8);

impl<const SIGNED: bool> RawKernel for LimitCodes<SIGNED> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self((codes, count), (low, high), added) = self;
        for index in 0..count {
            // SAFETY: `limit_codes`' caller has written `count` codes there.
            unsafe {
                let code = codes.add(index);
                let limited = if SIGNED {
                    (*code as i8).max(low as i8).min(high as i8) as u8
                } else {
                    (*code).max(low).min(high)
                };
                *code = limited.wrapping_add(added);
            }
        }
    }
}

/// Limits so many integer codes, and adds a number to them.
///
/// # Safety
/// The codes are written, and may be written over.
pub(super) unsafe fn limit_codes(
    level: Level,
    codes: (*mut u8, usize),
    limits: (u8, u8),
    signed: bool,
    added: u8,
) {
    // SAFETY: the kernels require no more than this function.
    unsafe {
        if signed {
            level.run_raw(LimitCodes::<true>(codes, limits, added));
        } else {
            level.run_raw(LimitCodes::<false>(codes, limits, added));
        }
    }
}
