//! `castwise.cast`: arguments to a call of the core; [`crate::small`] answers simple calls before.

use castwise_core::cast::{self as core, Settings};
use castwise_core::codec::options::{NanRule, Options, Overflow};
use castwise_core::format::Kind;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use crate::arguments::is_flag;
use crate::array::{Array, Order, Place, TargetFault, shown, target_fault};
use crate::cast_options::{CastOptions, Word, parse_flag};
use crate::dtypes;
use crate::error::to_python;
use crate::foreign::{self, Given};
use crate::numpy::{PyArrayDescrMethods, PyUntypedArrayMethods};
use crate::report::CastReport;
use crate::runtime::{parse_threads, release};

/// Cast an array to another dtype, rounding once from the exact value.
///
/// Parameters
/// ----------
/// x : array_like
///     Any shape, strides and byte order: numpy arrays, scalars, nested lists. Arrays with masks or with nulls (of
///     pandas, polars, pyarrow) are refused, also in lists. Arrays of a library with an adapter
///     (castwise.adapters: torch, jax, ...) are cast to arrays of that
///     library.
/// dtype : dtype or str, optional
///     The target: anything numpy.dtype takes, types of ml_dtypes and jax, dtypes of torch, names and aliases of
///     castwise.formats().
///     May be left out if out is given.
/// out : ndarray, h5py.Dataset or zarr.Array, optional
///     Written in place and returned; same shape as x. May overlap x, but must not overlap itself.
/// rounding : str, optional
///     "nearest-even", "nearest-away", "towards-zero", "towards-positive", "towards-negative" (IEEE 754-2019, 4.3)
///     or "stochastic". Default: nearest-even for float targets, towards-zero for integer targets, as numpy.
/// overflow : {"ieee", "saturate", "raise"}
///     Values beyond the target's range. "ieee": infinity, else NaN, else the largest finite value (as ml_dtypes);
///     integers wrap, floats clamp into integers of 8 bits and more. Into those of fewer bits, floats whose rounded
///     value an int32 holds wrap (-9.0 is 7 in int4); others clamp. "saturate": the nearest finite value, for
///     infinities too (OCP OFP8). "raise": OverflowError.
/// nan : {"keep", "raise", "zero"}
///     "keep": a quiet NaN with its sign where the target has one (0 in integers, True in bool). "raise":
///     ValueError at the first NaN of x; a value beyond the range that becomes NaN is a matter of overflow. "zero": as
///     +0, not for float8_e8m0fnu, which has no zero.
/// scale : float or array_like, optional
///     Multiplied in exactly, before the one rounding; taken as float64, broadcast to the shape of x.
/// seed : int, optional
///     0 to 2**64 - 1, for "stochastic": the draw for an element depends only on the seed and its flat (C order)
///     index. Default: fresh entropy.
/// order : {"K", "C", "F", "A"}
///     Memory layout of a new array, as in ndarray.astype.
/// copy : bool
///     False: return x itself if its dtype and order are right and no option is set.
/// report : bool
///     Also return a CastReport of what was lost.
/// threads : int, optional
///     At most this many threads; default get_num_threads().
/// like : str, optional
///     The options are those that give the bits of another library's cast: "numpy" (with ml_dtypes from 0.7 on),
///     "ml_dtypes<0.7", "torch", "torch<2.12", "jax", "tensorflow", "onnxruntime" (or "onnx") or "numkong", also where
///     it rounds twice; which NaN a NaN becomes is castwise's. castwise/conformance.md has the table. Goes with out,
///     order, copy, report (not where the library rounds twice) and threads.
///
/// Returns
/// -------
/// ndarray, or (ndarray, CastReport)
///     A plain ndarray of the shape of x: 0-d for scalars; subclasses are not kept. (out, and x with copy=False where
///     nothing changes, are returned themselves.)
///
/// Raises
/// ------
/// TypeError
///     Unknown or unsupported dtype; complex to real; a mask or nulls; x is not numeric; like= with an
///     option that it decides, or a library that lacks the cast.
/// ValueError
///     Unknown option, wrong out, a scale that does not broadcast, NaN with nan="raise"; NaN, or any value, for which no
///     options give what the library of like= gives.
/// OverflowError
///     With overflow="raise", naming the first value's flat index; out is untouched. With like=, a value beyond the range
///     for which the library has no single answer.
///
/// Examples
/// --------
/// >>> castwise.cast([1.0, 1e6], "float8_e4m3fn", overflow="saturate").astype(float).tolist()
/// [1.0, 448.0]
#[pyfunction]
#[pyo3(
    signature = (x, dtype=None, *, out=None, rounding=None, overflow=Word::Default, nan=Word::Default, scale=None,
                 seed=None, order=Word::Default, copy=Word::Default, report=Word::Default, threads=None, like=None),
    text_signature = "(x, dtype=None, *, out=None, rounding=None, overflow='ieee', nan='keep', scale=None, seed=None, order='K', copy=True, report=False, threads=None, like=None)"
)]
#[expect(clippy::too_many_arguments, reason = "the public signature")]
pub(crate) fn cast<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    rounding: Option<&Bound<'py, PyAny>>,
    overflow: Word<'_, 'py>,
    nan: Word<'_, 'py>,
    scale: Option<&Bound<'py, PyAny>>,
    seed: Option<&Bound<'py, PyAny>>,
    order: Word<'_, 'py>,
    copy: Word<'_, 'py>,
    report: Word<'_, 'py>,
    threads: Option<&Bound<'py, PyAny>>,
    like: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (copy, report) = (parse_flag("copy", copy, true)?, parse_flag("report", report, false)?);
    let adapter = foreign::adapter_of(x)?;
    let place = out.filter(|_| adapter.is_none()).map(foreign::adapter_of).transpose()?.flatten();
    if adapter.is_some() || place.is_some() || like.is_some() {
        let given = Given::new(py)
            .with("out", out)?
            .with("rounding", rounding)?
            .with("overflow", overflow.given().as_deref())?
            .with("nan", nan.given().as_deref())?
            .with("scale", scale)?
            .with("seed", seed)?
            .with("order", order.given().as_deref())?
            .with_flag("copy", copy, true)?
            .with_flag("report", report, false)?
            .with("threads", threads)?
            .with("like", like)?;
        return match (adapter, place) {
            (Some(adapter), _) => given.cast_by("cast", &adapter, x, dtype),
            (None, Some(place)) => {
                let source = Array::from_argument("x", x)?.object;
                given.cast_by("cast_into", &place, &source.into_any(), dtype)
            }
            (None, None) => cast_like(given, x, dtype, out),
        };
    }
    let options = CastOptions {
        rounding: rounding.map(Bound::as_borrowed),
        overflow: overflow.given(),
        nan: nan.given(),
        seed: seed.map(Bound::as_borrowed),
    };
    let options = options.parse(py)?;
    let order = match order {
        Word::Default => Order::Keep,
        Word::Given(word) => Order::parse(&word)?,
    };
    let settings = Settings {
        options,
        report,
        threads: threads.map_or_else(|| Ok(core::num_threads()), parse_threads)?,
    };
    let mut source = Array::from_argument("x", x)?;
    let destination = out.map(|out| destination(out, dtype, &source)).transpose()?;
    // An out whose elements lie between each other gets its results by numpy's copy.
    let (destination, interleaved) = match destination {
        Some(target) if target.overlaps_itself() => (None, Some(target)),
        destination => (destination, None),
    };
    let fresh = destination.is_none();
    let target = match (destination, &interleaved, dtype) {
        (Some(target), ..) => target,
        (None, Some(out), _) => out.empty_like(Order::C, &out.object.dtype(), out.format)?,
        (None, None, None) => return Err(no_target()),
        (None, None, Some(dtype)) => {
            let (format, descr) = dtypes::parse_argument("dtype", dtype)?;
            let unchanged = || {
                descr.is_equiv_to(&source.object.dtype())
                    && scale.is_none()
                    && (options.overflow, options.nan) == (Overflow::Ieee, NanRule::Keep)
            };
            if !copy && !report && source.is_in_order(order) && unchanged() {
                return Ok(source.object.into_any());
            }
            source.empty_like(order, &descr, format)?
        }
    };
    let scale = scale.map(|scale| scales(scale, &source)).transpose()?;
    // Overlapping arrays need a copy, unless each element is written where it was read.
    if !fresh && target.may_overlap(&source) && !target.coincides_with(&source) {
        source = source.copy()?;
    }
    let account = cast_places(py, &source, &target, scale.as_ref(), fresh, &settings)?;
    let result = match interleaved {
        Some(out) => {
            out.fill_from(&target)?;
            out.object.into_any()
        }
        None => target.object.into_any(),
    };
    match account {
        Some(account) => Ok((result, CastReport::new(account)).into_pyobject(py)?.into_any()),
        None => Ok(result),
    }
}

/// Casts as another library does, by the table of `castwise.arrays.library_casts`.
fn cast_like<'py>(
    given: Given<'py>,
    x: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let source = Array::from_argument("x", x)?;
    let target = match (dtype, out) {
        (Some(dtype), _) => dtypes::parse_argument("dtype", dtype)?.0,
        (None, Some(out)) => Array::of_numpy("out", out)?.format,
        (None, None) => return Err(no_target()),
    };
    given.cast_like((source.object.into_any(), source.format.name()), (dtype, target.name()))
}

fn no_target() -> PyErr {
    PyTypeError::new_err("dtype=None says nothing to cast to; give dtype= or out=.")
}

/// Calls the core, releasing the interpreter where that pays.
fn cast_places(
    py: Python<'_>,
    source: &Array<'_>,
    target: &Array<'_>,
    scale: Option<&Array<'_>>,
    fresh: bool,
    settings: &Settings,
) -> PyResult<Option<castwise_core::report::CastReport>> {
    let (shape, bytes) = (source.shape(), source.bytes() + target.bytes());
    let (from, to, factors) = (source.place(), target.place(), scale.map(Array::place));
    let call = move || {
        // SAFETY: numpy vouched for the memory (see `crate::array`), and the caller keeps the arrays alive. The target is
        // new, or was found writeable, of this shape, without overlap in itself, and apart from the source or elementwise
        // on it; where extents do not meet, nothing of the target lies between elements of the source.
        unsafe { core::cast(shape, from.source(), to.target(fresh), factors.map(Place::scales), settings) }
    };
    release(py, bytes, call).map_err(to_python)
}

/// Checks `out`.
fn destination<'py>(
    out: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    source: &Array<'py>,
) -> PyResult<Array<'py>> {
    let target = Array::of_numpy("out", out)?;
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
    let text = match target_fault(&target, Some(source.shape())) {
        Some(TargetFault::Shape) => format!(
            "out has shape {}, x has shape {}; they must be equal.",
            shown(target.shape()),
            shown(source.shape())
        ),
        Some(TargetFault::ReadOnly) => "out is read-only; give a writeable array.".to_owned(),
        Some(TargetFault::Overlap) if target.shares_with_itself() => format!(
            "out, of shape {} and strides {}, has elements that share memory; give an array with its own elements.",
            shown(target.shape()),
            shown(target.strides())
        ),
        // Elements that lie between each other are as good as others.
        Some(TargetFault::Overlap) | None => return Ok(target),
    };
    Err(PyValueError::new_err(text))
}

/// Reads factors: real numbers, not flags.
pub(crate) fn factors<'py>(scale: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    // numpy has no dtype for large ints.
    let factors = match scale.cast::<PyInt>() {
        Ok(number) => {
            let number = number.extract().map_err(|_| {
                PyValueError::new_err("scale is an int beyond the range of float64; give a smaller one.")
            })?;
            Array::from_argument("scale", PyFloat::new(scale.py(), number).as_any())?
        }
        Err(_) => Array::from_argument("scale", scale)?,
    };
    if is_flag(scale) || factors.format.kind() == Kind::Bool {
        return Err(PyTypeError::new_err(format!(
            "scale={} is no factor; give real numbers, such as 2.0.",
            scale.repr()?
        )));
    }
    if matches!(factors.format.kind(), Kind::Complex { .. }) {
        return Err(PyTypeError::new_err("scale is complex; give real factors."));
    }
    Ok(factors)
}

/// Converts `scale` to native float64, broadcast to the source's shape.
fn scales<'py>(scale: &Bound<'py, PyAny>, source: &Array<'py>) -> PyResult<Array<'py>> {
    let py = scale.py();
    let given = factors(scale)?;
    // By our own cast, which keeps subnormals in any floating-point environment.
    let double = given.empty_double()?;
    let plain = Settings { options: Options::default(), report: false, threads: 1 };
    cast_places(py, &given, &double, None, true, &plain)?;
    double.broadcast_to(source.shape()).ok_or_else(|| {
        PyValueError::new_err(format!(
            "scale has shape {}, which does not broadcast to the shape {} of x.",
            shown(given.shape()),
            shown(source.shape())
        ))
    })
}
