//! bf16 and float16 to floats of 8 bits or fewer by *intervals*, on levels whose tables have 16 entries: rounded in
//! bytes, 32 at a time.
//!
//! ```text
//! distance   magnitude - that of half the target's smallest subnormal, or 0
//! interval   distance >> shift: two codes of normal results; the rest are its lower bits
//! normal     2 * interval - offset, plus one for each of two bounds that the rest is above
//! subnormal  an entry of a table, plus one if the rest is above a bound from another
//! ```
//! Up to 16 intervals are subnormal: four binades of four, with three mantissa bits. Smaller values count as half of the
//! smallest subnormal, a tie that goes to zero; larger ones give codes above the largest, which are clamped.
//!
//! Magnitudes are bits, whole numbers. So ties go away from zero where those of magnitudes plus one go towards it, and
//! magnitudes but 0 are rounded up where those less one are rounded down, and one is added to the code.

use super::float_source::{Bf16Source, OddBf16};
use super::to_byte::{Codes, SignPlace, boxed, by_sign, with_signs, with_specials};
use crate::codec::odd_bf16::OddBf16Rule;
use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::format::FloatSpec;
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Stage;
use crate::simd::{Avx2, StochasticOps, Vector, Vectors, short_tables};

type Integers = <Avx2 as Vector>::Integers;

/// Entries of a table.
const ENTRIES: u16 = 16;

/// Makes signed bytes of unsigned ones, in the same order.
const FLIP: u8 = 1 << 7;

/// The constants of a pair of formats.
#[derive(Clone, Copy)]
struct Intervals {
    rule: OddBf16Rule,
    /// Subtracted from magnitudes: that of half the smallest subnormal, or one less for ties away from zero.
    lowest: u16,
    /// Changes the signs of numbers so that the negative ones are those to be rounded up, if any are.
    flip: u16,
    /// The magnitude of the source's infinity.
    infinity: u16,
    shift: u32,
    /// Added to intervals: those of normal results, and no others, get the top bit. The rest of them is a table's index.
    to_index: u8,
    /// Subtracted from twice an interval.
    offset: u8,
    /// What subnormal codes are more than normal ones would be, and the bounds of the rest, flipped and combined with
    /// the first bound of normal codes.
    codes: [u8; ENTRIES as usize],
    bounds: [u8; ENTRIES as usize],
    /// The two bounds of normal codes, flipped.
    normal: [u8; 2],
}

impl Intervals {
    /// The constants, or `None` where this way does not apply.
    fn new(source: &FloatSpec, target: &FloatSpec, rule: OddBf16Rule, rounding: Rounding) -> Option<Self> {
        let (mantissa, kept) = (source.mantissa_bits, target.mantissa_bits);
        let shift = (mantissa + 1).checked_sub(kept).filter(|shift| (2..=u8::BITS).contains(shift))?;
        let field = source.bias - target.bias - kept as i32;
        // Binades of half the smallest subnormal and above, up to the smallest normal number.
        let regular = u16::from(kept as u8 + 1) << kept.checked_sub(1)?;
        if field <= 0 || regular > ENTRIES {
            return None;
        }
        let (lowest, infinity) = ((field as u16) << mantissa, source.infinity_code()? as u16);
        let offset = 2 * regular - (1 << kept);
        let normal_code = |interval: u16| (2 * interval).min(u8::MAX.into()).saturating_sub(offset) as u8;
        if normal_code((infinity - lowest) >> shift) < rule.most[0].max(rule.most[1]) {
            return None;
        }
        let quarter = 1u8 << (shift - 2);
        let normal = match rounding {
            Rounding::NearestEven => [quarter, 3 * quarter - 1],
            Rounding::NearestAway => [quarter, 3 * quarter],
            _ => [2 * quarter - 1, u8::MAX],
        };
        let normal = normal.map(|bound| bound ^ FLIP);
        let (mut codes, mut bounds) = ([0; ENTRIES as usize], [0; ENTRIES as usize]);
        for interval in 0..regular {
            // The code of each place in the interval, rounded from fixed point.
            let code = |rest: u32| {
                let distance = (u32::from(interval) << shift) + rest;
                let significand = (1 << mantissa) | (distance & ((1 << mantissa) - 1));
                let fixed = significand << (distance >> mantissa);
                let below_half = (1 << mantissa) - 1;
                let carry = match rounding {
                    Rounding::NearestEven => below_half + (fixed >> (mantissa + 1) & 1),
                    Rounding::NearestAway => below_half,
                    _ => 0,
                };
                ((fixed + carry) >> (mantissa + 1)) as u8
            };
            let last = (0..1 << shift).take_while(|&rest| code(rest) == code(0)).count() as u32 - 1;
            let never = last + 1 == 1 << shift;
            let index = usize::from(ENTRIES - regular + interval);
            codes[index] = code(0).wrapping_sub(normal_code(interval));
            bounds[index] = if never { u8::MAX } else { last as u8 } ^ FLIP ^ normal[0];
        }
        let to_index = FLIP - regular as u8;
        let lowest = lowest - u16::from(rounding == Rounding::NearestAway);
        let flip = if rounding == Rounding::TowardsPositive { 1 << 15 } else { 0 };
        Some(Self {
            rule,
            lowest,
            flip,
            infinity,
            shift,
            to_index,
            offset: offset as u8,
            codes,
            bounds,
            normal,
        })
    }
}

/// Codes by intervals; `UP` says that numbers of one sign are rounded up, and `TOP` is that of [`with_signs`].
#[derive(Clone, Copy)]
struct IntervalCodes<const UP: bool, const TOP: bool>(Intervals);

impl<const UP: bool, const TOP: bool> Codes<Avx2> for IntervalCodes<UP, TOP> {
    type Ready = (Intervals, [Integers; 2]);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        (self.0, [short_tables::load_nibbles(&self.0.codes), short_tables::load_nibbles(&self.0.bounds)])
    }

    #[inline(always)]
    unsafe fn codes(
        (this, [codes, bounds]): Self::Ready,
        [first, second]: [OddBf16<Integers>; 2],
        _one: Integers,
    ) -> Integers {
        let Intervals { rule, lowest, flip, infinity, shift, to_index, offset, normal, .. } = this;
        let magnitude = Avx2::splat16(i16::MAX as u16);
        let (low, high) = (Avx2::and(first.cut, magnitude), Avx2::and(second.cut, magnitude));
        let (mut lowests, mut ups) = ([Avx2::splat16(lowest); 2], [Avx2::splat16(0); 2]);
        if UP {
            let flip = Avx2::splat16(flip);
            ups = [
                Avx2::min16(Avx2::shr16(Avx2::xor(first.cut, flip), 15), low),
                Avx2::min16(Avx2::shr16(Avx2::xor(second.cut, flip), 15), high),
            ];
            lowests = [Avx2::add16(lowests[0], ups[0]), Avx2::add16(lowests[1], ups[1])];
        }
        let distances = (Avx2::sub_saturated16(low, lowests[0]), Avx2::sub_saturated16(high, lowests[1]));
        let interval =
            short_tables::pack_u8(Avx2::shr16(distances.0, shift), Avx2::shr16(distances.1, shift));
        let lower = Avx2::splat16((1u16 << shift) - 1);
        let rest = short_tables::pack_u8(Avx2::and(distances.0, lower), Avx2::and(distances.1, lower));
        let rest = Avx2::xor(rest, Avx2::splat8(FLIP));
        let index = Avx2::add_saturated8(interval, Avx2::splat8(to_index));
        let twice = Avx2::sub_saturated8(Avx2::add_saturated8(interval, interval), Avx2::splat8(offset));
        let code = Avx2::add8(twice, short_tables::lookup_nibbles(codes, index));
        let bound = Avx2::xor(short_tables::lookup_nibbles(bounds, index), Avx2::splat8(normal[0]));
        let code = short_tables::increment_above8(code, rest, bound);
        let bound = Avx2::choose8(Avx2::top8(index), Avx2::splat8(normal[1]), Avx2::splat8(u8::MAX ^ FLIP));
        let mut code = short_tables::increment_above8(code, rest, bound);
        let tops = short_tables::tops8(first.cut, second.cut);
        let mut most = Avx2::splat8(rule.most[0]);
        if UP {
            code = Avx2::add8(code, short_tables::pack_u8(ups[0], ups[1]));
            most = by_sign::<Avx2>(Avx2::top8(tops), rule.most);
        }
        let code = with_signs::<Avx2, TOP>(Avx2::min8(code, most), tops, SignPlace::of(&rule));
        with_specials::<Avx2>(&rule, code, [low, high], tops, infinity)
    }
}

/// Makes the stage from a format of 16 bits in any rounding that is not stochastic, if this way serves it, on levels
/// with short tables.
pub(super) fn stage(request: &Request, source: &FloatSpec, level: Level) -> Option<Box<dyn Stage>> {
    let target = request.target.float()?;
    let rule = OddBf16Rule::new(&target, &request.options, request.rounding())?;
    let intervals = Intervals::new(source, &target, rule, request.rounding())?;
    let up = matches!(request.rounding(), Rounding::TowardsPositive | Rounding::TowardsNegative);
    let vectors = Vectors::with_short_tables(level)?;
    Some(match (up, SignPlace::of(&rule).is_top()) {
        (false, true) => boxed(vectors, Bf16Source, IntervalCodes::<false, true>(intervals)),
        (false, false) => boxed(vectors, Bf16Source, IntervalCodes::<false, false>(intervals)),
        (true, true) => boxed(vectors, Bf16Source, IntervalCodes::<true, true>(intervals)),
        (true, false) => boxed(vectors, Bf16Source, IntervalCodes::<true, false>(intervals)),
    })
}
