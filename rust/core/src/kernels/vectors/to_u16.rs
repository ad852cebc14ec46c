//! float32 to bf16 and float16, and these two to each other.

use std::marker::PhantomData;

use super::float_source::{F32Source, Floats};
use super::shapes::Shape;
use super::u16_codes::{AwayF16Codes, Bf16Codes, F16Codes, Specials, U16Codes, finish_visible_nan};
use super::vector_loop::{Step, in_steps};
use crate::codec::options::Rounding;
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::{Vector, rounding, unknown_one};

/// Floats to codes of 16 bits.
#[derive(Clone, Copy)]
struct ToU16<F, H, const CLAMP: bool> {
    source: F,
    specials: Specials,
    halves: PhantomData<H>,
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector, F: Floats, H: U16Codes, const CLAMP: bool> Step<V, 2> for ToU16<F, H, CLAMP> {
    const NAME: &'static str = "ToU16";
    const FROM: usize = F::SIZE;
    type Ready = (Self, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        (*self, V::splat16(u16::from(unknown_one())))
    }

    #[inline(always)]
    unsafe fn step((this, one): Self::Ready, source: *const u8) -> [V::Integers; 2] {
        let Self { source: floats, specials, .. } = this;
        let second = source.wrapping_add(V::BYTES / 2 * F::SIZE);
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe {
            [
                H::codes16::<V, F, CLAMP>(specials, floats, source, one),
                H::codes16::<V, F, CLAMP>(specials, floats, second, one),
            ]
        }
    }
}

/// Codes of 16 bits to codes of the same format, with magnitudes limited and NaN replaced.
#[derive(Clone, Copy)]
struct Recoded(Specials);

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector> Step<V, 2> for Recoded {
    const NAME: &'static str = "Recoded";
    const FROM: usize = 2;
    type Ready = Specials;

    #[inline(always)]
    unsafe fn ready(&self) -> Specials {
        self.0
    }

    #[inline(always)]
    unsafe fn step(specials: Specials, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe {
            [
                finish_visible_nan::<V, true>(specials, V::load(source)),
                finish_visible_nan::<V, true>(specials, V::load(source.add(V::BYTES))),
            ]
        }
    }
}

/// Makes the stage from a format of 16 bits to itself, where the options change values.
pub(super) fn recoded_stage<V: Vector>(vectors: V, request: &Request) -> Option<Box<dyn Stage>> {
    Some(in_steps::<V, _, 2>(vectors, Recoded(Specials::of(request)?)))
}

/// Makes the stage to bf16 in the default rounding, if there is one.
pub(super) fn to_bf16<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    boxed::<V, F, Bf16Codes<true>>(vectors, source, usual_specials(request)?)
}

/// Makes the stage to float16 in the default rounding, if there is one.
pub(super) fn to_f16<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    boxed::<V, F, F16Codes<{ rounding::NEAREST_EVEN }>>(vectors, source, usual_specials(request)?)
}

fn usual_specials(request: &Request) -> Option<Specials> {
    Specials::of(request).filter(|_| request.rounding() == Rounding::NearestEven)
}

/// Makes the stage from float32 in the other roundings that are not stochastic.
pub(super) fn rounded_stage<V: Vector>(
    vectors: V,
    request: &Request,
    target: Shape,
) -> Option<Box<dyn Stage>> {
    let specials = Specials::of(request)?;
    match (target, request.rounding()) {
        (_, Rounding::Stochastic | Rounding::NearestEven) | (Shape::F32, _) => None,
        (Shape::Bf16, _) => boxed::<V, _, Bf16Codes<false>>(vectors, F32Source, specials),
        (Shape::F16, Rounding::NearestAway) => boxed::<V, _, AwayF16Codes>(vectors, F32Source, specials),
        (Shape::F16, Rounding::TowardsZero) => {
            boxed::<V, _, F16Codes<{ rounding::TOWARDS_ZERO }>>(vectors, F32Source, specials)
        }
        (Shape::F16, Rounding::TowardsPositive) => {
            boxed::<V, _, F16Codes<{ rounding::TOWARDS_POSITIVE }>>(vectors, F32Source, specials)
        }
        (Shape::F16, Rounding::TowardsNegative) => {
            boxed::<V, _, F16Codes<{ rounding::TOWARDS_NEGATIVE }>>(vectors, F32Source, specials)
        }
    }
}

/// Products that are limited have none: they are rare, and pass through float32.
fn boxed<V: Vector, F: Floats, H: U16Codes>(
    vectors: V,
    source: F,
    specials: Specials,
) -> Option<Box<dyn Stage>> {
    let halves = PhantomData;
    // Conditions are constants where loops depend on types, so that none is compiled that is not used.
    if const { matches!(F::MOST, Some(most) if most <= H::MOST) } {
        return Some(in_steps::<V, _, 2>(vectors, ToU16::<F, H, false> { source, specials, halves }));
    }
    // One loop for those that are slow to load: to clamp them to infinity changes nothing.
    if const { F::MOST.is_some() } {
        return Some(in_steps::<V, _, 2>(vectors, ToU16::<F, H, true> { source, specials, halves }));
    }
    if !specials.limits() {
        return Some(in_steps::<V, _, 2>(vectors, ToU16::<F, H, false> { source, specials, halves }));
    }
    if F::PLAIN {
        return Some(in_steps::<V, _, 2>(vectors, ToU16::<F, H, true> { source, specials, halves }));
    }
    None
}
