//! Codes that the table of formats has no rounding for: of E2M1 with ties towards zero, and indices into a code map.

use std::cmp::Ordering;
use std::marker::PhantomData;

use super::real::Real;
use crate::cpu::{Level, RawKernel};
use crate::sort_few::sort_few;

/// The middles between the magnitudes of E2M1.
pub(super) const MIDDLES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

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

struct Nearest<'a, T>(&'a [T], &'a Bounds, &'a mut [u8]);

impl<T: Real> RawKernel for Nearest<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self(values, bounds, codes) = self;
        for (values, codes) in values.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)) {
            codes.fill(0);
            // All elements for each middle: this the compiler vectorises.
            for &middle in &bounds.middles {
                let middle = T::from_f32(middle);
                for (&value, code) in values.iter().zip(codes.iter_mut()) {
                    *code += u8::from(value > middle);
                }
            }
        }
        if !bounds.codes.is_sorted() {
            for code in codes {
                *code = bounds.codes[usize::from(*code)];
            }
        }
    }
}

/// Finds the code whose entry is nearest to each value.
pub(super) fn nearest<T: Real>(level: Level, values: &[T], bounds: &Bounds, codes: &mut [u8]) {
    // SAFETY: the kernel has no requirements.
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

struct Whole<'a>(&'a [u16], (f32, f32), u8, &'a mut [u8]);

impl RawKernel for Whole<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        /// Added to a small float32, it leaves the nearest integer in the low bits.
        const MAGIC: f32 = 1.5 / f32::EPSILON;
        let Self(values, (low, high), added, codes) = self;
        for (&bits, code) in values.iter().zip(codes) {
            let value = f32::from_bits(u32::from(bits) << u16::BITS);
            let value = if value > low { value } else { low };
            let value = if value < high { value } else { high };
            *code = ((value + MAGIC).to_bits() as u8).wrapping_add(added);
        }
    }
}

/// Rounds bf16 to the nearest integers, ties to even, between two of less than 2^15, and adds a number to the codes.
pub(super) fn whole(level: Level, values: &[u16], limits: (f32, f32), added: u8, codes: &mut [u8]) {
    // SAFETY: the kernel has no requirements.
    unsafe { level.run_raw(Whole(values, limits, added, codes)) };
}

struct LimitCodes<'a, const SIGNED: bool>(&'a mut [u8], (u8, u8), u8);

impl<const SIGNED: bool> RawKernel for LimitCodes<'_, SIGNED> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self(codes, (low, high), added) = self;
        for code in codes {
            let limited = if SIGNED {
                (*code as i8).max(low as i8).min(high as i8) as u8
            } else {
                (*code).max(low).min(high)
            };
            *code = limited.wrapping_add(added);
        }
    }
}

/// Limits integer codes, and adds a number to them.
pub(super) fn limit_codes(level: Level, codes: &mut [u8], limits: (u8, u8), signed: bool, added: u8) {
    // SAFETY: the kernel has no requirements.
    unsafe {
        if signed {
            level.run_raw(LimitCodes::<true>(codes, limits, added));
        } else {
            level.run_raw(LimitCodes::<false>(codes, limits, added));
        }
    }
}
