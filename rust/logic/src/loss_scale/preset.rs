//! THE table of loss scales: one row per library, its columns the ways in which they differ.
//!
//! | row | defects that it reproduces, because code depends on the exact steps |
//! |---|---|
//! | `castwise` | none: never 0, infinity or NaN |
//! | `keras` | grows to infinity and stays there; sinks to 0 and stays there; an interval of 0, or a counter at or beyond it, never grows; checks nothing |
//! | `tf_keras`, `tf` | a scale below 1 is raised to 1 by the first NaN; a growth that would overflow starts the count again; checks nothing |
//! | `torch` | sinks to 0 and stays there; an interval of 0 never grows |
//! | `jmp` | a counter beyond the period wraps without growing; a period of 0 never grows; checks nothing |
//! | `mpx` | as `jmp`; a scale outside of its limits is used for a step before it is clipped |
//! | `megatron` | grows to infinity and stays there; one finite step does not restore the hysteresis, only a growth does |
//! | `apex` | without a minimum sinks to 0, in 64-bit floats |
//!
//! Sources: Keras 3.15 `optimizers/loss_scale_optimizer.py`; `tf_keras` 2.21 `mixed_precision/loss_scale_optimizer.py`;
//! TensorFlow 2.21 `training/experimental/loss_scale.py` (that of 2.4); `PyTorch` 2 `native/AmpKernels.cpp` and
//! `amp/grad_scaler.py`; jmp 0.0.4 `loss_scale.py`; mpx (mixed-precision-for-JAX) 0.1.8
//! `_loss_scaling.py`; Megatron-LM `optimizer/grad_scaler.py`; apex `amp/scaler.py`.

use super::field::Field;
use super::knobs::{Demand, Knob, Knobs};
use castwise_core::error::Error;

/// When finite steps are enough for growth, and what becomes of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// At the interval or beyond.
    Reached,
    /// Exactly at the interval.
    Equal,
    /// Exactly at the interval; the counter is taken modulo it.
    Modulo,
}

/// What becomes of a growth beyond the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ceiling {
    /// It ends at the maximum.
    Maximum,
    /// One that is not finite does not take place.
    Unchanged,
    /// It takes place.
    Open,
}

/// When the scale is brought between the minimum and the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limits {
    /// As it changes: the minimum when it backs off, the maximum as the ceiling says.
    AtChanges,
    /// After every step.
    AtEveryStep,
}

/// How the scale backs off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backoff {
    /// Multiplied by the backoff factor.
    Multiply,
    /// Divided by the growth factor.
    Divide,
}

/// What brings the full hysteresis back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restore {
    /// Any finite step.
    FiniteStep,
    /// A growth.
    Growth,
}

/// What the scale is kept and computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// Scale and factors are 32-bit floats.
    Single,
    /// The scale is a 32-bit float, factors have 64 bits; a product is rounded to 64 bits, then to 32.
    Mixed,
    /// Everything has 64 bits.
    Double,
}

/// A row: a library's defaults and habits.
#[derive(Debug, PartialEq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What is used where nothing is given.
    pub defaults: Knobs,
    /// What may be given.
    pub settable: &'static [Knob],
    /// What a saved state consists of, by the library's own keys.
    pub state: &'static [(&'static str, Field)],
    pub(super) growth: Growth,
    pub(super) ceiling: Ceiling,
    pub(super) limits: Limits,
    pub(super) backoff: Backoff,
    pub(super) restore: Restore,
    pub(super) arithmetic: Arithmetic,
    /// Its limits are rounded as its scale is, and numbers that it never saves are not loaded.
    pub(super) careful: bool,
    /// A first scale above the maximum becomes the maximum.
    pub(super) clamps_initial: bool,
    /// A minimum of 0 is none, as where a library asks whether the number is true.
    pub(super) zero_is_no_minimum: bool,
    pub(super) demands: &'static [Demand],
}

/// The numbers most libraries agree on; `minimum` 1 where there is one.
const COMMON: Knobs = Knobs {
    initial_scale: 32768.0,
    growth_interval: 2000,
    growth_factor: 2.0,
    backoff_factor: 0.5,
    minimum: None,
    maximum: None,
    hysteresis: 1,
};

/// What a row is where it says nothing else. It checks nothing.
const LENIENT: Preset = Preset {
    name: "",
    defaults: COMMON,
    settable: &[Knob::InitialScale, Knob::GrowthInterval],
    state: &[],
    growth: Growth::Reached,
    ceiling: Ceiling::Unchanged,
    limits: Limits::AtChanges,
    backoff: Backoff::Divide,
    restore: Restore::FiniteStep,
    arithmetic: Arithmetic::Single,
    careful: false,
    clamps_initial: false,
    zero_is_no_minimum: false,
    demands: &[],
};

/// TensorFlow's, of either version.
const TENSORFLOW: Preset = Preset {
    defaults: Knobs { minimum: Some(1.0), ..COMMON },
    state: &[("current_loss_scale", Field::Scale), ("good_steps", Field::Counter)],
    ..LENIENT
};

/// That of jmp, which mpx took over.
const JMP: Preset = Preset {
    defaults: Knobs { minimum: Some(1.0), ..COMMON },
    settable: &[Knob::InitialScale, Knob::GrowthInterval, Knob::GrowthFactor, Knob::Minimum],
    growth: Growth::Modulo,
    ..LENIENT
};

/// The largest number of float16.
const FLOAT16_MAX: f64 = 65504.0;

/// The table.
pub static PRESETS: &[Preset] = &[
    Preset {
        name: "castwise",
        // Between the two limits the scale and its reciprocal are exact normal numbers; and 2^24 times the smallest
        // number that a 16-bit float loses is one that it keeps.
        defaults: Knobs { minimum: Some(1.0 / 16_777_216.0), maximum: Some(16_777_216.0), ..COMMON },
        settable: &Knob::ALL,
        state: &[
            ("scale", Field::Scale),
            ("counter", Field::Counter),
            ("hysteresis_left", Field::HysteresisLeft),
            ("floor_steps", Field::FloorSteps),
        ],
        ceiling: Ceiling::Maximum,
        backoff: Backoff::Multiply,
        arithmetic: Arithmetic::Mixed,
        careful: true,
        demands: &[
            Demand::IntervalPositive,
            Demand::HysteresisPositive,
            Demand::GrowthAboveOne,
            Demand::GrowthFinite,
            Demand::GrowthNoticed,
            Demand::BackoffBelowOne,
            Demand::BackoffNoticed,
            Demand::BackoffPositive,
            Demand::MinimumPositive,
            Demand::MaximumFinite,
            Demand::MinimumNotAboveMaximum,
            Demand::InitialPositive,
            Demand::InitialNotBelowMinimum,
            Demand::InitialNotAboveMaximum,
        ],
        ..LENIENT
    },
    Preset {
        name: "keras",
        state: &[("dynamic_scale", Field::Scale), ("step_counter", Field::Counter)],
        growth: Growth::Equal,
        ceiling: Ceiling::Open,
        backoff: Backoff::Multiply,
        ..LENIENT
    },
    Preset { name: "tf_keras", ..TENSORFLOW },
    Preset {
        name: "tf",
        settable: &[Knob::InitialScale, Knob::GrowthInterval, Knob::GrowthFactor],
        ..TENSORFLOW
    },
    Preset {
        name: "torch",
        defaults: Knobs { initial_scale: 65536.0, ..COMMON },
        settable: &[Knob::InitialScale, Knob::GrowthInterval, Knob::GrowthFactor, Knob::BackoffFactor],
        state: &[
            ("scale", Field::Scale),
            ("growth_factor", Field::GrowthFactor),
            ("backoff_factor", Field::BackoffFactor),
            ("growth_interval", Field::GrowthInterval),
            ("_growth_tracker", Field::Counter),
        ],
        growth: Growth::Equal,
        backoff: Backoff::Multiply,
        arithmetic: Arithmetic::Mixed,
        demands: &[Demand::GrowthAboveOne, Demand::BackoffBelowOne],
        ..LENIENT
    },
    Preset { name: "jmp", state: &[("loss_scale", Field::Scale), ("counter", Field::Counter)], ..JMP },
    Preset {
        name: "mpx",
        // Its class has no first scale and no minimum; these are those of its documentation. The maximum is fixed.
        defaults: Knobs { initial_scale: FLOAT16_MAX, maximum: Some(FLOAT16_MAX), ..JMP.defaults },
        state: &[("loss_scaling", Field::Scale), ("counter", Field::Counter)],
        limits: Limits::AtEveryStep,
        ..JMP
    },
    Preset {
        name: "megatron",
        // Its class has no defaults; these are those of Megatron-LM's command line.
        defaults: Knobs {
            initial_scale: 4_294_967_296.0,
            growth_interval: 1000,
            minimum: Some(1.0),
            hysteresis: 2,
            ..COMMON
        },
        settable: &[
            Knob::InitialScale,
            Knob::GrowthInterval,
            Knob::GrowthFactor,
            Knob::BackoffFactor,
            Knob::Minimum,
            Knob::Hysteresis,
        ],
        state: &[
            ("scale", Field::Scale),
            ("growth_tracker", Field::Counter),
            ("hysteresis_tracker", Field::HysteresisLeft),
        ],
        growth: Growth::Equal,
        ceiling: Ceiling::Open,
        backoff: Backoff::Multiply,
        restore: Restore::Growth,
        demands: &[
            Demand::InitialPositive,
            Demand::MinimumPositive,
            Demand::InitialNotBelowMinimum,
            Demand::GrowthAboveOne,
            Demand::BackoffBelowOne,
            Demand::BackoffPositive,
            Demand::IntervalPositive,
            Demand::HysteresisPositive,
        ],
        ..LENIENT
    },
    Preset {
        name: "apex",
        defaults: Knobs { initial_scale: 65536.0, maximum: Some(16_777_216.0), ..COMMON },
        settable: &[Knob::InitialScale, Knob::GrowthInterval, Knob::Minimum, Knob::Maximum],
        state: &[("loss_scale", Field::Scale), ("unskipped", Field::Counter)],
        growth: Growth::Equal,
        ceiling: Ceiling::Maximum,
        arithmetic: Arithmetic::Double,
        clamps_initial: true,
        zero_is_no_minimum: true,
        // With 0 it would undo each backing off at once.
        demands: &[Demand::IntervalPositive],
        ..LENIENT
    },
];

impl Preset {
    /// The columns that say how a step is taken, each with its value's name: for machines that run elsewhere, as inside
    /// a traced program, and must take the same steps.
    #[must_use]
    pub fn rules(&self) -> [(&'static str, String); 6] {
        [
            ("growth", format!("{:?}", self.growth)),
            ("ceiling", format!("{:?}", self.ceiling)),
            ("limits", format!("{:?}", self.limits)),
            ("backoff", format!("{:?}", self.backoff)),
            ("restore", format!("{:?}", self.restore)),
            ("arithmetic", format!("{:?}", self.arithmetic)),
        ]
    }

    /// The row of this name.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] listing the names.
    pub fn named(name: &str) -> Result<&'static Self, Error> {
        PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| Error::UnknownOption {
            argument: "preset",
            value: format!("{name:?}"),
            valid: PRESETS.iter().map(|preset| preset.name).collect(),
        })
    }
}
