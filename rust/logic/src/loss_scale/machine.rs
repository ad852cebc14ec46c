//! The one transition, for every row of the table.

use super::field::Field;
use super::knobs::{Demand, Knob, Knobs};
use super::preset::{Arithmetic, Backoff, Ceiling, Growth, Limits, Preset, Restore};
use castwise_core::cpu::DefaultEnvironment;
use castwise_core::error::Error;

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// What the loss is multiplied by.
    pub scale: f64,
    /// Finite steps since the last change.
    pub counter: i64,
    /// Nonfinite steps that are left before the scale backs off.
    pub hysteresis_left: i64,
    /// Nonfinite steps in a row that found the scale at its minimum.
    pub floor_steps: i64,
}

/// What happened in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The scale grew.
    Grew,
    /// The scale would have grown, but is at its limit.
    AtCeiling,
    /// The scale backed off.
    BackedOff,
    /// The scale would have backed off, but is at its minimum.
    AtFloor,
    /// The scale waits for more nonfinite steps before it backs off.
    HeldBack,
    /// The scale is not a positive finite number any more: every gradient from here on is lost.
    Lost,
}

impl Event {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grew => "grew",
            Self::AtCeiling => "at the ceiling",
            Self::BackedOff => "backed off",
            Self::AtFloor => "at the floor",
            Self::HeldBack => "held back",
            Self::Lost => "lost",
        }
    }
}

/// What a step leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition {
    /// The machine afterwards.
    pub next: DynamicLossScale,
    /// Whether the step's gradients are to be applied.
    pub applies: bool,
    /// What happened to the scale.
    pub event: Option<Event>,
}

/// A value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of a real one.
    Real(f64),
    /// Of one that counts.
    Whole(i64),
}

/// A loss scale that looks for the largest value under which gradients stay finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicLossScale {
    preset: &'static Preset,
    knobs: Knobs,
    state: State,
}

impl DynamicLossScale {
    /// The machine at its first step.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a number that the preset refuses.
    pub fn new(preset: &'static Preset, knobs: Knobs) -> Result<Self, Error> {
        DefaultEnvironment::compute(knobs, |knobs| {
            Demand::check_all(preset.demands, &knobs)?;
            Ok(Self::at_start(preset, knobs))
        })
    }

    fn at_start(preset: &'static Preset, mut knobs: Knobs) -> Self {
        if preset.careful {
            let Knobs { initial_scale, minimum, maximum, .. } = knobs;
            let stored = |value| stored(preset.arithmetic, value);
            let (minimum, maximum) = (minimum.map(stored), maximum.map(stored));
            knobs = Knobs { initial_scale: stored(initial_scale), minimum, maximum, ..knobs };
        }
        knobs.minimum = knobs.minimum.filter(|&minimum| minimum != 0.0 || !preset.zero_is_no_minimum);
        let highest = knobs.maximum.filter(|_| preset.clamps_initial).unwrap_or(f64::INFINITY);
        let initial = if highest < knobs.initial_scale { highest } else { knobs.initial_scale };
        let state = State {
            scale: stored(preset.arithmetic, initial),
            counter: 0,
            hysteresis_left: knobs.hysteresis,
            floor_steps: 0,
        };
        Self { preset, knobs, state }
    }

    /// Its row.
    #[must_use]
    pub fn preset(&self) -> &'static Preset {
        self.preset
    }

    /// Its numbers.
    #[must_use]
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The machine after a step whose gradients were all finite, or not.
    #[must_use]
    pub fn next(&self, finite: bool) -> Transition {
        let (state, event) = DefaultEnvironment::compute(self, |this| {
            let (state, event) = if finite { this.after_finite() } else { this.after_nonfinite() };
            let usable = state.scale > 0.0 && state.scale < f64::INFINITY;
            (state, if usable { event } else { Some(Event::Lost) })
        });
        Transition { next: Self { state, ..*self }, applies: finite, event }
    }

    fn after_finite(&self) -> (State, Option<Event>) {
        let (Preset { growth, restore, .. }, Knobs { growth_interval, hysteresis, .. }) =
            (self.preset, self.knobs);
        let counter = self.state.counter.saturating_add(1);
        let grows = match growth {
            Growth::Reached => counter >= growth_interval,
            Growth::Equal | Growth::Modulo => counter == growth_interval,
        };
        let counter = match growth {
            _ if grows => 0,
            Growth::Modulo if growth_interval == 0 => 0,
            Growth::Modulo => modulo(counter, growth_interval),
            Growth::Reached | Growth::Equal => counter,
        };
        let scale = self.limited(if grows { self.grown() } else { self.state.scale });
        let restored = grows || *restore == Restore::FiniteStep;
        let hysteresis_left = if restored { hysteresis } else { self.state.hysteresis_left };
        let event = grows.then_some(if scale == self.state.scale { Event::AtCeiling } else { Event::Grew });
        (State { scale, counter, hysteresis_left, floor_steps: 0 }, event)
    }

    fn after_nonfinite(&self) -> (State, Option<Event>) {
        let before = self.state;
        let left = before.hysteresis_left.saturating_sub(1);
        let state = State {
            counter: 0,
            hysteresis_left: if self.preset.restore == Restore::Growth { left } else { left.max(0) },
            ..before
        };
        if left > 0 {
            return (state, Some(Event::HeldBack));
        }
        let scale = self.limited(self.backed_off());
        if scale < before.scale {
            return (State { scale, floor_steps: 0, ..state }, Some(Event::BackedOff));
        }
        (State { scale, floor_steps: before.floor_steps.saturating_add(1), ..state }, Some(Event::AtFloor))
    }

    fn grown(&self) -> f64 {
        let Preset { arithmetic, ceiling, .. } = self.preset;
        let scale = self.state.scale;
        let grown = product(*arithmetic, scale, self.knobs.growth_factor);
        match (ceiling, self.knobs.maximum) {
            (Ceiling::Unchanged, _) if !grown.is_finite() => scale,
            (Ceiling::Maximum, Some(maximum)) => {
                let maximum = stored(*arithmetic, maximum);
                if grown < maximum { grown } else { maximum }
            }
            _ => grown,
        }
    }

    fn backed_off(&self) -> f64 {
        let Preset { arithmetic, backoff, .. } = self.preset;
        let Knobs { growth_factor, backoff_factor, minimum, .. } = self.knobs;
        let scale = self.state.scale;
        let lower = match backoff {
            Backoff::Multiply => product(*arithmetic, scale, backoff_factor),
            Backoff::Divide => quotient(*arithmetic, scale, growth_factor),
        };
        match minimum.map(|minimum| stored(*arithmetic, minimum)) {
            // A NaN stays one.
            Some(minimum) if lower < minimum => minimum,
            _ => lower,
        }
    }

    /// A scale after a step, between the limits where these hold at every step; a NaN stays one.
    fn limited(&self, scale: f64) -> f64 {
        let Preset { arithmetic, limits, .. } = self.preset;
        let limit = |value: Option<f64>| value.filter(|_| *limits == Limits::AtEveryStep);
        let scale = match limit(self.knobs.minimum).map(|minimum| stored(*arithmetic, minimum)) {
            Some(minimum) if scale < minimum => minimum,
            _ => scale,
        };
        match limit(self.knobs.maximum).map(|maximum| stored(*arithmetic, maximum)) {
            Some(maximum) if scale > maximum => maximum,
            _ => scale,
        }
    }

    /// What backing off multiplies the scale by.
    #[must_use]
    pub fn backoff_factor(&self) -> f64 {
        match self.preset.backoff {
            Backoff::Multiply => self.knobs.backoff_factor,
            Backoff::Divide => DefaultEnvironment::compute(self.knobs.growth_factor, f64::recip),
        }
    }

    /// The machine in a state of another with the same preset and numbers.
    #[must_use]
    pub fn in_state(&self, state: State) -> Self {
        Self { state, ..*self }
    }

    /// A number of its saved state.
    #[must_use]
    pub fn get(&self, field: Field) -> Number {
        match field {
            Field::Scale => Number::Real(self.state.scale),
            Field::Counter => Number::Whole(self.state.counter),
            Field::HysteresisLeft => Number::Whole(self.state.hysteresis_left),
            Field::FloorSteps => Number::Whole(self.state.floor_steps),
            Field::GrowthFactor => Number::Real(self.knobs.growth_factor),
            Field::BackoffFactor => Number::Real(self.knobs.backoff_factor),
            Field::GrowthInterval => Number::Whole(self.knobs.growth_interval),
        }
    }

    /// The machine with the numbers of a saved state, which come under its preset's keys.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a number that the preset refuses, or would never have saved.
    pub fn with_state(&self, numbers: &[(Field, Number)]) -> Result<Self, Error> {
        DefaultEnvironment::compute(numbers, |numbers| self.restored(numbers))
    }

    fn restored(&self, numbers: &[(Field, Number)]) -> Result<Self, Error> {
        let mut restored = *self;
        for &(field, number) in numbers {
            let (State { scale, counter, hysteresis_left, floor_steps }, knobs) =
                (&mut restored.state, &mut restored.knobs);
            match (field, number) {
                (Field::Scale, Number::Real(value)) => *scale = value,
                (Field::Counter, Number::Whole(value)) => *counter = value,
                (Field::HysteresisLeft, Number::Whole(value)) => *hysteresis_left = value,
                (Field::FloorSteps, Number::Whole(value)) => *floor_steps = value,
                (Field::GrowthFactor, Number::Real(value)) => knobs.growth_factor = value,
                (Field::BackoffFactor, Number::Real(value)) => knobs.backoff_factor = value,
                (Field::GrowthInterval, Number::Whole(value)) => knobs.growth_interval = value,
                (field, Number::Whole(_)) => return Err(self.unlike(field, "a number")),
                (field, Number::Real(_)) => return Err(self.unlike(field, "an int")),
            }
        }
        // What is demanded of a first scale is demanded of every one, except where an original goes beyond it.
        let own = restored.knobs.initial_scale;
        let scale = if self.preset.careful { restored.state.scale } else { own };
        let as_first = Knobs { initial_scale: scale, ..restored.knobs };
        Demand::check_all(self.preset.demands, &as_first).map_err(|error| {
            let (initial, scale) = (Knob::InitialScale.name(), self.key(Field::Scale));
            Error::InvalidOption { message: format!("state: {}", error.to_string().replace(initial, scale)) }
        })?;
        for field in [Field::Counter, Field::HysteresisLeft, Field::FloorSteps] {
            if let Number::Whole(count @ ..0) = restored.get(field)
                && self.preset.careful
            {
                let key = self.key(field);
                let message = format!("state: {key}={count} is not valid; use an int of 0 or more.");
                return Err(Error::InvalidOption { message });
            }
        }
        let (left, most) = (restored.state.hysteresis_left, self.knobs.hysteresis);
        if self.preset.careful && left > most {
            let key = self.key(Field::HysteresisLeft);
            let message =
                format!("state: {key}={left} is not valid; use an int of at most hysteresis={most}.");
            return Err(Error::InvalidOption { message });
        }
        restored.state.scale = stored(self.preset.arithmetic, restored.state.scale);
        Ok(restored)
    }

    fn key(&self, field: Field) -> &'static str {
        self.preset.state.iter().find(|(_, known)| *known == field).map_or("scale", |&(key, _)| key)
    }

    fn unlike(&self, field: Field, wanted: &str) -> Error {
        Error::InvalidOption { message: format!("state: {:?} must be {wanted}.", self.key(field)) }
    }
}

/// The remainder with the divisor's sign, as Python's.
fn modulo(number: i64, divisor: i64) -> i64 {
    let remainder = number.wrapping_rem(divisor);
    // The two have different signs where they are added: no overflow.
    if remainder != 0 && (remainder < 0) != (divisor < 0) { remainder + divisor } else { remainder }
}

/// A fixed scale as it is stored, if it is positive and finite then.
pub(super) fn usable(scale: f64) -> Option<f64> {
    let stored = stored(Arithmetic::Single, scale);
    (stored > 0.0 && stored < f64::INFINITY).then_some(stored)
}

/// A value as a scale is stored.
fn stored(arithmetic: Arithmetic, value: f64) -> f64 {
    match arithmetic {
        Arithmetic::Single | Arithmetic::Mixed => f64::from(value as f32),
        Arithmetic::Double => value,
    }
}

fn product(arithmetic: Arithmetic, scale: f64, factor: f64) -> f64 {
    match arithmetic {
        Arithmetic::Single => f64::from(scale as f32 * factor as f32),
        Arithmetic::Mixed => f64::from((scale * factor) as f32),
        Arithmetic::Double => scale * factor,
    }
}

fn quotient(arithmetic: Arithmetic, scale: f64, divisor: f64) -> f64 {
    match arithmetic {
        Arithmetic::Single => f64::from(scale as f32 / divisor as f32),
        Arithmetic::Mixed => f64::from((scale / divisor) as f32),
        Arithmetic::Double => scale / divisor,
    }
}
