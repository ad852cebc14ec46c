//! `castwise.explain_cast`: the plan of a cast, in words.

use castwise_core::cast::{self as core, Settings};
use castwise_core::codec::options::Options;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::array::Array;
use crate::cast::factors;
use crate::cast_options::{CastOptions, Word, parse_flag, parse_word};
use crate::dtypes;
use crate::error::to_python;
use crate::numpy::PyArrayDescr;

/// The number of elements that a dtype stands for.
const LONG: usize = 1 << 20;

/// Describe how `cast` would work: formats and CPU level, the loops that elements pass through, and how refused values
/// and losses are found.
///
/// The environment variable `CASTWISE_LOG=cast` writes the same, verbosely, to the standard error for each cast.
///
/// Parameters
/// ----------
/// source : array_like, dtype or str
///     What is cast; a dtype stands for a long array of it.
/// dtype : dtype or str
///     The target, as in cast.
/// rounding, overflow, nan, scale, report
///     As in cast.
/// verbose : bool
///     Whether to add the types of loops in the Rust core, in brackets.
///
/// Returns
/// -------
/// str
///     A line for each part of the plan.
///
/// Raises
/// ------
/// TypeError, ValueError
///     As cast for these arguments.
///
/// Examples
/// --------
/// >>> print(castwise.explain_cast("float32", "bfloat16"))  # doctest: +SKIP
/// float32 -> bfloat16 on avx2
/// route: round to bfloat16, in one loop
#[pyfunction]
#[pyo3(
    signature = (source, dtype, *, rounding=None, overflow=Word::Default, nan=Word::Default, scale=None,
                 report=Word::Default, verbose=Word::Default),
    text_signature = "(source, dtype, *, rounding=None, overflow='ieee', nan='keep', scale=None, report=False, \
                      verbose=False)"
)]
#[expect(clippy::too_many_arguments, reason = "the public signature")]
pub(crate) fn explain_cast<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    rounding: Option<&Bound<'py, PyAny>>,
    overflow: Word<'_, 'py>,
    nan: Word<'_, 'py>,
    scale: Option<&Bound<'py, PyAny>>,
    report: Word<'_, 'py>,
    verbose: Word<'_, 'py>,
) -> PyResult<String> {
    let verbose = parse_flag("verbose", verbose, false)?;
    let report = parse_flag("report", report, false)?;
    let rounding = rounding.map(parse_word).transpose()?;
    let others = CastOptions { overflow: overflow.given(), nan: nan.given(), ..CastOptions::default() };
    let options = Options { rounding, ..others.parse(py)? };
    let (target, _) = dtypes::parse_argument("dtype", dtype)?;
    let is_dtype = source.is_instance_of::<PyString>()
        || source.is_instance_of::<PyType>()
        || source.is_instance_of::<PyArrayDescr>();
    let (format, count) = if is_dtype {
        (dtypes::parse_argument("source", source)?.0, LONG)
    } else {
        let array = Array::from_argument("source", source)?;
        (array.format, array.shape().iter().product())
    };
    let factor = match scale.map(factors).transpose()? {
        None => (false, None),
        Some(array) if array.shape().iter().product::<usize>() == 1 => {
            (true, Some(array.object.call_method0("item")?.extract()?))
        }
        Some(_) => (true, None),
    };
    let settings = Settings { options, report, threads: 1 };
    core::explain((format, target), factor, &settings, count, verbose).map_err(to_python)
}
