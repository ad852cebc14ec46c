//! Floats of 16, 32 and 64 bits to float32.

use super::float_source::Floats;
use super::vector_loop::{Step, in_steps, quarters};
use crate::codec::encode::SpecialCodes;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::Vector;

/// Floats to float32 with canonical NaN.
#[derive(Clone, Copy)]
pub(super) struct ToF32<F> {
    source: F,
    nan: u32,
}

impl<F> ToF32<F> {
    pub(super) fn new(source: F) -> Self {
        Self { source, nan: Binary32::QUIET_NAN }
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector, F: Floats> Step<V, 4> for ToF32<F> {
    const NAME: &'static str = "ToF32";
    const FROM: usize = F::SIZE;
    const ZEROS: bool = F::PLAIN;
    type Ready = (F, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        (self.source, V::splat32(self.nan))
    }

    #[inline(always)]
    unsafe fn step((floats, nan): Self::Ready, source: *const u8) -> [V::Integers; 4] {
        canonical::<V>(four::<V, F>(floats, source), nan)
    }
}

/// Loads four registers of float32. No `map`: the instructions of a level are not inlined into closures.
///
/// # Safety
/// The level's features, and as many elements at the pointer.
#[inline(always)]
pub(super) unsafe fn four<V: Vector, F: Floats>(floats: F, source: *const u8) -> [V::F32s; 4] {
    let [a, b, c, d] = quarters::<V>(source, F::SIZE);
    [floats.f32s::<V>(a), floats.f32s::<V>(b), floats.f32s::<V>(c), floats.f32s::<V>(d)]
}

/// Replaces NaN, which are rare, by another.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn canonical<V: Vector>(f32s: [V::F32s; 4], nan: V::Integers) -> [V::Integers; 4] {
    let [a, b, c, d] = f32s;
    if V::any_nan(f32s) {
        // Nothing is above the limit, and NaN keeps its sign.
        let constants = [V::splat32(i32::MAX as u32), nan, V::splat32(1 << 31)];
        return limited::<V>(f32s, constants);
    }
    [V::bits(a), V::bits(b), V::bits(c), V::bits(d)]
}

/// [`Vector::limited`] of four registers.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn limited<V: Vector>([a, b, c, d]: [V::F32s; 4], constants: [V::Integers; 3]) -> [V::Integers; 4] {
    [V::limited(a, constants), V::limited(b, constants), V::limited(c, constants), V::limited(d, constants)]
}

/// Floats to float32, with infinities limited and NaN replaced.
#[derive(Clone, Copy)]
struct ToLimited<F> {
    source: F,
    limit: u32,
    nan: u32,
    nan_sign: u32,
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector, F: Floats> Step<V, 4> for ToLimited<F> {
    const NAME: &'static str = "ToLimited";
    const FROM: usize = F::SIZE;
    type Ready = (F, [V::Integers; 3], V::F32s);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        let Self { source, limit, nan, nan_sign } = *self;
        let constants = [V::splat32(limit), V::splat32(nan), V::splat32(nan_sign)];
        (source, constants, V::from_bits(V::splat32(0)))
    }

    #[inline(always)]
    unsafe fn step((floats, constants, zero): Self::Ready, source: *const u8) -> [V::Integers; 4] {
        let [a, b, c, d] = four::<V, F>(floats, source);
        // Infinities and NaN, which are rare, times zero are NaN.
        let first = V::any_nan([V::product(a, zero), V::product(b, zero)]);
        if first || V::any_nan([V::product(c, zero), V::product(d, zero)]) {
            return limited::<V>([a, b, c, d], constants);
        }
        [V::bits(a), V::bits(b), V::bits(c), V::bits(d)]
    }
}

/// Makes the stage to float32 that changes NaN only.
pub(super) fn stage<V: Vector, F: Floats>(vectors: V, source: F) -> Box<dyn Stage> {
    in_steps::<V, _, 4>(vectors, ToF32::new(source))
}

/// Makes the stage to float32 that limits infinities and replaces NaN.
pub(super) fn limited_stage<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    let codes = SpecialCodes::new(&request.target.float()?, &request.options, Rounding::NearestEven);
    let [nan, negative_nan] = codes.nan.map(|code| code as u32);
    let limit = codes.infinity[0] as u32;
    Some(in_steps::<V, _, 4>(vectors, ToLimited { source, limit, nan, nan_sign: nan ^ negative_nan }))
}
