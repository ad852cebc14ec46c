//! Words of 16 bits to bytes by *cells*: what becomes of every word, in two short tables.
//!
//! The words are floats of 16 bits, or upper halves of float32 (see [`crate::codec::upper`]). Their magnitudes are cut
//! into cells of `2^k` neighbours, so small that within one the code goes up at most once:
//!
//! ```text
//! distance   magnitude, at most that from which on all overflow, less the first of the lowest cell, or 0
//! cell       distance >> k
//! rest       the bits below, moved to the top of a byte
//! code       codes[cell], plus one if the rest is above bounds[cell]
//! ```
//! Signs are put on top, and infinities and NaN replaced, where they are not what overflows become. Whether a pair of
//! formats is like that under some options is found by trying: the general route casts all 65,536 words.
//!
//! Roundings towards an infinity take the cells of the one towards zero. What is rounded away from zero is one more than
//! what the word before it is cut to: `code(word) = cut(word - 1) + 1`, but for zero.

use crate::cast::plan::Plan;
use crate::cast::tables::general::results;
use crate::format::FloatSpec;

/// The most cells there can be.
pub(crate) const CELLS: usize = 192;

/// The sign bit of a word.
pub(super) const SIGN: u16 = 1 << 15;

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
}

/// What becomes of words.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub(super) codes: [u8; CELLS],
    /// The rests that round up are above these.
    pub(super) bounds: [u8; CELLS],
    /// The first word of the lowest cell.
    pub(super) lowest: u16,
    /// The last word that differs from those before.
    pub(super) limit: u16,
    /// Moves the number of a cell to the upper byte.
    pub(super) factor: u16,
    pub(super) sign: Sign,
    pub(super) away: Option<Away>,
    /// The largest magnitude that the tables are right for.
    pub(super) ordinary: u16,
    /// The magnitude of infinity; above it are NaN.
    pub(super) infinity: u16,
    /// Codes of an infinity, for each sign.
    pub(super) infinity_codes: [u8; 2],
    /// Codes of NaN, for each sign.
    pub(super) nan_codes: [u8; 2],
}

impl Cells {
    /// The cells of an IEEE format's words under a plan for them, if there are some.
    pub(super) fn of(words: &FloatSpec, plan: &Plan) -> Option<Self> {
        let infinity = words.infinity_code()? as u16;
        Self::from_codes(&codes_of_words(plan), infinity)
    }

    /// These cells, which are those of a rounding towards zero, for a plan that rounds towards the infinity of one sign,
    /// if they serve it.
    pub(super) fn towards(&self, negative: bool, plan: &Plan) -> Option<Self> {
        let codes = codes_of_words(plan);
        let [infinity_codes, nan_codes] = [self.infinity, self.infinity + 1]
            .map(|word| [word, word | SIGN].map(|word| codes[usize::from(word)]));
        let largest = self.code(self.infinity - 1);
        [largest, largest.wrapping_add(1)].into_iter().find_map(|most| {
            let away = Some(Away { negative, most });
            let cells = Self { away, ordinary: self.infinity - 1, infinity_codes, nan_codes, ..self.clone() };
            (0..=u16::MAX).all(|word| cells.code(word) == codes[usize::from(word)]).then_some(cells)
        })
    }

    /// The code of a word.
    pub(super) fn code(&self, word: u16) -> u8 {
        let magnitude = word & !SIGN;
        let negative = word != magnitude;
        if magnitude > self.ordinary {
            let special = if magnitude > self.infinity { self.nan_codes } else { self.infinity_codes };
            return special[usize::from(negative)];
        }
        let up = u16::from(magnitude > 0 && self.away.is_some_and(|away| away.negative == negative));
        let place = (magnitude - up).min(self.limit).saturating_sub(self.lowest).wrapping_mul(self.factor);
        let [cell, rest] = place.to_be_bytes().map(usize::from);
        let cut = self.codes[cell].wrapping_add(u8::from(rest > usize::from(self.bounds[cell])));
        let code = cut.wrapping_add(up as u8).min(self.away.map_or(u8::MAX, |away| away.most));
        if negative { self.sign.negative(code) } else { code }
    }

    /// From the code of every word.
    fn from_codes(codes: &[u8], infinity: u16) -> Option<Self> {
        let (positive, negative) = codes.split_at(usize::from(SIGN));
        let (finite, beyond) = positive.split_at(usize::from(infinity));
        let overflow = *finite.last()?;
        let limit = finite.iter().rposition(|&code| code != overflow)? + 1;
        let first = finite.iter().position(|&code| code != finite[0])?;
        let sign = [Sign::Top, Sign::SignlessZero, Sign::Below(negative[0])];
        let sign = sign.into_iter().find(|sign| {
            finite.iter().zip(negative).all(|(&code, &negative)| sign.negative(code) == negative)
        })?;
        let specials = [beyond, &negative[usize::from(infinity)..]];
        let infinity_codes = specials.map(|codes| codes[0]);
        let nan_codes = specials.map(|codes| codes[1]);
        let same =
            specials.iter().zip(nan_codes).all(|(codes, nan)| codes[1..].iter().all(|&code| code == nan));
        let overflows = [overflow, sign.negative(overflow)];
        let ordinary = match (infinity_codes == overflows, nan_codes == overflows) {
            (true, true) => SIGN - 1,
            (true, false) => infinity,
            (false, _) => infinity - 1,
        };
        let (codes, bounds, lowest, factor) =
            (1..=u8::BITS).rev().find_map(|bits| cut(finite, (first, limit), bits)).filter(|_| same)?;
        Some(Self {
            codes,
            bounds,
            lowest,
            limit: limit as u16,
            factor,
            sign,
            away: None,
            ordinary,
            infinity,
            infinity_codes,
            nan_codes,
        })
    }
}

/// What a plan makes of every word.
fn codes_of_words(plan: &Plan) -> Vec<u8> {
    let words: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    results(plan, &words)
}

/// Codes and bounds of cells of `2^bits` words, from the one with the word before `first` to the one with `limit`; the
/// lowest cell's first word, and the factor.
fn cut(
    finite: &[u8],
    (first, limit): (usize, usize),
    bits: u32,
) -> Option<([u8; CELLS], [u8; CELLS], u16, u16)> {
    let size = 1 << bits;
    let factor = 1 << (u8::BITS - bits);
    let lowest = (first - 1) & !(size - 1);
    let (mut codes, mut bounds) = ([0; CELLS], [u8::MAX; CELLS]);
    for (cell, start) in (lowest..=limit).step_by(size).enumerate() {
        let words = &finite[start..=limit.min(start + size - 1)];
        let code = words[0];
        let up = words.iter().position(|&other| other != code).unwrap_or(words.len());
        if words[up..].iter().any(|&other| other != code.wrapping_add(1)) {
            return None;
        }
        *codes.get_mut(cell)? = code;
        if up < words.len() {
            bounds[cell] = (up * factor - 1) as u8;
        }
    }
    Some((codes, bounds, lowest as u16, factor as u16))
}
