//! From a name to a policy.
//!
//! ```text
//! name      = dtype | mixed | open | mode "_from_" source        (which of them: the dialect)
//! mode      = word ("/" integer)*                                (which words and integers: the table of modes)
//! source    = dtype | mixed
//! ```

use std::borrow::Cow;
use std::fmt;

use super::dialect::{Dialect, Exception, KERAS};
use super::mode::{Class, MODES, Mode};
use super::value::{Policy, Quantization};
use castwise_core::codec::options::Named;
use castwise_core::parse;
use castwise_core::spelling::likely_meanings;

/// Why a name was refused, and by which kind of exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the system would raise.
    pub exception: Exception,
    /// The argument, its value and the remedy.
    pub message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

fn refuse<T>(exception: Exception, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { exception, message: message.into() })
}

/// What stands between a mode and its source.
const FROM: &str = "_from_";

/// The dtype called `spelling`.
///
/// # Errors
/// The dialect does not know it.
pub fn parse_dtype(spelling: &str, dialect: &Dialect) -> Result<Cow<'static, str>, Refused> {
    dialect.dtype(spelling).map_or_else(
        || {
            let words: Vec<&str> = dialect
                .dtypes
                .iter()
                .copied()
                .chain(dialect.aliases.iter().map(|&(alias, _)| alias))
                .collect();
            refuse(
                dialect.refusal,
                format!(
                    "dtype={spelling:?} is not a dtype of {}{} one of {}.",
                    dialect.system,
                    remedy(spelling, dialect, &[]),
                    words.join(", ")
                ),
            )
        },
        Ok,
    )
}

/// The policy called `name`, of any class.
///
/// # Errors
/// The dialect has no such policy.
pub fn parse(name: &str, dialect: &Dialect) -> Result<Policy, Refused> {
    if !dialect.quantizes || !name.contains(FROM) {
        return plain(name, dialect);
    }
    let mut parts = name.split(FROM);
    let (Some(written), Some(source), None) = (parts.next(), parts.next(), parts.next()) else {
        return refuse(
            dialect.refusal,
            format!(
                "policy={name:?} has more than one \"{FROM}\"; a quantized policy is <mode>{FROM}<source>."
            ),
        );
    };
    let mode = find_mode(written, dialect)?;
    let class = if written.contains('/') { mode.detailed } else { mode.bare };
    match class {
        Some(class) => quantized(class, written, source),
        None => refuse(
            dialect.refusal,
            format!("policy={name:?}: the mode {:?} is written {}{FROM}<source>.", mode.name, mode.pattern()),
        ),
    }
}

/// The policy of one dtype or of a mixed pair.
///
/// # Errors
/// The dialect has no such policy.
pub fn plain(name: &str, dialect: &Dialect) -> Result<Policy, Refused> {
    let policy = |compute: Option<Cow<'static, str>>, variable: Option<Cow<'static, str>>| Policy {
        class: Class::Plain,
        name: name.to_owned(),
        compute,
        variable,
        quantization: None,
    };
    check_removed(name, dialect)?;
    if let Some(&(_, compute, variable)) = dialect.mixed.iter().find(|(mixed, ..)| *mixed == name) {
        return Ok(policy(Some(compute.into()), Some(variable.into())));
    }
    if dialect.open == Some(name) {
        return Ok(policy(None, None));
    }
    if let Some(dtype) = dialect.dtype(name) {
        return Ok(policy(Some(dtype.clone()), Some(dtype)));
    }
    if let Some(mode) = mixed_mode(name, dialect) {
        let message = format!(
            "policy={name:?} is not a policy of {}: {mode} needs scales, which only a quantized layer has. Set \
             'mixed_bfloat16' and quantize the built model, model.quantize({mode:?}): the layers that support it then \
             have the policy '{mode}{FROM}mixed_bfloat16'.",
            dialect.system
        );
        return refuse(dialect.refusal, message);
    }
    let mixed: Vec<&str> = dialect.mixed_names().collect();
    let mut valid: Vec<String> = mixed.iter().map(|mixed| format!("'{mixed}'")).collect();
    valid.push("the name of a dtype such as 'float32'".to_owned());
    if dialect.quantizes {
        valid.push(format!("'<mode>{FROM}<source>' such as 'int8{FROM}float32'"));
    }
    refuse(
        dialect.refusal,
        format!(
            "policy={name:?} is not a policy of {}{} {}.",
            dialect.system,
            remedy(name, dialect, &mixed),
            valid.join(", ")
        ),
    )
}

/// The mode of quantization of a mixed policy that does not exist: "float8" of `mixed_float8_e4m3fn` and `mixed_fp8`.
///
/// Keras' maintainers refuse such policies (keras-team/keras#23479): quantization needs variables and calls of each layer,
/// so a quantized policy is what it leaves, and not one to set.
fn mixed_mode(name: &str, dialect: &Dialect) -> Option<&'static str> {
    let name = name.to_lowercase();
    let codes = name.strip_prefix("mixed_").filter(|_| dialect.quantizes)?.replacen("fp", "float", 1);
    MODES
        .iter()
        .filter(|mode| mode.bare.is_some())
        .map(|mode| mode.name)
        .find(|mode| codes.strip_prefix(mode).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

/// How a refusal goes on: with what a name means elsewhere, or may mean, and with "use".
fn remedy(name: &str, dialect: &Dialect, mixed: &[&'static str]) -> String {
    let known = |dtype: &str| dialect.dtypes.iter().copied().find(|&known| known == dtype);
    let likely = if let Some(format) = parse::find(name) {
        let Some(dtype) = known(format.name()) else {
            return format!(", which has no dtype for castwise's {}; use", format.name());
        };
        vec![dtype]
    } else {
        let formats = parse::listed_spellings().into_iter();
        let formats = formats.filter_map(|(spelling, format)| Some((spelling, known(format.name())?)));
        likely_meanings(name, mixed.iter().chain(dialect.dtypes).map(|&name| (name, name)).chain(formats))
    };
    if likely.is_empty() {
        return "; use".to_owned();
    }
    let likely: Vec<String> = likely.into_iter().map(|name| format!("'{name}'")).collect();
    format!(". Did you mean {}? Use", likely.join(" or "))
}

fn check_removed(name: &str, dialect: &Dialect) -> Result<(), Refused> {
    let Some(removed) = &dialect.removed else { return Ok(()) };
    let Some(beginning) = name.strip_suffix(removed.suffix) else { return Ok(()) };
    let advice = removed.advice.iter().find(|(known, _)| *known == beginning);
    let remedy = advice.map_or_else(String::new, |(_, instead)| format!(" Use {instead} instead."));
    let message = format!(
        "policy={name:?}: the policies that end in '{}' have been removed from {}.{remedy}",
        removed.suffix, dialect.system
    );
    refuse(dialect.refusal, message)
}

/// A quantized policy of Keras: the constructor of `class` with its `mode` and `source` arguments.
///
/// # Errors
/// The mode is not one of the class, a parameter is out of its domain, the source is not a plain policy, or the mode
/// refuses its compute dtype.
pub fn quantized(class: Class, mode: &str, source: &str) -> Result<Policy, Refused> {
    let row = find_mode(mode, &KERAS)?;
    let detailed = row.detailed == Some(class);
    // The general class takes every mode by its bare name.
    if !(detailed || class == Class::Quantized && mode == row.name || row.bare == Some(class)) {
        return refuse(
            KERAS.refusal,
            format!("mode={mode:?} is not a mode of {}; {}", class.name(), modes_of(class)),
        );
    }
    let parameters = if detailed { parameters(row, mode)? } else { Vec::new() };
    if !detailed && mode != row.name {
        return refuse(
            KERAS.refusal,
            format!("mode={mode:?} has parameters, but {:?} takes none.", row.name),
        );
    }
    let source = plain(source, &KERAS)?;
    if row.refused_compute.is_some() && row.refused_compute == source.compute_dtype() {
        let compute = source.compute_dtype().unwrap_or_default();
        let message = format!(
            "mode={mode:?} with source_name={:?}: {:?} does not work with compute dtype {compute:?}; use a source \
             with another compute dtype.",
            source.name, row.name
        );
        return refuse(KERAS.refusal, message);
    }
    let numbers = parameters.iter().map(|number| format!("/{number}"));
    let written: String = std::iter::once(row.name.to_owned()).chain(numbers).collect();
    Ok(Policy {
        class,
        name: format!("{written}{FROM}{}", source.name),
        compute: source.compute,
        variable: source.variable,
        quantization: Some(Quantization { written, mode: row.name, parameters, source: source.name }),
    })
}

/// The row of a mode written with or without parameters.
fn find_mode(written: &str, dialect: &Dialect) -> Result<&'static Mode, Refused> {
    let word = written.split('/').next().unwrap_or_default();
    Mode::find(word).map_or_else(
        || {
            let words: Vec<&str> = MODES.iter().map(|mode| mode.name).collect();
            refuse(
                dialect.refusal,
                format!("mode={written:?} is not a quantization mode; use one of {}.", words.join(", ")),
            )
        },
        Ok,
    )
}

fn modes_of(class: Class) -> String {
    let rows = MODES.iter().filter(|mode| mode.detailed == Some(class) || mode.bare == Some(class));
    let patterns: Vec<String> = rows
        .map(|mode| if mode.detailed == Some(class) { mode.pattern() } else { mode.name.to_owned() })
        .collect();
    format!("use {}.", patterns.join(" or "))
}

fn parameters(row: &Mode, written: &str) -> Result<Vec<i64>, Refused> {
    let texts: Vec<&str> = written.split('/').skip(1).collect();
    if texts.len() != row.parameters.len() {
        return refuse(KERAS.refusal, format!("mode={written:?} is not written {}.", row.pattern()));
    }
    let checked = row.parameters.iter().zip(texts).map(|(parameter, text)| {
        let word = parameter.word.filter(|(word, _)| *word == text).map(|(_, value)| value);
        match word.or_else(|| python_integer(text)).filter(|&value| parameter.domain.contains(value)) {
            Some(value) => Ok(value),
            None => refuse(
                KERAS.refusal,
                format!(
                    "mode={written:?}: {}={text} must be {}.",
                    parameter.name,
                    parameter.domain.describe()
                ),
            ),
        }
    });
    checked.collect()
}

/// What Python's `int` makes of a text: Keras reads parameters with it, so files may hold `" 128"` or `"1_2"`.
fn python_integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sound =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    sound.then(|| text.replace('_', "").parse().ok()).flatten()
}
