//! float32 to 8 bits or fewer in roundings other than to nearest even, on levels without long tables: each is a rounding
//! down, of magnitudes or of signed numbers.
//!
//! ```text
//! normal     (bits + added) >> shift, less what makes the smallest normal number its own code
//! subnormal  float * scale + half, rounded down, at most the code of the smallest normal number
//! code       the greater of both
//! ```
//! Nothing is added to round towards zero and down; nearly one code to round up, where the scale is negative; and half a
//! code for ties away from zero. Codes above the largest are clamped to it.

use super::float_source::{F32Source, Floats};
use super::to_byte::{SignPlace, by_sign, with_signs};
use super::vector_loop::{InSteps, Step, quarters};
use crate::codec::odd_bf16::OddBf16Rule;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::Level;
use crate::format::FloatSpec;
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::{MagicAddition, with_nibbles};

/// float32 to codes; `SIGNED` says what is rounded down, and `TOP` is that of [`with_signs`].
#[derive(Clone, Copy)]
struct RoundedDown<const SIGNED: bool, const TOP: bool> {
    rule: OddBf16Rule,
    /// Added to bits, the scale, and added to products.
    constants: [u32; 3],
    /// Mantissa bits of float32 that the target lacks.
    shift: u32,
    /// Subtracted from shifted bits.
    offset: u16,
    /// The code of the smallest normal number.
    smallest: u16,
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: MagicAddition, const SIGNED: bool, const TOP: bool> Step<V, 1> for RoundedDown<SIGNED, TOP> {
    const FROM: usize = F32Source::SIZE;
    type Ready = (Self, [V::Integers; 3]);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        let [added, scale, half] = self.constants;
        // SAFETY: the trait's contract.
        (*self, unsafe { [V::splat32(added), V::splat32(scale), V::splat32(half)] })
    }

    #[inline(always)]
    unsafe fn step((this, constants): Self::Ready, source: *const u8) -> [V::Integers; 1] {
        let Self { rule, shift, offset, smallest, .. } = this;
        let [a, b, c, d] = quarters::<V>(source, F32Source::SIZE);
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes. No `map`: the
        // instructions of a level are not inlined into closures.
        unsafe {
            let (a, b) = (F32Source.f32s::<V>(a), F32Source.f32s::<V>(b));
            let (c, d) = (F32Source.f32s::<V>(c), F32Source.f32s::<V>(d));
            let [low, low_places] = V::rounded_down::<SIGNED>([a, b], constants, shift);
            let [high, high_places] = V::rounded_down::<SIGNED>([c, d], constants, shift);
            let (offset, smallest) = (V::splat16(offset), V::splat16(smallest));
            let code = V::pack_u8(
                V::max16(V::sub_saturated16(low, offset), V::min16(low_places, smallest)),
                V::max16(V::sub_saturated16(high, offset), V::min16(high_places, smallest)),
            );
            let tops = V::signs([a, b, c, d]);
            let negative = V::top8(tops);
            let most =
                if SIGNED { by_sign!(choose8, splat8, negative, rule.most) } else { V::splat8(rule.most[0]) };
            let mut code = with_signs::<V, TOP>(V::min8(code, most), tops, SignPlace::of(&rule));
            // A large number may look like an infinity here.
            let infinity = V::splat16((f32::INFINITY.to_bits() >> shift) as u16 - 1);
            if rule.has_specials && V::any16(V::above16(V::max16(low, high), infinity)) {
                let zero = V::from_bits(V::splat32(0));
                let nan_or_infinite =
                    [V::product(a, zero), V::product(b, zero), V::product(c, zero), V::product(d, zero)];
                let infinity = by_sign!(choose8, splat8, negative, rule.infinity);
                code = V::choose8(V::nan8(nan_or_infinite), infinity, code);
                let nan = by_sign!(choose8, splat8, negative, rule.nan);
                code = V::choose8(V::nan8([a, b, c, d]), nan, code);
            }
            [V::in_sequence(code)]
        }
    }
}

/// Makes the stage on a level without long tables, if the target and the rounding permit it.
pub(super) fn stage(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let spec = request.target.float()?;
    let rounding = request.rounding();
    let rule = OddBf16Rule::new(&spec, &request.options, rounding).filter(|rule| !rule.nearest_even)?;
    let signed = matches!(rounding, Rounding::TowardsNegative | Rounding::TowardsPositive);
    with_nibbles!(level, vectors => match (signed, SignPlace::of(&rule).is_top()) {
        (false, true) => boxed::<_, false, true>(vectors, &spec, rule, rounding),
        (false, false) => boxed::<_, false, false>(vectors, &spec, rule, rounding),
        (true, true) => boxed::<_, true, true>(vectors, &spec, rule, rounding),
        (true, false) => boxed::<_, true, false>(vectors, &spec, rule, rounding),
    })
}

fn boxed<V: MagicAddition, const SIGNED: bool, const TOP: bool>(
    vectors: V,
    spec: &FloatSpec,
    rule: OddBf16Rule,
    rounding: Rounding,
) -> Box<dyn Stage> {
    let shift = Binary32::MANTISSA - spec.mantissa_bits;
    let smallest = 1u16 << spec.mantissa_bits;
    let normal = 2f32.powi(1 - spec.bias);
    let scale = f32::from(smallest) / normal;
    // The largest float32 below one half: with one half, the one below a tie would be rounded to it.
    const HALF: f32 = 0.5 - f32::EPSILON / 4.0;
    let (added, scale, half) = match rounding {
        Rounding::TowardsPositive => ((1 << shift) - 1, -scale, 0.0),
        Rounding::NearestAway => (1 << (shift - 1), scale, HALF),
        _ => (0, scale, 0.0),
    };
    InSteps::<V, _, 1>::boxed(
        vectors,
        RoundedDown::<SIGNED, TOP> {
            rule,
            constants: [added, scale.to_bits(), half.to_bits()],
            shift,
            offset: (normal.to_bits() >> shift) as u16 - smallest,
            smallest,
        },
    )
}
