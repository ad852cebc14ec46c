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
use super::vector_loop::{Step, in_steps, quarters};
use crate::codec::odd_bf16::OddBf16Rule;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::Level;
use crate::format::FloatSpec;
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::{Avx2, Vector, Vectors, short_tables};

type Integers = <Avx2 as Vector>::Integers;

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
unsafe impl<const SIGNED: bool, const TOP: bool> Step<Avx2, 1> for RoundedDown<SIGNED, TOP> {
    const NAME: &'static str = "RoundedDown";
    const FROM: usize = F32Source::SIZE;
    type Ready = (Self, [Integers; 3]);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        let [added, scale, half] = self.constants;
        (*self, [Avx2::splat32(added), Avx2::splat32(scale), Avx2::splat32(half)])
    }

    #[inline(always)]
    unsafe fn step((this, constants): Self::Ready, source: *const u8) -> [Integers; 1] {
        let Self { rule, shift, offset, smallest, .. } = this;
        let [a, b, c, d] = quarters::<Avx2>(source, F32Source::SIZE);
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes. No `map`: the
        // instructions of a level are not inlined into closures.
        unsafe {
            let (a, b) = (F32Source.f32s::<Avx2>(a), F32Source.f32s::<Avx2>(b));
            let (c, d) = (F32Source.f32s::<Avx2>(c), F32Source.f32s::<Avx2>(d));
            let [low, low_places] = short_tables::rounded_down::<SIGNED>([a, b], constants, shift);
            let [high, high_places] = short_tables::rounded_down::<SIGNED>([c, d], constants, shift);
            let (offset, smallest) = (Avx2::splat16(offset), Avx2::splat16(smallest));
            let code = short_tables::pack_u8(
                Avx2::max16(Avx2::sub_saturated16(low, offset), Avx2::min16(low_places, smallest)),
                Avx2::max16(Avx2::sub_saturated16(high, offset), Avx2::min16(high_places, smallest)),
            );
            let tops = short_tables::signs([a, b, c, d]);
            let negative = Avx2::top8(tops);
            let most = if SIGNED { by_sign::<Avx2>(negative, rule.most) } else { Avx2::splat8(rule.most[0]) };
            let mut code = with_signs::<Avx2, TOP>(Avx2::min8(code, most), tops, SignPlace::of(&rule));
            // A large number may look like an infinity here.
            let infinity = Avx2::splat16((f32::INFINITY.to_bits() >> shift) as u16 - 1);
            if rule.has_specials && Avx2::any16(Avx2::above16(Avx2::max16(low, high), infinity)) {
                let zero = Avx2::from_bits(Avx2::splat32(0));
                let nan_or_infinite = [
                    Avx2::product(a, zero),
                    Avx2::product(b, zero),
                    Avx2::product(c, zero),
                    Avx2::product(d, zero),
                ];
                let infinity = by_sign::<Avx2>(negative, rule.infinity);
                code = Avx2::choose8(short_tables::nan8(nan_or_infinite), infinity, code);
                let nan = by_sign::<Avx2>(negative, rule.nan);
                code = Avx2::choose8(short_tables::nan8([a, b, c, d]), nan, code);
            }
            [short_tables::in_sequence(code)]
        }
    }
}

/// Makes the stage on a level without long tables, if the target and the rounding permit it.
pub(super) fn stage(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let spec = request.target.float()?;
    let rounding = request.rounding();
    let rule = OddBf16Rule::new(&spec, &request.options, rounding).filter(|rule| !rule.nearest_even)?;
    let signed = matches!(rounding, Rounding::TowardsNegative | Rounding::TowardsPositive);
    let vectors = Vectors::with_short_tables(level)?;
    Some(match (signed, SignPlace::of(&rule).is_top()) {
        (false, true) => boxed::<false, true>(vectors, &spec, rule, rounding),
        (false, false) => boxed::<false, false>(vectors, &spec, rule, rounding),
        (true, true) => boxed::<true, true>(vectors, &spec, rule, rounding),
        (true, false) => boxed::<true, false>(vectors, &spec, rule, rounding),
    })
}

fn boxed<const SIGNED: bool, const TOP: bool>(
    vectors: Avx2,
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
    in_steps::<Avx2, _, 1>(
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
