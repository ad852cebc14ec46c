//! From a path to the few patterns that can match it.

use std::collections::HashMap;
use std::fmt;

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder};

use super::matching::Slot;
use super::pattern::{Pattern, compiler};
use super::regex_set::RegexSet;

/// Patterns with the same literal are tried one by one up to this many; a literal with more selects too little.
const MOST_BEHIND: usize = 16;

/// An index of patterns.
pub(super) struct Index {
    /// Finds the places of all literals in one pass over a path in lower case; none if there are none.
    scanner: Option<DoubleArrayAhoCorasick<u32>>,
    /// The patterns behind each literal of the scanner, and the last lookup that found it.
    behind: Vec<(Vec<Slot>, u64)>,
    lookups: u64,
    /// Patterns without a distinguishing literal.
    regex_set: RegexSet,
}

impl fmt::Debug for Index {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Index").field("behind", &self.behind).finish_non_exhaustive()
    }
}

impl Index {
    pub(super) fn new<'a>(patterns: impl Iterator<Item = (Slot, &'a Pattern)>) -> Self {
        let patterns: Vec<_> = patterns.collect();
        let compiler = compiler();
        // The rarer a text among the patterns, the more it selects.
        let mut uses: HashMap<&[u8], usize> = HashMap::new();
        for text in patterns.iter().flat_map(|(_, pattern)| pattern.required.iter().flatten()) {
            *uses.entry(text).or_default() += 1;
        }
        let shared = |set: &Vec<Vec<u8>>| set.iter().map(|text| uses[text.as_slice()]).max().unwrap_or(0);
        let cost = |set: &&Vec<Vec<u8>>| (shared(set), std::cmp::Reverse(set.iter().map(Vec::len).min()));
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        let (mut texts, mut behind, mut regex_set) = (Vec::new(), Vec::<(Vec<Slot>, u64)>::new(), Vec::new());
        for (slot, pattern) in &patterns {
            let Some(set) = pattern.required.iter().min_by_key(cost).filter(|set| shared(set) <= MOST_BEHIND)
            else {
                regex_set.push((*slot, *pattern));
                continue;
            };
            pattern.compile(&compiler);
            for text in set {
                let place = *places.entry(text).or_insert_with(|| {
                    texts.push(text.as_slice());
                    behind.push((Vec::new(), 0));
                    behind.len() - 1
                });
                behind[place].0.push(*slot);
            }
        }
        // A prefilter, a table of 64 KB, serves searches of slices only; `candidates` lowers the path as it goes.
        let builder = || DoubleArrayAhoCorasickBuilder::new().use_prefilter(false).build(&texts);
        let scanner = (!texts.is_empty()).then(builder).transpose();
        match scanner {
            Ok(scanner) => {
                Self { scanner, behind, lookups: 0, regex_set: RegexSet::new(&regex_set, &compiler) }
            }
            // There are more literals than the scanner can number.
            Err(_) => Self {
                scanner: None,
                behind: Vec::new(),
                lookups: 0,
                regex_set: RegexSet::new(&patterns, &compiler),
            },
        }
    }

    /// Calls `visit` with each pattern that may match, and whether it does for certain; one with several literals perhaps
    /// several times.
    pub(super) fn candidates(&mut self, path: &str, mut visit: impl FnMut(Slot, bool)) {
        self.regex_set.candidates(path, &mut visit);
        let Some(scanner) = &self.scanner else { return };
        self.lookups += 1;
        let lowered = path.bytes().map(|byte| byte.to_ascii_lowercase());
        for hit in scanner.find_overlapping_iter_from_iter(lowered) {
            let (slots, found) = &mut self.behind[hit.value() as usize];
            if std::mem::replace(found, self.lookups) != self.lookups {
                for &slot in slots.iter() {
                    visit(slot, false);
                }
            }
        }
    }
}
