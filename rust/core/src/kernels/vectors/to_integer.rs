//! Floats to integers of 8 to 64 bits: truncated and clamped; NaN gives 0. To integers of 8 bits, in any
//! rounding that is not stochastic.

use std::marker::PhantomData;

use super::factor::{Rounded, Times};
use super::float_source::{F32Source, Floats, truncated_quickly};
use super::to_f32::four;
use super::vector_loop::{Step, in_steps, quarters};
use crate::codec::options::{Overflow, Rounding};
use crate::format::Format;
use crate::kernels::request::Request;
use crate::kernels::stages::from_float::ToByte;
use crate::kernels::stages::stage::Stage;
use crate::simd::{Conversions, MOST_BYTES, Rest, Vector, or_masked, rounding};

/// Floats to integers, signed or unsigned.
#[derive(Clone, Copy)]
struct ToIntegers<F, const SIGNED: bool>(F);

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions, F: Floats, const SIGNED: bool, const SIZE: usize> Step<V, SIZE>
    for ToIntegers<F, SIGNED>
where
    Self: Integers<V, SIZE>,
{
    const NAME: &'static str = "ToIntegers";
    const FROM: usize = F::SIZE;
    type Ready = Self;

    #[inline(always)]
    unsafe fn ready(&self) -> Self {
        *self
    }

    #[inline(always)]
    unsafe fn step(ready: Self, source: *const u8) -> [V::Integers; SIZE] {
        ready.integers(quarters::<V>(source, F::SIZE))
    }
}

/// Integers of `SIZE` bytes, from four quarters of as many elements as a register has bytes.
///
/// # Safety
/// As for [`Step`].
trait Integers<V: Vector, const SIZE: usize> {
    unsafe fn integers(self, source: [*const u8; 4]) -> [V::Integers; SIZE];
}

impl<V: Conversions, F: Floats, const SIGNED: bool> Integers<V, 1> for ToIntegers<F, SIGNED> {
    #[inline(always)]
    unsafe fn integers(self, source: [*const u8; 4]) -> [V::Integers; 1] {
        [V::clamp_to_8::<SIGNED>(self.0.truncated_four::<V, true>(source))]
    }
}

impl<V: Conversions, F: Floats, const SIGNED: bool> Integers<V, 2> for ToIntegers<F, SIGNED> {
    #[inline(always)]
    unsafe fn integers(self, source: [*const u8; 4]) -> [V::Integers; 2] {
        let [a, b, c, d] = self.0.truncated_four::<V, true>(source);
        [V::clamp_to_16::<SIGNED>([a, b]), V::clamp_to_16::<SIGNED>([c, d])]
    }
}

impl<V: Conversions, F: Floats, const SIGNED: bool> Integers<V, 4> for ToIntegers<F, SIGNED> {
    #[inline(always)]
    unsafe fn integers(self, source: [*const u8; 4]) -> [V::Integers; 4] {
        self.0.truncated_four::<V, SIGNED>(source)
    }
}

impl<V: Conversions, F: Floats, const SIGNED: bool> Integers<V, 8> for ToIntegers<F, SIGNED> {
    #[inline(always)]
    unsafe fn integers(self, [a, b, c, d]: [*const u8; 4]) -> [V::Integers; 8] {
        let Self(floats) = self;
        let (a, b) = (floats.f64s::<V>(a), floats.f64s::<V>(b));
        let (c, d) = (floats.f64s::<V>(c), floats.f64s::<V>(d));
        let (first, second) = ([a[0], a[1], b[0], b[1]], [c[0], c[1], d[0], d[1]]);
        let (first, second) = (V::truncated64::<SIGNED>(first), V::truncated64::<SIGNED>(second));
        [first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3]]
    }
}

/// Makes the stage to an integer format.
pub(super) fn stage<V: Conversions, F: Floats>(
    vectors: V,
    source: F,
    bits: u32,
    signed: bool,
) -> Option<Box<dyn Stage>> {
    match (bits, signed) {
        (8, _) => Some(to_8(vectors, source, signed)),
        (16, true) => Some(in_steps::<V, _, 2>(vectors, ToIntegers::<F, true>(source))),
        (16, false) => Some(in_steps::<V, _, 2>(vectors, ToIntegers::<F, false>(source))),
        (32, true) => Some(in_steps::<V, _, 4>(vectors, ToIntegers::<F, true>(source))),
        // Sources of 16 bits reach wider integers through float32.
        (32, false) if const { F::SIZE == 2 && !F::SHIFTED } => None,
        (32, false) => Some(in_steps::<V, _, 4>(vectors, ToIntegers::<F, false>(source))),
        _ if const { F::SIZE == 2 } => None,
        (64, true) => Some(in_steps::<V, _, 8>(vectors, ToIntegers::<F, true>(source))),
        (64, false) => Some(in_steps::<V, _, 8>(vectors, ToIntegers::<F, false>(source))),
        _ => None,
    }
}

fn to_8<V: Conversions, F: Floats>(vectors: V, source: F, signed: bool) -> Box<dyn Stage> {
    if signed {
        in_steps::<V, _, 1>(vectors, ToIntegers::<F, true>(source))
    } else {
        in_steps::<V, _, 1>(vectors, ToIntegers::<F, false>(source))
    }
}

/// float32 to integers of fewer than 8 bits, which keep the low bits of an i32.
#[derive(Clone, Copy)]
struct ToLowBits(ToByte<f32>);

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions> Step<V, 1> for ToLowBits {
    const NAME: &'static str = "ToLowBits";
    const FROM: usize = F32Source::SIZE;
    type Ready = (ToByte<f32>, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        (self.0, V::splat32(self.0.code_mask as u32))
    }

    #[inline(always)]
    unsafe fn step((to_byte, mask): Self::Ready, source: *const u8) -> [V::Integers; 1] {
        let whole = truncated_quickly::<V>(four::<V, _>(F32Source, source));
        if V::any_doubtful(whole) {
            let mut codes = Rest::<MOST_BYTES>::new();
            for (i, code) in codes.0[..V::BYTES].iter_mut().enumerate() {
                *code = to_byte.code(source.cast::<f32>().add(i).read_unaligned());
            }
            return [V::load(codes.0.as_ptr())];
        }
        let [a, b, c, d] = whole;
        [V::clamp_to_8::<true>([V::and(a, mask), V::and(b, mask), V::and(c, mask), V::and(d, mask)])]
    }
}

/// Makes the stage from float32 to an integer format of fewer than 8 bits, unless it is clamped.
pub(super) fn low_bits<V: Conversions>(
    vectors: V,
    target: Format,
    overflow: Overflow,
) -> Option<Box<dyn Stage>> {
    let wraps = V::DOUBTS && overflow != Overflow::Saturate;
    let to_byte = ToByte::<f32>::new(target, overflow).filter(|_| wraps)?;
    Some(in_steps::<V, _, 1>(vectors, ToLowBits(to_byte)))
}

/// A rounding to 32-bit integers.
///
/// # Safety
/// The operations need the level's features.
trait ToWhole: Copy + Send + Sync + 'static {
    /// Rounds, unless [`Conversions::any_doubtful`] says otherwise.
    unsafe fn quickly<V: Conversions>(a: V::F32s) -> V::Integers;
    /// Rounds and clamps; NaN gives 0.
    unsafe fn integers<V: Conversions>(a: V::F32s) -> V::Integers;
}

/// One of the [`rounding`]s.
#[derive(Clone, Copy)]
struct Directed<const ROUNDING: i32>;

impl<const ROUNDING: i32> ToWhole for Directed<ROUNDING> {
    #[inline(always)]
    unsafe fn quickly<V: Conversions>(a: V::F32s) -> V::Integers {
        V::rounded_quickly::<ROUNDING>(a)
    }

    #[inline(always)]
    unsafe fn integers<V: Conversions>(a: V::F32s) -> V::Integers {
        V::truncated(V::whole::<ROUNDING>(a))
    }
}

/// To nearest, ties away from zero.
#[derive(Clone, Copy)]
struct Away;

impl ToWhole for Away {
    /// (Numbers of 2^22 or more are beyond the target, one off or not.)
    #[inline(always)]
    unsafe fn quickly<V: Conversions>(a: V::F32s) -> V::Integers {
        V::rounded_away_quickly(a)
    }

    #[inline(always)]
    unsafe fn integers<V: Conversions>(a: V::F32s) -> V::Integers {
        // One half would lift the float below it to 1.
        const BELOW_HALF: u32 = 0.5f32.to_bits() - 1;
        let half = or_masked::<V>(V::splat32(BELOW_HALF), V::bits(a), V::splat32(1 << 31));
        let one = V::from_bits(V::splat32(1f32.to_bits()));
        V::truncated(V::product_sum(a, one, V::from_bits(half)))
    }
}

/// Rounds four registers, unless [`Conversions::any_doubtful`] says otherwise.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn quickly_four<V: Conversions, W: ToWhole>([a, b, c, d]: [V::F32s; 4]) -> [V::Integers; 4] {
    [W::quickly::<V>(a), W::quickly::<V>(b), W::quickly::<V>(c), W::quickly::<V>(d)]
}

/// Rounds and clamps four registers.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn integers_four<V: Conversions, W: ToWhole>([a, b, c, d]: [V::F32s; 4]) -> [V::Integers; 4] {
    [W::integers::<V>(a), W::integers::<V>(b), W::integers::<V>(c), W::integers::<V>(d)]
}

/// Loads four registers of float32.
///
/// # Safety
/// The level's features, and as many elements at each pointer.
#[inline(always)]
unsafe fn f32s_four<V: Conversions, F: Floats>(floats: F, [a, b, c, d]: [*const u8; 4]) -> [V::F32s; 4] {
    [floats.f32s::<V>(a), floats.f32s::<V>(b), floats.f32s::<V>(c), floats.f32s::<V>(d)]
}

/// float32 rounded to whole numbers.
#[derive(Clone, Copy)]
struct Whole<W>(PhantomData<W>);

// SAFETY: elements are read by another source, of the same size.
unsafe impl<W: ToWhole> Floats for Whole<W> {
    const SIZE: usize = F32Source::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        F32Source.f32s::<V>(source)
    }

    #[inline(always)]
    unsafe fn truncated_four<V: Conversions, const SIGNED: bool>(
        &self,
        source: [*const u8; 4],
    ) -> [V::Integers; 4] {
        const { assert!(SIGNED, "for targets of 8 bits") };
        let numbers = f32s_four::<V, _>(F32Source, source);
        let quick = quickly_four::<V, W>(numbers);
        if V::any_doubtful(quick) { integers_four::<V, W>(numbers) } else { quick }
    }
}

/// float32 times a factor, rounded to whole numbers by a monotonic rounding that takes what underflows to zero: if the
/// products with a smaller factor and with a larger one round to the same, so does the exact product.
#[derive(Clone, Copy)]
struct WholeProduct<W> {
    /// These products have bits enough for another rounding.
    odd: Times<F32Source, true>,
    bounds: [f32; 2],
    to_whole: PhantomData<W>,
}

impl<W: ToWhole> WholeProduct<W> {
    /// Returns `None` if float32 does not bound the factor closely.
    fn new(factor: f64) -> Option<Self> {
        // More than the roundings of the bound and of the product with it.
        const MARGIN: f64 = 1.0 / (1 << 22) as f64;
        let bounds = [1.0 - MARGIN, 1.0 + MARGIN].map(|nearly| (factor * nearly) as f32);
        let odd = Times { source: F32Source, factor };
        bounds.into_iter().all(f32::is_normal).then_some(Self { odd, bounds, to_whole: PhantomData })
    }
}

// SAFETY: elements are read by another source, of the same size.
unsafe impl<W: ToWhole> Floats for WholeProduct<W> {
    const SIZE: usize = F32Source::SIZE;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        self.odd.f32s::<V>(source)
    }

    #[inline(always)]
    unsafe fn truncated_four<V: Conversions, const SIGNED: bool>(
        &self,
        source: [*const u8; 4],
    ) -> [V::Integers; 4] {
        const { assert!(SIGNED, "for targets of 8 bits") };
        let [less, more] = self.bounds;
        let (less, more) = (
            f32s_four::<V, _>(Rounded { source: F32Source, factor: less }, source),
            f32s_four::<V, _>(Rounded { source: F32Source, factor: more }, source),
        );
        let (least, most) = (quickly_four::<V, W>(less), quickly_four::<V, W>(more));
        if V::any_unequal(least, most) {
            return integers_four::<V, W>(f32s_four::<V, _>(*self, source));
        }
        if V::any_doubtful(least) { integers_four::<V, W>(less) } else { least }
    }
}

/// Makes the stage from float32 with the rounding and the factor of a request, if any, to an integer of 8 bits.
pub(super) fn rounded_stage<V: Conversions>(
    vectors: V,
    request: &Request,
    signed: bool,
) -> Option<Box<dyn Stage>> {
    if request.target.row().bits != u8::BITS {
        return None;
    }
    match request.rounding() {
        Rounding::TowardsZero if !request.scaled => Some(to_8(vectors, F32Source, signed)),
        Rounding::TowardsZero => whole::<V, Directed<{ rounding::TOWARDS_ZERO }>>(vectors, request, signed),
        Rounding::NearestEven => whole::<V, Directed<{ rounding::NEAREST_EVEN }>>(vectors, request, signed),
        Rounding::NearestAway => whole::<V, Away>(vectors, request, signed),
        // A product that underflows is not nothing here.
        _ if request.scaled => None,
        Rounding::TowardsPositive => {
            whole::<V, Directed<{ rounding::TOWARDS_POSITIVE }>>(vectors, request, signed)
        }
        Rounding::TowardsNegative => {
            whole::<V, Directed<{ rounding::TOWARDS_NEGATIVE }>>(vectors, request, signed)
        }
        Rounding::Stochastic => None,
    }
}

fn whole<V: Conversions, W: ToWhole>(vectors: V, request: &Request, signed: bool) -> Option<Box<dyn Stage>> {
    if !request.scaled {
        return Some(to_8(vectors, Whole::<W>(PhantomData), signed));
    }
    Some(to_8(vectors, WholeProduct::<W>::new(request.factor?)?, signed))
}
