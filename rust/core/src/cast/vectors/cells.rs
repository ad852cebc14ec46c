//! Words of 16 bits to bytes by *cells*: what becomes of every word, in two short tables.
//!
//! The words are floats of 16 bits, or upper halves of float32 (see [`crate::codec::upper`]). Their magnitudes are cut
//! into cells of `2^k` neighbours, so small that within one the code goes up at most once, or twice:
//!
//! ```text
//! distance   magnitude, at most that from which on all overflow, less the first of the lowest cell, or 0
//! cell       distance >> k
//! rest       the bits below, moved to the top of a byte
//! code       codes[cell], plus one if the rest is above bounds[cell], and one more if it is above more_bounds[cell]
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
    /// Some would be.
    pub(super) limits: bool,
}

/// What becomes of words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    pub(super) codes: [u8; CELLS],
    /// The rests that round up are above these.
    pub(super) bounds: [u8; CELLS],
    /// The rests that round up once more are above these, if there are such.
    pub(super) more_bounds: Option<[u8; CELLS]>,
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
        let infinity = self.special.infinity;
        let [infinity_codes, nan_codes] =
            [infinity, infinity + 1].map(|word| [word, word | SIGN].map(|word| codes[usize::from(word)]));
        let special = Special { ordinary: infinity - 1, infinity, infinity_codes, nan_codes };
        let largest = self.code(infinity - 1);
        [largest, largest.wrapping_add(1)].into_iter().find_map(|most| {
            let away = Some(Away { negative, most, limits: most == largest });
            let cells = Self { away, special, ..*self };
            (0..=u16::MAX).all(|word| cells.code(word) == codes[usize::from(word)]).then_some(cells)
        })
    }

    /// The code of a word.
    pub(super) fn code(&self, word: u16) -> u8 {
        let magnitude = word & !SIGN;
        let negative = word != magnitude;
        let Special { ordinary, infinity, infinity_codes, nan_codes } = self.special;
        if magnitude > ordinary {
            return if magnitude > infinity { nan_codes } else { infinity_codes }[usize::from(negative)];
        }
        let up = u16::from(magnitude > 0 && self.away.is_some_and(|away| away.negative == negative));
        let place = (magnitude - up).min(self.limit).saturating_sub(self.lowest).wrapping_mul(self.factor);
        let [cell, rest] = place.to_be_bytes().map(usize::from);
        let is_above = |bounds: &[u8; CELLS]| u8::from(rest > usize::from(bounds[cell]));
        let ups = is_above(&self.bounds) + self.more_bounds.as_ref().map_or(0, is_above);
        let cut = self.codes[cell].wrapping_add(ups);
        let code = cut.wrapping_add(up as u8).min(self.away.map_or(u8::MAX, |away| away.most));
        if negative { self.sign.negative(code) } else { code }
    }

    /// From the code of every word.
    fn from_codes(codes: &[u8], infinity: u16) -> Option<Self> {
        let (positive, negative) = codes.split_at(usize::from(SIGN));
        let (finite, beyond) = positive.split_at(usize::from(infinity));
        let overflow = *finite.last()?;
        let steps: Vec<Up> = (1..infinity)
            .filter_map(|word| {
                let [before, code] = [word - 1, word].map(|word| finite[usize::from(word)]);
                (code != before).then_some(Up { word, code })
            })
            .collect();
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
        let special = Special { ordinary, infinity, infinity_codes, nan_codes };
        Self::from_steps(finite[0], &steps, sign, special).filter(|cells| same && cells.more_bounds.is_none())
    }

    /// From the code of zero and the words where codes go up, and how far.
    pub(super) fn from_steps(zero: u8, steps: &[Up], sign: Sign, special: Special) -> Option<Self> {
        let last = steps.last()?;
        // Smaller ones are too many.
        let fits = |bits: &u32| usize::from((last.word - steps[0].word) >> bits) < CELLS;
        let sizes = || (1..=u8::BITS).rev().take_while(fits);
        let once = sizes().find_map(|bits| Some((cut::<1>(zero, steps, bits)?, bits)));
        let (Cut { codes, bounds: [bounds, more], lowest }, bits) =
            once.or_else(|| sizes().find_map(|bits| Some((cut::<2>(zero, steps, bits)?, bits))))?;
        Some(Self {
            codes,
            bounds,
            more_bounds: once.is_none().then_some(more),
            lowest,
            limit: last.word,
            factor: 1 << (u8::BITS - bits),
            sign,
            away: None,
            special,
        })
    }
}

/// A word whose code is not that of the word before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Up {
    pub(super) word: u16,
    pub(super) code: u8,
}

/// What becomes of every cell, and the first word of the lowest.
#[derive(Clone, Copy)]
struct Cut {
    codes: [u8; CELLS],
    bounds: [[u8; CELLS]; 2],
    lowest: u16,
}

/// What a plan makes of every word.
fn codes_of_words(plan: &Plan) -> Vec<u8> {
    let words: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    results(plan, &words)
}

/// Cells of `2^bits` words, from the one with the word before the first step on, if codes go up by at most `UPS` in
/// each.
fn cut<const UPS: usize>(zero: u8, steps: &[Up], bits: u32) -> Option<Cut> {
    let size = 1u16 << bits;
    let lowest = (steps[0].word - 1) & !(size - 1);
    let place = |word: u16| (usize::from((word - lowest) >> bits), (word - lowest) & (size - 1));
    let mut found = Cut { codes: [0; CELLS], bounds: [[u8::MAX; CELLS]; 2], lowest };
    // The cell that was begun last, the code so far, and how far it has gone up.
    let (mut here, mut code, mut ups) = (0, zero, 0);
    found.codes[0] = zero;
    for up in steps {
        let (cell, rest) = place(up.word);
        if cell >= CELLS {
            return None;
        }
        if cell > here {
            found.codes[here + 1..=cell].fill(code);
            (here, ups) = (cell, 0);
        }
        if rest == 0 {
            found.codes[cell] = up.code;
        } else {
            for _ in 0..up.code.wrapping_sub(code) {
                *found.bounds[..UPS].get_mut(ups)?.get_mut(cell)? = ((rest << (u8::BITS - bits)) - 1) as u8;
                ups += 1;
            }
        }
        code = up.code;
    }
    Some(found)
}
