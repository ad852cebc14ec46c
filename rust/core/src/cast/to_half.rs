//! float32, its upper half, and IEEE half precision to the halves.

use std::marker::PhantomData;

use super::factor::AboveTies;
use super::request::Request;
use super::stage::Stage;
use super::to_single;
use super::upper_source::{Floats, IeeeHalves, UpperHalves};
use super::vector_loop::{InSteps, Step};
use crate::codec::encode::SpecialCodes;
use crate::codec::options::Rounding;
use crate::simd::{Vector, unknown_one};

/// What becomes of special values: the codes of the target's, in words.
#[derive(Clone, Copy)]
struct Specials {
    /// The magnitude of infinity.
    infinity: u16,
    /// Magnitudes above are brought down to this.
    limit: u16,
    /// NaN, and which bits of it are its sign's.
    nan: u16,
    nan_sign: u16,
    /// Lower halves above are rounded up, by sign.
    bound: [u16; 2],
    /// The bit of the upper half that decides ties, if any does.
    even: u16,
}

const SIGN: u16 = 1 << 15;

/// The machine's names of roundings.
mod machine {
    use std::arch::x86_64 as arch;

    pub(super) const NEAREST_EVEN: i32 = arch::_MM_FROUND_TO_NEAREST_INT;
    pub(super) const TOWARDS_NEGATIVE: i32 = arch::_MM_FROUND_TO_NEG_INF;
    pub(super) const TOWARDS_POSITIVE: i32 = arch::_MM_FROUND_TO_POS_INF;
    pub(super) const TOWARDS_ZERO: i32 = arch::_MM_FROUND_TO_ZERO;
}

/// What makes a register of words from singles.
///
/// # Safety
/// The operation needs the level's features.
trait Halves: Copy + Send + Sync + 'static {
    /// Codes, `one` being 1 in every word. With `CLAMP`, magnitudes are limited.
    unsafe fn words<V: Vector, const CLAMP: bool>(
        specials: Specials,
        singles: [V::Singles; 2],
        one: V::Integers,
    ) -> V::Integers;
}

/// Limits magnitudes, and gives NaN its code.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn finish<V: Vector, const CLAMP: bool>(
    specials: Specials,
    codes: V::Integers,
    is_nan: V::Mask16,
) -> V::Integers {
    // SAFETY: the caller's promise.
    unsafe {
        let mut finished = codes;
        if CLAMP {
            let magnitude = V::and(codes, V::splat16(!SIGN));
            let limited = V::min16(magnitude, V::splat16(specials.limit));
            finished = V::or_masked(limited, codes, V::splat16(SIGN));
        }
        let nan = V::or_masked(V::splat16(specials.nan), codes, V::splat16(specials.nan_sign));
        V::choose16(is_nan, nan, finished)
    }
}

impl Halves for IeeeHalves {
    #[inline(always)]
    unsafe fn words<V: Vector, const CLAMP: bool>(
        specials: Specials,
        [first, second]: [V::Singles; 2],
        _one: V::Integers,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { finish_halves::<V, CLAMP>(specials, V::halves::<{ machine::NEAREST_EVEN }>(first, second)) }
    }
}

/// IEEE half precision in one of the machine's roundings.
#[derive(Clone, Copy)]
struct RoundedHalves<const ROUNDING: i32>;

impl<const ROUNDING: i32> Halves for RoundedHalves<ROUNDING> {
    #[inline(always)]
    unsafe fn words<V: Vector, const CLAMP: bool>(
        specials: Specials,
        [first, second]: [V::Singles; 2],
        _one: V::Integers,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { finish_halves::<V, CLAMP>(specials, V::halves::<ROUNDING>(first, second)) }
    }
}

/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn finish_halves<V: Vector, const CLAMP: bool>(specials: Specials, codes: V::Integers) -> V::Integers {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = V::and(codes, V::splat16(!SIGN));
        finish::<V, CLAMP>(specials, codes, V::above16(magnitude, V::splat16(specials.infinity)))
    }
}

impl Halves for UpperHalves {
    #[inline(always)]
    unsafe fn words<V: Vector, const CLAMP: bool>(
        specials: Specials,
        [first, second]: [V::Singles; 2],
        one: V::Integers,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let (low, high) = V::unzip16(V::bits(first), V::bits(second));
            // Up if the lower half is above the middle, or on it below an odd upper half.
            let decisive = V::or_masked(low, high, one);
            finish_upper::<V, CLAMP>(specials, [low, high], decisive, V::splat16(SIGN), one)
        }
    }
}

/// Upper halves in any rounding that is no matter of chance.
#[derive(Clone, Copy)]
struct RoundedUpper;

impl Halves for RoundedUpper {
    #[inline(always)]
    unsafe fn words<V: Vector, const CLAMP: bool>(
        specials: Specials,
        [first, second]: [V::Singles; 2],
        one: V::Integers,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let (low, high) = V::unzip16(V::bits(first), V::bits(second));
            let decisive = V::or_masked(low, high, V::splat16(specials.even));
            let negative = V::above16(V::splat16(0), high);
            let [bound, negative_bound] = specials.bound;
            let bound = V::choose16(negative, V::splat16(negative_bound), V::splat16(bound));
            finish_upper::<V, CLAMP>(specials, [low, high], decisive, bound, one)
        }
    }
}

/// Upper halves, one more where what decides is above a bound.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn finish_upper<V: Vector, const CLAMP: bool>(
    specials: Specials,
    [low, high]: [V::Integers; 2],
    decisive: V::Integers,
    bound: V::Integers,
    one: V::Integers,
) -> V::Integers {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = V::add16(high, V::min16(V::sub_saturated16(decisive, bound), one));
        let magnitude = V::and(high, V::splat16(!SIGN));
        let odd = V::or(magnitude, V::min16(low, one));
        let is_nan = V::above16(odd, V::splat16(specials.infinity));
        finish::<V, CLAMP>(specials, V::choose16(is_nan, high, codes), is_nan)
    }
}

/// From floats to words.
#[derive(Clone, Copy)]
struct ToWords<F, H, const CLAMP: bool> {
    source: F,
    specials: Specials,
    halves: PhantomData<H>,
}

impl<V: Vector, F: Floats, H: Halves, const CLAMP: bool> Step<V, 2> for ToWords<F, H, CLAMP> {
    const FROM: usize = F::SIZE;
    type Ready = (Self, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract.
        (*self, unsafe { V::splat16(u16::from(unknown_one())) })
    }

    #[inline(always)]
    unsafe fn step((this, one): Self::Ready, source: *const u8) -> [V::Integers; 2] {
        let quarter = V::BYTES / 4 * F::SIZE;
        let Self { source: floats, specials, .. } = this;
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes.
        unsafe {
            let [a, b, c, d] = [0, 1, 2, 3].map(|part| source.add(part * quarter));
            let low = [floats.singles::<V>(a), floats.singles::<V>(b)];
            let high = [floats.singles::<V>(c), floats.singles::<V>(d)];
            [H::words::<V, CLAMP>(specials, low, one), H::words::<V, CLAMP>(specials, high, one)]
        }
    }
}

/// From words to words of the same format, with magnitudes limited and another NaN.
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
                finish_halves::<V, true>(specials, V::load(source)),
                finish_halves::<V, true>(specials, V::load(source.add(V::BYTES))),
            ]
        }
    }
}

/// The stage from a format of 16 bits to itself.
pub(super) fn recoded_stage<V: Vector>(request: &Request) -> Option<Box<dyn Stage>> {
    InSteps::<V, _, 2>::boxed(Recoded(Specials::of(request)?))
}

/// A layout that vectors take apart and put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Single,
    UpperHalf,
    IeeeHalf,
}

/// The stage from one source to a target of such a layout.
pub(super) fn stage<V: Vector, F: Floats>(
    request: &Request,
    source: F,
    target: Shape,
) -> Option<Box<dyn Stage>> {
    if request.rounding() != Rounding::NearestEven {
        return None;
    }
    if target == Shape::Single {
        return to_single::stage::<V, F>(request, source);
    }
    let specials = Specials::of(request)?;
    if target == Shape::UpperHalf {
        words::<V, F, UpperHalves>(source, specials)
    } else {
        words::<V, F, IeeeHalves>(source, specials)
    }
}

impl Specials {
    fn of(request: &Request) -> Option<Self> {
        const NEVER: u16 = u16::MAX;
        let (spec, rounding) = (request.target.float()?, request.rounding());
        let codes = SpecialCodes::new(&spec, &request.options, rounding);
        let [nan, negative_nan] = codes.nan.map(|code| code as u16);
        Some(Self {
            infinity: spec.infinity_code()? as u16,
            limit: codes.infinity[0] as u16,
            nan,
            nan_sign: nan ^ negative_nan,
            bound: match rounding {
                Rounding::NearestEven => [SIGN; 2],
                Rounding::NearestAway => [SIGN - 1; 2],
                Rounding::TowardsPositive => [0, NEVER],
                Rounding::TowardsNegative => [NEVER, 0],
                Rounding::TowardsZero | Rounding::Stochastic => [NEVER; 2],
            },
            even: u16::from(rounding == Rounding::NearestEven),
        })
    }
}

/// The stage to upper halves in either rounding to nearest.
pub(super) fn nearest_upper<V: Vector, F: Floats>(request: &Request, source: F) -> Option<Box<dyn Stage>> {
    let specials = Specials::of(request)?;
    if request.rounding() == Rounding::NearestEven {
        words::<V, F, UpperHalves>(source, specials)
    } else {
        limited::<V, F, RoundedUpper>(source, specials)
    }
}

/// The stage to IEEE halves in either rounding to nearest.
pub(super) fn nearest_half<V: Vector, F: Floats>(request: &Request, source: F) -> Option<Box<dyn Stage>> {
    let specials = Specials::of(request)?;
    if request.rounding() == Rounding::NearestEven {
        words::<V, F, IeeeHalves>(source, specials)
    } else {
        words::<V, _, IeeeHalves>(AboveTies(source), specials)
    }
}

/// The stage in another rounding than the default one, if there is one.
pub(super) fn rounded_stage<V: Vector, F: Floats>(
    request: &Request,
    source: F,
    target: Shape,
) -> Option<Box<dyn Stage>> {
    let specials = Specials::of(request)?;
    match (target, request.rounding()) {
        (Shape::UpperHalf, rounding) if rounding != Rounding::Stochastic => {
            limited::<V, F, RoundedUpper>(source, specials)
        }
        (Shape::IeeeHalf, Rounding::NearestAway) => words::<V, _, IeeeHalves>(AboveTies(source), specials),
        (Shape::IeeeHalf, Rounding::TowardsZero) => {
            limited::<V, F, RoundedHalves<{ machine::TOWARDS_ZERO }>>(source, specials)
        }
        (Shape::IeeeHalf, Rounding::TowardsPositive) => {
            limited::<V, F, RoundedHalves<{ machine::TOWARDS_POSITIVE }>>(source, specials)
        }
        (Shape::IeeeHalf, Rounding::TowardsNegative) => {
            limited::<V, F, RoundedHalves<{ machine::TOWARDS_NEGATIVE }>>(source, specials)
        }
        _ => None,
    }
}

fn limited<V: Vector, F: Floats, H: Halves>(source: F, specials: Specials) -> Option<Box<dyn Stage>> {
    let halves = PhantomData::<H>;
    InSteps::<V, _, 2>::boxed(ToWords::<F, H, true> { source, specials, halves })
}

fn words<V: Vector, F: Floats, H: Halves>(source: F, specials: Specials) -> Option<Box<dyn Stage>> {
    let halves = PhantomData::<H>;
    if specials.limit == specials.infinity {
        InSteps::<V, _, 2>::boxed(ToWords::<F, H, false> { source, specials, halves })
    } else {
        InSteps::<V, _, 2>::boxed(ToWords::<F, H, true> { source, specials, halves })
    }
}
