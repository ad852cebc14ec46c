//! Python's regular expressions in the linear engine's syntax.
//!
//! Only syntax with the same meaning in both is translated, and every translated pattern is valid in Python. Look-ahead is
//! read too, and so known to be valid, but left to Python to match. Everything else (look-behind, back-references,
//! conditions, atomic groups, possessive quantifiers, `\B`, octal escapes, characters beyond ASCII where case is ignored,
//! `--` in sets, errors) is left to Python's own `re`: `translate` gives None.
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
        flags: Flags::default(),
        names: Vec::new(),
        ignores_case: false,
        is_ascii: true,
        looks_ahead: false,
        matching,
        classes,
    };
    reader.leading_flags()?;
    reader.alternatives()?;
    if reader.rest.peek().is_some() {
        return None; // a parenthesis too many
    }
    // Only the case of ASCII is folded here.
    if reader.ignores_case && !reader.is_ascii {
        return None;
    }
    let Reader { output, mut domain, weight, deepest, looks_ahead, ignores_case, .. } = reader;
    domain.ascii_only |= ignores_case;
    let whole = match matching {
        Matching::Full => format!(r"\A(?:{output})\z"),
        Matching::Search => format!(r"\A(?s:.)*?(?:{output})"),
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
    /// The flags at the place where it reads.
    flags: Flags,
    /// The names of groups.
    names: Vec<String>,
    /// Whether case is ignored anywhere, and whether all characters that the pattern stands for are ASCII.
    ignores_case: bool,
    is_ascii: bool,
    /// Whether there is look-ahead, which only Python matches.
    looks_ahead: bool,
    matching: Matching,
    /// Python's classes, if the paths are to be of all characters.
    classes: Option<&'a Classes>,
}

/// The flags of Python's `re` that change what follows them.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the letters of a pattern turn each on and off by itself")]
struct Flags {
    /// `i`
    ignore_case: bool,
    /// `s`
    dot_all: bool,
    /// `m`
    multiline: bool,
    /// `x`
    verbose: bool,
    /// `a`
    ascii: bool,
}

impl Flags {
    /// Sets a flag, or takes it away; `None` if it is none that this may be done with. `u` is how every text is matched.
    fn set(&mut self, letter: char, on: bool) -> Option<()> {
        match letter {
            'i' => self.ignore_case = on,
            's' => self.dot_all = on,
            'm' => self.multiline = on,
            'x' => self.verbose = on,
            'a' if on => self.ascii = true,
            'u' if on => self.ascii = false,
            _ => return None,
        }
        Some(())
    }
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

/// The classes of the flag `a`, for all paths: spaces are fewer, and complements have all beyond ASCII.
fn ascii_class(letter: char) -> Option<&'static str> {
    Some(match letter {
        's' => r"\x09-\x0d\x20",
        'D' => r"\x00-/:-\x{10ffff}",
        'W' => r"\x00-/:-@\[-\^`\{-\x{10ffff}",
        'S' => r"\x00-\x08\x0e-\x1f!-\x{10ffff}",
        _ => return None,
    })
}

impl Reader<'_> {
    /// Writes a character that stands for itself, in both cases where case is ignored.
    fn literal(&mut self, character: char) {
        if self.flags.ignore_case && character.is_ascii_alphabetic() {
            self.output.push('[');
            self.range(character, character);
            self.output.push(']');
        } else {
            self.character(character);
        }
    }

    /// Writes a range of a set, and its letters in their other case where case is ignored.
    fn range(&mut self, low: char, high: char) {
        self.character(low);
        self.output.push('-');
        self.character(high);
        if self.flags.ignore_case {
            for (first, last) in [('a', 'z'), ('A', 'Z')] {
                let (low, high) = (low.max(first), high.min(last));
                if low <= high {
                    let other = |letter: char| char::from(letter as u8 ^ b' ');
                    let _ = write!(self.output, "{}-{}", other(low), other(high));
                }
            }
        }
    }

    fn character(&mut self, character: char) {
        // In UTF-8; in a set, a range and one of the complement. Where case is ignored, two or three times as many ranges.
        self.weight = self.weight.saturating_add(if self.flags.ignore_case { 16 } else { 8 });
        self.is_ascii &= character.is_ascii();
        if character.is_ascii_alphanumeric() || character == '_' || character == '/' {
            self.output.push(character);
        } else {
            // By code point: no character has a meaning of its own.
            let _ = write!(self.output, r"\x{{{:x}}}", u32::from(character));
        }
    }

    /// The flags at the beginning, for the whole pattern.
    fn leading_flags(&mut self) -> Option<()> {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('(') || ahead.next() != Some('?') {
            return Some(());
        }
        let mut letters = String::new();
        loop {
            match ahead.next()? {
                ')' if !letters.is_empty() => {
                    self.rest = ahead;
                    return self.take_flags(&letters, "");
                }
                letter if letter.is_ascii_alphabetic() && letter != 'P' => letters.push(letter),
                _ => return Some(()), // another group
            }
        }
    }

    /// Turns flags on and off for what follows.
    fn take_flags(&mut self, on: &str, off: &str) -> Option<()> {
        if on.contains('a') && on.contains('u') || on.chars().any(|letter| off.contains(letter)) {
            return None;
        }
        on.chars().try_for_each(|letter| self.flags.set(letter, true))?;
        off.chars().try_for_each(|letter| self.flags.set(letter, false))?;
        self.ignores_case |= self.flags.ignore_case;
        Some(())
    }

    /// Passes over what stands for nothing: comments, and blanks where the pattern is verbose.
    fn skip_blanks(&mut self) -> Option<()> {
        loop {
            match self.rest.peek() {
                Some(' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}') if self.flags.verbose => {
                    self.rest.next();
                }
                Some('#') if self.flags.verbose => {
                    self.rest.find(|&character| character == '\n');
                }
                Some('(') => {
                    let mut ahead = self.rest.clone();
                    if ahead.nth(1) != Some('?') || ahead.next() != Some('#') {
                        return Some(());
                    }
                    ahead.find(|&character| character == ')')?;
                    self.rest = ahead;
                }
                _ => return Some(()),
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
        loop {
            self.skip_blanks()?;
            let Some(&next) = self.rest.peek().filter(|next| !matches!(next, '|' | ')')) else { break };
            self.rest.next();
            let before = self.weight;
            let is_atom = self.atom(next)?;
            self.skip_blanks()?;
            if is_atom {
                let times = self.quantifier()?;
                self.weight = before.saturating_add((self.weight - before).saturating_mul(times));
            } else if self.is_repeated() {
                return None; // an assertion
            }
        }
        Some(())
    }

    /// One element; whether it consumes text, so may be repeated.
    fn atom(&mut self, first: char) -> Option<bool> {
        self.weight = self.weight.saturating_add(2);
        match first {
            '(' => return self.group(),
            '[' => self.set()?,
            '\\' => return self.escape(),
            '.' => {
                self.weight = self.weight.saturating_add(ANY);
                self.output.push_str(if self.flags.dot_all { "(?s:.)" } else { "." });
            }
            '^' => {
                self.output.push_str(if self.flags.multiline { "(?m:^)" } else { r"\A" });
                return Some(false);
            }
            '$' if self.flags.multiline => {
                self.output.push_str("(?m:$)");
                return Some(false);
            }
            '$' => {
                self.skip_blanks()?;
                // At the end of the pattern it is the end of the path, perhaps before a last newline.
                let is_last = self.depth == 0 && matches!(self.rest.peek(), None | Some('|'));
                let newline = if is_last && self.matching == Matching::Search { r"\x0a?" } else { "" };
                let _ = write!(self.output, r"{newline}\z");
                self.domain.no_newline |= !is_last;
                return Some(false);
            }
            '*' | '+' | '?' => return None,
            '{' if is_repetition(self.rest.clone()) => return None,
            character => self.literal(character),
        }
        Some(true)
    }

    /// A group, its parenthesis read; whether it consumes text, so may be repeated.
    fn group(&mut self) -> Option<bool> {
        let (mut is_atom, mut is_captured, flags) = (true, true, self.flags);
        if self.rest.next_if_eq(&'?').is_some() {
            let kind = self.rest.next()?;
            is_captured = kind == 'P';
            match kind {
                ':' => {}
                '=' | '!' => is_atom = false,
                'P' => self.name()?,
                letter => self.group_flags(letter)?,
            }
        }
        self.looks_ahead |= !is_atom;
        self.output.push_str(if is_captured { "(" } else { "(?:" });
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        (self.depth <= DEEPEST).then_some(())?;
        self.alternatives()?;
        (self.rest.next()? == ')').then_some(())?;
        self.depth -= 1;
        self.output.push(')');
        self.flags = flags;
        Some(is_atom)
    }

    /// The name of a group, which no other has.
    fn name(&mut self) -> Option<()> {
        (self.rest.next()? == '<').then_some(())?;
        let mut name = String::new();
        loop {
            match self.rest.next()? {
                '>' => break,
                character => name.push(character),
            }
        }
        let is_name = name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
            && name.starts_with(|first: char| !first.is_ascii_digit());
        (is_name && !self.names.contains(&name)).then(|| self.names.push(name))
    }

    /// The flags of a group up to its colon, the first sign read.
    fn group_flags(&mut self, first: char) -> Option<()> {
        let (mut on, mut off, mut is_off, mut next) = (String::new(), String::new(), false, first);
        while next != ':' {
            match next {
                '-' if !is_off => is_off = true,
                letter if letter.is_ascii_alphabetic() && is_off => off.push(letter),
                letter if letter.is_ascii_alphabetic() => on.push(letter),
                _ => return None,
            }
            next = self.rest.next()?;
        }
        (is_off != off.is_empty()).then_some(())?;
        self.take_flags(&on, &off)
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
                self.domain.ascii_only |= !self.flags.ascii;
            }
            _ => {
                let character = self.escaped(letter)?;
                self.literal(character);
                return Some(true);
            }
        }
        Some(false)
    }

    /// Writes the class of a letter, as a set or as part of one; returns false if it has none.
    fn class(&mut self, letter: char, alone: bool) -> bool {
        self.weight = self.weight.saturating_add(ANY);
        if let Some(classes) = self.classes.filter(|_| !self.flags.ascii) {
            let Some(items) = classes.items(letter.to_ascii_lowercase()) else { return false };
            let _ = match (letter.is_ascii_uppercase(), alone) {
                (true, _) => write!(self.output, "[^{items}]"),
                (false, true) => write!(self.output, "[{items}]"),
                (false, false) => write!(self.output, "{items}"),
            };
            return true;
        }
        let ascii = if self.flags.ascii { ascii_class(letter) } else { None };
        let Some(items) = ascii.or_else(|| class(letter)).or_else(|| complement(letter)) else {
            return false;
        };
        let _ = if alone { write!(self.output, "[{items}]") } else { write!(self.output, "{items}") };
        self.domain.ascii_only |= !self.flags.ascii;
        true
    }

    /// Reads a quantifier, if there is one; returns how many times it multiplies its element's weight.
    fn quantifier(&mut self) -> Option<usize> {
        let mut times = 1;
        match self.rest.peek().copied() {
            Some(sign @ ('*' | '+' | '?')) => {
                self.rest.next();
                self.output.push(sign);
            }
            Some('{') if self.is_repeated() => {
                self.rest.next();
                let (text, most) = self.until_brace()?;
                self.output.push_str(&text);
                times = most;
            }
            _ => return Some(times),
        }
        // Possessive and doubled quantifiers are left to Python.
        self.output.extend(self.rest.next_if_eq(&'?'));
        self.skip_blanks()?;
        (!self.is_repeated()).then_some(times)
    }

    /// Whether a quantifier is next.
    fn is_repeated(&self) -> bool {
        let mut ahead = self.rest.clone();
        match ahead.next() {
            Some('*' | '+' | '?') => true,
            Some('{') => is_repetition(ahead),
            _ => false,
        }
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
            return Some(("*".to_owned(), 1));
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
            if character == '-' && self.rest.peek() == Some(&'-') {
                return None; // Python reserves it for differences of sets
            }
            let Some(low) = self.set_item(character)? else {
                let mut ahead = self.rest.clone();
                if ahead.next() == Some('-') && ahead.next() != Some(']') {
                    return None; // a class as an end of a range
                }
                continue;
            };
            let mut ahead = self.rest.clone();
            let dash = ahead.next() == Some('-');
            let high = if dash { ahead.next()? } else { ']' };
            if !dash || high == ']' {
                self.range(low, low);
                continue;
            }
            self.rest = ahead;
            if high == '-' {
                return None;
            }
            let high = self.set_item(high)??;
            (low <= high).then_some(())?;
            self.range(low, high);
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
        Some(Some(if letter == 'b' { '\u{8}' } else { self.escaped(letter)? }))
    }

    /// The character that an escape stands for, its letter read.
    fn escaped(&mut self, letter: char) -> Option<char> {
        let digits = match letter {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return escaped(letter),
        };
        let mut code = 0;
        for _ in 0..digits {
            code = 16 * code + self.rest.next()?.to_digit(16)?;
        }
        char::from_u32(code)
    }
}

/// Whether what follows an opening brace makes it a quantifier; else the brace stands for itself.
fn is_repetition(mut ahead: Peekable<Chars<'_>>) -> bool {
    let mut count = 0;
    let mut commas = 0;
    loop {
        match ahead.next() {
            Some('0'..='9') => {}
            Some(',') if commas == 0 => commas = 1,
            Some('}') => return count > 0,
            _ => return false,
        }
        count += 1;
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
