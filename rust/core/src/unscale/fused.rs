//! float16 and bf16 times a factor in one loop, from codes to codes: decoded, multiplied and encoded in registers.
//!
//! The general route takes three loops over a tile, which is slower than memory. NaN keeps its payload in this loop; a
//! second one clears it, if there is a NaN.

use super::multiply::Multiply;
use crate::codec::decode::TruncatedDecoder;
use crate::codec::lane::Lane;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::{Level, RawKernel};
use crate::format::{FloatSpec, Format, Specials};
use crate::kernels::request::pivot_spec;
use crate::kernels::vectors::factor::Rounded;
use crate::kernels::vectors::float_source::{Bf16Source, F16Source, Floats};
use crate::simd::halves::{alternate_bf16, larger_magnitudes, up_above_middle};
use crate::simd::{MOST_BYTES, Rest, Vector, rounding, with_vectors};

/// Makes the loop from a format of 16 bits to itself or to float32, if the level has one.
pub(super) fn stage(source: Format, target: Format, factor: f32, level: Level) -> Option<Box<dyn Multiply>> {
    let (from, to) = (source.float()?, target.float()?);
    let to_f32 = to == pivot_spec::<Binary32>();
    if !(to_f32 || from == to) || source.row().bits != 16 {
        return None;
    }
    let limit = if to_f32 { Binary32::INFINITY } else { overflow_limit(&to) };
    with_vectors!(level, vectors => boxed(Fused { factor, limit, to, vectors }, &from, to_f32))?
}

fn boxed<V: Vector>(fused: Fused<V>, from: &FloatSpec, to_f32: bool) -> Option<Box<dyn Multiply>> {
    let FloatSpec { signed, exponent_bits, mantissa_bits, bias, specials } = *from;
    let is_f16 = signed && (exponent_bits, mantissa_bits, bias, specials) == (5, 10, 15, Specials::Ieee);
    match (TruncatedDecoder::new(from).is_some(), to_f32) {
        (true, true) => Some(Box::new(Between::<_, _, true>(fused, Bf16Source))),
        (true, false) => Some(Box::new(Between::<_, _, false>(fused, Bf16Source))),
        (false, true) if is_f16 => Some(Box::new(Between::<_, _, true>(fused, F16Source))),
        (false, false) if is_f16 => Some(Box::new(Between::<_, _, false>(fused, F16Source))),
        _ => None,
    }
}

/// Returns the smallest magnitude, as the bits of a float32, that rounds to infinity in an IEEE format.
fn overflow_limit(spec: &FloatSpec) -> u32 {
    let cut = Binary32::MANTISSA - spec.mantissa_bits;
    let rebias = (Binary32::BIAS as u32 - spec.bias as u32) << Binary32::MANTISSA;
    let largest = ((spec.max_code() as u32) << cut) + rebias;
    // The largest code is odd, so the tie above it goes to infinity.
    largest + (1 << (cut - 1))
}

#[derive(Clone, Copy)]
struct Fused<V> {
    factor: f32,
    limit: u32,
    to: FloatSpec,
    vectors: V,
}

/// From bf16 or float16 to float32 or back.
struct Between<V, F, const TO_F32: bool>(Fused<V>, F);

impl<V: Vector, F: Floats, const TO_F32: bool> Multiply for Between<V, F, TO_F32> {
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> bool {
        let Fused { factor, limit, to, vectors } = self.0;
        let floats = self.1;
        let work = Work::<V, F, TO_F32> { factor, floats, source, target, count, _vectors: vectors };
        // SAFETY: the caller's promise; the vectors are those of the level that the loop was made for.
        let largest = unsafe { vectors.run(work) };
        if largest > Binary32::INFINITY {
            // SAFETY: the caller's promise.
            unsafe {
                if TO_F32 {
                    level.run_raw(Canonical::<u32>::new(&to, target, count));
                } else {
                    level.run_raw(Canonical::<u16>::new(&to, target, count));
                }
            }
        }
        largest < limit
    }
}

struct Work<V, F, const TO_F32: bool> {
    factor: f32,
    floats: F,
    source: *const u8,
    target: *mut u8,
    count: usize,
    /// Their features are there.
    _vectors: V,
}

impl<V: Vector, F: Floats, const TO_F32: bool> Work<V, F, TO_F32> {
    /// Bytes of a result.
    const SIZE: usize = if TO_F32 { 4 } else { 2 };

    /// Multiplies as many elements as a register has; returns the larger of `most` and the bits of their magnitudes as
    /// float32, for each of two registers, which do not wait for each other.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointers.
    #[inline(always)]
    unsafe fn step(
        factor: Rounded<F>,
        most: [V::Integers; 2],
        source: *const u8,
        target: *mut u8,
    ) -> [V::Integers; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            // No closures: the instructions of a level are not inlined into them.
            let [first, second] = if F::SHIFTED && !TO_F32 {
                // Each stays at its place in a lane of 32 bits.
                let factor = V::from_bits(V::splat32(factor.factor.to_bits()));
                let [first, second] = alternate_bf16::<V>(V::load(source));
                [V::product(first, factor), V::product(second, factor)]
            } else {
                factor.pair::<V>(source)
            };
            match (F::SHIFTED, TO_F32) {
                (_, true) => {
                    V::store(target, V::bits(first));
                    V::store(target.add(V::BYTES), V::bits(second));
                }
                (true, false) => {
                    // The lower half of a NaN is zero, so it stays one.
                    let (low, high) = V::alternate_halves(V::bits(first), V::bits(second));
                    V::store(target, up_above_middle::<V>(low, high, V::splat16(1)));
                }
                (false, false) => V::store(target, V::to_f16::<{ rounding::NEAREST_EVEN }>(first, second)),
            }
            [
                larger_magnitudes::<V>(most[0], V::bits(first)),
                larger_magnitudes::<V>(most[1], V::bits(second)),
            ]
        }
    }
}

impl<V: Vector, F: Floats, const TO_F32: bool> RawKernel for Work<V, F, TO_F32> {
    type Output = u32;

    /// Returns the bits of the largest magnitude, where NaN is beyond infinity.
    #[inline(always)]
    unsafe fn run(self) -> u32 {
        let Self { factor, source, target, count, .. } = self;
        let lanes = V::BYTES / 2;
        let whole = count - count % lanes;
        // SAFETY: the vectors are there; the caller vouches for `count` elements at the pointers, and what is left of them
        // goes through room for a whole register.
        unsafe {
            let factor = Rounded { source: self.floats, factor };
            let mut most = [V::splat32(0); 2];
            for i in (0..whole).step_by(lanes) {
                most = Self::step(factor, most, source.add(2 * i), target.add(Self::SIZE * i));
            }
            if whole < count {
                let rest = count - whole;
                let (mut from, mut to) = (Rest::<MOST_BYTES>::new(), Rest::<{ 2 * MOST_BYTES }>::new());
                source.add(2 * whole).copy_to_nonoverlapping(from.0.as_mut_ptr(), 2 * rest);
                most = Self::step(factor, most, from.0.as_ptr(), to.0.as_mut_ptr());
                let target = target.add(Self::SIZE * whole);
                to.0.as_ptr().copy_to_nonoverlapping(target, Self::SIZE * rest);
            }
            V::most32(V::max32(most[0], most[1]))
        }
    }
}

/// Replaces every NaN of an IEEE format by the canonical one with its sign.
struct Canonical<L> {
    target: *mut L,
    count: usize,
    magnitude: L,
    infinity: L,
    nan: L,
}

impl<L: Lane> Canonical<L> {
    fn new(spec: &FloatSpec, target: *mut u8, count: usize) -> Self {
        let lane = |code: u64| L::from_i64(code as i64);
        let infinity = lane(spec.infinity_code().unwrap_or(u64::MAX));
        let (magnitude, nan) = (lane(spec.magnitude_mask()), lane(spec.nan_code().unwrap_or(0)));
        Self { target: target.cast(), count, magnitude, infinity, nan }
    }
}

impl<L: Lane> RawKernel for Canonical<L> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { target, count, magnitude, infinity, nan } = self;
        for i in 0..count {
            // SAFETY: `i < count`, for which `Multiply::run`'s caller has made the pointer valid.
            unsafe {
                let code = target.add(i).read_unaligned();
                let is_nan = (code & magnitude) > infinity;
                target.add(i).write_unaligned(L::select(is_nan, (code & !magnitude) | nan, code));
            }
        }
    }
}
