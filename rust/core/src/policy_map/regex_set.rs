//! The patterns without distinguishing literals: one lazy automaton for all of them.

use regex_automata::meta::{self, Regex};
use regex_automata::{Anchored, Input, MatchKind, PatternSet};

use super::matching::{Domain, Slot};
use super::pattern::Pattern;

/// Up to this many patterns are tried one by one.
const SMALL: usize = 8;

/// Bytes that the states of the automaton may take; beyond, its cache is cleared.
const STATE_BYTES: usize = 1 << 26;

/// Bytes that the automaton of all patterns may take, without its cache.
const PATTERN_BYTES: usize = 1 << 28;

#[derive(Debug)]
pub(super) struct RegexSet {
    slots: Vec<Slot>,
    /// The paths that are in the domain of every pattern.
    domain: Domain,
    /// `None` for few patterns, or for too many for one automaton.
    together: Option<Together>,
}

#[derive(Debug)]
struct Together {
    regex: Regex,
    found: PatternSet,
}

impl RegexSet {
    pub(super) fn new(patterns: &[(Slot, &Pattern)]) -> Self {
        let slots = patterns.iter().map(|&(slot, _)| slot).collect();
        let linear: Vec<_> = patterns.iter().filter_map(|(_, pattern)| pattern.linear()).collect();
        let domain = linear.iter().fold(Domain::default(), |all, (_, domain)| Domain {
            ascii_only: all.ascii_only | domain.ascii_only,
            no_newline: all.no_newline | domain.no_newline,
        });
        let together = || {
            let settings = meta::Config::new()
                .match_kind(MatchKind::All)
                .hybrid_cache_capacity(STATE_BYTES)
                .nfa_size_limit(Some(PATTERN_BYTES));
            let expressions: Vec<_> = linear.iter().map(|&(expression, _)| expression).collect();
            let regex = Regex::builder().configure(settings).build_many_from_hir(&expressions).ok()?;
            Some(Together { found: PatternSet::new(regex.pattern_len()), regex })
        };
        let together = if patterns.len() > SMALL { together() } else { None };
        Self { slots, domain, together }
    }

    /// Calls `visit` with each pattern that may match.
    pub(super) fn candidates(&mut self, path: &str, visit: &mut impl FnMut(Slot)) {
        let together = self.together.as_mut().filter(|_| self.domain.contains(path));
        let Some(Together { regex, found }) = together else {
            return self.slots.iter().for_each(|&slot| visit(slot));
        };
        found.clear();
        regex.which_overlapping_matches(&Input::new(path).anchored(Anchored::Yes), found);
        found.iter().for_each(|pattern| visit(self.slots[pattern.as_usize()]));
    }
}
