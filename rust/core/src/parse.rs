//! Names to formats: canonical names, aliases, and the nearest names to a wrong one. Reads only the table.

use std::collections::HashMap;

use crate::cached_once::CachedOnce;
use crate::error::Error;
use crate::format::Format;
use crate::sort_few::sort_few;
use crate::spelling::distance;

/// Finds the format with a name: canonical, an alias, or the code in safetensors files. Case is ignored, except in
/// codes of two letters, whose lower case means other dtypes in numpy ("i8" has 8 bytes).
///
/// # Errors
/// [`Error::UnknownFormat`] with the nearest valid names.
pub fn parse(name: &str) -> Result<Format, Error> {
    find(name).ok_or_else(|| Error::UnknownFormat { name: name.to_owned(), nearest: nearest(&lowered(name)) })
}

/// Does the same as [`parse`] without an error that suggests names, for callers that accept other names too.
#[must_use]
pub fn find(name: &str) -> Option<Format> {
    static SPELLINGS: CachedOnce<HashMap<String, Format>, 1> = CachedOnce::new();
    let spellings = SPELLINGS.get(0).unwrap_or_else(|| SPELLINGS.store(0, spellings()));
    // Most names are canonical: look in lower case only for the others.
    spellings.get(name).or_else(|| spellings.get(&lowered(name))).copied()
}

/// Maps every spelling in lower case, and the codes of safetensors files in upper case. Codes of two letters are in
/// upper case only: in numpy, "i8" has 8 bytes.
fn spellings() -> HashMap<String, Format> {
    let mut spellings = HashMap::new();
    for format in Format::all() {
        let row = format.row();
        let mut add = |spelling: String| _ = spellings.entry(spelling).or_insert(format);
        row.aliases.iter().chain([&row.name]).for_each(|&spelling| add(spelling.to_owned()));
        if let Some(code) = row.safetensors {
            add(code.to_owned());
            if code.len() > 2 {
                add(lowered(code));
            }
        }
    }
    spellings
}

fn lowered(name: &str) -> String {
    name.trim().to_ascii_lowercase()
}

/// Up to three canonical names that may have been meant: by a shared beginning, else by spelling. Of those that share it,
/// the ones with a code in safetensors files are first.
fn nearest(wanted: &str) -> Vec<&'static str> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let spelled = |format: Format| {
        let row = format.row();
        let spellings = row.aliases.iter().chain(std::iter::once(&row.name));
        spellings.map(|spelling| distance(wanted, spelling)).min().unwrap_or(usize::MAX)
    };
    // "fp8" and "f8" are common names of the float8 family.
    let family = wanted.replacen("fp", "float", 1);
    let family = if wanted.starts_with("f8") { wanted.replacen('f', "float", 1) } else { family };
    let mut scored: Vec<_> = Format::all()
        .map(|format| {
            let strange = !format.name().starts_with(&family);
            let score = if strange { spelled(format) } else { format.row().safetensors.is_none().into() };
            (strange, score, format.name())
        })
        .collect();
    sort_few(&mut scored, |left, right| (left.0, left.1) <= (right.0, right.1));
    let limit = (wanted.chars().count() / 2).max(2);
    let has_family = scored.first().is_some_and(|&(strange, ..)| !strange);
    let close =
        scored.into_iter().filter(|&(strange, score, _)| if has_family { !strange } else { score <= limit });
    close.take(3).map(|(_, _, name)| name).collect()
}
