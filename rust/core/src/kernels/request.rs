//! The request for a conversion between real formats, and what follows from it alone.

#![deny(unsafe_code)]

use crate::codec::decode::OddIntegerDecoder;
use crate::codec::lane::Lane;
use crate::codec::options::{NanRule, Options, Overflow, Rounding};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::format::{FloatSpec, Format, Kind, Specials};

/// A request for a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// A real format.
    pub(crate) source: Format,
    /// A real format.
    pub(crate) target: Format,
    /// Overflow and NaN have results here; elements to refuse are found by another check.
    pub(crate) options: Options,
    pub(crate) scaled: bool,
    /// The one scale of all elements, if there is one.
    pub(crate) factor: Option<f64>,
    /// Whether the stages must write flags for each element.
    pub(crate) tells: bool,
    /// The class of the number of elements: how much work a factor is worth.
    pub(crate) count: Count,
}

/// Classes of numbers of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Count {
    /// Too few for tables and searches that depend on the factor.
    Few,
    /// Enough for tables and searches that depend on the factor.
    Many,
}

impl Count {
    /// Returns the class of a number of elements.
    pub(crate) fn of(elements: usize) -> Self {
        if elements < 4096 { Self::Few } else { Self::Many }
    }
}

/// The pivot between decoding and encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// float32's.
    Narrow,
    /// float64's.
    Wide,
    /// The 64-bit integer itself.
    Int64 { signed: bool },
    /// The exact product with a scale.
    Exact,
}

impl Request {
    /// The plain cast between two formats.
    pub(crate) fn plain(source: Format, target: Format) -> Self {
        let options = Options::default();
        Self { source, target, options, scaled: false, factor: None, tells: false, count: Count::Few }
    }

    /// Returns the rounding in force; the default one where every value is exact.
    pub(crate) fn rounding(&self) -> Rounding {
        let rounding = self.options.rounding.unwrap_or(self.default_rounding());
        if self.widens() { self.default_rounding() } else { rounding }
    }

    /// Returns whether every value of the source is a value of the target.
    pub(crate) fn widens(&self) -> bool {
        let Some(target) = self.target.float().filter(|_| !self.scaled) else { return false };
        // The target's largest exponent field holds no finite values; a source's may.
        let last = |spec: FloatSpec| (1 << spec.exponent_bits) - 1 - spec.bias;
        let fits = if let Some(source) = self.source.float() {
            (source.specials == Specials::Ieee || last(source) < last(target)) && source.fits_in(&target)
        } else {
            let bits = self.source.row().bits;
            let is_whole = self.source.integer_range().is_some();
            is_whole && bits <= target.mantissa_bits + 1 && (bits as i32) <= last(target)
        };
        fits && target.specials == Specials::Ieee
    }

    /// Returns numpy's rounding.
    fn default_rounding(&self) -> Rounding {
        if self.target.float().is_some() { Rounding::NearestEven } else { Rounding::TowardsZero }
    }

    /// Returns whether Rust's own conversion of machine types does what is requested.
    pub(crate) fn is_native(&self) -> bool {
        let clamps = self.options.overflow == Overflow::Saturate;
        // Conversions to floats need no clamp if they cannot reach beyond the range; float64 to float32 can.
        let in_range = match (self.source.float(), self.target.float()) {
            (None, None) => !clamps || self.is_widening(),
            (Some(_), Some(_)) => self.keeps_specials(),
            _ => true,
        };
        // Integers to integers, and anything to bool, need no rounding.
        let is_exact = self.integer_ends() || self.target.kind() == Kind::Bool;
        let rounds = is_exact || self.rounding() == self.default_rounding();
        in_range && rounds && !self.scaled && !self.tells
    }

    /// Returns whether the target holds every integer of the source.
    fn is_widening(&self) -> bool {
        let (source, target) = (self.source.integer_range(), self.target.integer_range());
        source.zip(target).is_some_and(|(source, target)| target.0 <= source.0 && source.1 <= target.1)
    }

    /// Returns whether values of the target's own format pass through unchanged.
    pub(crate) fn keeps_specials(&self) -> bool {
        let infinity = self.target.float().and_then(|spec| spec.infinity_code());
        let saturates = self.options.overflow == Overflow::Saturate && infinity.is_some();
        !saturates && self.options.nan != NanRule::Zero
    }

    /// Returns whether the fast encoders may be used: nearest-even, and no flags.
    pub(crate) fn is_fast(&self) -> bool {
        self.rounding() == Rounding::NearestEven && !self.tells
    }

    /// Returns whether both formats are integers or bools.
    pub(crate) fn integer_ends(&self) -> bool {
        self.source.integer_range().is_some() && self.target.integer_range().is_some()
    }

    /// Chooses the pivot.
    pub(crate) fn choice(&self) -> Choice {
        let is_word = |format: Format| format.row().bits == 64 && format.integer_range().is_some();
        let wide_target = self.target.row().bits == 64;
        if self.scaled {
            let exact = wide_target || is_word(self.source);
            return if exact { Choice::Exact } else { Choice::Wide };
        }
        // Rounding to odd keeps enough for a direction, but not for a probability.
        let stochastic = self.rounding() == Rounding::Stochastic;
        if is_word(self.source) && (wide_target || stochastic) {
            let signed = self.source.kind() == Kind::Integer { signed: true };
            return Choice::Int64 { signed };
        }
        let powers = |spec: FloatSpec| spec.specials == Specials::ExponentOnly;
        let narrow = rounds_from::<Binary32>(self.target)
            || (self.is_fast() && self.target.float().is_some_and(powers));
        let rounds_odd =
            |spec: FloatSpec| spec.mantissa_bits + 3 <= OddIntegerDecoder::<Binary32, true>::KEPT;
        let narrow_source = holds_exactly::<Binary32>(self.source)
            || (!stochastic && self.source.row().bits == 32 && self.target.float().is_some_and(rounds_odd));
        if narrow_source && narrow { Choice::Narrow } else { Choice::Wide }
    }
}

/// Returns whether every value of a format is a value of the pivot.
pub(crate) fn holds_exactly<P: FloatPivot>(format: Format) -> bool {
    let pivot = pivot_spec::<P>();
    match format.kind() {
        Kind::Float(spec) => spec.fits_in(&pivot),
        Kind::Bool | Kind::Integer { .. } => format.row().bits <= P::MANTISSA,
        Kind::Complex { .. } => false,
    }
}

/// Returns whether the pivot's lanes can be rounded to a format: it is no wider, and its values below the pivot's
/// normal range are subnormals of its own.
fn rounds_from<P: FloatPivot>(format: Format) -> bool {
    match format.kind() {
        Kind::Float(spec) => spec.fits_in(&pivot_spec::<P>()) && spec.specials != Specials::ExponentOnly,
        Kind::Bool | Kind::Integer { .. } => format.row().bits < P::MANTISSA,
        Kind::Complex { .. } => false,
    }
}

/// Returns the layout of the pivot.
pub(crate) fn pivot_spec<P: FloatPivot>() -> FloatSpec {
    FloatSpec {
        signed: true,
        exponent_bits: <P::Lane as Lane>::WIDTH - 1 - P::MANTISSA,
        mantissa_bits: P::MANTISSA,
        bias: P::BIAS as i32,
        specials: Specials::Ieee,
    }
}

/// Returns the format that is the pivot.
pub(crate) fn pivot_format<P: FloatPivot>() -> Option<Format> {
    Format::all().find(|format| format.float() == Some(pivot_spec::<P>()))
}
