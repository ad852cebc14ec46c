//! The patterns without distinguishing literals: one lazy automaton for all of them.

use regex_automata::hybrid::dfa::{Cache, DFA, OverlappingState};
use regex_automata::nfa::thompson::{self, Compiler, NFA, WhichCaptures};
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::hir::Hir;

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
    automaton: DFA,
    /// Its states, as far as paths have met them.
    states: Cache,
    /// The last lookup that each pattern was found in.
    found: Vec<u64>,
    lookups: u64,
}

impl Together {
    fn new(expressions: &[&Hir]) -> Option<Self> {
        let settings =
            thompson::Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(PATTERN_BYTES));
        let nfa = NFA::compiler().configure(settings).build_many_from_hir(expressions).ok()?;
        let settings = DFA::config().match_kind(MatchKind::All).cache_capacity(STATE_BYTES);
        let automaton = DFA::builder().configure(settings).build_from_nfa(nfa).ok()?;
        let states = automaton.create_cache();
        Some(Self { automaton, states, found: vec![0; expressions.len()], lookups: 0 })
    }

    /// Calls `visit` with the place of each pattern that matches, once; returns whether all were found.
    fn find(&mut self, path: &str, mut visit: impl FnMut(usize)) -> bool {
        let Self { automaton, states, found, lookups } = self;
        *lookups += 1;
        let input = Input::new(path).anchored(Anchored::Yes);
        let mut state = OverlappingState::start();
        // In time that depends on the path and the matches, not on the number of patterns.
        loop {
            if automaton.try_search_overlapping_fwd(states, &input, &mut state).is_err() {
                return false;
            }
            let Some(hit) = state.get_match() else { return true };
            let place = hit.pattern().as_usize();
            if std::mem::replace(&mut found[place], *lookups) != *lookups {
                visit(place);
            }
        }
    }
}

impl RegexSet {
    pub(super) fn new(patterns: &[(Slot, &Pattern)], compiler: &Compiler) -> Self {
        let slots = patterns.iter().map(|&(slot, _)| slot).collect();
        let linear: Vec<_> = patterns.iter().filter_map(|(_, pattern)| pattern.linear()).collect();
        let domain = linear.iter().fold(Domain::default(), |all, (_, domain)| Domain {
            ascii_only: all.ascii_only | domain.ascii_only,
            no_newline: all.no_newline | domain.no_newline,
        });
        let expressions: Vec<_> = linear.iter().map(|&(expression, _)| expression).collect();
        let together = if patterns.len() > SMALL { Together::new(&expressions) } else { None };
        if together.is_none() {
            for (_, pattern) in patterns {
                pattern.compile(compiler);
            }
        }
        Self { slots, domain, together }
    }

    /// Calls `visit` with each pattern that may match, and whether it does for certain.
    pub(super) fn candidates(&mut self, path: &str, visit: &mut impl FnMut(Slot, bool)) {
        let Self { slots, domain, together } = self;
        let together = together.as_mut().filter(|_| domain.contains(path));
        if together.is_none_or(|together| !together.find(path, |place| visit(slots[place], true))) {
            for &slot in slots.iter() {
                visit(slot, false);
            }
        }
    }
}
