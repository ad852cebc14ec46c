//! float32 to bf16 and float16, and these two to each other.

use std::marker::PhantomData;

use super::factor::AboveTies;
use super::float_source::{F32Source, Floats};
use super::shapes::Shape;
use super::u16_codes::{Bf16Codes, F16Codes, NearestF16Codes, Specials, U16Codes, finish_visible_nan};
use super::vector_loop::{InSteps, Step};
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

impl<V: Vector, F: Floats, H: U16Codes, const CLAMP: bool> Step<V, 2> for ToU16<F, H, CLAMP> {
    const FROM: usize = F::SIZE;
    type Ready = (Self, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract.
        (*self, unsafe { V::splat16(u16::from(unknown_one())) })
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

impl<V: Vector> Step<V, 2> for Recoded {
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
    Some(InSteps::<V, _, 2>::boxed(vectors, Recoded(Specials::of(request)?)))
}

/// Makes the stage to bf16 in the default rounding, unless magnitudes are limited.
pub(super) fn to_bf16<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    Some(boxed::<V, F, Bf16Codes<true>, false>(vectors, source, usual_specials(request)?))
}

/// Makes the stage to float16 in the default rounding, unless magnitudes are limited.
pub(super) fn to_f16<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
) -> Option<Box<dyn Stage>> {
    Some(boxed::<V, F, NearestF16Codes, false>(vectors, source, usual_specials(request)?))
}

fn usual_specials(request: &Request) -> Option<Specials> {
    let is_usual = request.rounding() == Rounding::NearestEven;
    Specials::of(request).filter(|specials| is_usual && !specials.limits())
}

/// Makes the stage from float32 in any rounding that is not stochastic, with magnitudes limited.
pub(super) fn rounded_stage<V: Vector>(
    vectors: V,
    request: &Request,
    target: Shape,
) -> Option<Box<dyn Stage>> {
    let specials = Specials::of(request)?;
    match (target, request.rounding()) {
        (_, Rounding::Stochastic) | (Shape::F32, _) => None,
        (Shape::Bf16, _) => Some(boxed::<V, _, Bf16Codes<false>, true>(vectors, F32Source, specials)),
        (Shape::F16, Rounding::NearestEven) => {
            Some(boxed::<V, _, NearestF16Codes, true>(vectors, F32Source, specials))
        }
        (Shape::F16, Rounding::NearestAway) => {
            Some(boxed::<V, _, NearestF16Codes, true>(vectors, AboveTies(F32Source), specials))
        }
        (Shape::F16, Rounding::TowardsZero) => {
            Some(boxed::<V, _, F16Codes<{ rounding::TOWARDS_ZERO }>, true>(vectors, F32Source, specials))
        }
        (Shape::F16, Rounding::TowardsPositive) => {
            Some(boxed::<V, _, F16Codes<{ rounding::TOWARDS_POSITIVE }>, true>(vectors, F32Source, specials))
        }
        (Shape::F16, Rounding::TowardsNegative) => {
            Some(boxed::<V, _, F16Codes<{ rounding::TOWARDS_NEGATIVE }>, true>(vectors, F32Source, specials))
        }
    }
}

fn boxed<V: Vector, F: Floats, H: U16Codes, const CLAMP: bool>(
    vectors: V,
    source: F,
    specials: Specials,
) -> Box<dyn Stage> {
    InSteps::<V, _, 2>::boxed(vectors, ToU16::<F, H, CLAMP> { source, specials, halves: PhantomData })
}
