//! The check for elements that the options refuse: bounds on the source codes usually show that none is; otherwise a
//! tile is converted again, by stages that write flags for each element.

#![deny(unsafe_code)]

use crate::codec::encode::{NAN, OVERFLOW};
use crate::codec::options::{NanRule, Options, Overflow, Rounding};
use crate::codec::scalar::Scalar;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::{FloatSpec, Format, Kind};
use crate::kernels::code_bounds::{CodeBounds, first_in};
use crate::kernels::request::Request;
use crate::route::Route;

/// How refused elements are found.
pub(crate) struct RefusalCheck {
    /// Bounds of codes that are never refused; `None` if codes alone do not show it.
    pub(crate) safe: Option<CodeBounds>,
    /// The route that writes a flag for each element.
    pub(crate) close: Route,
    /// The flags of refused elements.
    pub(crate) refused: u8,
}

impl RefusalCheck {
    /// Makes the check for a request whose original options are these; `None` if they refuse nothing.
    ///
    /// # Errors
    /// As for [`Route::new`].
    pub(crate) fn new(request: &Request, options: &Options, level: Level) -> Result<Option<Self>, Error> {
        let overflow = if options.overflow == Overflow::Raise { OVERFLOW } else { 0 };
        let nan = if options.nan == NanRule::Raise { NAN } else { 0 };
        let refused = overflow | nan;
        if refused == 0 {
            return Ok(None);
        }
        let safe = match Safe::of(request, refused) {
            Safe::All => return Ok(None),
            Safe::Some(bounds) => Some(bounds),
            Safe::Unknown => None,
        };
        let close = Route::through_stages(&Request { tells: true, ..*request }, level)?;
        Ok(close.flags.then_some(Self { safe, close, refused }))
    }
}

/// The codes that are never refused.
enum Safe {
    /// Every code.
    All,
    /// At least those within these bounds.
    Some(CodeBounds),
    /// Not known from codes.
    Unknown,
}

impl Safe {
    fn of(request: &Request, refused: u8) -> Self {
        let Request { source, target, scaled, factor, .. } = *request;
        // Stochastic rounding may round a value either way.
        let roundings = match request.rounding() {
            Rounding::Stochastic => [Rounding::TowardsPositive, Rounding::TowardsNegative],
            rounding => [rounding; 2],
        };
        let factor = if scaled { factor } else { Some(1.0) };
        let scalar = |rounding| Scalar::new((source, target), &request.options, rounding, factor?);
        let [Some(first), Some(second)] = roundings.map(scalar) else { return Self::Unknown };
        let is_safe =
            |code: u64| [first, second].iter().all(|scalar| scalar.convert(code).flags & refused == 0);
        if !is_safe(0) {
            return Self::Unknown;
        }
        let both_signs = match target.kind() {
            Kind::Integer { signed } => signed,
            Kind::Float(spec) => spec.signed,
            _ => true,
        };
        match source.kind() {
            Kind::Complex { .. } => Self::Unknown,
            Kind::Bool => {
                if is_safe(1) {
                    Self::All
                } else {
                    Self::Unknown
                }
            }
            Kind::Integer { signed } => Self::of_integers(source, signed, is_safe),
            Kind::Float(spec) => Self::of_floats(source, &spec, both_signs, is_safe),
        }
    }

    fn of_integers(source: Format, signed: bool, is_safe: impl Fn(u64) -> bool) -> Self {
        let (bits, size) = (source.row().bits, source.item_size());
        let (all, sign) = (u64::MAX >> (64 - bits), if signed { 1 << (bits - 1) } else { 0 });
        // Codes are numbered from the lowest value to the highest; zero is number `sign`.
        let is_safe = |number: u64| is_safe(number ^ sign);
        let low = first_in(0, sign, is_safe);
        let high = if is_safe(all) { all } else { first_in(sign, all, |number| !is_safe(number)) - 1 };
        if (low, high) == (0, all) {
            return Self::All;
        }
        Self::Some(CodeBounds { mask: all, flip: sign, base: low, low: 0, high: high - low, size })
    }

    fn of_floats(source: Format, spec: &FloatSpec, both_signs: bool, is_safe: impl Fn(u64) -> bool) -> Self {
        let (largest, magnitudes) = (spec.max_code(), spec.magnitude_mask());
        // Returns the largest magnitude of a sign up to which nothing is refused.
        let safe_up_to = |sign: u64| {
            let is_safe = |magnitude: u64| is_safe(magnitude | sign);
            if !is_safe(0) {
                return None;
            }
            if !is_safe(largest) {
                return Some(first_in(0, largest, |magnitude| !is_safe(magnitude)) - 1);
            }
            let specials = [spec.infinity_code(), spec.nan_code()];
            let all = specials.iter().flatten().all(|&code| is_safe(code & magnitudes));
            Some(if all { magnitudes } else { largest })
        };
        let Some(positive) = safe_up_to(0) else { return Self::Unknown };
        let (all, size) = (u64::MAX >> (64 - source.row().bits), source.item_size());
        let negative = if spec.signed { safe_up_to(spec.sign_bit()) } else { Some(positive) };
        let (mask, high) = match negative {
            Some(negative) if both_signs => (magnitudes, positive.min(negative)),
            // As unsigned numbers, negative codes are above all others.
            _ => (all, positive),
        };
        if high == mask {
            return Self::All;
        }
        Self::Some(CodeBounds { mask, flip: 0, base: 0, low: 0, high, size })
    }
}
