//! How a cast treats what the target cannot hold: rounding, overflow, NaN.

use crate::error::Error;

/// Direction of rounding (IEEE 754-2019, 4.3, and stochastic).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest value; a tie goes to the even code.
    NearestEven,
    /// To the nearest value; a tie goes away from zero.
    NearestAway,
    /// Truncation.
    TowardsZero,
    /// Up.
    TowardsPositive,
    /// Down.
    TowardsNegative,
    /// Away from zero with the probability that makes the mean exact.
    Stochastic,
}

/// What becomes of values beyond the target's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// Infinity where the format has it, else NaN, else the largest finite value. Integers wrap; floats clamp into
    /// integers, and wrap into those of fewer than 8 bits where an int32 holds the rounded value.
    Ieee,
    /// The nearest finite value, for infinities too (OCP OFP8 "saturating mode").
    Saturate,
    /// An error.
    Raise,
}

/// What becomes of NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NanRule {
    /// A quiet NaN with its sign, where the format has one.
    Keep,
    /// An error.
    Raise,
    /// Zero.
    Zero,
}

/// The names of an option's values, as users write them.
pub trait Named: Copy + PartialEq + 'static {
    /// The argument's name.
    const ARGUMENT: &'static str;
    /// Every value with its name.
    const NAMES: &'static [(&'static str, Self)];
    /// How many there are.
    const COUNT: usize = Self::NAMES.len();

    /// The value called `name`.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing the valid names.
    fn parse(name: &str) -> Result<Self, Error> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, value)| value).ok_or_else(|| Error::UnknownOption {
            argument: Self::ARGUMENT,
            value: format!("{name:?}"),
            valid: Self::NAMES.iter().map(|&(known, _)| known).collect(),
        })
    }

    /// Its name.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |&(name, _)| name)
    }
}

impl Named for Rounding {
    const ARGUMENT: &'static str = "rounding";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("nearest-even", Self::NearestEven),
        ("nearest-away", Self::NearestAway),
        ("towards-zero", Self::TowardsZero),
        ("towards-positive", Self::TowardsPositive),
        ("towards-negative", Self::TowardsNegative),
        ("stochastic", Self::Stochastic),
    ];
}

impl Named for Overflow {
    const ARGUMENT: &'static str = "overflow";
    const NAMES: &'static [(&'static str, Self)] =
        &[("ieee", Self::Ieee), ("saturate", Self::Saturate), ("raise", Self::Raise)];
}

impl Named for NanRule {
    const ARGUMENT: &'static str = "nan";
    const NAMES: &'static [(&'static str, Self)] =
        &[("keep", Self::Keep), ("raise", Self::Raise), ("zero", Self::Zero)];
}

/// All options of one cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `None`: nearest-even for float targets, towards zero for integer targets, as numpy does.
    pub rounding: Option<Rounding>,
    /// Values beyond the range.
    pub overflow: Overflow,
    /// NaN.
    pub nan: NanRule,
    /// Seed of stochastic rounding.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { rounding: None, overflow: Overflow::Ieee, nan: NanRule::Keep, seed: 0 }
    }
}
