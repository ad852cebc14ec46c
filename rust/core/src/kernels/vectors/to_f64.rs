//! Floats of 16 and 32 bits, and integers that float32 holds, to float64.

use super::float_source::Floats;
use super::to_f32::{canonical, four};
use super::vector_loop::{Step, in_steps};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::kernels::stages::stage::Stage;
use crate::simd::Conversions;

/// Floats to float64 with canonical NaN.
#[derive(Clone, Copy)]
pub(super) struct ToF64<F>(pub(super) F);

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions, F: Floats> Step<V, 8> for ToF64<F> {
    const NAME: &'static str = "ToF64";
    const FROM: usize = F::SIZE;
    const ZEROS: bool = F::PLAIN || !F::NAN;
    type Ready = (F, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        (self.0, V::splat32(Binary32::QUIET_NAN))
    }

    #[inline(always)]
    unsafe fn step((floats, nan): Self::Ready, source: *const u8) -> [V::Integers; 8] {
        let [a, b, c, d] = canonical::<V>(four::<V, F>(floats, source), nan);
        let (a, b) = (V::to_f64(V::from_bits(a)), V::to_f64(V::from_bits(b)));
        let (c, d) = (V::to_f64(V::from_bits(c)), V::to_f64(V::from_bits(d)));
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }
}

/// Makes the stage to float64.
pub(super) fn stage<V: Conversions, F: Floats>(vectors: V, source: F) -> Box<dyn Stage> {
    in_steps::<V, _, 8>(vectors, ToF64(source))
}
