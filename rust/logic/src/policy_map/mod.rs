//! A map from paths to values by exact key, then by regular expression, whose lookups do not slow down as it grows.
//!
//! ```text
//! map        keys in order, each with its value; exact hits; which keys match a path; who wins
//! translate  Python's syntax -> an equivalent expression for the linear engine, or "only Python can"
//! matching   how much of a path a key must match; the paths that a translation is good for
//! pattern    one key's matcher: linear in the path, whatever the pattern (no backtracking blow-up)
//! literals   what every match of a pattern must contain
//! index      literals -> the few patterns that can match a path at all
//! regex_set  patterns without such literals, all in one automaton
//! ```
//!
//! A lookup scans the path once for all literals, then tries only the patterns whose literals it found. Patterns come
//! from model files, so nothing here takes more than linear time in a path.

mod index;
mod literals;
mod map;
mod matching;
mod pattern;
mod regex_set;
mod translate;

pub use map::{Key, Matches, Overlap, PolicyMap};
pub use matching::{Classes, Domain, Matching};
pub use pattern::{Engine, Pattern};
