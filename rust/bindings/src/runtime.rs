//! CPU level and threads.

use std::env;

use castwise_core::cast;
use castwise_core::cpu::{DefaultEnvironment, Level};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::is_flag;
use crate::error::to_python;

/// The CPU level in use: "portable", "neon", "avx2" or "avx512".
///
/// The environment variable `CASTWISE_CPU_LEVEL` forces one when castwise is imported.
///
/// Examples
/// --------
/// >>> castwise.cpu_level() in castwise.cpu_levels()
/// True
#[pyfunction]
pub(crate) fn cpu_level() -> &'static str {
    Level::active().name()
}

/// The CPU levels that this machine can run, slowest first.
///
/// Examples
/// --------
/// >>> castwise.cpu_levels()[0]
/// 'portable'
#[pyfunction]
pub(crate) fn cpu_levels(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, Level::available().map(Level::name).collect::<Vec<_>>())
}

/// Switch the CPU level, for tests and benchmarks. Raises `ValueError` if this machine cannot run it.
#[pyfunction]
pub(crate) fn set_cpu_level(name: &str) -> PyResult<()> {
    Level::parse(name).map_err(to_python)?.activate();
    Ok(())
}

/// How many threads a cast may use.
///
/// Examples
/// --------
/// >>> castwise.get_num_threads() >= 1
/// True
#[pyfunction]
pub(crate) fn get_num_threads() -> usize {
    cast::num_threads()
}

/// Set how many threads a cast may use. At first it is every CPU that this process may use.
///
/// The environment variable `CASTWISE_NUM_THREADS` does the same when castwise is imported; without it
/// `OMP_NUM_THREADS` bounds the number. Casts that run at the same time share it. Raises `ValueError` for
/// anything but an int of 1 or more.
///
/// Examples
/// --------
/// >>> castwise.set_num_threads(castwise.get_num_threads())
#[pyfunction]
pub(crate) fn set_num_threads(threads: &Bound<'_, PyAny>) -> PyResult<()> {
    cast::set_num_threads(parse_threads(threads)?);
    Ok(())
}

/// Set how many MiB of freed arrays' memory castwise keeps for later results; with 0 it keeps none.
///
/// The default is 256, or the value of the environment variable `CASTWISE_KEPT_MEMORY` when castwise is imported.
/// castwise keeps memory only on Linux. Raises `ValueError` for anything but an int of 0 or more.
///
/// Examples
/// --------
/// >>> castwise.set_kept_memory(256)
#[pyfunction]
pub(crate) fn set_kept_memory(mebibytes: &Bound<'_, PyAny>) -> PyResult<()> {
    let given = if is_flag(mebibytes) { None } else { mebibytes.extract().ok() };
    let bytes = given.and_then(|mebibytes: usize| mebibytes.checked_mul(1 << 20));
    let Some(bytes) = bytes else {
        return Err(PyValueError::new_err(format!(
            "mebibytes={} is not valid; use an int of 0 or more.",
            mebibytes.repr()?
        )));
    };
    #[cfg(target_os = "linux")]
    castwise_core::memory::set_limit(bytes);
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
    Ok(())
}

/// Call a function in the default floating-point environment, in which numpy flushes no subnormal number.
#[pyfunction]
#[pyo3(signature = (function, *arguments))]
pub(crate) fn in_default_environment<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let _environment = DefaultEnvironment::enter();
    function.call1(arguments)
}

/// Bytes read and written up to which the interpreter is kept: releasing it takes a tenth of the time of their copy.
pub(crate) const KEEPS_INTERPRETER: usize = 1 << 18;

/// Calls a function that reads and writes so many bytes, without the interpreter if they are many.
pub(crate) fn release<T: Send>(py: Python<'_>, bytes: usize, call: impl FnOnce() -> T + Send) -> T {
    if bytes <= KEEPS_INTERPRETER { call() } else { py.detach(call) }
}

/// Returns bytes whose copy takes about as long as the work for so many bytes in so many items, however short these are.
pub(crate) fn bytes_of_items(bytes: usize, items: usize) -> usize {
    bytes.max(items.saturating_mul(KEEPS_INTERPRETER / 256))
}

/// A number of threads, checked.
pub(crate) fn parse_threads(threads: &Bound<'_, PyAny>) -> PyResult<usize> {
    let remedy = match threads.extract::<usize>() {
        _ if is_flag(threads) => "an int of 1 or more",
        Ok(count) if count > 0 => return Ok(count),
        Err(error) if error.is_instance_of::<PyOverflowError>(threads.py()) && threads.gt(0)? => {
            "a smaller int"
        }
        _ => "an int of 1 or more",
    };
    Err(PyValueError::new_err(format!("threads={} is not valid; use {remedy}.", threads.repr()?)))
}

/// Applies the environment variables; returns a sentence for each invalid one.
pub(crate) fn read_environment() -> Vec<String> {
    let mut errors = Vec::new();
    if let Some(name) = variable("CASTWISE_CPU_LEVEL") {
        match Level::parse(&name) {
            Ok(level) => level.activate(),
            Err(error) => errors.push(format!("environment variable CASTWISE_CPU_LEVEL: {error}")),
        }
    }
    let text = variable("CASTWISE_LOG").unwrap_or_default();
    let topics: Vec<&str> = text.split(',').map(str::trim).filter(|topic| !topic.is_empty()).collect();
    cast::log_casts(topics.contains(&"cast"));
    if topics.iter().any(|&topic| topic != "cast") {
        errors.push(format!("environment variable CASTWISE_LOG={text:?} is not valid; use \"cast\"."));
    }
    let asked = variable("CASTWISE_NUM_THREADS");
    match asked.as_ref().map(|text| text.trim().parse()) {
        Some(Ok(threads)) if threads > 0 => cast::set_num_threads(threads),
        // Set by job schedulers and worker pools to limit their processes. Invalid values are left for OpenMP to
        // report.
        _ => {
            if let Some(threads) = variable("OMP_NUM_THREADS").and_then(|text| first_number(&text)) {
                cast::set_num_threads(threads.min(cast::num_threads()));
            }
            errors.extend(asked.map(|text| {
                format!("environment variable CASTWISE_NUM_THREADS={text:?} is not valid; use a whole number of 1 or more.")
            }));
        }
    }
    #[cfg(target_os = "linux")]
    if let Some(text) = variable("CASTWISE_KEPT_MEMORY") {
        match text.trim().parse().ok().and_then(|mebibytes: usize| mebibytes.checked_mul(1 << 20)) {
            Some(bytes) => castwise_core::memory::set_limit(bytes),
            None => errors.push(format!(
                "environment variable CASTWISE_KEPT_MEMORY={text:?} is not valid; use a whole number of MiB, 0 to \
                 keep none."
            )),
        }
    }
    errors
}

/// The first of a list of numbers of 1 or more.
fn first_number(text: &str) -> Option<usize> {
    text.split(',').next()?.trim().parse().ok().filter(|&number| number > 0)
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name)?.to_string_lossy().into_owned();
    (!value.trim().is_empty()).then_some(value)
}
