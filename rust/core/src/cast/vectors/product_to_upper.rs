//! Floats times one factor to upper halves of float32, rounded to nearest even: by a product that is rounded anyhow, unless
//! its lower half is so near the middle that it may not tell on which side.

use super::factor::Times;
use super::half_codes::{Halves, Specials, UpperCodes};
use super::upper_source::Floats;
use super::vector_loop::{InSteps, Step};
use crate::cast::request::Request;
use crate::cast::stages::stage::Stage;
use crate::codec::options::Rounding;
use crate::simd::{Vector, unknown_one, up_above_middle};

/// The middle of lower halves.
const MIDDLE: u16 = 1 << 15;

/// From products to words.
#[derive(Clone, Copy)]
struct ToUppers<F> {
    times: Times<F, true>,
    specials: Specials,
    /// Lower halves that are no further from the middle do not tell.
    near: u16,
}

/// The stage from float32, where overflows become infinite and NaN stays what it is.
pub(super) fn stage<V: Vector, F: Floats>(
    request: &Request,
    source: F,
    factor: f64,
) -> Option<Box<dyn Stage>> {
    let specials = Specials::of(request).filter(|specials| !specials.limits())?;
    // Few significant bits come near too often.
    if request.rounding() != Rounding::NearestEven || F::SIZE < 4 {
        return None;
    }
    // Factor and product are each off by half a unit of their last place, which is up to two of the product's.
    let near = if f64::from(factor as f32) == factor { 0 } else { 3 };
    InSteps::<V, _, 2>::boxed(ToUppers { times: Times::<F, true> { source, factor }, specials, near })
}

impl<F: Floats> ToUppers<F> {
    /// # Safety
    /// The level's features, and half a register's bytes of elements at the pointer.
    #[inline(always)]
    unsafe fn words<V: Vector>(&self, source: *const u8, one: V::Integers) -> V::Integers {
        let Self { times, specials, near } = self;
        // SAFETY: the caller's promise; half of the elements lie in the second half of their bytes.
        unsafe {
            let rest = source.add(V::BYTES / 4 * F::SIZE);
            let factor = times.single_factor::<V>();
            let first = V::product(times.source.singles::<V>(source), factor);
            let second = V::product(times.source.singles::<V>(rest), factor);
            let (low, high) = V::unzip16(V::bits(first), V::bits(second));
            // In two's complement, the middle is the least.
            let turned = V::add16(low, V::splat16(*near));
            let undecided = V::above16(V::splat16(MIDDLE + 2 * near + 1), turned);
            if V::any16(undecided) || V::any_nan(first, second) {
                return UpperCodes::<true>::words::<V, _, false>(*specials, *times, source, one);
            }
            up_above_middle::<V>(low, high, one)
        }
    }
}

impl<V: Vector, F: Floats> Step<V, 2> for ToUppers<F> {
    const FROM: usize = F::SIZE;
    type Ready = (Self, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract.
        (*self, unsafe { V::splat16(u16::from(unknown_one())) })
    }

    #[inline(always)]
    unsafe fn step((this, one): Self::Ready, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe { [this.words::<V>(source, one), this.words::<V>(source.add(V::BYTES / 2 * F::SIZE), one)] }
    }
}
