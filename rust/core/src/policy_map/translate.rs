//! Python's regular expressions in the linear engine's syntax.
//!
//! Only syntax with the same meaning in both is translated, and every translated pattern is valid in Python. Look-ahead is
//! read too, and so known to be valid, but left to Python to match. Everything else (look-behind, back-references, named or flagged groups, possessive or doubled quantifiers, sets with syntax
//! that Python warns of, errors) is left to Python's own `re`: `translate` gives None.
//!
//! Character classes are written out, so no Unicode table of ours takes part. `\d`, `\w`, `\s`, `\b` and `(?i)` mean more in
//! Python than their ASCII part; `$` also matches before a last newline. Patterns with them are translated for paths
//! where that makes no difference, and [`Domain`] says which those are; or, with Python's own [`Classes`], for more.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use super::matching::{Classes, Domain, Matching};

/// What a pattern is.
#[derive(Debug)]
pub(super) struct Translation {
    /// The expression that matches the same paths; `None` if it has look-ahead, and so only Python can match it.
    pub(super) expression: Option<String>,
    /// The paths the expression is good for.
    pub(super) domain: Domain,
    /// The weight of its automaton, at most (see `pattern::weight`).
    pub(super) weight: usize,
    /// Groups inside each other, at most.
    pub(super) depth: usize,
}

/// Translates a pattern; `None` if that is left to Python, which may find it invalid.
pub(super) fn translate(pattern: &str, matching: Matching, classes: Option<&Classes>) -> Option<Translation> {
    let mut reader = Reader {
        rest: pattern.chars().peekable(),
        output: String::with_capacity(2 * pattern.len() + 16),
        domain: Domain::default(),
        depth: 0,
        deepest: 0,
        weight: 2,
        folds: false,
        looks_ahead: false,
        matching,
        classes,
    };
    let flags = reader.leading_flags()?;
    reader.folds = flags.contains('i');
    reader.alternatives()?;
    if reader.rest.peek().is_some() {
        return None; // a parenthesis too many
    }
    // Folding case beyond ASCII differs between the engines.
    if flags.contains('i') && !pattern.is_ascii() {
        return None;
    }
    let Reader { output, mut domain, weight, deepest, looks_ahead, .. } = reader;
    domain.ascii_only |= flags.contains('i');
    let body = if flags.is_empty() { output } else { format!("(?{flags}:{output})") };
    let whole = match matching {
        Matching::Full => format!(r"\A(?:{body})\z"),
        Matching::Search => format!(r"\A(?s:.)*?(?:{body})"),
    };
    let weight = if matching == Matching::Search { weight.saturating_add(ANY) } else { weight };
    Some(Translation { expression: (!looks_ahead).then_some(whole), domain, weight, depth: deepest })
}

/// The weight of a class of Python's character classes or of any character, at most: ranges of ASCII.
const ANY: usize = 48;

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    output: String,
    domain: Domain,
    /// Groups around the place where it reads, and the most so far.
    depth: usize,
    deepest: usize,
    /// The weight of what it has read, at most.
    weight: usize,
    /// Whether case is ignored.
    folds: bool,
    /// Whether there is look-ahead, which only Python matches.
    looks_ahead: bool,
    matching: Matching,
    /// Python's classes, if the paths are to be of all characters.
    classes: Option<&'a Classes>,
}

/// Nested groups, at most: the reader recurses for each. Deeper patterns are left to Python.
const DEEPEST: usize = 100;

/// The word characters, digits and spaces of Python's ASCII range, as items of a set.
fn class(letter: char) -> Option<&'static str> {
    Some(match letter {
        'd' => r"0-9",
        'w' => r"0-9A-Z_a-z",
        // Python counts the four separators 0x1c to 0x1f as spaces.
        's' => r"\x09-\x0d\x1c-\x20",
        _ => return None,
    })
}

/// The complement of each within ASCII; the rest is outside the pattern's domain.
fn complement(letter: char) -> Option<&'static str> {
    Some(match letter {
        'D' => r"\x00-/:-\x7f",
        'W' => r"\x00-/:-@\[-\^`\{-\x7f",
        'S' => r"\x00-\x08\x0e-\x1b!-\x7f",
        _ => return None,
    })
}

impl Reader<'_> {
    fn literal(&mut self, character: char) {
        // In UTF-8; or, where case is ignored, a class of up to four ranges. In a set, a range and one of the complement.
        self.weight = self.weight.saturating_add(if self.folds { 32 } else { 8 });
        if character.is_ascii_alphanumeric() || character == '_' || character == '/' {
            self.output.push(character);
        } else {
            // By code point: no character has a meaning of its own.
            let _ = write!(self.output, r"\x{{{:x}}}", u32::from(character));
        }
    }

    /// The flags of `(?i)`, `(?s)` or both at the beginning; other flags are not translated.
    fn leading_flags(&mut self) -> Option<String> {
        let mut ahead = self.rest.clone();
        let mut flags = String::new();
        if ahead.next() != Some('(') || ahead.next() != Some('?') {
            return Some(flags);
        }
        loop {
            match ahead.next()? {
                flag @ ('i' | 's') if !flags.contains(flag) => flags.push(flag),
                ')' if !flags.is_empty() => {
                    self.rest = ahead;
                    return Some(flags);
                }
                ':' if flags.is_empty() => return Some(flags),
                _ => return None,
            }
        }
    }

    fn alternatives(&mut self) -> Option<()> {
        loop {
            self.sequence()?;
            if self.rest.next_if_eq(&'|').is_none() {
                return Some(());
            }
            self.output.push('|');
            self.weight = self.weight.saturating_add(1);
        }
    }

    fn sequence(&mut self) -> Option<()> {
        while let Some(&next) = self.rest.peek() {
            if next == '|' || next == ')' {
                break;
            }
            self.rest.next();
            let before = self.weight;
            if self.atom(next)? {
                let times = self.quantifier()?;
                self.weight = before.saturating_add((self.weight - before).saturating_mul(times));
            } else if matches!(self.rest.peek(), Some('*' | '+' | '?' | '{')) {
                return None; // a repeated assertion
            }
        }
        Some(())
    }

    /// One element; whether it consumes text, so may be repeated.
    fn atom(&mut self, first: char) -> Option<bool> {
        self.weight = self.weight.saturating_add(2);
        match first {
            '(' => {
                let mut is_atom = true;
                if self.rest.next_if_eq(&'?').is_some() {
                    match self.rest.next()? {
                        ':' => {}
                        '=' | '!' => is_atom = false,
                        _ => return None,
                    }
                }
                self.looks_ahead |= !is_atom;
                self.output.push_str("(?:");
                self.depth += 1;
                self.deepest = self.deepest.max(self.depth);
                (self.depth <= DEEPEST).then_some(())?;
                self.alternatives()?;
                (self.rest.next()? == ')').then_some(())?;
                self.depth -= 1;
                self.output.push(')');
                return Some(is_atom);
            }
            '[' => self.set()?,
            '\\' => return self.escape(),
            '.' => {
                self.weight = self.weight.saturating_add(ANY);
                self.output.push('.');
            }
            '^' => {
                self.output.push_str(r"\A");
                return Some(false);
            }
            '$' => {
                // At the end of the pattern it is the end of the path, perhaps before a last newline.
                let is_last = self.depth == 0 && matches!(self.rest.peek(), None | Some('|'));
                let newline = if is_last && self.matching == Matching::Search { r"\x0a?" } else { "" };
                let _ = write!(self.output, r"{newline}\z");
                self.domain.no_newline |= !is_last;
                return Some(false);
            }
            '*' | '+' | '?' | '{' => return None,
            character => self.literal(character),
        }
        Some(true)
    }

    fn escape(&mut self) -> Option<bool> {
        let letter = self.rest.next()?;
        if self.class(letter, true) {
            return Some(true);
        }
        match letter {
            'A' => self.output.push_str(r"\A"),
            'Z' => self.output.push_str(r"\z"),
            'b' => {
                self.output.push_str(r"(?-u:\b)");
                self.domain.ascii_only = true;
            }
            _ => {
                let character = escaped(letter)?;
                self.literal(character);
                return Some(true);
            }
        }
        Some(false)
    }

    /// Writes the class of a letter, as a set or as part of one; returns false if it has none.
    fn class(&mut self, letter: char, alone: bool) -> bool {
        self.weight = self.weight.saturating_add(ANY);
        if let Some(classes) = self.classes {
            let Some(items) = classes.items(letter.to_ascii_lowercase()) else { return false };
            let _ = match (letter.is_ascii_uppercase(), alone) {
                (true, _) => write!(self.output, "[^{items}]"),
                (false, true) => write!(self.output, "[{items}]"),
                (false, false) => write!(self.output, "{items}"),
            };
            return true;
        }
        let Some(items) = class(letter).or_else(|| complement(letter)) else { return false };
        let _ = if alone { write!(self.output, "[{items}]") } else { write!(self.output, "{items}") };
        self.domain.ascii_only = true;
        true
    }

    /// Reads a quantifier, if there is one; returns how many times it multiplies its element's weight.
    fn quantifier(&mut self) -> Option<usize> {
        let mut times = 1;
        match self.rest.peek() {
            Some(&sign @ ('*' | '+' | '?')) => {
                self.rest.next();
                self.output.push(sign);
            }
            Some('{') => {
                self.rest.next();
                let (text, most) = self.until_brace()?;
                self.output.push_str(&text);
                times = most;
            }
            _ => return Some(times),
        }
        // Lazy or not, the same texts match. Possessive and doubled quantifiers are left to Python.
        self.rest.next_if_eq(&'?');
        (!matches!(self.rest.peek(), Some('*' | '+' | '?' | '{'))).then_some(times)
    }

    /// `{m}`, `{m,}`, `{,n}` or `{m,n}`, the opening brace read; and the larger of its numbers.
    fn until_brace(&mut self) -> Option<(String, usize)> {
        let mut bounds = String::new();
        loop {
            match self.rest.next()? {
                '}' => break,
                character @ ('0'..='9' | ',') => bounds.push(character),
                _ => return None,
            }
        }
        let (least, most) = bounds.split_once(',').unwrap_or((&bounds, &bounds));
        if least.is_empty() && most.is_empty() {
            return None; // a brace that stands for itself
        }
        let least: u32 = if least.is_empty() { 0 } else { least.parse().ok()? };
        if most.is_empty() {
            return Some((format!("{{{least},}}"), least.max(1) as usize));
        }
        let most: u32 = most.parse().ok()?;
        (least <= most).then(|| (format!("{{{least},{most}}}"), most.max(1) as usize))
    }

    /// A set, the opening bracket read.
    fn set(&mut self) -> Option<()> {
        self.output.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.output.push('^');
        }
        let mut first = true;
        loop {
            let character = self.rest.next()?;
            if character == ']' && !first {
                break;
            }
            first = false;
            // Python reserves these for sets of sets, and warns.
            if character == '[' || "-&~|".contains(character) && self.rest.peek() == Some(&character) {
                return None;
            }
            let low = match self.set_item(character)? {
                Some(low) => low,
                None if self.rest.peek() == Some(&'-') => return None, // a class as an end of a range
                None => continue,
            };
            let mut ahead = self.rest.clone();
            let dash = ahead.next() == Some('-');
            let high = if dash { ahead.next()? } else { ']' };
            if !dash || high == ']' {
                self.literal(low);
                continue;
            }
            self.rest = ahead;
            if high == '-' || high == '[' {
                return None;
            }
            let high = self.set_item(high)??;
            (low <= high).then_some(())?;
            self.literal(low);
            self.output.push('-');
            self.literal(high);
        }
        self.output.push(']');
        Some(())
    }

    /// One character of a set, or None for a class, which is written at once.
    #[expect(clippy::option_option, reason = "not translatable; a class; a character")]
    fn set_item(&mut self, character: char) -> Option<Option<char>> {
        if character != '\\' {
            return Some(Some(character));
        }
        let letter = self.rest.next()?;
        if self.class(letter, false) {
            return Some(None);
        }
        Some(Some(if letter == 'b' { '\u{8}' } else { escaped(letter)? }))
    }
}

/// The character that an escape stands for; digits and other letters have meanings that are not translated.
fn escaped(letter: char) -> Option<char> {
    match letter {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'f' => Some('\u{c}'),
        'v' => Some('\u{b}'),
        'a' => Some('\u{7}'),
        letter if letter.is_ascii_alphanumeric() => None,
        character => Some(character),
    }
}
