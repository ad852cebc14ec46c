//! What a saved state of a loss scale is made of.

/// A number of a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// [`super::State::scale`].
    Scale,
    /// [`super::State::counter`].
    Counter,
    /// [`super::State::hysteresis_left`].
    HysteresisLeft,
    /// [`super::State::floor_steps`].
    FloorSteps,
    /// [`super::Knobs::growth_factor`].
    GrowthFactor,
    /// [`super::Knobs::backoff_factor`].
    BackoffFactor,
    /// [`super::Knobs::growth_interval`].
    GrowthInterval,
}
