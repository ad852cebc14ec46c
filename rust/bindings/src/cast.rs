//! `castwise.cast`: arguments to a call of the core.

use castwise_core::cast::{self as core, Scales, Settings, Source, Target};
use castwise_core::codec::options::{Named, NanRule, Options, Overflow, Rounding};
use castwise_core::format::Kind;
use numpy::PyUntypedArrayMethods;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::array::{Array, Order};
use crate::dtypes;
use crate::error::to_python;
use crate::report::CastReport;
use crate::runtime::parse_threads;

/// Casts shorter than this finish before another thread could make use of the interpreter.
const DETACH_BYTES: usize = 1 << 16;

/// Cast an array to another dtype, rounding once.
///
/// Parameters
/// ----------
/// x : `array_like`
///     Any shape, strides, byte order; numpy arrays, scalars, nested lists.
/// dtype : dtype or str, optional
///     The target: anything ``numpy.dtype`` takes, ml_dtypes types, names and aliases of
///     ``castwise.formats()``. May be left out if ``out`` is given.
/// out : ndarray, optional
///     Written in place and returned; same shape as ``x``. May overlap ``x``.
/// rounding : str, optional
///     "nearest-even", "nearest-away", "towards-zero", "towards-positive", "towards-negative" (IEEE 754-2019, 4.3)
///     or "stochastic". Default: nearest-even for float targets, towards-zero for integer targets, as numpy.
/// overflow : {"ieee", "saturate", "raise"}
///     Values beyond the target's range. "ieee": infinity, else NaN, else the largest finite value; integers wrap;
///     floats clamp into integers. "saturate": the nearest finite value, for infinities too (OCP OFP8). "raise":
///     `OverflowError`.
/// nan : {"keep", "raise", "zero"}
///     "keep": a quiet NaN with its sign where the target has one (0 in integers).
/// scale : float or `array_like`, optional
///     Multiplied in before the one rounding; float64, broadcast against ``x``.
/// seed : int, optional
///     For "stochastic": the draw for an element depends only on the seed and its flat index.
/// order : {"K", "C", "F", "A"}
///     Memory layout of a new array, as in ``ndarray.astype``.
/// copy : bool
///     False: return ``x`` itself if nothing would change.
/// report : bool
///     Also return a ``CastReport`` of what was lost.
/// threads : int, optional
///     At most this many threads; default ``get_num_threads()``.
///
/// Returns
/// -------
/// ndarray, or (ndarray, `CastReport`)
///
/// Raises
/// ------
/// `TypeError`
///     Unknown or unsupported dtype; complex to real.
/// `ValueError`
///     Unknown option, wrong ``out``, a scale that does not broadcast, NaN with ``nan="raise"``.
/// OverflowError
///     With ``overflow="raise"``; ``out`` is untouched.
#[pyfunction]
#[pyo3(signature = (x, dtype=None, *, out=None, rounding=None, overflow="ieee", nan="keep", scale=None, seed=None,
                    order="K", copy=true, report=false, threads=None))]
#[expect(clippy::too_many_arguments, reason = "the public signature")]
pub(crate) fn cast<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    rounding: Option<&str>,
    overflow: &str,
    nan: &str,
    scale: Option<&Bound<'py, PyAny>>,
    seed: Option<&Bound<'py, PyAny>>,
    order: &str,
    copy: bool,
    report: bool,
    threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = options(py, rounding, overflow, nan, seed)?;
    let order = Order::parse(order)?;
    let settings = Settings {
        options,
        report,
        threads: threads.map_or_else(|| Ok(core::num_threads()), parse_threads)?,
    };
    let mut source = Array::from_argument("x", x)?;
    let destination = out.map(|out| destination(out, dtype, &source)).transpose()?;
    let fresh = destination.is_none();
    let target = if let Some(target) = destination {
        target
    } else {
        let dtype = dtype.ok_or_else(|| {
            PyTypeError::new_err("dtype=None says nothing to cast to; give dtype= or out=.")
        })?;
        let (format, descr) = dtypes::parse_argument("dtype", dtype)?;
        let unchanged = format == source.format
            && descr.is(source.object.dtype())
            && scale.is_none()
            && options == Options::default();
        if unchanged && !copy && !report && source.is_in_order(order) {
            return Ok(source.object.into_any());
        }
        source.empty_like(order, descr, format)?
    };
    let scale = scale.map(|scale| scales(scale, &source)).transpose()?;
    if !fresh {
        // A copy is the price of overlap, unless each element is written where it was read.
        if target.may_overlap(&source) && !target.coincides_with(&source) {
            source = source.copy()?;
        }
    }
    let scale = match scale {
        Some(scale) if !fresh && target.may_overlap(&scale) => Some(scale.copy()?),
        scale => scale,
    };
    let account = run(py, &source, &target, scale.as_ref(), fresh, &settings)?;
    let result = target.object.into_any();
    match account {
        Some(account) => Ok((result, CastReport::new(account)).into_pyobject(py)?.into_any()),
        None => Ok(result),
    }
}

/// Calls the core, without the interpreter where that is worth it.
fn run(
    py: Python<'_>,
    source: &Array<'_>,
    target: &Array<'_>,
    scale: Option<&Array<'_>>,
    fresh: bool,
    settings: &Settings,
) -> PyResult<Option<castwise_core::report::CastReport>> {
    let shape = source.shape();
    let bytes = shape.iter().product::<usize>() * source.format.item_size();
    // Numbers, because pointers do not cross threads without a promise; the arrays stay alive in the caller.
    let from = (source.pointer().expose_provenance(), source.strides(), source.format, source.swapped);
    let to = (target.pointer().expose_provenance(), target.strides(), target.format, target.swapped);
    let factors = scale.map(|scale| (scale.pointer().expose_provenance(), scale.strides()));
    let call = move || {
        let source = Source {
            pointer: std::ptr::with_exposed_provenance(from.0),
            strides: from.1,
            format: from.2,
            swapped: from.3,
        };
        let target = Target {
            pointer: std::ptr::with_exposed_provenance_mut(to.0),
            strides: to.1,
            format: to.2,
            swapped: to.3,
            fresh,
        };
        let scales = factors.map(|(address, strides)| Scales {
            pointer: std::ptr::with_exposed_provenance(address),
            strides,
        });
        // SAFETY: numpy vouches for shape and strides of its arrays, which the caller keeps alive; the target is
        // new, or was checked to be writeable and of this shape, and made not to overlap but elementwise. Another
        // thread of the host may write to the same arrays meanwhile, as with any numpy function: which value is
        // read is then open, nothing else (the core makes no references to this memory). Resizing an array that is
        // in use is refused by numpy, whose reference count it checks.
        unsafe { core::cast(shape, source, target, scales, settings) }
    };
    let outcome = if bytes < DETACH_BYTES { call() } else { py.detach(call) };
    outcome.map_err(to_python)
}

fn options(
    py: Python<'_>,
    rounding: Option<&str>,
    overflow: &str,
    nan: &str,
    seed: Option<&Bound<'_, PyAny>>,
) -> PyResult<Options> {
    let rounding = rounding.map(Rounding::parse).transpose().map_err(to_python)?;
    let overflow = Overflow::parse(overflow).map_err(to_python)?;
    let nan = NanRule::parse(nan).map_err(to_python)?;
    let seed = match (seed, rounding == Some(Rounding::Stochastic)) {
        (Some(seed), true) => seed.extract().map_err(|_| {
            let shown = seed.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
            PyValueError::new_err(format!("seed={shown} is not valid; use an int from 0 to 2**64 - 1."))
        })?,
        (None, true) => fresh_seed(py)?,
        (None, false) => 0,
        (Some(_), false) => {
            return Err(PyValueError::new_err(
                "seed= has no effect without rounding=\"stochastic\"; leave it out or ask for that rounding.",
            ));
        }
    };
    Ok(Options { rounding, overflow, nan, seed })
}

/// 64 bits from the operating system.
fn fresh_seed(py: Python<'_>) -> PyResult<u64> {
    static RANDBITS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    RANDBITS.import(py, "secrets", "randbits")?.call1((64,))?.extract()
}

/// `out`, checked.
fn destination<'py>(
    out: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    source: &Array<'py>,
) -> PyResult<Array<'py>> {
    let object = out.cast::<numpy::PyUntypedArray>().map_err(|_| {
        PyTypeError::new_err(format!(
            "out is of type {}; give a numpy array.",
            out.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
        ))
    })?;
    let target = Array::from_argument("out", object.as_any())?;
    if let Some(dtype) = dtype {
        let (format, _) = dtypes::parse_argument("dtype", dtype)?;
        if format != target.format {
            return Err(PyTypeError::new_err(format!(
                "out has dtype {}, but dtype={} was asked for; leave dtype out or give an out of that dtype.",
                target.format.name(),
                format.name()
            )));
        }
    }
    if target.shape() != source.shape() {
        return Err(PyValueError::new_err(format!(
            "out has shape {:?}, x has shape {:?}; they must be equal.",
            target.shape(),
            source.shape()
        )));
    }
    if !target.is_writeable() {
        return Err(PyValueError::new_err("out is read-only; give a writeable array."));
    }
    if target.repeats() {
        return Err(PyValueError::new_err(
            "out has elements that share memory (an axis of stride 0); give an array with its own elements.",
        ));
    }
    Ok(target)
}

/// `scale` as native float64, broadcast to the source's shape.
fn scales<'py>(scale: &Bound<'py, PyAny>, source: &Array<'py>) -> PyResult<Array<'py>> {
    let py = scale.py();
    let given = Array::from_argument("scale", scale)?;
    if matches!(given.format.kind(), Kind::Complex { .. }) {
        return Err(PyTypeError::new_err("scale is complex; give real factors."));
    }
    static BROADCAST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // By our own cast, which does not flush subnormals in whatever environment the process is.
    let double = given.empty_double()?;
    let plain = Settings { options: Options::default(), report: false, threads: 1 };
    run(py, &given, &double, None, true, &plain)?;
    let broadcast = BROADCAST.import(py, "numpy", "broadcast_to")?;
    let shape = source.object.getattr("shape")?;
    let view = broadcast.call1((&double.object, shape)).map_err(|_| {
        PyValueError::new_err(format!(
            "scale has shape {:?}, which does not broadcast to the shape {:?} of x.",
            given.shape(),
            source.shape()
        ))
    })?;
    Array::of("scale", view.cast_into()?)
}
