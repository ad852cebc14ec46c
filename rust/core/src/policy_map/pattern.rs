//! One key of a map: how paths are matched against it.

use regex_automata::nfa::thompson::backtrack::BoundedBacktracker;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Class, Hir, HirKind};

use super::literals;
use super::matching::{Classes, Domain, Matching};
use super::translate::translate;

/// The engine that decides whether a path matches a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The key has no metacharacters and must match whole paths, so only itself.
    Exact,
    /// The linear-time engine, for the paths of the domain.
    Linear(Domain),
    /// Python's `re`: syntax that the linear engine lacks, or a pattern too large for it.
    Python,
}

/// A key as a matcher.
#[derive(Debug)]
pub struct Pattern {
    engine: Engine,
    matcher: Option<Matcher>,
    /// Sets of texts; every match contains one text of each. Empty: nothing is known.
    pub(super) required: Vec<Vec<Vec<u8>>>,
}

#[derive(Debug)]
struct Matcher {
    expression: Hir,
    automaton: BoundedBacktracker,
}

/// A key without them matches only itself.
const METACHARACTERS: [char; 12] = ['.', '^', '$', '*', '+', '?', '{', '[', '\\', '|', '(', ')'];

/// States of an automaton, at most; nested counted repetitions exceed it.
const MOST_STATES: usize = 20_000;

impl Pattern {
    /// Reads a key. If its engine is Python's, only Python can tell whether it is valid.
    #[must_use]
    pub fn new(key: &str, matching: Matching) -> Self {
        Self::with(key, matching, None)
    }

    /// Reads a key for paths of all characters, given Python's character classes.
    #[must_use]
    pub fn wide(key: &str, matching: Matching, classes: &Classes) -> Self {
        Self::with(key, matching, Some(classes))
    }

    fn with(key: &str, matching: Matching, classes: Option<&Classes>) -> Self {
        let python = Self { engine: Engine::Python, matcher: None, required: Vec::new() };
        if matching == Matching::Full && !key.contains(METACHARACTERS) {
            return Self { engine: Engine::Exact, ..python };
        }
        let Some((expression, domain)) = translate(key, matching, classes) else { return python };
        let Ok(hir) = regex_syntax::parse(&expression) else { return python };
        let Some(automaton) = compile(&hir) else { return python };
        let required = literals::required(&hir);
        let matcher = Matcher { expression: hir, automaton };
        Self { engine: Engine::Linear(domain), matcher: Some(matcher), required }
    }

    /// Returns the engine that decides whether a path matches.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The expression for the linear engine, and the paths it is good for.
    pub(super) fn linear(&self) -> Option<(&Hir, Domain)> {
        let Engine::Linear(domain) = self.engine else { return None };
        self.matcher.as_ref().map(|matcher| (&matcher.expression, domain))
    }

    /// Whether the path matches; None if only Python can tell.
    #[must_use]
    pub fn matches(&self, path: &str) -> Option<bool> {
        let Engine::Linear(domain) = self.engine else {
            return (self.engine == Engine::Exact).then_some(false);
        };
        let matcher = &self.matcher.as_ref().filter(|_| domain.contains(path))?.automaton;
        let input = Input::new(path).anchored(Anchored::Yes).earliest(true);
        let quick = matcher.try_is_match(&mut matcher.create_cache(), input.clone());
        // Only paths of many thousand characters are too long for it.
        Some(quick.unwrap_or_else(|_| match PikeVM::new_from_nfa(matcher.get_nfa().clone()) {
            Ok(machine) => machine.is_match(&mut machine.create_cache(), input),
            Err(_) => false,
        }))
    }
}

fn compile(hir: &Hir) -> Option<BoundedBacktracker> {
    if weight(hir) > MOST_STATES {
        return None;
    }
    let settings = thompson::Config::new().which_captures(WhichCaptures::None);
    let nfa = NFA::compiler().configure(settings).build_from_hir(hir).ok()?;
    BoundedBacktracker::new_from_nfa(nfa).ok()
}

/// Estimates the states of the expression's automaton.
fn weight(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Class(Class::Unicode(class)) => 4 * class.ranges().len().max(1),
        HirKind::Class(Class::Bytes(class)) => class.ranges().len().max(1),
        HirKind::Capture(capture) => weight(&capture.sub),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min).max(1) as usize;
            weight(&repetition.sub).saturating_mul(times)
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(0, |sum, part| sum.saturating_add(weight(part)))
        }
    }
}
