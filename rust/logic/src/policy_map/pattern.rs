//! One key of a map: how paths are matched against it.

use std::sync::OnceLock;

use regex_automata::nfa::thompson::backtrack::BoundedBacktracker;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, Compiler, NFA, WhichCaptures};
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
    /// Whether Python's `re` certainly takes it.
    valid: bool,
    /// The translated key, until [`Pattern::prepare`] makes the matcher of it.
    expression: Option<String>,
    matcher: Option<Matcher>,
    /// Sets of texts; every match contains one text of each. Empty: nothing is known.
    pub(super) required: Vec<Vec<Vec<u8>>>,
}

#[derive(Debug)]
struct Matcher {
    expression: Hir,
    /// Made when it is first needed: patterns of a regex set need none.
    automaton: CachedAutomaton,
    /// Made when the texts of its groups are first asked for.
    capturing: OnceLock<Option<PikeVM>>,
}

type CachedAutomaton = OnceLock<Option<BoundedBacktracker>>;

/// A key without them matches only itself.
const METACHARACTERS: [char; 12] = ['.', '^', '$', '*', '+', '?', '{', '[', '\\', '|', '(', ')'];

/// States of an automaton, at most; nested counted repetitions exceed it.
const MOST_STATES: usize = 20_000;

/// Groups inside each other, at most, for a translated key to be certainly an expression.
const SHALLOW: usize = 16;

impl Pattern {
    /// Reads a key. If its engine is Python's and it is not valid for certain, only Python can tell whether it is.
    #[must_use]
    pub fn new(key: &str, matching: Matching) -> Self {
        if matching == Matching::Full && !key.contains(METACHARACTERS) {
            return Self { engine: Engine::Exact, valid: true, ..Self::python() };
        }
        let Some(read) = translate(key, matching, None) else { return Self::python() };
        // Light ones are expressions with small automata for certain, which are made when a path is looked up.
        let valid = read.weight <= MOST_STATES && read.depth <= SHALLOW;
        let Some(expression) = read.expression else { return Self { valid, ..Self::python() } };
        let linear = Engine::Linear(read.domain);
        let mut pattern = Self { engine: linear, valid, expression: Some(expression), ..Self::python() };
        if !valid {
            pattern.prepare();
        }
        pattern
    }

    /// Reads a key for paths of all characters, given Python's character classes.
    #[must_use]
    pub fn wide(key: &str, matching: Matching, classes: &Classes) -> Self {
        let read = translate(key, matching, Some(classes));
        let Some((Some(expression), domain)) = read.map(|read| (read.expression, read.domain)) else {
            return Self::python();
        };
        let engine = Engine::Linear(domain);
        let mut pattern = Self { engine, expression: Some(expression), ..Self::python() };
        pattern.prepare();
        pattern
    }

    fn python() -> Self {
        Self { engine: Engine::Python, valid: false, expression: None, matcher: None, required: Vec::new() }
    }

    /// Makes the matcher, if that has not been done. The engine becomes Python's if the linear one cannot have it.
    pub fn prepare(&mut self) {
        let Some(expression) = self.expression.take() else { return };
        match regex_syntax::parse(&expression) {
            Ok(hir) if weight(&hir) <= MOST_STATES => {
                self.required = literals::required(&hir);
                self.matcher =
                    Some(Matcher { expression: hir, automaton: OnceLock::new(), capturing: OnceLock::new() });
            }
            _ => self.engine = Engine::Python,
        }
    }

    /// Returns the engine that decides whether a path matches.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns whether the key is certainly a regular expression of Python.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.valid || self.engine != Engine::Python
    }

    /// The expression for the linear engine, and the paths it is good for.
    pub(super) fn linear(&self) -> Option<(&Hir, Domain)> {
        let Engine::Linear(domain) = self.engine else { return None };
        self.matcher.as_ref().map(|matcher| (&matcher.expression, domain))
    }

    /// Makes the automaton that [`Pattern::matches`] runs, so that no lookup waits for it.
    pub(super) fn compile(&self, compiler: &Compiler) {
        if let Some(Matcher { expression, automaton, .. }) = &self.matcher {
            automaton.get_or_init(|| compile(expression, compiler));
        }
    }

    /// The texts of the groups where the path matches, None of one that took no part; None outside if it does not match,
    /// or if only Python can tell.
    #[must_use]
    pub fn groups<'a>(&self, path: &'a str) -> Option<Vec<Option<&'a str>>> {
        let Engine::Linear(domain) = self.engine else { return None };
        let Matcher { expression, capturing, .. } =
            self.matcher.as_ref().filter(|_| domain.contains(path))?;
        let nfa = || NFA::compiler().build_from_hir(expression).ok();
        let machine =
            capturing.get_or_init(|| nfa().and_then(|nfa| PikeVM::new_from_nfa(nfa).ok())).as_ref()?;
        let mut captures = machine.create_captures();
        machine.captures(
            &mut machine.create_cache(),
            Input::new(path).anchored(Anchored::Yes),
            &mut captures,
        );
        let groups = captures.is_match().then(|| captures.iter().skip(1))?;
        Some(groups.map(|span| span.map(|span| &path[span.range()])).collect())
    }

    /// Whether the path matches; None if only Python can tell.
    #[must_use]
    pub fn matches(&self, path: &str) -> Option<bool> {
        let Engine::Linear(domain) = self.engine else {
            return (self.engine == Engine::Exact).then_some(false);
        };
        let Matcher { expression, automaton, .. } =
            self.matcher.as_ref().filter(|_| domain.contains(path))?;
        let matcher = automaton.get_or_init(|| compile(expression, &compiler())).as_ref()?;
        let input = Input::new(path).anchored(Anchored::Yes).earliest(true);
        let quick = matcher.try_is_match(&mut matcher.create_cache(), input.clone());
        // Only paths of many thousand characters are too long for it.
        Some(quick.unwrap_or_else(|_| match PikeVM::new_from_nfa(matcher.get_nfa().clone()) {
            Ok(machine) => machine.is_match(&mut machine.create_cache(), input),
            Err(_) => false,
        }))
    }
}

/// Returns what makes automata. One for many patterns: each new one clears a table of 300 KB at the first class of
/// characters beyond ASCII, such as `.`, which takes ten times as long as the rest of a key's automaton.
pub(super) fn compiler() -> Compiler {
    let mut compiler = NFA::compiler();
    compiler.configure(thompson::Config::new().which_captures(WhichCaptures::None));
    compiler
}

fn compile(hir: &Hir, compiler: &Compiler) -> Option<BoundedBacktracker> {
    BoundedBacktracker::new_from_nfa(compiler.build_from_hir(hir).ok()?).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translation_knows_the_most_that_its_automaton_weighs() {
        let atoms = [
            "a",
            "k",
            "é",
            "語",
            ".",
            r"\d",
            r"\W",
            r"\s",
            "[a-z]",
            "[^a-z]",
            r"[^\d_k-s]",
            r"[a-cx-z0-9é]",
            r"\.",
            "^",
            "$",
            r"\b",
            "()",
            "(a|)",
            "(?:k|[^s])",
            "(?=a)",
            "(?!b|c)",
        ];
        let times = ["", "?", "*", "+", "{3}", "{2,}", "{,7}", "{4,9}", "{200}"];
        let mut light = 0;
        for (first, second) in atoms.iter().flat_map(|first| atoms.map(|second| (*first, second))) {
            for (times, flags) in
                times.iter().flat_map(|times| ["", "(?i)", "(?s)", "(?is)"].map(|f| (times, f)))
            {
                for key in [
                    format!("{flags}{first}{second}{times}"),
                    format!("{flags}({first}|{second}{times}){times}"),
                ] {
                    for matching in [Matching::Full, Matching::Search] {
                        let Some(read) = translate(&key, matching, None) else { continue };
                        let Some(expression) = read.expression else { continue };
                        let hir = regex_syntax::parse(&expression).expect(&key);
                        assert!(weight(&hir) <= read.weight, "{key}: {} > {}", weight(&hir), read.weight);
                        light += usize::from(read.weight <= MOST_STATES);
                    }
                }
            }
        }
        assert!(light > 10_000, "{light}");
    }

    #[test]
    fn deep_groups_are_read_at_once() {
        let nested = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
        for (depth, waits) in [(1, true), (SHALLOW, true), (SHALLOW + 1, false), (100, false)] {
            let mut pattern = Pattern::new(&nested(depth), Matching::Full);
            assert_eq!(pattern.expression.is_some(), waits, "{depth}");
            pattern.prepare();
            assert_ne!(pattern.engine(), Engine::Python, "{depth}");
            assert_eq!(pattern.matches("a"), Some(true));
        }
        assert_eq!(Pattern::new(&nested(101), Matching::Full).engine(), Engine::Python);
    }
}
