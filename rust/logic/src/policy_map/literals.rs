//! Finds texts that every match of an expression contains, in lower case (the filter ignores case).

use regex_syntax::hir::{Class, Hir, HirKind};

/// Alternatives that are distinguished, at most.
const MOST_ALTERNATIVES: usize = 1024;

/// Bytes of a text, at most; longer ones would not select more.
const LONGEST: usize = 128;

/// Returns sets of texts; every match contains one text of each.
pub(super) fn required(hir: &Hir) -> Vec<Vec<Vec<u8>>> {
    let mut walk = Walk { run: Vec::new(), sets: Vec::new() };
    walk.visit(hir);
    walk.end_run();
    walk.sets
}

struct Walk {
    /// The text that ends at the current place.
    run: Vec<u8>,
    sets: Vec<Vec<Vec<u8>>>,
}

impl Walk {
    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        run.truncate(LONGEST);
        if !run.is_empty() {
            self.sets.push(vec![run]);
        }
    }

    fn visit(&mut self, hir: &Hir) {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => self.run.extend(literal.0.to_ascii_lowercase()),
            HirKind::Class(class) => match one_letter(class) {
                Some(letter) => self.run.push(letter),
                None => self.end_run(),
            },
            HirKind::Capture(capture) => self.visit(&capture.sub),
            HirKind::Concat(parts) => parts.iter().for_each(|part| self.visit(part)),
            HirKind::Repetition(repetition) => {
                self.end_run();
                if repetition.min > 0 {
                    self.visit(&repetition.sub);
                    self.end_run();
                }
            }
            HirKind::Alternation(parts) => {
                self.end_run();
                // One text of each alternative, if each has one.
                let longest = |part| {
                    required(part).into_iter().filter(|set| set.len() == 1).flatten().max_by_key(Vec::len)
                };
                if parts.len() <= MOST_ALTERNATIVES
                    && let Some(set) = parts.iter().map(longest).collect::<Option<Vec<_>>>()
                {
                    self.sets.push(set);
                }
            }
        }
    }
}

/// Returns the letter of a class that is one ASCII letter in both cases.
///
/// Not i, k and s: case-insensitively, characters beyond ASCII match them too. Python decides about paths with those,
/// so the filter must let them pass.
fn one_letter(class: &Class) -> Option<u8> {
    let Class::Unicode(class) = class else { return None };
    let mut letters = class.iter().map(|range| (range.start() == range.end()).then(|| range.start()));
    let (Some(Some(first)), Some(Some(second)), None) = (letters.next(), letters.next(), letters.next())
    else {
        return None;
    };
    let same = first.is_ascii() && first.eq_ignore_ascii_case(&second);
    (same && !"iIkKsS".contains(first)).then(|| first.to_ascii_lowercase() as u8)
}
