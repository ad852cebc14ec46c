//! Delayed scaling: the scale of a narrow float tensor from the largest magnitudes it had before.
//!
//! ```text
//! codes = saturate(values / scale)                      scale: what one unit of the codes is worth
//! history = [max |values|] + history without its oldest
//! scale = max(history) / (largest code's value / 2^margin)
//! ```
//!
//! | recipe | history that a scale is made from | what is stored | a NaN or infinite amax |
//! |---|---|---|---|
//! | `castwise` | with this step's amax | the scale | is left out: history and scale stay |
//! | `keras` | *before* this step's amax: it acts two steps later | the scale | is stored, and freezes the scale until it has left the history |
//! | `transformer_engine` | with this step's amax | the reciprocal, by which values are multiplied | is stored, likewise |
//!
//! All arithmetic is float32's, operation by operation that of the originals: Keras 3.15
//! `quantizers.compute_float8_scale` and `compute_float8_amax_history`; `TransformerEngine` 2
//! `fp8._default_sf_compute` and `_update_amax_history`.

use castwise_core::codec::options::Named;
use castwise_core::cpu::DefaultEnvironment;
use castwise_core::error::Error;
use castwise_core::format::{FloatSpec, Format, Specials};

/// The rules of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// Our own.
    Castwise,
    /// Keras'.
    Keras,
    /// NVIDIA's.
    TransformerEngine,
}

/// How the history is reduced to one amax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmaxAlgorithm {
    /// Its largest value.
    Max,
    /// Its newest value.
    MostRecent,
}

impl Named for Recipe {
    const ARGUMENT: &'static str = "preset";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("castwise", Self::Castwise),
        ("keras", Self::Keras),
        ("transformer_engine", Self::TransformerEngine),
    ];
}

impl Named for AmaxAlgorithm {
    const ARGUMENT: &'static str = "amax_algorithm";
    const NAMES: &'static [(&'static str, Self)] = &[("max", Self::Max), ("most_recent", Self::MostRecent)];
}

/// The longest history: 4 MiB, and every step makes a new one.
pub const LONGEST_HISTORY: usize = 1 << 20;

/// The scales of `Castwise`: within what has a reciprocal.
const SCALES: std::ops::RangeInclusive<f32> = f32::MIN_POSITIVE..=1.0 / f32::MIN_POSITIVE;

/// OCP's E4M3, found by its layout.
///
/// # Panics
/// Never: the table has a row for it.
#[must_use]
pub fn default_format() -> Format {
    let wanted = FloatSpec {
        signed: true,
        exponent_bits: 4,
        mantissa_bits: 3,
        bias: 7,
        specials: Specials::FiniteNan,
    };
    let found = Format::all().find(|format| format.float() == Some(wanted));
    found.expect("the table has a row for it")
}

/// The state of one tensor: a value.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayedScaling {
    format: Format,
    recipe: Recipe,
    algorithm: AmaxAlgorithm,
    margin: i32,
    /// The scale, or for `TransformerEngine` its reciprocal.
    stored: f32,
    /// `Castwise`: newest first. Others as they keep it: the newest (a place for it), then from the oldest on.
    history: Vec<f32>,
}

impl DelayedScaling {
    /// Makes the state before the first step: a scale of 1 and a history of zeros.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a format without finite range, a history that is empty or longer than
    /// [`LONGEST_HISTORY`], or a margin beyond float32.
    pub fn new(
        format: Format,
        recipe: Recipe,
        algorithm: AmaxAlgorithm,
        history_length: usize,
        margin: i32,
    ) -> Result<Self, Error> {
        let invalid = |message: String| Err(Error::InvalidOption { message });
        if !format.float().is_some_and(|spec| spec.signed && format.row().bits <= 16) {
            return invalid(format!(
                "dtype={format:?} is not valid; use a signed float of 16 bits or fewer."
            ));
        }
        if !(1..=LONGEST_HISTORY).contains(&history_length) {
            return invalid(format!(
                "amax_history_length={history_length} is not valid; use an int from 1 to {LONGEST_HISTORY}."
            ));
        }
        if !(-100..=100).contains(&margin) {
            return invalid(format!("margin={margin} is not valid; use an int from -100 to 100."));
        }
        if recipe == Recipe::Keras && algorithm == AmaxAlgorithm::MostRecent {
            return invalid(
                "amax_algorithm=\"most_recent\" is not valid with preset=\"keras\"; use \"max\".".to_owned(),
            );
        }
        Ok(Self { format, recipe, algorithm, margin, stored: 1.0, history: vec![0.0; history_length] })
    }

    /// The format of the codes.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the rules that it follows.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// Returns how its history is reduced.
    #[must_use]
    pub fn algorithm(&self) -> AmaxAlgorithm {
        self.algorithm
    }

    /// Returns the powers of two that are left free above the largest value.
    #[must_use]
    pub fn margin(&self) -> i32 {
        self.margin
    }

    /// The largest magnitudes of former steps.
    #[must_use]
    pub fn history(&self) -> &[f32] {
        &self.history
    }

    /// The largest magnitudes of former steps, subnormal ones too whatever the host's environment.
    #[must_use]
    pub fn wide_history(&self) -> Vec<f64> {
        DefaultEnvironment::compute(self, |this| this.history.iter().map(|&amax| f64::from(amax)).collect())
    }

    /// The number that is stored: the scale, or for `TransformerEngine` its reciprocal.
    #[must_use]
    pub fn stored(&self) -> f64 {
        DefaultEnvironment::compute(self.stored, f64::from)
    }

    /// What one unit of the codes is worth.
    #[must_use]
    pub fn scale(&self) -> f64 {
        let inverse = self.recipe == Recipe::TransformerEngine;
        DefaultEnvironment::compute(self.stored, |stored| {
            f64::from(if inverse { reciprocal(stored) } else { stored })
        })
    }

    /// Returns the number by which values become codes, and whether they are divided by it.
    #[must_use]
    pub fn operand(&self) -> (f64, bool) {
        (self.stored(), self.recipe != Recipe::TransformerEngine)
    }

    /// Returns this recipe in another state.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for numbers that the recipe never reaches (0 and infinity are scales of the
    /// originals', NaN and infinity are in their histories), or a history of another length.
    pub fn with_state(&self, stored: f64, history: &[f64]) -> Result<Self, Error> {
        DefaultEnvironment::compute(stored, |stored| self.restored(stored, history))
    }

    fn restored(&self, stored: f64, history: &[f64]) -> Result<Self, Error> {
        let careful = self.recipe == Recipe::Castwise;
        let scale = stored as f32;
        if !(if careful { SCALES.contains(&scale) } else { scale >= 0.0 }) {
            let remedy = if careful { "from 2**-126 to 2**126" } else { "of 0 or more" };
            return Err(Error::InvalidOption {
                message: format!("state: scale={stored:?} is not valid; use a number {remedy}."),
            });
        }
        if history.len() != self.history.len() {
            return Err(Error::InvalidOption {
                message: format!(
                    "state: amax_history has {} values, amax_history_length={} are needed; load it into the \
                     history length that saved it.",
                    history.len(),
                    self.history.len()
                ),
            });
        }
        let possible = |amax: &f64| {
            let beyond = amax.is_finite() && *amax > f64::from(f32::MAX);
            !(*amax < 0.0 || beyond || (careful && !amax.is_finite()))
        };
        if let Some((place, amax)) = history.iter().enumerate().find(|(_, amax)| !possible(amax)) {
            let finite = if careful { "finite " } else { "" };
            return Err(Error::InvalidOption {
                message: format!(
                    "state: amax_history[{place}]={amax:?} is not valid; use {finite}float32 numbers of 0 or more."
                ),
            });
        }
        let history = history.iter().map(|&amax| amax as f32).collect();
        Ok(Self { stored: scale, history, ..self.clone() })
    }

    /// The state after a step in which the largest magnitude was `amax`. A finite one beyond float32 counts as the
    /// largest float32.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a negative number.
    pub fn next(&self, amax: f64) -> Result<Self, Error> {
        DefaultEnvironment::compute(amax, |amax| self.after(amax))
    }

    fn after(&self, amax: f64) -> Result<Self, Error> {
        if amax < 0.0 {
            return Err(Error::InvalidOption {
                message: format!("amax={amax:?} is not valid; use a magnitude, a number of 0 or more."),
            });
        }
        let amax = narrow(amax);
        let mut next = self.clone();
        match self.recipe {
            Recipe::Castwise => next.update(amax),
            Recipe::Keras => next.update_as_keras(amax),
            Recipe::TransformerEngine => next.update_as_transformer_engine(amax),
        }
        Ok(next)
    }

    fn update(&mut self, amax: f32) {
        if !amax.is_finite() {
            return;
        }
        self.history.rotate_right(1);
        self.history[0] = amax;
        let amax = self.amax();
        if amax > 0.0 {
            let scale = amax / (self.largest() / self.margin_factor());
            self.stored = scale.clamp(*SCALES.start(), *SCALES.end());
        }
    }

    fn update_as_keras(&mut self, amax: f32) {
        let unchanged = reciprocal(self.stored);
        let found = self.amax();
        let factor = self.largest() / found / self.margin_factor();
        let factor = if found > 0.0 && found.is_finite() { factor } else { unchanged };
        self.stored = reciprocal(factor);
        self.history.rotate_left(1);
        self.history[0] = amax;
    }

    fn update_as_transformer_engine(&mut self, amax: f32) {
        self.history[0] = amax;
        let found = self.amax();
        if found > 0.0 && found.is_finite() {
            let factor = self.largest() / found / self.margin_factor();
            self.stored = if factor.is_infinite() { f32::MAX } else { factor };
        }
        self.history.rotate_left(1);
        self.history[0] = 0.0;
    }

    /// Reduces the history; NaN if it has one.
    fn amax(&self) -> f32 {
        match self.algorithm {
            AmaxAlgorithm::MostRecent => self.history[0],
            AmaxAlgorithm::Max => self
                .history
                .iter()
                .fold(0.0, |most: f32, &amax| if amax > most || amax.is_nan() { amax } else { most }),
        }
    }

    /// The value of the largest code.
    fn largest(&self) -> f32 {
        self.format
            .float()
            .map_or(1.0, |spec| castwise_core::codec::reference::value_of(&spec, spec.max_code()) as f32)
    }

    fn margin_factor(&self) -> f32 {
        2f32.powi(self.margin)
    }
}

fn narrow(amax: f64) -> f32 {
    if amax.is_finite() { amax.min(f64::from(f32::MAX)) as f32 } else { amax as f32 }
}

fn reciprocal(number: f32) -> f32 {
    1.0 / number
}
