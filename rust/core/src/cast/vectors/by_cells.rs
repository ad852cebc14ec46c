//! Floats of 16 and 32 bits to bytes by [`Cells`], on levels with tables.

use super::cells::{CELLS, Cells, SIGN, Sign};
use super::direct::upper_spec;
use super::to_byte::{Codes, boxed};
use super::upper_source::{AsTheyAre, Floats, Upper, Words};
use crate::cast::kept::{Kept, VARIANTS, variant};
use crate::cast::plan::Plan;
use crate::cast::request::Request;
use crate::cast::stages::stage::Stage;
use crate::codec::options::{Options, Rounding};
use crate::codec::upper::MANTISSA;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format};
use crate::simd::{Tables, with_tables};

/// The cells that were found, or not, for words of each format of 16 bits.
static CELLS_OF: Kept<Option<Cells>, { Format::COUNT * Format::COUNT * VARIANTS }> = Kept::new();

/// The cells of words of a format for a request that is like this but for its source.
fn cells(words: FloatSpec, request: &Request) -> Option<&'static Cells> {
    let source = Format::all().find(|format| format.float() == Some(words))?;
    let target = request.target;
    let place = (source.index() * Format::COUNT + target.index()) * VARIANTS + variant(request)?;
    let found = CELLS_OF.get(place).unwrap_or_else(|| {
        let request = Request { source, scaled: false, factor: None, ..*request };
        CELLS_OF.keep(place, find(words, &request))
    });
    found.as_ref()
}

/// The cells of words of a format for a request of theirs, looked for.
fn find(words: FloatSpec, request: &Request) -> Option<Cells> {
    let plan = Plan::new(request, Level::Portable).ok()?;
    let rounding = request.rounding();
    if !matches!(rounding, Rounding::TowardsPositive | Rounding::TowardsNegative) {
        return Cells::of(&words, &plan);
    }
    let options = Options { rounding: Some(Rounding::TowardsZero), ..request.options };
    cells(words, &Request { options, ..*request })?.towards(rounding == Rounding::TowardsNegative, &plan)
}

/// The stage from upper halves to the target of a request, if it has cells.
pub(super) fn of_upper_halves<F: Floats>(
    request: &Request,
    source: F,
    level: Level,
) -> Option<Box<dyn Stage>> {
    // One bit to round by, one for what was cut off.
    let spec = request.target.float().filter(|spec| spec.mantissa_bits + 2 <= MANTISSA)?;
    if request.target.item_size() != 1 || !spec.signed {
        return None;
    }
    on(level, || cells(upper_spec(), request), source)
}

/// The stage from words of a format to the target of a request, if it has cells.
pub(super) fn of_words(request: &Request, words: FloatSpec, level: Level) -> Option<Box<dyn Stage>> {
    let is_byte = request.target.item_size() == 1 && request.target.float().is_some();
    is_byte.then(|| on(level, || cells(words, request), AsTheyAre))?
}

/// The stage on a level, if it has tables.
fn on<F: Words>(
    level: Level,
    cells: impl Fn() -> Option<&'static Cells>,
    source: F,
) -> Option<Box<dyn Stage>> {
    with_tables!(level, V => stage::<V, F>(cells()?, source))?
}

fn stage<V: Tables, F: Words>(cells: &'static Cells, source: F) -> Option<Box<dyn Stage>> {
    if cells.away.is_some() {
        signed::<V, F, true>(cells, source)
    } else {
        signed::<V, F, false>(cells, source)
    }
}

fn signed<V: Tables, F: Words, const AWAY: bool>(cells: &'static Cells, source: F) -> Option<Box<dyn Stage>> {
    match cells.sign {
        Sign::Top => boxed::<V, F, _>(source, ByCells::<TOP, AWAY>(cells)),
        Sign::SignlessZero => boxed::<V, F, _>(source, ByCells::<SIGNLESS_ZERO, AWAY>(cells)),
        Sign::Below(_) => boxed::<V, F, _>(source, ByCells::<BELOW, AWAY>(cells)),
    }
}

/// The kinds of [`Sign`].
const TOP: u8 = 0;
const SIGNLESS_ZERO: u8 = 1;
const BELOW: u8 = 2;

/// Cells whose signs are of a kind, and of which one sign is rounded away from zero, or none.
#[derive(Clone, Copy)]
struct ByCells<const SIGN_KIND: u8, const AWAY: bool>(&'static Cells);

/// Cells in registers.
#[derive(Clone, Copy)]
struct Ready<V: Tables> {
    codes: V::ShortTable,
    bounds: V::ShortTable,
    lowest: V::Integers,
    limit: V::Integers,
    factor: V::Integers,
    ordinary: V::Integers,
    /// The sign of words that are rounded away from zero.
    flip: V::Integers,
    most: V::Integers,
    sign: u8,
    /// Whether infinities or NaN are not what overflows become.
    special: bool,
    cells: &'static Cells,
}

impl<V: Tables> Ready<V> {
    /// The numbers of the cells of magnitudes, with the rests behind the point.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn place(&self, magnitude: V::Integers) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let distance = V::sub_saturated16(V::min16(magnitude, self.limit), self.lowest);
            V::mul16(distance, self.factor)
        }
    }

    /// Which words are rounded away from zero, and magnitudes from which these are one less.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn away(&self, half: Upper<V::Integers>, magnitude: V::Integers) -> (V::Mask16, V::Integers) {
        // SAFETY: the caller's promise.
        unsafe {
            // With their sign the right way round, they are what is above zero.
            let away = V::above16(V::add16(half.odd, self.flip), V::splat16(0));
            (away, V::choose16(away, V::sub_saturated16(magnitude, V::splat16(1)), magnitude))
        }
    }

    /// Puts infinities and NaN right.
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
        let Cells { ordinary, infinity, infinity_codes, nan_codes, .. } = *self.cells;
        let mut code = code;
        for (bound, codes) in [(ordinary, infinity_codes), (infinity, nan_codes)] {
            // SAFETY: the caller's promise.
            unsafe {
                let [low, high] = magnitudes.map(|words| V::above16(words, V::splat16(bound)));
                let special = V::choose8(V::top8(tops), V::splat8(codes[1]), V::splat8(codes[0]));
                code = V::choose8(V::join(low, high), special, code);
            }
        }
        code
    }
}

impl<V: Tables, const SIGN_KIND: u8, const AWAY: bool> Codes<V> for ByCells<SIGN_KIND, AWAY> {
    type Ready = Ready<V>;

    #[inline(always)]
    unsafe fn ready(&self) -> Ready<V> {
        let cells = self.0;
        // SAFETY: the trait's contract.
        unsafe {
            Ready {
                codes: V::load_short_table(&cells.codes),
                bounds: V::load_short_table(&cells.bounds),
                lowest: V::splat16(cells.lowest),
                limit: V::splat16(cells.limit),
                factor: V::splat16(cells.factor),
                ordinary: V::splat16(cells.ordinary),
                flip: V::splat16(if cells.away.is_some_and(|away| away.negative) { SIGN } else { 0 }),
                most: V::splat8(cells.away.map_or(u8::MAX, |away| away.most)),
                sign: if let Sign::Below(bit) = cells.sign { bit } else { TOP_BIT },
                special: cells.ordinary < SIGN - 1,
                cells,
            }
        }
    }

    #[inline(always)]
    unsafe fn codes(
        ready: Ready<V>,
        [first, second]: [Upper<V::Integers>; 2],
        _one: V::Integers,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = [first, second].map(|half| V::and(half.odd, V::splat16(!SIGN)));
            let (mut start, mut next) = (low, high);
            let mut away = None;
            if AWAY {
                let more = [ready.away(first, low), ready.away(second, high)];
                (start, next) = (more[0].1, more[1].1);
                away = Some(V::join(more[0].0, more[1].0));
            }
            let (rest, cell) = V::unzip8(ready.place(start), ready.place(next));
            let up = V::above8(rest, V::lookup_short(ready.bounds, cell));
            let mut code = V::increment8(up, V::lookup_short(ready.codes, cell));
            if let Some(away) = away {
                code = V::min8(V::increment8(away, code), ready.most);
            }
            let tops = V::unzip8(first.cut, second.cut).1;
            code = match SIGN_KIND {
                TOP => V::or_masked(code, tops, V::splat8(TOP_BIT)),
                SIGNLESS_ZERO => {
                    let not_zero = V::add_saturated8(code, V::splat8(TOP_BIT - 1));
                    V::or_masked(code, V::and(not_zero, tops), V::splat8(TOP_BIT))
                }
                _ => V::choose8(V::top8(tops), V::or(code, V::splat8(ready.sign)), code),
            };
            if ready.special && V::any16(V::above16(V::max16(low, high), ready.ordinary)) {
                return ready.replace(code, [low, high], tops);
            }
            code
        }
    }
}

const TOP_BIT: u8 = 1 << 7;
const _: () = assert!(CELLS == crate::simd::SHORT_TABLE_BYTES, "a cell for each entry");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::tables::general::results;
    use crate::cast::vectors::direct::half_spec;
    use crate::codec::options::{Named, NanRule, Overflow};

    fn signed_bytes() -> impl Iterator<Item = Format> {
        Format::all()
            .filter(|format| format.item_size() == 1 && format.float().is_some_and(|spec| spec.signed))
    }

    #[test]
    fn cells_are_what_the_general_route_gives() {
        let words: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let mut found = 0;
        for spec in [upper_spec(), half_spec()] {
            let source = Format::all().find(|format| format.float() == Some(spec)).unwrap();
            for target in signed_bytes() {
                for &(_, rounding) in Rounding::NAMES.iter().filter(|named| named.1 != Rounding::Stochastic) {
                    for (overflow, nan) in
                        [(Overflow::Ieee, NanRule::Keep), (Overflow::Saturate, NanRule::Zero)]
                    {
                        let options = Options { rounding: Some(rounding), overflow, nan, seed: 0 };
                        let request = Request { options, ..Request::plain(source, target) };
                        let Some(cells) = cells(spec, &request) else { continue };
                        found += 1;
                        let expected = results(&Plan::new(&request, Level::Portable).unwrap(), &words);
                        for word in 0..=u16::MAX {
                            let code = cells.code(word);
                            assert_eq!(
                                code,
                                expected[usize::from(word)],
                                "{word:#x} {source:?} {target:?} {options:?}"
                            );
                        }
                    }
                }
            }
        }
        assert!(found > 180, "only {found} pairs have cells");
    }

    #[test]
    fn every_signed_format_of_a_byte_has_cells() {
        for target in signed_bytes().filter(|target| target.row().bits == 8) {
            let request = Request::plain(target, target);
            assert!(cells(upper_spec(), &request).is_some(), "{target:?}");
        }
    }
}
