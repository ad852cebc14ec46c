//! Floats of 16 and 32 bits to float32.

use super::request::Request;
use super::stage::Stage;
use super::upper_source::Floats;
use super::vector_loop::{InSteps, Step};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::simd::Vector;

/// From floats to singles with canonical NaN.
#[derive(Clone, Copy)]
struct ToSingles<F> {
    source: F,
    nan: u32,
}

impl<V: Vector, F: Floats> Step<V, 4> for ToSingles<F> {
    const FROM: usize = F::SIZE;
    type Ready = (F, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract.
        (self.source, unsafe { V::splat32(self.nan) })
    }

    #[inline(always)]
    unsafe fn step((floats, nan): Self::Ready, source: *const u8) -> [V::Integers; 4] {
        let quarter = V::BYTES / 4 * F::SIZE;
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes.
        unsafe {
            let [a, b, c, d] = [0, 1, 2, 3].map(|part| source.add(part * quarter));
            [
                V::canonical(floats.singles::<V>(a), nan),
                V::canonical(floats.singles::<V>(b), nan),
                V::canonical(floats.singles::<V>(c), nan),
                V::canonical(floats.singles::<V>(d), nan),
            ]
        }
    }
}

/// The stage from one source, under rules that leave infinities and NaN what they are.
pub(super) fn stage<V: Vector, F: Floats>(request: &Request, source: F) -> Option<Box<dyn Stage>> {
    let step = request.keeps_specials().then_some(ToSingles { source, nan: Binary32::QUIET_NAN })?;
    InSteps::<V, _, 4>::boxed(step)
}
