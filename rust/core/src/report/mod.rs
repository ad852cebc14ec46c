//! What a cast lost, collected tile by tile: from its values without flags (`collector`), or from flags (`measure`).

pub(crate) mod cast_report;
pub(crate) mod collector;
mod counters;
pub(crate) mod extremes;
mod histogram;
pub(crate) mod max_relative_error;
pub(crate) mod measure;
mod square_sum;
pub(crate) mod squares;
mod subnormal_count;
pub(crate) mod tile_statistics;
pub(crate) mod values;

pub use cast_report::{CastReport, CompactReport, Report};
pub use square_sum::SquareSum;
