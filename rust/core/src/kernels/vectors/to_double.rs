//! Floats of 16 and 32 bits to float64.

use super::to_single::{canonical, four};
use super::upper_source::Floats;
use super::vector_loop::{InSteps, Step};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::kernels::stages::stage::Stage;
use crate::simd::Conversions;

/// From floats to doubles with canonical NaN.
#[derive(Clone, Copy)]
struct ToDoubles<F>(F);

impl<V: Conversions, F: Floats> Step<V, 8> for ToDoubles<F> {
    const FROM: usize = F::SIZE;
    type Ready = (F, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract.
        (self.0, unsafe { V::splat32(Binary32::QUIET_NAN) })
    }

    #[inline(always)]
    unsafe fn step((floats, nan): Self::Ready, source: *const u8) -> [V::Integers; 8] {
        // SAFETY: the trait's contract.
        unsafe {
            let [a, b, c, d] = canonical::<V>(four::<V, F>(floats, source), nan);
            let (a, b) = (V::doubles(V::singles(a)), V::doubles(V::singles(b)));
            let (c, d) = (V::doubles(V::singles(c)), V::doubles(V::singles(d)));
            [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
        }
    }
}

/// The stage to doubles.
pub(super) fn stage<V: Conversions, F: Floats>(vectors: V, source: F) -> Box<dyn Stage> {
    InSteps::<V, _, 8>::boxed(vectors, ToDoubles(source))
}
