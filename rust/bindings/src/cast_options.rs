//! The options of a cast, read by one function for all that take them.

use castwise_core::Error;
use castwise_core::codec::options::{Named, NanRule, Options, Overflow, Rounding};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString};

use crate::arguments::is_flag;
use crate::error::to_python;

type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// An option that is named by a word, or is on or off.
#[derive(Clone, Copy)]
pub(crate) enum Word<'a, 'py> {
    /// Not given.
    Default,
    /// Given, with any value.
    Given(Object<'a, 'py>),
}

impl<'a, 'py> Word<'a, 'py> {
    pub(crate) fn given(self) -> Option<Object<'a, 'py>> {
        match self {
            Self::Default => None,
            Self::Given(word) => Some(word),
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Word<'a, 'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Given(object))
    }
}

/// Options as they are given; those that are not have their defaults.
#[derive(Clone, Copy, Default)]
pub(crate) struct CastOptions<'a, 'py> {
    pub(crate) rounding: Option<Object<'a, 'py>>,
    pub(crate) overflow: Option<Object<'a, 'py>>,
    pub(crate) nan: Option<Object<'a, 'py>>,
    pub(crate) seed: Option<Object<'a, 'py>>,
}

/// Why options are not valid; no exception yet, which small calls have no time for.
#[derive(Clone, Copy)]
enum Fault<'a, 'py> {
    Rounding(Object<'a, 'py>),
    Overflow(Object<'a, 'py>),
    Nan(Object<'a, 'py>),
    Seed(Object<'a, 'py>),
    UnusedSeed,
}

impl<'a, 'py> CastOptions<'a, 'py> {
    /// Reads them, if they are valid and no seed has to be drawn.
    #[inline(always)]
    pub(crate) fn known(self) -> Option<Options> {
        match self.read() {
            Ok((options, false)) => Some(options),
            _ => None,
        }
    }

    /// Reads them, and draws a seed from the operating system where one is needed and not given.
    pub(crate) fn parse(self, py: Python<'_>) -> PyResult<Options> {
        static RANDBITS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (options, needs_seed) = self.read().map_err(Fault::error)?;
        if !needs_seed {
            return Ok(options);
        }
        let seed = RANDBITS.import(py, "secrets", "randbits")?.call1((64,))?.extract()?;
        Ok(Options { seed, ..options })
    }

    /// Reads them; also returns whether a seed is needed.
    #[inline]
    fn read(self) -> Result<(Options, bool), Fault<'a, 'py>> {
        let rounding = match self.rounding {
            None => None,
            Some(word) => Some(named::<Rounding>(&word).ok_or(Fault::Rounding(word))?),
        };
        let overflow =
            self.overflow.map_or(Ok(Overflow::Ieee), |word| named(&word).ok_or(Fault::Overflow(word)))?;
        let nan = self.nan.map_or(Ok(NanRule::Keep), |word| named(&word).ok_or(Fault::Nan(word)))?;
        let draws = rounding == Some(Rounding::Stochastic);
        let seed = match self.seed {
            None => 0,
            Some(_) if !draws => return Err(Fault::UnusedSeed),
            Some(seed) => seed_of(&seed).ok_or(Fault::Seed(seed))?,
        };
        Ok((Options { rounding, overflow, nan, seed }, draws && self.seed.is_none()))
    }
}

impl Fault<'_, '_> {
    #[cold]
    fn error(self) -> PyErr {
        let error = match self {
            Self::Rounding(word) => unknown::<Rounding>(&word),
            Self::Overflow(word) => unknown::<Overflow>(&word),
            Self::Nan(word) => unknown::<NanRule>(&word),
            Self::Seed(seed) => seed.repr().map(|shown| {
                PyValueError::new_err(format!("seed={shown} is not valid; use an int from 0 to 2**64 - 1."))
            }),
            Self::UnusedSeed => Ok(PyValueError::new_err(
                "seed= has no effect without rounding=\"stochastic\"; leave it out or ask for that rounding.",
            )),
        };
        error.unwrap_or_else(|error| error)
    }
}

/// Reads a seed.
fn seed_of(seed: &Bound<'_, PyAny>) -> Option<u64> {
    // One that does not fit makes an error that is dropped.
    Python::attach(|_| match seed.cast_exact::<PyInt>() {
        Ok(seed) => seed.extract().ok(),
        Err(_) => seed.extract().ok().filter(|_| !is_flag(seed)),
    })
}

/// Returns the value of an option, if the word is one of its names.
fn named<T: Named>(given: &Bound<'_, PyAny>) -> Option<T> {
    T::parse(given.cast::<PyString>().ok()?.to_str().ok()?).ok()
}

/// Makes the error that lists the valid names of an option.
fn unknown<T: Named>(given: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    if let Ok(word) = given.cast::<PyString>()
        && let Err(error) = T::parse(&word.to_cow()?)
    {
        return Ok(to_python(error));
    }
    Ok(to_python(Error::UnknownOption {
        argument: T::ARGUMENT,
        value: given.repr()?.to_string(),
        valid: T::NAMES.iter().map(|&(name, _)| name).collect(),
    }))
}

/// Returns the value of an option, or an error that lists the valid ones.
pub(crate) fn parse_word<T: Named>(given: &Bound<'_, PyAny>) -> PyResult<T> {
    match named(given) {
        Some(value) => Ok(value),
        None => Err(unknown::<T>(given)?),
    }
}

/// Reads an option that is on or off.
pub(crate) fn parse_flag(argument: &'static str, given: Word<'_, '_>, default: bool) -> PyResult<bool> {
    let Word::Given(given) = given else { return Ok(default) };
    // numpy's bool as well as Python's.
    given.extract().map_err(|_| {
        let shown = given.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        PyTypeError::new_err(format!("{argument}={shown} is not valid; use True or False."))
    })
}
