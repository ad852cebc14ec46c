//! From a path to the few patterns that can match it.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;

use super::map::Slot;

/// The patterns of a map as they were when it was built.
#[derive(Debug)]
pub(super) struct Index {
    /// Finds all literals in one pass over a path; none if there are none.
    scanner: Option<AhoCorasick>,
    /// The patterns behind each literal of the scanner.
    behind: Vec<Vec<Slot>>,
    /// Patterns of which no literal is known.
    always: Vec<Slot>,
}

impl Index {
    /// Each pattern with its required sets of texts.
    pub(super) fn new<'a>(patterns: impl Iterator<Item = (Slot, &'a [Vec<Vec<u8>>])>) -> Self {
        let patterns: Vec<_> = patterns.collect();
        // The rarer a text among the patterns, the more it tells.
        let mut uses: HashMap<&[u8], usize> = HashMap::new();
        for text in patterns.iter().flat_map(|(_, sets)| sets.iter().flatten()) {
            *uses.entry(text).or_default() += 1;
        }
        let cost = |set: &&Vec<Vec<u8>>| {
            let shared: usize = set.iter().map(|text| uses[text.as_slice()]).sum();
            (shared, std::cmp::Reverse(set.iter().map(Vec::len).min()))
        };
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        let (mut texts, mut behind, mut always) = (Vec::new(), Vec::<Vec<Slot>>::new(), Vec::new());
        for (slot, sets) in &patterns {
            let Some(set) = sets.iter().min_by_key(cost) else {
                always.push(*slot);
                continue;
            };
            for text in set {
                let place = *places.entry(text).or_insert_with(|| {
                    texts.push(text.as_slice());
                    behind.push(Vec::new());
                    behind.len() - 1
                });
                behind[place].push(*slot);
            }
        }
        let scanner = AhoCorasick::builder().ascii_case_insensitive(true).build(&texts);
        match scanner {
            Ok(scanner) => Self { scanner: (!texts.is_empty()).then_some(scanner), behind, always },
            // More literals than the scanner can number.
            Err(_) => Self {
                scanner: None,
                behind: Vec::new(),
                always: patterns.iter().map(|&(slot, _)| slot).collect(),
            },
        }
    }

    /// Calls `visit` with each pattern that may match, some perhaps twice.
    pub(super) fn candidates(&self, path: &str, mut visit: impl FnMut(Slot)) {
        self.always.iter().for_each(|&slot| visit(slot));
        if let Some(scanner) = &self.scanner {
            for hit in scanner.find_overlapping_iter(path) {
                self.behind[hit.pattern().as_usize()].iter().for_each(|&slot| visit(slot));
            }
        }
    }
}
