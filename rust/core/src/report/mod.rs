//! What a cast lost, found out tile by tile beside its plain stages (`watch`), or from flags (`measure`).

mod cast_report;
mod extremes;
mod glance;
mod histogram;
mod low;
pub(crate) mod measure;
mod square_sum;
mod squares;
mod steepest;
mod tally;
pub(crate) mod watch;

pub use cast_report::{CastReport, CompactReport, Report};
pub use square_sum::SquareSum;
