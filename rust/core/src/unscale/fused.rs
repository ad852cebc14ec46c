//! 16-bit floats times a factor in one loop, from codes to codes: decoded, multiplied and encoded in registers.
//!
//! The general route takes three loops over a tile, which is slower than memory. The formats are recognised by their
//! layout: bf16 (a shift decodes it) and float16 (the machine converts it). NaN keeps its payload in this loop; a
//! second one clears it, if there is a NaN.

use std::marker::PhantomData;

use super::f16_loop;
use super::gradient_loop::Loop;
use super::multiply::{Multiply, PRODUCT, Times, square_sum};
use crate::codec::decode::TruncatedDecoder;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::{Level, RawKernel};
use crate::format::{FloatSpec, Format};
use crate::kernels::request::pivot_spec;

/// Makes the loop for a pair of formats, if there is one.
pub(super) fn stage(source: Format, target: Format, factor: f32, level: Level) -> Option<Box<dyn Multiply>> {
    let (from, to) = (source.float()?, target.float()?);
    let to_f32 = to == pivot_spec::<Binary32>();
    if !(to_f32 || from == to) || source.row().bits != 16 {
        return None;
    }
    let multiply: Box<dyn Loop> = if TruncatedDecoder::new(&from).is_none() {
        f16_loop::stage(&from, to_f32, factor, level)?
    } else if to_f32 {
        Box::new(Bf16ToF32(factor.to_bits()))
    } else {
        Box::new(Pairs(factor.to_bits()))
    };
    let limit = if to_f32 { Binary32::INFINITY } else { overflow_limit(&to) };
    Some(Box::new(Fused { multiply, limit, to, to_f32 }))
}

/// Returns the smallest magnitude, as the bits of a float32, that rounds to infinity in an IEEE format.
fn overflow_limit(spec: &FloatSpec) -> u32 {
    let cut = Binary32::MANTISSA - spec.mantissa_bits;
    let rebias = (Binary32::BIAS as u32 - spec.bias as u32) << Binary32::MANTISSA;
    let largest = ((spec.max_code() as u32) << cut) + rebias;
    // The largest code is odd, so the tie above it goes to infinity.
    largest + (1 << (cut - 1))
}

struct Fused {
    multiply: Box<dyn Loop>,
    limit: u32,
    to: FloatSpec,
    to_f32: bool,
}

impl Multiply for Fused {
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> bool {
        // SAFETY: passed on.
        let largest = unsafe { self.multiply.run(level, source, target, count) };
        if largest > Binary32::INFINITY {
            // SAFETY: the caller's promise.
            unsafe {
                if self.to_f32 {
                    level.run_raw(Canonical::<u32>::new(&self.to, target, count));
                } else {
                    level.run_raw(Canonical::<u16>::new(&self.to, target, count));
                }
            }
        }
        largest < self.limit
    }

    unsafe fn square_sum(&self, level: Level, lanes: *const u8, count: usize) -> f64 {
        // SAFETY: passed on.
        unsafe { square_sum::<Binary32>(level, lanes, count) }
    }
}

/// The shift between a float32 and bf16.
const SHIFT: u32 = 16;

/// bf16 to float32.
struct Bf16ToF32(u32);

struct Bf16ToF32Loop {
    factor: u32,
    source: *const u16,
    target: *mut u32,
    count: usize,
}

impl Loop for Bf16ToF32 {
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> u32 {
        let (source, target) = (source.cast(), target.cast());
        // SAFETY: the caller's promise.
        unsafe { level.run_raw(Bf16ToF32Loop { factor: self.0, source, target, count }) }
    }
}

impl RawKernel for Bf16ToF32Loop {
    type Output = u32;

    #[inline(always)]
    unsafe fn run(self) -> u32 {
        let Self { factor, source, target, count } = self;
        let mut largest = 0;
        for i in 0..count {
            // SAFETY: `i < count`, for which `Loop::run`'s caller has made both pointers valid.
            unsafe {
                let value = u32::from(source.add(i).read_unaligned()) << SHIFT;
                let product = Binary32::combine::<PRODUCT>(value, factor);
                target.add(i).write_unaligned(product);
                largest = largest.max(product & !Binary32::SIGN);
            }
        }
        largest
    }
}

/// bf16 to bf16, two per 32-bit lane: each stays at its place in the lane, so vectors need no shuffles.
struct Pairs(u32);

struct PairsLoop<const IN_PLACE: bool> {
    factor: u32,
    source: *const u8,
    target: *mut u8,
    count: usize,
}

impl Loop for Pairs {
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> u32 {
        let factor = self.0;
        // Two loops: with one pointer, the compiler knows that source and target coincide exactly.
        // SAFETY: the caller's promise.
        unsafe {
            if source == target.cast_const() {
                level.run_raw(PairsLoop::<true> { factor, source, target, count })
            } else {
                level.run_raw(PairsLoop::<false> { factor, source, target, count })
            }
        }
    }
}

/// Rounds a float32 to bf16 in its upper half; a NaN whose lower half is zero stays NaN.
#[inline(always)]
fn round(bits: u32) -> u32 {
    let tie = (bits >> SHIFT) & 1;
    bits.wrapping_add((1 << (SHIFT - 1)) - 1).wrapping_add(tie)
}

impl<const IN_PLACE: bool> RawKernel for PairsLoop<IN_PLACE> {
    type Output = u32;

    #[inline(always)]
    unsafe fn run(self) -> u32 {
        const UPPER: u32 = u32::MAX << SHIFT;
        let Self { factor, source, target, count } = self;
        let source = if IN_PLACE { target.cast_const() } else { source };
        let words = count / 2;
        let mut largest = 0;
        for i in 0..words {
            // SAFETY: `2 * i + 1 < count`, for which `Loop::run`'s caller has made both pointers valid.
            unsafe {
                let word = source.cast::<u32>().add(i).read_unaligned();
                let high = Binary32::combine::<PRODUCT>(word & UPPER, factor);
                let low = Binary32::combine::<PRODUCT>(word << SHIFT, factor);
                target.cast::<u32>().add(i).write_unaligned((round(high) & UPPER) | (round(low) >> SHIFT));
                largest = largest.max(high & !Binary32::SIGN).max(low & !Binary32::SIGN);
            }
        }
        if count % 2 == 1 {
            // SAFETY: as above, for the last element.
            unsafe {
                let code = source.cast::<u16>().add(count - 1).read_unaligned();
                let product = Binary32::combine::<PRODUCT>(u32::from(code) << SHIFT, factor);
                target.cast::<u16>().add(count - 1).write_unaligned((round(product) >> SHIFT) as u16);
                largest = largest.max(product & !Binary32::SIGN);
            }
        }
        largest
    }
}

/// Replaces every NaN of an IEEE format by the canonical one with its sign.
struct Canonical<T> {
    target: *mut u8,
    count: usize,
    magnitude: u64,
    infinity: u64,
    nan: u64,
    word: PhantomData<T>,
}

impl<T> Canonical<T> {
    fn new(spec: &FloatSpec, target: *mut u8, count: usize) -> Self {
        let infinity = spec.infinity_code().unwrap_or(u64::MAX);
        let (magnitude, nan) = (spec.magnitude_mask(), spec.nan_code().unwrap_or(0));
        Self { target, count, magnitude, infinity, nan, word: PhantomData }
    }
}

macro_rules! canonical {
    ($($word:ty)*) => {$(
        impl RawKernel for Canonical<$word> {
            type Output = ();

            #[inline(always)]
            unsafe fn run(self) {
                let target = self.target.cast::<$word>();
                let (magnitude, infinity) = (self.magnitude as $word, self.infinity as $word);
                for i in 0..self.count {
                    // SAFETY: `i < count`, for which `Multiply::run`'s caller has made the pointer valid.
                    unsafe {
                        let code = target.add(i).read_unaligned();
                        let nan = (code & !magnitude) | self.nan as $word;
                        let result = if (code & magnitude) > infinity { nan } else { code };
                        target.add(i).write_unaligned(result);
                    }
                }
            }
        }
    )*};
}
canonical!(u16 u32);
