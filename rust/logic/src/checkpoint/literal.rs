//! Reads a literal of Python, as headers of `.npy` files hold one, without evaluating anything.

/// Brackets inside of brackets, at most: as Python's own parser.
pub const MAX_DEPTH: usize = 200;

/// Digits of a number, at most.
const MAX_DIGITS: usize = 20;

/// Makes values from the parts of a literal.
pub trait Build {
    /// A value.
    type Value;
    /// Why a value cannot be made.
    type Error;

    /// Makes a text from its literal, quotes and escapes included.
    ///
    /// # Errors
    /// An escape is wrong.
    fn text(&mut self, literal: &str) -> Result<Self::Value, Self::Error>;
    /// Makes True or False.
    ///
    /// # Errors
    /// None is expected.
    fn truth(&mut self, value: bool) -> Result<Self::Value, Self::Error>;
    /// Makes a whole number from its digits.
    ///
    /// # Errors
    /// None is expected.
    fn whole(&mut self, value: u128) -> Result<Self::Value, Self::Error>;
    /// Makes what stands in brackets of one kind.
    ///
    /// # Errors
    /// A key is of a type that cannot be one.
    fn group(&mut self, kind: Group, items: Vec<Self::Value>) -> Result<Self::Value, Self::Error>;
    /// Makes the error for what is not a literal.
    fn refuse(&mut self, fault: Fault<'_, Self::Value>) -> Self::Error;
}

/// Brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// `(`.
    Tuple,
    /// `[`.
    List,
    /// `{`; its items are keys and values by turns.
    Dict,
}

impl Group {
    fn opened_by(word: &str) -> Option<Self> {
        match word {
            "(" => Some(Self::Tuple),
            "[" => Some(Self::List),
            "{" => Some(Self::Dict),
            _ => None,
        }
    }

    /// Returns the bracket that ends it.
    #[must_use]
    pub fn closing(self) -> &'static str {
        match self {
            Self::Tuple => ")",
            Self::List => "]",
            Self::Dict => "}",
        }
    }
}

/// What is wrong with a text.
#[derive(Debug)]
pub enum Fault<'a, V> {
    /// It has characters that are no part of a literal: the first of them.
    Foreign(String),
    /// Text follows the literal.
    After,
    /// Brackets are nested too deep.
    Deep,
    /// A value begins with something else, or nothing is left.
    Unexpected(&'a str),
    /// A key without a value.
    Key(&'a V),
    /// Two items without a comma, in brackets of this kind.
    Comma(Group),
}

/// Reads the literal that a text is.
///
/// # Errors
/// Those of `build`.
pub fn parse<B: Build>(text: &str, build: &mut B) -> Result<B::Value, B::Error> {
    let mut foreign = String::new();
    let mut words = Words::new(text);
    while words.next_word(|letter| foreign.push(letter)).is_some() {}
    let foreign = foreign.trim_matches(is_space);
    if !foreign.is_empty() {
        return Err(build.refuse(Fault::Foreign(foreign.chars().take(SHOWN).collect())));
    }
    let mut parser = Parser { words: Words::new(text), build };
    let word = parser.word();
    let value = parser.value(word, 0)?;
    if !parser.word().is_empty() {
        return Err(parser.build.refuse(Fault::After));
    }
    Ok(value)
}

/// Characters that are shown of those that do not belong.
const SHOWN: usize = 20;

/// Whether Python strips a character.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

/// The words of a text.
struct Words<'a> {
    text: &'a str,
    place: usize,
    /// For each byte, the quotes (as bits) of texts that go on there and do not end. Without it, the time for a text of
    /// quotes that are not closed would be that of its square.
    endless: Vec<u8>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, place: 0, endless: Vec::new() }
    }

    /// Returns the next word, and passes the characters before it to `skip`.
    fn next_word(&mut self, mut skip: impl FnMut(char)) -> Option<&'a str> {
        while let Some(letter) = self.text[self.place..].chars().next() {
            let rest = &self.text[self.place..];
            let length = match letter {
                '\'' | '"' => self.quoted(letter as u8),
                '0'..='9' => {
                    let digits = rest.bytes().take(MAX_DIGITS).take_while(u8::is_ascii_digit).count();
                    Some(digits + usize::from(rest[digits..].starts_with('L')))
                }
                '(' | ')' | '[' | ']' | '{' | '}' | ',' | ':' => Some(1),
                _ => ["True", "False"].into_iter().find(|word| rest.starts_with(word)).map(str::len),
            };
            if let Some(length) = length {
                self.place += length;
                return Some(&rest[..length]);
            }
            skip(letter);
            self.place += letter.len_utf8();
        }
        None
    }

    /// Returns the length of the text in quotes that begins here; `None` if its line ends before.
    fn quoted(&mut self, quote: u8) -> Option<usize> {
        let bit = if quote == b'"' { 1 } else { 2 };
        let end =
            self.walk(quote, |words, place| words.endless.get(place).is_some_and(|quotes| quotes & bit != 0));
        if end.is_none() {
            self.endless.resize(self.text.len(), 0);
            self.walk(quote, |words, place| {
                let known = words.endless[place] & bit != 0;
                words.endless[place] |= bit;
                known
            });
        }
        Some(end? + 1 - self.place)
    }

    /// Goes through a text in quotes up to where it ends or `stops`; returns where it ends.
    fn walk(&mut self, quote: u8, mut stops: impl FnMut(&mut Self, usize) -> bool) -> Option<usize> {
        let text: &'a str = self.text;
        let bytes = text.as_bytes();
        let mut place = self.place + 1;
        loop {
            match *bytes.get(place)? {
                byte if byte == quote => return Some(place),
                b'\n' => return None,
                _ if stops(self, place) => return None,
                b'\\' if bytes.get(place + 1).is_none_or(|&next| next == b'\n') => return None,
                b'\\' => place += 2,
                _ => place += 1,
            }
        }
    }
}

struct Parser<'a, 'b, B> {
    words: Words<'a>,
    build: &'b mut B,
}

impl<'a, B: Build> Parser<'a, '_, B> {
    /// Returns the next word; none is empty, except at the end.
    fn word(&mut self) -> &'a str {
        self.words.next_word(|_| ()).unwrap_or_default()
    }

    /// Returns the value that begins with a word, inside of so many brackets.
    fn value(&mut self, word: &'a str, depth: usize) -> Result<B::Value, B::Error> {
        let Some(group) = Group::opened_by(word) else {
            return self.scalar(word);
        };
        if depth == MAX_DEPTH {
            return Err(self.build.refuse(Fault::Deep));
        }
        let mut items = Vec::new();
        loop {
            let first = self.word();
            if first == group.closing() {
                break;
            }
            items.push(self.value(first, depth + 1)?);
            let mut mark = self.word();
            if group == Group::Dict {
                if mark != ":" {
                    return Err(self.build.refuse(Fault::Key(&items[items.len() - 1])));
                }
                let next = self.word();
                items.push(self.value(next, depth + 1)?);
                mark = self.word();
            }
            if mark == group.closing() {
                if group == Group::Tuple && items.len() == 1 {
                    // Parentheses without a comma are not a tuple.
                    return Ok(items.remove(0));
                }
                break;
            }
            if mark != "," {
                return Err(self.build.refuse(Fault::Comma(group)));
            }
        }
        self.build.group(group, items)
    }

    fn scalar(&mut self, word: &'a str) -> Result<B::Value, B::Error> {
        match word {
            "True" | "False" => self.build.truth(word == "True"),
            _ if word.starts_with(['\'', '"']) => self.build.text(word),
            _ => match word.strip_suffix('L').unwrap_or(word).parse() {
                Ok(number) => self.build.whole(number),
                Err(_) => Err(self.build.refuse(Fault::Unexpected(word))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Build, Fault, Group, parse};

    /// Writes values as text.
    struct Shown;

    impl Build for Shown {
        type Value = String;
        type Error = String;

        fn text(&mut self, literal: &str) -> Result<String, String> {
            Ok(literal.to_owned())
        }

        fn truth(&mut self, value: bool) -> Result<String, String> {
            Ok(value.to_string())
        }

        fn whole(&mut self, value: u128) -> Result<String, String> {
            Ok(value.to_string())
        }

        fn group(&mut self, kind: Group, items: Vec<String>) -> Result<String, String> {
            Ok(format!("{kind:?}({})", items.join(" ")))
        }

        fn refuse(&mut self, fault: Fault<'_, String>) -> String {
            format!("{fault:?}")
        }
    }

    #[test]
    fn literals_are_read() {
        for (text, expected) in [
            ("{'a': (3, 4L,), \"b\": [True], }", "Dict('a' Tuple(3 4) \"b\" List(true))"),
            ("(1)", "1"),
            ("()", "Tuple()"),
            ("'\\'é' ", "'\\'é'"),
            ("99999999999999999999", "99999999999999999999"),
        ] {
            assert_eq!(parse(text, &mut Shown).as_deref(), Ok(expected));
        }
        for (text, expected) in [
            ("", "Unexpected(\"\")"),
            ("(1", "Comma(Tuple)"),
            ("{1}", "Key(\"1\")"),
            ("(1 2)", "Comma(Tuple)"),
            ("1 2", "After"),
            ("a + b", "Foreign(\"a + b\")"),
            ("[,]", "Unexpected(\",\")"),
            ("'a\\\n'", "Foreign"),
        ] {
            let error = parse(text, &mut Shown).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let deep = "(".repeat(300);
        assert_eq!(parse(&deep, &mut Shown), Err("Deep".to_owned()));
    }

    #[test]
    fn quotes_that_are_not_closed_take_no_time() {
        let text = "\\'".repeat(1 << 19);
        assert!(parse(&format!("'{text}"), &mut Shown).is_err());
        assert!(parse(&"'\\\"".repeat(1 << 18), &mut Shown).is_err());
    }
}
