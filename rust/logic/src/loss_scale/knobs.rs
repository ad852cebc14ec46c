//! The parameters of a dynamic loss scale, and the demands of presets on them.

use castwise_core::error::Error;

/// The numbers that do not change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// The first scale.
    pub initial_scale: f64,
    /// Finite steps between growths.
    pub growth_interval: i64,
    /// What the scale is multiplied by when it grows.
    pub growth_factor: f64,
    /// What the scale is multiplied by when it backs off.
    pub backoff_factor: f64,
    /// Backing off stops here.
    pub minimum: Option<f64>,
    /// Growth stops here.
    pub maximum: Option<f64>,
    /// Nonfinite steps before the scale backs off.
    pub hysteresis: i64,
}

/// One of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// [`Knobs::initial_scale`].
    InitialScale,
    /// [`Knobs::growth_interval`].
    GrowthInterval,
    /// [`Knobs::growth_factor`].
    GrowthFactor,
    /// [`Knobs::backoff_factor`].
    BackoffFactor,
    /// [`Knobs::minimum`].
    Minimum,
    /// [`Knobs::maximum`].
    Maximum,
    /// [`Knobs::hysteresis`].
    Hysteresis,
}

impl Knob {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::InitialScale,
        Self::GrowthInterval,
        Self::GrowthFactor,
        Self::BackoffFactor,
        Self::Minimum,
        Self::Maximum,
        Self::Hysteresis,
    ];

    /// The name by which it is given.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InitialScale => "initial_scale",
            Self::GrowthInterval => "growth_interval",
            Self::GrowthFactor => "growth_factor",
            Self::BackoffFactor => "backoff_factor",
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
            Self::Hysteresis => "hysteresis",
        }
    }
}

/// A requirement of a preset on its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    IntervalPositive,
    HysteresisPositive,
    GrowthAboveOne,
    GrowthFinite,
    GrowthNoticed,
    BackoffBelowOne,
    BackoffNoticed,
    BackoffPositive,
    MinimumPositive,
    MinimumNotAboveMaximum,
    InitialPositive,
    InitialNotBelowMinimum,
    InitialNotAboveMaximum,
    MaximumFinite,
}

/// The smallest normal float32; a host that flushes subnormals to zero sees smaller ones as zero.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
const LARGEST: f64 = f32::MAX as f64;
/// A growth factor that exceeds 1 by more than this changes every normal float32, and so does a backoff factor that is
/// below 1 by this.
const NOTICED: f64 = f32::EPSILON as f64 / 2.0;

impl Demand {
    /// Checks whether it is met; if not, returns the name, the value and the remedy.
    fn check(self, knobs: &Knobs) -> Result<(), (Knob, String, String)> {
        let Knobs { initial_scale, growth_interval, growth_factor, backoff_factor, hysteresis, .. } = *knobs;
        let minimum = knobs.minimum.unwrap_or(f64::NEG_INFINITY);
        let maximum = knobs.maximum.unwrap_or(f64::INFINITY);
        let number = |knob, value: f64, remedy: &str| (knob, format!("{value:?}"), remedy.to_owned());
        let count = |knob, value: i64| (knob, value.to_string(), "an int of 1 or more".to_owned());
        let (met, complaint) = match self {
            Self::IntervalPositive => (growth_interval >= 1, count(Knob::GrowthInterval, growth_interval)),
            Self::HysteresisPositive => (hysteresis >= 1, count(Knob::Hysteresis, hysteresis)),
            Self::GrowthAboveOne => {
                (growth_factor > 1.0, number(Knob::GrowthFactor, growth_factor, "a number above 1, as 2.0"))
            }
            Self::GrowthFinite => (
                growth_factor.is_finite(),
                number(Knob::GrowthFactor, growth_factor, "a finite number above 1, as 2.0"),
            ),
            Self::GrowthNoticed => (
                growth_factor > 1.0 + NOTICED,
                number(
                    Knob::GrowthFactor,
                    growth_factor,
                    "a number above 1 + 2**-24, which changes 32-bit floats, as 2.0",
                ),
            ),
            Self::BackoffNoticed => (
                backoff_factor <= 1.0 - NOTICED,
                number(
                    Knob::BackoffFactor,
                    backoff_factor,
                    "a number of at most 1 - 2**-24, which changes 32-bit floats, as 0.5",
                ),
            ),
            Self::BackoffBelowOne => (
                backoff_factor < 1.0,
                number(Knob::BackoffFactor, backoff_factor, "a number between 0 and 1, as 0.5"),
            ),
            Self::BackoffPositive => (
                backoff_factor > 0.0,
                number(Knob::BackoffFactor, backoff_factor, "a number between 0 and 1, as 0.5"),
            ),
            Self::MinimumPositive => (
                minimum >= SMALLEST,
                number(Knob::Minimum, minimum, "a number of 2**-126 or more that no scale is to go below"),
            ),
            Self::InitialPositive => (
                initial_scale > 0.0 && initial_scale < f64::INFINITY,
                number(Knob::InitialScale, initial_scale, "a positive finite number, as 32768.0"),
            ),
            Self::MinimumNotAboveMaximum => (
                minimum <= maximum,
                (Knob::Minimum, format!("{minimum:?}"), format!("maximum={maximum:?} or less")),
            ),
            Self::InitialNotBelowMinimum => (
                initial_scale >= minimum,
                (Knob::InitialScale, format!("{initial_scale:?}"), format!("minimum={minimum:?} or more")),
            ),
            Self::InitialNotAboveMaximum => (
                initial_scale <= maximum,
                (Knob::InitialScale, format!("{initial_scale:?}"), format!("maximum={maximum:?} or less")),
            ),
            Self::MaximumFinite => (
                maximum <= LARGEST,
                number(Knob::Maximum, maximum, "a finite number that a 32-bit float holds, as 2.0**24"),
            ),
        };
        if met { Ok(()) } else { Err(complaint) }
    }

    /// Checks all of several demands.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for the first that is not met.
    pub(crate) fn check_all(demands: &[Self], knobs: &Knobs) -> Result<(), Error> {
        demands.iter().try_for_each(|demand| {
            demand.check(knobs).map_err(|(knob, value, remedy)| Error::InvalidOption {
                message: format!("{}={value} is not valid; use {remedy}.", knob.name()),
            })
        })
    }
}
