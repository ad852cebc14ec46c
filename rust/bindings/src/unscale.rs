//! Lists of gradients to one call of the core.

use castwise_core::Format;
use castwise_core::cast::num_threads;
use castwise_core::unscale::{Gradient, Reciprocal, Unscaled, unscale};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::real;
use crate::array::reading::class_fault;
use crate::array::{Array, Order, TargetFault, shown, target_fault};
use crate::dtypes;
use crate::error::to_python;
use crate::keywords::Keywords;
use crate::numpy::{FLOAT, PyArrayDescr};
use crate::runtime::{parse_threads, release};
use crate::separation::{Elements, Same, copy_written, refuse_shared};

/// Divide arrays by a scale, in one pass over all of them.
///
/// Returns the results (targets, or new arrays of dtype; one for each source), whether all elements are finite before
/// and after, and the norm of the results before rounding (0.0 unless squares is set). An array at several places is
/// divided once, and counts at each. `path(index)` names an array in errors. With single, float64 gradients are
/// multiplied by the reciprocal rounded to float32, too.
#[pyfunction]
#[pyo3(
    signature = (path, sources, targets, dtype, scale, **options),
    text_signature = "(path, sources, targets, dtype, scale, *, squares=False, single=False, threads=None)"
)]
#[expect(clippy::needless_pass_by_value, reason = "the shape that arguments arrive in")]
pub(crate) fn unscale_arrays<'py>(
    py: Python<'py>,
    path: Bound<'py, PyAny>,
    sources: Vec<Bound<'py, PyAny>>,
    targets: Option<Vec<Bound<'py, PyAny>>>,
    dtype: Option<&Bound<'py, PyAny>>,
    scale: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<(Vec<Bound<'py, PyAny>>, bool, f64)> {
    let keywords = Keywords::new(py, "unscale_arrays", options)?;
    let (squares, single) = (keywords.read("squares", false)?, keywords.read("single", false)?);
    let threads: Option<Bound<'py, PyAny>> = keywords.read("threads", None)?;
    keywords.finish()?;
    let threads = threads.as_ref().map_or_else(|| Ok(num_threads()), parse_threads)?;
    let scale = real("scale", scale)?;
    let reciprocal = if single { Reciprocal::of_f32(scale) } else { Reciprocal::of(scale) };
    let reciprocal = reciprocal.map_err(to_python)?;
    let paths = Paths(path);
    let dtype = dtype.map(|dtype| dtypes::parse_argument("dtype", dtype)).transpose()?;
    if let Some((format, descr)) = &dtype {
        require_float(*format).map_err(|fault| PyTypeError::new_err(format!("dtype={descr} {fault}")))?;
    }
    let arrays_of_sources = arrays("grads", &paths, &sources, require_float)?;
    let Some(targets) = targets else {
        let same = Same::of(sources.iter().map(Bound::as_ptr));
        let sources = same.chosen(arrays_of_sources);
        let (format, descr) = match dtype {
            Some(dtype) => dtype,
            None => dtypes::parse_argument("dtype", PyArrayDescr::of_number(py, FLOAT)?.as_any())?,
        };
        let new = |source: &Array<'py>| source.empty_like(Order::Keep, &descr, format);
        let targets = sources.iter().map(new).collect::<PyResult<Vec<_>>>()?;
        let leaves = squares.then_some(same.leaves.as_slice());
        let found = divide(py, &sources, Some(&targets), reciprocal, leaves, threads)?;
        let results = same.leaves.iter().map(|&index| targets[index].object.clone().into_any()).collect();
        return Ok((results, found.finite, found.norm));
    };
    let arrays_of_targets = arrays("out", &paths, &targets, require_float)?;
    for (index, (target, source)) in arrays_of_targets.iter().zip(&arrays_of_sources).enumerate() {
        check_target(target, source)
            .map_err(|fault| PyValueError::new_err(format!("{} {fault}", paths.place("out", index))))?;
        if let Some((format, descr)) = &dtype
            && *format != target.format
        {
            return Err(PyValueError::new_err(format!(
                "dtype={descr} is not valid with {} of dtype {}; leave dtype out, or give an array of it.",
                paths.place("out", index),
                target.format.name()
            )));
        }
    }
    let pairs = arrays_of_sources.iter().zip(&arrays_of_targets);
    let same = Same::of(pairs.map(|(source, target)| (Elements::of(source), Elements::of(target))));
    let (mut sources, written) = (same.chosen(arrays_of_sources), same.chosen(arrays_of_targets));
    refuse_shared(|leaf| paths.path(leaf), &same, &sources, &written)?;
    copy_written(&mut sources, &written)?;
    let leaves = squares.then_some(same.leaves.as_slice());
    let found = divide(py, &sources, Some(&written), reciprocal, leaves, threads)?;
    Ok((targets, found.finite, found.norm))
}

/// Whether all elements of all arrays are finite. Integers and bools always are.
#[pyfunction]
#[pyo3(signature = (path, sources, threads))]
#[expect(clippy::needless_pass_by_value, reason = "the shape that arguments arrive in")]
pub(crate) fn arrays_finite<'py>(
    py: Python<'py>,
    path: Bound<'py, PyAny>,
    sources: Vec<Bound<'py, PyAny>>,
    threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<bool> {
    let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
    let sources = arrays("tree", &Paths(path), &sources, |_| Ok(()))?;
    Ok(divide(py, &sources, None, Reciprocal::of(1.0).map_err(to_python)?, None, threads)?.finite)
}

/// Names arrays in errors: a function from their index to their path in a tree.
struct Paths<'py>(Bound<'py, PyAny>);

impl Paths<'_> {
    fn path(&self, index: usize) -> String {
        self.0.call1((index,)).map_or_else(|_| index.to_string(), |path| path.to_string())
    }

    fn place(&self, argument: &str, index: usize) -> String {
        match self.path(index) {
            path if path.is_empty() => argument.to_owned(),
            path => format!("{argument} at '{path}'"),
        }
    }
}

/// Arguments as arrays; errors name the one that is refused.
fn arrays<'py>(
    argument: &'static str,
    paths: &Paths<'py>,
    objects: &[Bound<'py, PyAny>],
    check: impl Fn(Format) -> Result<(), String>,
) -> PyResult<Vec<Array<'py>>> {
    let array = |(index, object): (usize, &Bound<'py, PyAny>)| {
        let refuse = |fault: &dyn std::fmt::Display| {
            PyTypeError::new_err(format!("{} {fault}", paths.place(argument, index)))
        };
        if argument == "out"
            && let Some(fault) = class_fault(object)
        {
            return Err(refuse(&fault));
        }
        let array = Array::from_argument(argument, object).map_err(|error| {
            let py = object.py();
            if error.is_instance_of::<PyTypeError>(py) {
                refuse(&format!("is refused: {}", error.value(py)))
            } else {
                error
            }
        })?;
        check(array.format).map_err(|fault| refuse(&fault))?;
        Ok(array)
    };
    objects.iter().enumerate().map(array).collect()
}

/// Checks that a format is a real float; the error is the rest of a message.
fn require_float(format: Format) -> Result<(), String> {
    if format.float().is_some() {
        return Ok(());
    }
    Err(format!(
        "is {}, which is not a real float; leave it out (None), or cast it to a float first.",
        format.name()
    ))
}

/// Checks a target; the error is the rest of a message.
fn check_target(target: &Array<'_>, source: &Array<'_>) -> Result<(), String> {
    Err(match target_fault(target, Some(source.shape())) {
        None => return Ok(()),
        Some(TargetFault::Shape) => format!(
            "has shape {}, its gradient has shape {}; they must be equal.",
            shown(target.shape()),
            shown(source.shape())
        ),
        Some(TargetFault::ReadOnly) => "is read-only; give a writeable array.".to_owned(),
        Some(TargetFault::Overlap) => {
            "has elements that share memory; give an array with its own elements.".to_owned()
        }
    })
}

/// Calls the core, releasing the interpreter where that pays.
fn divide(
    py: Python<'_>,
    sources: &[Array<'_>],
    targets: Option<&[Array<'_>]>,
    reciprocal: Reciprocal,
    leaves: Option<&[usize]>,
    threads: usize,
) -> PyResult<Unscaled> {
    let shapes: Vec<_> = sources.iter().map(Array::shape).collect();
    let from: Vec<_> = sources.iter().map(Array::place).collect();
    let to: Option<Vec<_>> = targets.map(|targets| targets.iter().map(Array::place).collect());
    let bytes = sources.iter().chain(targets.into_iter().flatten()).map(Array::bytes).sum();
    let call = move || {
        let gradient = |index: usize| Gradient {
            shape: shapes[index],
            source: from[index].source(),
            target: to.as_ref().map(|to| to[index].target(false)),
        };
        let gradients: Vec<_> = (0..shapes.len()).map(gradient).collect();
        // SAFETY: numpy vouched for the memory (see `crate::array`); the caller keeps the arrays alive. Targets are new,
        // or were checked to be writeable, of their sources' shapes, without overlap in themselves or with each other,
        // and made not to overlap sources but elementwise.
        unsafe { unscale(&gradients, reciprocal, leaves, threads) }
    };
    release(py, bytes, call).map_err(to_python)
}
