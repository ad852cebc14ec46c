//! Names to formats: canonical names, aliases, and the nearest names to a wrong one. Reads only the table.

use crate::error::Error;
use crate::format::Format;

/// The format called `name`, by its canonical name or an alias; case does not matter.
///
/// # Errors
/// [`Error::UnknownFormat`] with the nearest valid names.
pub fn parse(name: &str) -> Result<Format, Error> {
    let wanted = name.trim().to_ascii_lowercase();
    Format::all()
        .find(|format| format.name() == wanted || format.row().aliases.contains(&wanted.as_str()))
        .ok_or_else(|| Error::UnknownFormat { name: name.to_owned(), nearest: nearest(&wanted) })
}

/// Up to three canonical names whose spelling, or an alias' spelling, is close to `wanted`.
fn nearest(wanted: &str) -> Vec<&'static str> {
    let mut scored: Vec<(usize, &'static str)> = Format::all()
        .map(|format| {
            let row = format.row();
            let spellings = row.aliases.iter().chain(std::iter::once(&row.name));
            let best = spellings.map(|spelling| distance(wanted, spelling)).min();
            (best.unwrap_or(usize::MAX), row.name)
        })
        .collect();
    scored.sort_by_key(|&(score, _)| score);
    let limit = (wanted.chars().count() / 2).max(2);
    scored.into_iter().take(3).filter(|&(score, _)| score <= limit).map(|(_, name)| name).collect()
}

/// Levenshtein distance, one row at a time.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.chars().count()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in right.chars().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_alias_is_unique_and_parses_to_its_row() {
        for format in Format::all() {
            let row = format.row();
            for spelling in row.aliases.iter().chain([&row.name]) {
                assert_eq!(parse(spelling).unwrap(), format, "{spelling}");
                assert_eq!(parse(&spelling.to_ascii_uppercase()).unwrap(), format);
            }
        }
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest() {
        let error = parse("float8_e4m3f").unwrap_err();
        assert!(error.to_string().contains("float8_e4m3fn"), "{error}");
        assert!(parse("bfloat17").unwrap_err().to_string().contains("bfloat16"));
        assert!(!parse("quaternion").unwrap_err().to_string().contains("Did you mean"));
    }
}
