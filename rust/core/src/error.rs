//! The one error of the core. Every text names the argument, the value and the remedy, in the words of no language but for two of
//! [`crate::quantization`] that name Python's options.

use std::fmt;

/// Why a request was refused. A refused argument writes nothing; a refused element leaves a target untouched, half written
/// or of no use, as the function that returns it says. The alternate form `{error:#}` of a refused element leaves the remedy
/// out, for callers whose options have other names.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// No format has this name.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    UnknownFormat {
        /// What was asked for.
        name: String,
        /// Canonical names that are spelled alike.
        nearest: Vec<&'static str>,
    },
    /// An option has no such value.
    UnknownOption {
        /// The argument.
        argument: &'static str,
        /// What was given, as it is written.
        value: String,
        /// What would be valid.
        valid: Vec<&'static str>,
    },
    /// An option's value is out of its domain.
    InvalidOption {
        /// The whole sentence.
        message: String,
    },
    /// A scheme cannot hold an array of this shape, in such blocks, or with such an element.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    Unfit {
        /// The whole sentence.
        message: String,
    },
    /// A slice has not the number of elements or bytes that the others need.
    Length {
        /// The argument.
        argument: &'static str,
        /// Its length.
        length: usize,
        /// The length that it needs.
        needed: usize,
    },
    /// A number that an argument cannot have.
    InvalidNumber {
        /// The argument.
        argument: &'static str,
        /// What was given.
        value: f64,
        /// What would be valid.
        valid: &'static str,
    },
    /// NaN is to become zero in a format without zero.
    NoZero {
        /// Target format.
        target: Format,
    },
    /// The pair of formats has no meaning (complex to real).
    Unsupported {
        /// Source format.
        source: Format,
        /// Target format.
        target: Format,
    },
    /// A cast that refuses overflow met a value beyond the target's range.
    Overflow {
        /// Flat (C order) index of the first one.
        index: u64,
        /// The value.
        value: String,
        /// What it was to be multiplied by.
        scale: Option<f64>,
        /// Target format.
        target: Format,
    },
    /// A cast that refuses NaN met one.
    Nan {
        /// Flat (C order) index of the first one.
        index: u64,
    },
}

use crate::format::Format;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFormat { name, nearest } => {
                write!(f, "{name:?} is not the name of a format.")?;
                if let [first, rest @ ..] = nearest.as_slice() {
                    write!(f, " Did you mean {first:?}")?;
                    rest.iter().try_for_each(|name| write!(f, " or {name:?}"))?;
                    f.write_str("?")?;
                }
                f.write_str(" `Format::all()` lists all.")
            }
            Self::UnknownOption { argument, value, valid } => {
                write!(f, "{argument} {value} is not valid; use one of ")?;
                for (position, name) in valid.iter().enumerate() {
                    write!(f, "{}{name:?}", if position == 0 { "" } else { ", " })?;
                }
                f.write_str(".")
            }
            Self::InvalidOption { message } | Self::Unfit { message } => f.write_str(message),
            Self::InvalidNumber { argument, value, valid } => {
                write!(f, "{argument} {value:?} is not valid; use {valid}.")
            }
            Self::NoZero { target } => {
                write!(f, "NaN cannot become zero in {target:?}, which has no zero. Keep it, or refuse it.")
            }
            Self::Length { argument, length, needed } => {
                write!(f, "{argument} has length {length}; give it length {needed}.")
            }
            Self::Unsupported { source, target } => write!(
                f,
                "cannot cast {source:?} to {target:?}: the imaginary part would be lost. Cast the real or the imaginary \
                 part instead."
            ),
            Self::Overflow { index, value, scale, target } => {
                write!(f, "value {value}")?;
                if let Some(scale) = scale {
                    write!(f, " times scale {scale:?}")?;
                    if let Ok(number) = value.parse::<f64>() {
                        write!(f, ", {:?},", number * scale)?;
                    }
                }
                write!(f, " at flat index {index} is beyond the range of {target:?}")?;
                let scale = if scale.is_some() { "another" } else { "a" };
                remedy(f, format_args!("Let it saturate or overflow as in IEEE 754, or give {scale} scale"))
            }
            Self::Nan { index } => {
                write!(f, "NaN at flat index {index}")?;
                remedy(f, format_args!("Let it stay NaN or become zero"))
            }
        }
    }
}

/// Writes what to do about a refused element, except in the alternate form.
fn remedy(f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    if f.alternate() { Ok(()) } else { write!(f, ". {text}.") }
}

impl Error {
    /// Returns the error with its index moved on by so many elements.
    pub(crate) fn after(self, count: u64) -> Self {
        match self {
            Self::Overflow { index, value, scale, target } => {
                Self::Overflow { index: index + count, value, scale, target }
            }
            Self::Nan { index } => Self::Nan { index: index + count },
            other => other,
        }
    }
}

impl std::error::Error for Error {}

/// Returns a list without items that has room for those of an axis.
pub(crate) fn with_room<T>(argument: &str, length: usize) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    items.try_reserve_exact(length).map_err(|_| Error::InvalidOption {
        message: format!(
            "{argument} has {length} items along its first axis, more than memory holds; give a part."
        ),
    })?;
    Ok(items)
}
