//! Codes of 16 bits to codes of 8 bits by a *piecewise lookup table*: two short tables with an entry per interval of
//! inputs.
//!
//! The inputs are floats of 16 bits, or bf16 rounded to odd (see [`crate::codec::odd_bf16`]). Their magnitudes are
//! divided into intervals of `2^k` neighbors, so small that each contains at most one or two thresholds at which the
//! code increases:
//!
//! ```text
//! distance   min(magnitude, first that overflows) - first of the lowest interval, or 0
//! interval   distance >> k
//! rest       the bits below, moved to the top of a byte
//! code       codes[interval], + 1 if rest > bounds[interval], + 1 if rest > more_bounds[interval]
//! ```
//! The sign is then inserted, and infinities and NaN get codes of their own where these differ from the code of
//! overflows. Whether such a table serves a pair of formats follows from its thresholds ([`super::thresholds`]).
//!
//! Roundings towards an infinity use the table of truncation: away from zero, `code(input) = truncated(input - 1) + 1`
//! for all inputs but zero.

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
    /// Returns the code of a negative input, from that of its magnitude.
    pub(super) fn negative(self, code: u8) -> u8 {
        match self {
            Self::SignlessZero if code == 0 => 0,
            Self::Top | Self::SignlessZero => code | 1 << 7,
            Self::Below(bit) => code | bit,
        }
    }
}

/// Inputs of one sign are rounded away from zero, those of the other towards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// Whether the negative ones are rounded away from zero.
    pub(super) negative: bool,
    /// The largest code.
    pub(super) most: u8,
    /// Whether `code + 1` can exceed it.
    pub(super) limits: bool,
}

/// The table of one target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piecewise {
    pub(super) codes: [u8; INTERVALS],
    /// A rest above this bound adds one to the code.
    pub(super) bounds: [u8; INTERVALS],
    /// A rest above this bound adds one more, in tables with two thresholds per interval.
    pub(super) more_bounds: Option<[u8; INTERVALS]>,
    /// The first input of the lowest interval.
    pub(super) lowest: u16,
    /// The last threshold; larger inputs have the same code.
    pub(super) limit: u16,
    /// Shifts the interval's index into the upper byte, by multiplication.
    pub(super) factor: u16,
    pub(super) sign: Sign,
    pub(super) away: Option<Away>,
    pub(super) special: Special,
}

/// The codes of infinities and NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Special {
    /// The largest magnitude for which the tables are right.
    pub(super) last_regular: u16,
    /// The magnitude of infinity; above it are NaN.
    pub(super) infinity: u16,
    /// Codes of an infinity, for each sign.
    pub(super) infinity_codes: [u8; 2],
    /// Codes of NaN, for each sign.
    pub(super) nan_codes: [u8; 2],
}

/// Codes of one sign, at most.
const CODES: usize = 1 << 7;

impl Piecewise {
    /// Makes the table from the codes of an IEEE format to the target of a request, whose own source is ignored; `None`
    /// if no table serves it. A positive factor keeps inputs in their order, so a table can include it.
    pub(super) fn of(source: &FloatSpec, request: &Request, level: Level) -> Option<Self> {
        let spec = request.target.float().filter(|_| request.target.item_size() == 1 && !request.tells)?;
        if !spec.signed || spec.specials == Specials::ExponentOnly {
            return None;
        }
        // With a factor that is normal in float32, no product comes near the ends of float64's range.
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

    /// Returns the code of an input, as vectors compute it.
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

    /// Makes the table from the thresholds.
    fn from_thresholds(thresholds: &[Threshold], sign: Sign, special: Special) -> Option<Self> {
        let last = thresholds.last()?;
        // Smaller intervals would be too many for the table.
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

/// The entries of every interval, and the first input of the lowest.
#[derive(Clone, Copy)]
struct Cut {
    codes: [u8; INTERVALS],
    bounds: [[u8; INTERVALS]; 2],
    lowest: u16,
}

/// Makes intervals of `2^bits` inputs, from the one that contains the input before the first threshold; `None` if one
/// of them has more than `UPS` thresholds.
fn cut<const UPS: usize>(thresholds: &[Threshold], bits: u32) -> Option<Cut> {
    let size = 1u16 << bits;
    let lowest = (thresholds[0].input - 1) & !(size - 1);
    let place = |input: u16| (usize::from((input - lowest) >> bits), (input - lowest) & (size - 1));
    let mut found = Cut { codes: [0; INTERVALS], bounds: [[u8::MAX; INTERVALS]; 2], lowest };
    // The current interval, the code so far, and the thresholds in this interval so far.
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
