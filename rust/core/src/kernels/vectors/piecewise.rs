//! Words of 16 bits to bytes by *cells*: what becomes of every word, in two short tables.
//!
//! The words are floats of 16 bits, or upper halves of float32 (see [`crate::codec::odd_bf16`]). Their magnitudes are cut
//! into cells of `2^k` neighbours, so small that within one the code goes up at most once, or twice:
//!
//! ```text
//! distance   magnitude, at most that from which on all overflow, less the first of the lowest cell, or 0
//! cell       distance >> k
//! rest       the bits below, moved to the top of a byte
//! code       codes[cell], plus one if the rest is above bounds[cell], and one more if it is above more_bounds[cell]
//! ```
//! Signs are put on top, and infinities and NaN replaced, where they are not what overflows become. Whether a pair of
//! formats is like that under some options shows in the steps where codes go up ([`super::thresholds`]).
//!
//! Roundings towards an infinity take the cells of the one towards zero. What is rounded away from zero is one more than
//! what the word before it is cut to: `code(word) = cut(word - 1) + 1`, but for zero.

#![deny(unsafe_code)]

use super::thresholds::{INTERVALS, SIGN, Threshold, Thresholds};
use crate::codec::encode::SpecialCodes;
use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::format::{FloatSpec, Specials};
use crate::kernels::request::Request;

const TOP_BIT: u8 = 1 << 7;

/// Where the sign of a code goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// To the top bit, of zero too.
    Top,
    /// To the top bit, but not of zero.
    SignlessZero,
    /// To this bit.
    Below(u8),
}

impl Sign {
    /// The code of a negative word, from that of its magnitude.
    pub(super) fn negative(self, code: u8) -> u8 {
        match self {
            Self::SignlessZero if code == 0 => 0,
            Self::Top | Self::SignlessZero => code | 1 << 7,
            Self::Below(bit) => code | bit,
        }
    }
}

/// That words of one sign are rounded away from zero, and those of the other towards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// Of which sign: its bit.
    pub(super) negative: bool,
    /// Codes are no greater.
    pub(super) most: u8,
    /// Some would be.
    pub(super) limits: bool,
}

/// What becomes of words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piecewise {
    pub(super) codes: [u8; INTERVALS],
    /// The rests that round up are above these.
    pub(super) bounds: [u8; INTERVALS],
    /// The rests that round up once more are above these, if there are such.
    pub(super) more_bounds: Option<[u8; INTERVALS]>,
    /// The first word of the lowest cell.
    pub(super) lowest: u16,
    /// The last word that differs from those before.
    pub(super) limit: u16,
    /// Moves the number of a cell to the upper byte.
    pub(super) factor: u16,
    pub(super) sign: Sign,
    pub(super) away: Option<Away>,
    pub(super) special: Special,
}

/// What becomes of infinities and NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Special {
    /// The largest magnitude that the tables are right for.
    pub(super) last_regular: u16,
    /// The magnitude of infinity; above it are NaN.
    pub(super) infinity: u16,
    /// Codes of an infinity, for each sign.
    pub(super) infinity_codes: [u8; 2],
    /// Codes of NaN, for each sign.
    pub(super) nan_codes: [u8; 2],
}

/// The most codes of a sign.
const CODES: usize = 1 << 7;

impl Piecewise {
    /// The cells of an IEEE format's words for a request that is like this but for its source, if they serve it. A factor
    /// above zero keeps words in their order: then these are cells of the words' products.
    pub(super) fn of(source: &FloatSpec, request: &Request, level: Level) -> Option<Self> {
        let spec = request.target.float().filter(|_| request.target.item_size() == 1 && !request.tells)?;
        if !spec.signed || spec.specials == Specials::ExponentOnly {
            return None;
        }
        // As normal as that, no product comes near the ends of float64's range.
        let is_usual = |factor: &f64| *factor > 0.0 && (*factor as f32).is_normal();
        let factor = if request.scaled { request.factor.filter(is_usual)? } else { 1.0 };
        let rounding = request.rounding();
        let (nearest, ties_go_up, away) = match rounding {
            Rounding::NearestEven => (true, false, None),
            Rounding::NearestAway => (true, true, None),
            Rounding::TowardsZero => (false, true, None),
            Rounding::TowardsPositive => (false, true, Some(false)),
            Rounding::TowardsNegative => (false, true, Some(true)),
            Rounding::Stochastic => return None,
        };
        if away.is_some() && request.scaled {
            return None;
        }
        let codes = SpecialCodes::new(&spec, &request.options, rounding);
        let overflow = if away.is_some() { spec.max_code() } else { codes.overflow[0] };
        let last = [spec.max_code(), spec.max_code() + 1].into_iter().find(|&code| code == overflow)? as u16;
        let mut room = [Threshold { input: 0, code: 0 }; CODES];
        let thresholds =
            Thresholds { factor, source, target: spec, last, nearest, ties_go_up, found: &mut room };
        let count = level.run(thresholds);
        let thresholds = &room[..count];
        let reached = thresholds.last()?.code;
        let sign = match (spec.sign_bit() as u8, spec.specials) {
            (TOP_BIT, Specials::Fnuz) => Sign::SignlessZero,
            (TOP_BIT, _) => Sign::Top,
            (bit, _) => Sign::Below(bit),
        };
        let byte = |codes: [u64; 2]| codes.map(|code| code as u8);
        let (infinity, infinity_codes, nan_codes) =
            (source.infinity_code()? as u16, byte(codes.infinity), byte(codes.nan));
        let overflows = [reached, sign.negative(reached)];
        let last_regular = match (away.is_none() && infinity_codes == overflows, nan_codes == overflows) {
            (true, true) => SIGN - 1,
            (true, false) => infinity,
            (false, _) => infinity - 1,
        };
        let special = Special { last_regular, infinity, infinity_codes, nan_codes };
        let away = away.map(|negative| {
            let limits = byte(codes.overflow)[usize::from(negative)] == overflows[usize::from(negative)];
            Away { negative, most: if limits { reached } else { reached.wrapping_add(1) }, limits }
        });
        let piecewise = Self::from_thresholds(thresholds, sign, special)?;
        (request.scaled || piecewise.more_bounds.is_none()).then_some(Self { away, ..piecewise })
    }

    /// The code of a word, as vectors find it.
    #[cfg(test)]
    pub(super) fn code(&self, input: u16) -> u8 {
        let magnitude = input & !SIGN;
        let negative = input != magnitude;
        let Special { last_regular, infinity, infinity_codes, nan_codes } = self.special;
        if magnitude > last_regular {
            return if magnitude > infinity { nan_codes } else { infinity_codes }[usize::from(negative)];
        }
        let up = u16::from(magnitude > 0 && self.away.is_some_and(|away| away.negative == negative));
        let place = (magnitude - up).min(self.limit).saturating_sub(self.lowest).wrapping_mul(self.factor);
        let [interval, rest] = place.to_be_bytes().map(usize::from);
        let is_above = |bounds: &[u8; INTERVALS]| u8::from(rest > usize::from(bounds[interval]));
        let ups = is_above(&self.bounds) + self.more_bounds.as_ref().map_or(0, is_above);
        let cut = self.codes[interval].wrapping_add(ups);
        let code = cut.wrapping_add(up as u8).min(self.away.map_or(u8::MAX, |away| away.most));
        if negative { self.sign.negative(code) } else { code }
    }

    /// From the words where codes go up, and how far.
    fn from_thresholds(thresholds: &[Threshold], sign: Sign, special: Special) -> Option<Self> {
        let last = thresholds.last()?;
        // Smaller ones are too many.
        let fits = |bits: &u32| usize::from((last.input - thresholds[0].input) >> bits) < INTERVALS;
        let sizes = || (1..=u8::BITS).rev().take_while(fits);
        let once = sizes().find_map(|bits| Some((cut::<1>(thresholds, bits)?, bits)));
        let (Cut { codes, bounds: [bounds, more], lowest }, bits) =
            once.or_else(|| sizes().find_map(|bits| Some((cut::<2>(thresholds, bits)?, bits))))?;
        Some(Self {
            codes,
            bounds,
            more_bounds: once.is_none().then_some(more),
            lowest,
            limit: last.input,
            factor: 1 << (u8::BITS - bits),
            sign,
            away: None,
            special,
        })
    }
}

/// What becomes of every cell, and the first word of the lowest.
#[derive(Clone, Copy)]
struct Cut {
    codes: [u8; INTERVALS],
    bounds: [[u8; INTERVALS]; 2],
    lowest: u16,
}

/// Piecewise of `2^bits` words, from the one with the word before the first step on, if codes go up by at most `UPS` in
/// each.
fn cut<const UPS: usize>(thresholds: &[Threshold], bits: u32) -> Option<Cut> {
    let size = 1u16 << bits;
    let lowest = (thresholds[0].input - 1) & !(size - 1);
    let place = |input: u16| (usize::from((input - lowest) >> bits), (input - lowest) & (size - 1));
    let mut found = Cut { codes: [0; INTERVALS], bounds: [[u8::MAX; INTERVALS]; 2], lowest };
    // The cell that was begun last, the code so far, and how far it has gone up.
    let (mut here, mut code, mut ups) = (0, 0, 0);
    for up in thresholds {
        let (interval, rest) = place(up.input);
        if interval >= INTERVALS {
            return None;
        }
        if interval > here {
            found.codes[here + 1..=interval].fill(code);
            (here, ups) = (interval, 0);
        }
        if rest == 0 {
            found.codes[interval] = up.code;
        } else {
            for _ in 0..up.code.wrapping_sub(code) {
                *found.bounds[..UPS].get_mut(ups)?.get_mut(interval)? =
                    ((rest << (u8::BITS - bits)) - 1) as u8;
                ups += 1;
            }
        }
        code = up.code;
    }
    Some(found)
}
