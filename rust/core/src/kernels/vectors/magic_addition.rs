//! Floats to 8 bits or fewer by *magic-number addition*, on levels without long tables: adding a large number makes the
//! machine round away the bits below that number's last place.
//!
//! ```text
//! power    2^exponent of the float, at least the target's smallest normal number
//! anchor   1.5 times the power of two whose last place is the target's last place at that exponent
//! places   (float + anchor) - anchor, in units of the last place: the sum is rounded to nearest even, and the difference
//!          of its bits from the anchor's is exact
//! code     places + (power - target's smallest normal number), as bits from the target's last place up
//! ```
//! Values are first scaled by a power of two, so that the anchors of infinities are finite. No result is subnormal in
//! float32, which would be slow on some machines. Codes above the largest are clamped to it.

use super::float_source::Floats;
use super::to_byte::{SignPlace, with_signs};
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

/// The constants of one target.
#[derive(Clone, Copy)]
struct Grid {
    /// The bits of the target's smallest normal number.
    smallest: u32,
    /// Added to the bits of a power, gives the scaled anchor.
    anchor: u32,
    /// The power of two by which values are scaled.
    factor: f32,
    /// Mantissa bits of float32 that the target lacks.
    shift: u32,
}

impl Grid {
    /// The constants, or `None` where this way does not apply.
    fn new(spec: &FloatSpec) -> Option<Self> {
        const MANTISSA: u32 = Binary32::MANTISSA;
        const HALF: u32 = 1 << (MANTISSA - 1);
        // Exponents of the target's smallest normal number, and of the scaling.
        let smallest = 1 - spec.bias;
        let down = f32::MIN_EXP - 1 - smallest;
        let shift = MANTISSA.checked_sub(spec.mantissa_bits)?;
        // These bounds keep the anchors of infinities finite, and the factor normal.
        let anchored = down + (shift as i32) < 0 && smallest <= 0;
        // Without a mantissa, even codes are not even multiples, so ties would go wrong.
        (anchored && spec.mantissa_bits > 0).then(|| Self {
            smallest: 2f32.powi(smallest).to_bits(),
            anchor: ((down + shift as i32) << MANTISSA).cast_unsigned().wrapping_add(HALF),
            factor: 2f32.powi(down),
            shift,
        })
    }
}

/// Floats to codes of 8 bits; `TOP` is that of [`with_signs`].
#[derive(Clone, Copy)]
struct MagicCodes<F, const TOP: bool> {
    source: F,
    grid: Grid,
    rule: OddBf16Rule,
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<F: Floats, const TOP: bool> Step<Avx2, 1> for MagicCodes<F, TOP> {
    const NAME: &'static str = "MagicCodes";
    const FROM: usize = F::SIZE;
    type Ready = (Self, [Integers; 3]);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        let Grid { smallest, anchor, factor, .. } = self.grid;
        (*self, [Avx2::splat32(smallest), Avx2::splat32(anchor), Avx2::splat32(factor.to_bits())])
    }

    #[inline(always)]
    unsafe fn step((this, constants): Self::Ready, source: *const u8) -> [Integers; 1] {
        let Self { source: floats, grid: Grid { smallest, shift, .. }, rule } = this;
        let [a, b, c, d] = quarters::<Avx2>(source, F::SIZE);
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes. No `map`: the
        // instructions of a level are not inlined into closures.
        unsafe {
            let (a, b) = (floats.f32s_midrange::<Avx2>(a), floats.f32s_midrange::<Avx2>(b));
            let (c, d) = (floats.f32s_midrange::<Avx2>(c), floats.f32s_midrange::<Avx2>(d));
            let low = short_tables::pack_u16(
                short_tables::rounded_by_addition(a, constants, shift),
                short_tables::rounded_by_addition(b, constants, shift),
            );
            let high = short_tables::pack_u16(
                short_tables::rounded_by_addition(c, constants, shift),
                short_tables::rounded_by_addition(d, constants, shift),
            );
            let smallest = Avx2::splat16((smallest >> shift) as u16);
            let code = short_tables::pack_u8(
                Avx2::sub_saturated16(low, smallest),
                Avx2::sub_saturated16(high, smallest),
            );
            let tops = short_tables::signs([a, b, c, d]);
            let mut code = with_signs::<Avx2, TOP>(
                Avx2::min8(code, Avx2::splat8(rule.most[0])),
                tops,
                SignPlace::of(&rule),
            );
            if rule.has_specials && Avx2::any_nan([a, b, c, d]) {
                let nan =
                    Avx2::choose8(Avx2::top8(tops), Avx2::splat8(rule.nan[1]), Avx2::splat8(rule.nan[0]));
                code = Avx2::choose8(short_tables::nan8([a, b, c, d]), nan, code);
            }
            [short_tables::in_sequence(code)]
        }
    }
}

/// Makes the stage on a level without long tables, if the target and the rounding permit it.
pub(super) fn stage<F: Floats>(request: &Request, source: F, level: Level) -> Option<Box<dyn Stage>> {
    if request.rounding() != Rounding::NearestEven {
        return None;
    }
    let spec = request.target.float()?;
    let rule = OddBf16Rule::new(&spec, &request.options, request.rounding())
        .filter(|rule| rule.infinity[0] == rule.most[0])?;
    let grid = Grid::new(&spec)?;
    Some(signed(Vectors::with_short_tables(level)?, source, grid, rule))
}

fn signed<F: Floats>(vectors: Avx2, source: F, grid: Grid, rule: OddBf16Rule) -> Box<dyn Stage> {
    if SignPlace::of(&rule).is_top() {
        in_steps::<Avx2, _, 1>(vectors, MagicCodes::<F, true> { source, grid, rule })
    } else {
        in_steps::<Avx2, _, 1>(vectors, MagicCodes::<F, false> { source, grid, rule })
    }
}
