//! Reports: what a cast lost, watched tile by tile beside its plain stages (`watch`), or from flags (`measure`).

pub(super) mod extremes;
pub(super) mod glance;
pub(super) mod histogram;
pub(super) mod low;
pub(super) mod measure;
pub(super) mod squares;
pub(super) mod steepest;
pub(super) mod tally;
pub(super) mod watch;
