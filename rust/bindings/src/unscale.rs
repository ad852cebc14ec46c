//! Lists of gradients to one call of the core.

use castwise_core::Format;
use castwise_core::cast::unscale::{Found, Gradient, unscale};
use castwise_core::cast::{Source, Target, num_threads};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::array::{Array, Order};
use crate::dtypes;
use crate::error::to_python;
use crate::runtime::parse_threads;

/// Below this many bytes a call finishes before another thread could make use of the interpreter.
const DETACH_BYTES: usize = 1 << 16;

/// Divide arrays by a scale, in one pass over all of them.
///
/// Returns the results (targets, or new arrays of dtype), whether all elements are finite before and after, and the
/// norm of the results before rounding (0.0 unless squares is set). `path(index)` names an
/// array in errors.
#[pyfunction]
#[pyo3(signature = (path, sources, targets, dtype, scale, squares, threads))]
#[expect(clippy::too_many_arguments, reason = "one call for a list of arrays and all about them")]
#[expect(clippy::needless_pass_by_value, reason = "the shape that arguments arrive in")]
pub(crate) fn unscale_arrays<'py>(
    py: Python<'py>,
    path: Bound<'py, PyAny>,
    sources: Vec<Bound<'py, PyAny>>,
    targets: Option<Vec<Bound<'py, PyAny>>>,
    dtype: &Bound<'py, PyAny>,
    scale: f64,
    squares: bool,
    threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Vec<Bound<'py, PyAny>>, bool, f64)> {
    let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
    let paths = Paths(path);
    let mut sources = arrays("grads", &paths, &sources, require_float)?;
    let targets = if let Some(targets) = targets {
        let targets = arrays("out", &paths, &targets, require_float)?;
        for (index, (target, source)) in targets.iter().zip(&sources).enumerate() {
            check_target(target, source)
                .map_err(|fault| PyValueError::new_err(format!("{} {fault}", paths.place("out", index))))?;
        }
        targets
    } else {
        let (format, descr) = dtypes::parse_argument("dtype", dtype)?;
        require_float(format).map_err(|fault| PyTypeError::new_err(format!("dtype={descr} {fault}")))?;
        let new = |source: &Array<'py>| source.empty_like(Order::Keep, descr.clone(), format);
        sources.iter().map(new).collect::<PyResult<_>>()?
    };
    separate(&paths, &mut sources, &targets)?;
    let found = run(py, &sources, Some(&targets), scale, squares, threads)?;
    let results = targets.into_iter().map(|target| target.object.into_any()).collect();
    Ok((results, found.finite, found.norm))
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
    Ok(run(py, &sources, None, 1.0, false, threads)?.finite)
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
        if argument == "out" && !object.is_instance_of::<PyUntypedArray>() {
            let name = object.get_type().name()?;
            return Err(refuse(&format!("is of type {name}; give a numpy array.")));
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

/// What is wrong with a format, unless it is a real float.
fn require_float(format: Format) -> Result<(), String> {
    if format.float().is_some() {
        return Ok(());
    }
    Err(format!(
        "is {}, which is no real float; leave it out (None), or cast it to a float first.",
        format.name()
    ))
}

/// What is wrong with a target, if anything is.
fn check_target(target: &Array<'_>, source: &Array<'_>) -> Result<(), String> {
    if target.shape() != source.shape() {
        return Err(format!(
            "has shape {:?}, its gradient has shape {:?}; they must be equal.",
            target.shape(),
            source.shape()
        ));
    }
    if !target.is_writeable() {
        return Err("is read-only; give a writeable array.".to_owned());
    }
    if target.overlaps_itself() {
        return Err("has elements that share memory; give an array with its own elements.".to_owned());
    }
    Ok(())
}

/// Copies sources that would be written before they are read; refuses targets that share elements.
fn separate<'py>(paths: &Paths<'py>, sources: &mut [Array<'py>], targets: &[Array<'py>]) -> PyResult<()> {
    // All extents by address: those that meet are neighbours, and there are few of them.
    let all = sources.iter().map(|source| (source.extent(), false)).enumerate();
    let all = all.chain(targets.iter().map(|target| (target.extent(), true)).enumerate());
    let mut all: Vec<_> = all.filter(|(_, ((low, high), _))| low < high).collect();
    all.sort_unstable_by_key(|&(_, ((low, _), _))| low);
    let mut open: Vec<(usize, usize, bool)> = Vec::new();
    let mut copies = Vec::new();
    for (index, ((low, high), is_target)) in all {
        open.retain(|&(end, ..)| end > low);
        for &(_, other, other_is_target) in &open {
            match (is_target, other_is_target) {
                (false, false) => {}
                (true, true) => refuse_shared(paths, targets, index, other)?,
                (true, false) => copies.push((other, index)),
                (false, true) => copies.push((index, other)),
            }
        }
        open.push((high, index, is_target));
    }
    for (source, target) in copies {
        if source != target || !targets[target].coincides_with(&sources[source]) {
            sources[source] = sources[source].copy()?;
        }
    }
    Ok(())
}

fn refuse_shared(paths: &Paths<'_>, targets: &[Array<'_>], one: usize, other: usize) -> PyResult<()> {
    let (a, b) = (&targets[one].object, &targets[other].object);
    static SHARES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let shares = SHARES.import(a.py(), "numpy", "shares_memory")?;
    if !shares.call1((a, b))?.is_truthy()? {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "out at '{}' and at '{}' share memory, so one would be written over the other; give arrays of their own.",
        paths.path(one),
        paths.path(other)
    )))
}

/// What the core is told about an array, in numbers: pointers do not cross threads without a promise.
struct Place {
    address: usize,
    strides: Vec<isize>,
    format: Format,
    swapped: bool,
}

impl Place {
    fn of(array: &Array<'_>) -> Self {
        Self {
            address: array.pointer().expose_provenance(),
            strides: array.strides().to_vec(),
            format: array.format,
            swapped: array.swapped,
        }
    }
}

/// Calls the core, without the interpreter where that is worth it.
fn run(
    py: Python<'_>,
    sources: &[Array<'_>],
    targets: Option<&[Array<'_>]>,
    scale: f64,
    squares: bool,
    threads: usize,
) -> PyResult<Found> {
    // Owned, as in `cast`: another thread may give an array another shape meanwhile.
    let shapes: Vec<Vec<usize>> = sources.iter().map(|source| source.shape().to_vec()).collect();
    let from: Vec<Place> = sources.iter().map(Place::of).collect();
    let to: Option<Vec<Place>> = targets.map(|targets| targets.iter().map(Place::of).collect());
    let sizes = shapes.iter().zip(&from);
    let bytes: usize =
        sizes.map(|(shape, place)| shape.iter().product::<usize>() * place.format.item_size()).sum();
    let call = move || {
        let gradient = |index: usize| Gradient {
            shape: &shapes[index],
            source: Source {
                pointer: std::ptr::with_exposed_provenance(from[index].address),
                strides: &from[index].strides,
                format: from[index].format,
                swapped: from[index].swapped,
            },
            target: to.as_ref().map(|to| Target {
                pointer: std::ptr::with_exposed_provenance_mut(to[index].address),
                strides: &to[index].strides,
                format: to[index].format,
                swapped: to[index].swapped,
                fresh: false,
            }),
        };
        let gradients: Vec<_> = (0..shapes.len()).map(gradient).collect();
        // SAFETY: numpy vouched for pointer, shape and strides when `Array` copied them, and all checks were of these
        // copies; the caller keeps the arrays alive. Targets are new, or were checked to be writeable, of their sources' shapes, without
        // overlap in themselves or with each other, and made not to overlap sources but elementwise. Another thread
        // of the host may write to the same arrays meanwhile, as with any numpy function: which value is read is
        // then open, nothing else.
        unsafe { unscale(&gradients, scale, squares, threads) }
    };
    let outcome = if bytes < DETACH_BYTES { call() } else { py.detach(call) };
    outcome.map_err(to_python)
}
