//! Loss scaling: state machines as values.
//!
//! ```text
//! scale, counter = initial, 0
//! for each step:
//!     gradients of (loss * scale), divided by scale
//!     if all are finite:
//!         apply them; counter += 1
//!         if counter >= growth_interval:  scale = min(scale * growth_factor, maximum);  counter = 0
//!     else:
//!         leave them out;  counter = 0
//!         if that happened hysteresis times in a row:  scale = max(scale * backoff_factor, minimum)
//! ```
//!
//! Other libraries do the same on most steps, and differ at the edges. [`preset`] has a row for each, whose columns
//! are those differences; [`machine`] has the one transition, which reads the row.

pub mod field;
pub mod knobs;
pub mod machine;
pub mod preset;

pub use field::Field;
pub use knobs::{Knob, Knobs};
pub use machine::{DynamicLossScale, Event, Number, State, Transition};
pub use preset::Preset;

use castwise_core::cpu::DefaultEnvironment;
use castwise_core::error::Error;

/// A loss scale that never changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedLossScale {
    scale: f64,
    skip_nonfinite: bool,
}

impl FixedLossScale {
    /// A scale for every step. With `skip_nonfinite`, steps whose gradients are not finite are left out.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the scale is not a positive finite float32.
    pub fn new(scale: f64, skip_nonfinite: bool) -> Result<Self, Error> {
        if let Some(scale) = DefaultEnvironment::compute(scale, machine::usable) {
            return Ok(Self { scale, skip_nonfinite });
        }
        Err(Error::InvalidOption {
            message: format!(
                "scale={scale:?} is not valid; use a positive finite number that a 32-bit float holds, such as 1024."
            ),
        })
    }

    /// What the loss is multiplied by.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Whether steps with gradients that are not finite are left out.
    #[must_use]
    pub fn skips_nonfinite(&self) -> bool {
        self.skip_nonfinite
    }

    /// Whether a step is to be taken.
    #[must_use]
    pub fn applies(&self, finite: bool) -> bool {
        finite || !self.skip_nonfinite
    }
}
