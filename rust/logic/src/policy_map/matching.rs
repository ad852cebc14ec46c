//! How keys are matched, and the paths for which a translated key is valid.

use castwise_core::codec::options::Named;

/// How much of a path a key must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// All of it (Keras 3.12 and later).
    Full,
    /// Any part of it (Keras 3.4 to 3.11).
    Search,
}

impl Named for Matching {
    const ARGUMENT: &'static str = "match";
    const NAMES: &'static [(&'static str, Self)] = &[("fullmatch", Self::Full), ("search", Self::Search)];
}

/// What Python's character classes hold, each as the items of a set.
#[derive(Clone, Debug)]
pub struct Classes {
    /// `\d`
    pub digit: String,
    /// `\s`
    pub space: String,
    /// `\w`
    pub word: String,
}

impl Classes {
    pub(super) fn items(&self, letter: char) -> Option<&str> {
        match letter {
            'd' => Some(&self.digit),
            's' => Some(&self.space),
            'w' => Some(&self.word),
            _ => None,
        }
    }
}

/// The paths for which a translated pattern is equivalent; others are Python's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Only paths of ASCII characters.
    pub ascii_only: bool,
    /// Only paths without a newline.
    pub no_newline: bool,
}

impl Domain {
    pub(super) fn contains(self, path: &str) -> bool {
        !(self.ascii_only && !path.is_ascii() || self.no_newline && path.contains('\n'))
    }
}

/// A key's place in the order of insertion; never used twice.
pub(super) type Slot = usize;
