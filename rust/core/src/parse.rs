//! Names to formats: canonical names, aliases, and the nearest names to a wrong one. Reads only the table.

use std::collections::HashMap;

use crate::cached_once::CachedOnce;
use crate::error::Error;
use crate::format::Format;
use crate::spelling::likely_meanings;

/// What stands before the names of dtypes in the libraries that have them.
const LIBRARIES: [&str; 10] =
    ["torch.", "ml_dtypes.", "jnp.", "jax.numpy.", "np.", "numpy.", "tf.", "tensorflow.", "mx.", "mlx.core."];

/// Finds the format with a name: canonical, an alias, or the code in safetensors files. Case is ignored, except in
/// codes of two letters, whose lower case means other dtypes in numpy ("i8" has 8 bytes). A canonical name, or a word
/// such as "half", may stand after the name of a library: "torch.bfloat16".
///
/// # Errors
/// [`Error::UnknownFormat`] with the nearest valid names.
pub fn parse(name: &str) -> Result<Format, Error> {
    find(name).ok_or_else(|| Error::UnknownFormat { name: name.to_owned(), nearest: likely(name) })
}

impl std::str::FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        parse(name)
    }
}

/// Does the same as [`parse`] without an error that suggests names, for callers that accept other names too.
#[must_use]
pub fn find(name: &str) -> Option<Format> {
    static SPELLINGS: CachedOnce<HashMap<String, Format>, 1> = CachedOnce::new();
    let spellings = SPELLINGS.get(0).unwrap_or_else(|| SPELLINGS.store(0, spellings()));
    // Most names are canonical: look in lower case only for the others.
    spellings.get(name).or_else(|| spellings.get(&lowered(name))).copied().or_else(|| of_library(name))
}

/// Finds the format with a name after that of a library, in which abbreviations such as "f32" may mean another.
fn of_library(name: &str) -> Option<Format> {
    let name = lowered(name);
    let dtype = LIBRARIES.iter().find_map(|library| name.strip_prefix(library))?;
    let is_it = |format: &Format| {
        let words =
            format.row().aliases.iter().filter(|alias| !alias.contains(|letter: char| letter.is_numeric()));
        std::iter::once(&format.row().name).chain(words).any(|spelling| *spelling == dtype)
    };
    Format::all().find(is_it)
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

/// Canonical names that may have been meant.
fn likely(wanted: &str) -> Vec<&'static str> {
    let meanings = listed_spellings().into_iter().map(|(spelling, format)| (spelling, format.name()));
    likely_meanings(wanted, meanings)
}

/// Every spelling with its format, first those of formats that have a code in safetensors files.
#[must_use]
pub fn listed_spellings() -> Vec<(&'static str, Format)> {
    let of = |format: Format| {
        let row = format.row();
        let spellings = std::iter::once(&row.name).chain(row.aliases).chain(&row.safetensors);
        spellings.map(move |&spelling| (spelling, format))
    };
    let in_files = |format: &Format| format.row().safetensors.is_some();
    let (first, last) = (Format::all().filter(in_files), Format::all().filter(|format| !in_files(format)));
    first.chain(last).flat_map(of).collect()
}
