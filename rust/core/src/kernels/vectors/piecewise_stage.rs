//! Floats of 16 and 32 bits to bytes by a [`Piecewise`] lookup table, on levels with tables.

use super::float_source::{Bf16Source, F32Source, Floats, OddBf16};
use super::piecewise::{Piecewise, Sign, Special};
use super::shapes::bf16_spec;
use super::thresholds::{INTERVALS, SIGN};
use super::to_byte::{Codes, SignPlace, boxed, with_signs};
use crate::codec::odd_bf16::MANTISSA;
use crate::cpu::Level;
use crate::format::FloatSpec;
use crate::kernels::request::{Count, Request};
use crate::kernels::stages::stage::Stage;
use crate::simd::{Tables, with_vectors};

/// Makes the stage from bf16 to the target of a request, if a table with one threshold per interval serves it.
pub(super) fn of_bf16<F: Floats>(request: &Request, source: F, level: Level) -> Option<Box<dyn Stage>> {
    with_vectors!(Tables, level, vectors: V => signed::<V, F, ONCE>(vectors, &of_odd_bf16(request, level)?, source))?
}

/// Makes the stage from float32 to the target of a request whose rounding is away from zero for one sign, if a table
/// serves it.
pub(super) fn away_from_zero(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    with_vectors!(Tables, level, vectors: V => signed::<V, _, AWAY>(vectors, &of_odd_bf16(request, level)?, F32Source))?
}

/// Makes the table from bf16 codes to the target of a request, whose factor is already in the source.
fn of_odd_bf16(request: &Request, level: Level) -> Option<Piecewise> {
    // The target leaves two bits of bf16's mantissa: one to round by, one that records what was cut off.
    request.target.float().filter(|spec| spec.mantissa_bits + 2 <= MANTISSA)?;
    Piecewise::of(&bf16_spec(), &Request { scaled: false, factor: None, ..*request }, level)
}

/// Makes the stage from codes of a format of 16 bits, times the factor of a request, if any, to its target, if a table
/// serves it.
pub(super) fn of_16_bits(request: &Request, spec: FloatSpec, level: Level) -> Option<Box<dyn Stage>> {
    if request.scaled && request.count < Count::Many {
        return None;
    }
    with_vectors!(Tables, level, vectors: V => {
        let piecewise = &Piecewise::of(&spec, request, level)?;
        match piecewise.more_bounds {
            None if piecewise.away.is_some() => signed::<V, _, AWAY>(vectors, piecewise, Bf16Source),
            None => signed::<V, _, ONCE>(vectors, piecewise, Bf16Source),
            Some(_) => signed::<V, _, TWICE>(vectors, piecewise, Bf16Source),
        }
    })?
}

/// Makes the stage of a table whose intervals are of the kind `UPS`.
fn signed<V: Tables, F: Floats, const UPS: u8>(
    vectors: V,
    piecewise: &Piecewise,
    source: F,
) -> Option<Box<dyn Stage>> {
    if piecewise.away.is_some() != (UPS == AWAY) {
        return None;
    }
    match piecewise.sign {
        Sign::Top => Some(boxed(vectors, source, PiecewiseCodes::<true, UPS>(*piecewise))),
        // Formats of so few bits have no intervals with two thresholds.
        Sign::Below(_) if UPS == TWICE => None,
        _ => Some(boxed(vectors, source, PiecewiseCodes::<false, UPS>(*piecewise))),
    }
}

/// Kinds of intervals: one threshold at most; the same, with one sign rounded away from zero; two thresholds at most.
const ONCE: u8 = 0;
const AWAY: u8 = 1;
const TWICE: u8 = 2;

/// A table, by the place of its codes' signs (`TOP` is that of [`with_signs`]) and the kind of its intervals.
#[derive(Clone, Copy)]
struct PiecewiseCodes<const TOP: bool, const UPS: u8>(Piecewise);

/// A table in registers.
#[derive(Clone, Copy)]
struct Ready<V: Tables> {
    codes: V::Table<3>,
    bounds: V::Table<3>,
    more_bounds: V::Table<3>,
    lowest: V::Integers,
    limit: V::Integers,
    factor: V::Integers,
    last_regular: V::Integers,
    /// Negative inputs are those rounded away from zero.
    flips: bool,
    /// The largest code, where some would be larger.
    most: V::Integers,
    limits: bool,
    sign: SignPlace,
    /// Whether infinities or NaN have codes of their own, which differ from the code of overflows.
    is_special: bool,
    special: Special,
}

impl<V: Tables> Ready<V> {
    /// Returns the interval of each magnitude in the upper byte, and its offset within the interval in the lower one.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn place(&self, magnitude: V::Integers) -> V::Integers {
        let distance = V::sub_saturated16(V::min16(magnitude, self.limit), self.lowest);
        V::mul16(distance, self.factor)
    }

    /// Returns which inputs are rounded away from zero, and their magnitudes less one (the others' as they are).
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn away(&self, bf16: OddBf16<V::Integers>, magnitude: V::Integers) -> (V::Mask16, V::Integers) {
        // After the sign is flipped where needed, these inputs are the positive ones.
        let turned = if self.flips { V::add16(bf16.odd, V::splat16(SIGN)) } else { bf16.odd };
        let away = V::above16(turned, V::splat16(0));
        (away, V::choose16(away, V::sub_saturated16(magnitude, V::splat16(1)), magnitude))
    }

    /// Replaces the codes of infinities and NaN.
    ///
    /// # Safety
    /// The level's features.
    #[cold]
    #[inline(always)]
    unsafe fn replace(
        &self,
        code: V::Integers,
        magnitudes: [V::Integers; 2],
        tops: V::Integers,
    ) -> V::Integers {
        let Special { last_regular, infinity, infinity_codes, nan_codes } = self.special;
        let mut code = code;
        for (bound, codes) in [(last_regular, infinity_codes), (infinity, nan_codes)] {
            let [low, high] = magnitudes;
            let (low, high) = (V::above16(low, V::splat16(bound)), V::above16(high, V::splat16(bound)));
            let special = V::choose8(V::top8(tops), V::splat8(codes[1]), V::splat8(codes[0]));
            code = V::choose8(V::join(low, high), special, code);
        }
        code
    }
}

impl<V: Tables, const TOP: bool, const UPS: u8> Codes<V> for PiecewiseCodes<TOP, UPS> {
    type Ready = Ready<V>;

    #[inline(always)]
    unsafe fn ready(&self) -> Ready<V> {
        let piecewise = &self.0;
        Ready {
            codes: V::load_table::<3>(piecewise.codes.as_ptr()),
            bounds: V::load_table::<3>(piecewise.bounds.as_ptr()),
            more_bounds: V::load_table::<3>(
                piecewise.more_bounds.as_ref().unwrap_or(&piecewise.bounds).as_ptr(),
            ),
            lowest: V::splat16(piecewise.lowest),
            limit: V::splat16(piecewise.limit),
            factor: V::splat16(piecewise.factor),
            last_regular: V::splat16(piecewise.special.last_regular),
            flips: piecewise.away.is_some_and(|away| away.negative),
            most: V::splat8(piecewise.away.map_or(u8::MAX, |away| away.most)),
            limits: piecewise.away.is_some_and(|away| away.limits),
            sign: SignPlace {
                bit: if let Sign::Below(bit) = piecewise.sign { bit } else { TOP_BIT },
                of_zero: !matches!(piecewise.sign, Sign::SignlessZero),
            },
            is_special: piecewise.special.last_regular < SIGN - 1,
            special: piecewise.special,
        }
    }

    #[inline(always)]
    unsafe fn codes(
        ready: Ready<V>,
        [first, second]: [OddBf16<V::Integers>; 2],
        _one: V::Integers,
    ) -> V::Integers {
        let magnitude = V::splat16(!SIGN);
        let (low, high) = (V::and(first.odd, magnitude), V::and(second.odd, magnitude));
        let (mut start, mut next) = (low, high);
        let mut away = None;
        if UPS == AWAY {
            let more = [ready.away(first, low), ready.away(second, high)];
            (start, next) = (more[0].1, more[1].1);
            away = Some(V::join(more[0].0, more[1].0));
        }
        let (rest, interval) = V::unzip8(ready.place(start), ready.place(next));
        let bound = V::lookup::<3>(ready.bounds, interval);
        let up = V::above8(rest, bound);
        let mut code = V::increment8(up, V::lookup::<3>(ready.codes, interval));
        if UPS == TWICE {
            code = V::increment8(V::above8(rest, V::lookup::<3>(ready.more_bounds, interval)), code);
        }
        if let Some(away) = away {
            code = V::increment8(away, code);
            if ready.limits {
                code = V::min8(code, ready.most);
            }
        }
        let tops = V::unzip8(first.cut, second.cut).1;
        code = with_signs::<V, TOP>(code, tops, ready.sign);
        if ready.is_special && V::any16(V::above16(V::max16(low, high), ready.last_regular)) {
            return ready.replace(code, [low, high], tops);
        }
        code
    }
}

const TOP_BIT: u8 = 1 << 7;
const _: () = assert!(INTERVALS == crate::simd::SHORT_TABLE_BYTES, "an interval for each entry");
