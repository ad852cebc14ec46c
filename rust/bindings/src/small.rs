//! Casts of plain arrays with few elements, for which the call takes longer than the cast: only simple calls are
//! handled here, and all others are left to [`crate::cast`].

use std::ptr;

use castwise_core::cast::{self as core, PlannedCast, Settings};
use castwise_core::codec::options::{Options, Rounding};
use castwise_core::{Error, Format};
use pyo3::ffi::PyCFunctionFastWithKeywords;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyString};

use crate::array::{Order, Place, Plain};
use crate::cast_options::CastOptions;
use crate::dtypes;
use crate::error::to_python;
use crate::numpy::{PyArrayDescr, PyArrayDescrMethods};
use crate::runtime::KEEPS_INTERPRETER;
use crate::vectorcall::{Arguments, Function, Names};

/// Bytes read and written, at most; larger ones gain from threads and from kept memory.
const LARGEST: usize = 1 << 19;

/// The options of a cast without draws, report and differing factors.
#[derive(Debug)]
pub(crate) struct Request {
    order: Order,
    copy: bool,
    options: Options,
    /// The factor of all elements.
    factor: Option<f64>,
    /// The plan for a pair of formats, where this is known.
    planned: Option<PlannedCast>,
}

impl Request {
    /// Reads rounding, overflow, nan, scale, seed, order and copy as given; `None` for invalid ones too.
    #[inline(always)]
    pub(crate) fn read(given: [Option<Borrowed<'_, '_, PyAny>>; 7]) -> Option<Self> {
        let [rounding, overflow, nan, scale, seed, order, copy] = given;
        let (rounding, seed) = (unless_none(rounding), unless_none(seed));
        let options = CastOptions { rounding, overflow, nan, seed }.known()?;
        let factor = match unless_none(scale) {
            None => None,
            // Subclasses count too: numpy's float64 is one.
            Some(scale) => Some(scale.cast::<PyFloat>().ok()?.value()),
        };
        let order = order.map_or(Some(Order::Keep), |word| Order::named(&word))?;
        let copy = copy.map_or(Some(true), |flag| Some(flag.cast::<PyBool>().ok()?.is_true()))?;
        Some(Self { order, copy, options, factor, planned: None })
    }

    /// Returns it for casts between two formats only.
    pub(crate) fn between(self, pair: (Format, Format)) -> PyResult<Self> {
        let planned = PlannedCast::new(pair, &self.options, self.factor).map_err(to_python)?;
        Ok(Self { planned: Some(planned), ..self })
    }

    /// Returns whether there are no options but the format.
    fn is_plain(&self) -> bool {
        self.options == Options::default() && self.factor.is_none()
    }
}

/// An argument whose default is None.
pub(crate) fn unless_none<'a, 'py>(
    given: Option<Borrowed<'a, 'py, PyAny>>,
) -> Option<Borrowed<'a, 'py, PyAny>> {
    given.filter(|given| !given.is_none())
}

/// `castwise.cast` of small arrays.
pub(crate) struct Cast;

impl Function for Cast {
    fn short<'py>(arguments: &Arguments<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static NAMES: Names<10> = Names::new([
            "x", "dtype", "out", "rounding", "overflow", "nan", "scale", "seed", "order", "copy",
        ]);
        let Some(values) = arguments.read(&NAMES, 2) else { return Ok(None) };
        let [Some(x), dtype, out, rounding, overflow, nan, scale, seed, order, copy] = values else {
            return Ok(None);
        };
        let options = [rounding, overflow, nan, scale, seed, order, copy];
        let Some(request) = Request::read(options) else { return Ok(None) };
        match (unless_none(dtype), unless_none(out)) {
            (Some(dtype), None) => cast_to(&x, &dtype, &request),
            (None, Some(out)) => {
                let (Some(source), Some(target)) = (Plain::of(&x)?, Plain::of(&out)?) else {
                    return Ok(None);
                };
                cast_into(&source, &target, &out, &request)
            }
            _ => Ok(None),
        }
    }

    fn general() -> &'static PyOnceLock<PyCFunctionFastWithKeywords> {
        static GENERAL: PyOnceLock<PyCFunctionFastWithKeywords> = PyOnceLock::new();
        &GENERAL
    }
}

/// Casts to a new array of a dtype as it was given.
fn cast_to<'py>(
    x: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    request: &Request,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(source) = Plain::of(x)?.filter(|source| source.size() <= LARGEST) else { return Ok(None) };
    let simple = dtype.is_instance_of::<PyArrayDescr>() || dtype.is_instance_of::<PyString>();
    let parse = || dtypes::parse_argument("dtype", dtype);
    // Other objects may make errors that are dropped.
    let (format, descr) = if simple { parse() } else { Python::attach(|_| parse()) }?;
    // An object that numpy takes for a dtype may run code of its own: then the array is read again.
    let source = if descr.is(dtype) {
        source
    } else {
        let Some(source) = Plain::of(x)? else { return Ok(None) };
        source
    };
    if descr.is_native_byteorder() == Some(false) {
        return Ok(None);
    }
    cast_to_new(&source, x, (format, descr), request)
}

/// Casts an array to a new one of a dtype in native byte order; `None` if the call is left to [`crate::cast`].
#[inline]
pub(crate) fn cast_to_new<'py>(
    source: &Plain<'_, 'py>,
    x: &Bound<'py, PyAny>,
    (format, descr): (Format, Bound<'py, PyArrayDescr>),
    request: &Request,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !request.copy && request.is_plain() && format == source.format && source.is_in_order(request.order) {
        return Ok(Some(x.clone()));
    }
    if source.size().saturating_add(source.count.saturating_mul(format.item_size())) > LARGEST {
        return Ok(None);
    }
    let new = source.empty_like(request.order, descr)?;
    let Some(target) = Plain::fresh(&new, source, format) else { return Ok(None) };
    // SAFETY: it is new: writeable, apart from all others, of the shape of its prototype, and dense.
    let done = unsafe { fill(source, &target, request)? };
    Ok(done.then(|| new.into_any()))
}

/// Casts an array into another; `None` if the call is left to [`crate::cast`].
#[inline]
pub(crate) fn cast_into<'py>(
    source: &Plain<'_, 'py>,
    target: &Plain<'_, 'py>,
    out: &Bound<'py, PyAny>,
    request: &Request,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: the target takes the elements of the source: that is found before.
    let done = target.takes(source) && unsafe { fill(source, target, request)? };
    Ok(done.then(|| out.clone()))
}

/// Casts an array into another, as both have been read; returns whether it did.
///
/// # Safety
/// The target is writeable, of the source's shape, its extent is apart from the source's, and its elements from each other.
/// A request between two formats is one between theirs.
#[inline]
unsafe fn fill(source: &Plain<'_, '_>, target: &Plain<'_, '_>, request: &Request) -> PyResult<bool> {
    let draws = request.options.rounding == Some(Rounding::Stochastic);
    // Draws go by places in C order.
    let dense = if draws { target.is_dense_in_order(source) } else { target.is_dense_as(source) };
    let bytes = source.size() + target.size();
    if bytes > if dense { LARGEST } else { KEEPS_INTERPRETER } {
        return Ok(false);
    }
    let (options, factor) = (&request.options, request.factor);
    let done = if dense {
        let ends = (
            (source.pointer.expose_provenance(), source.format),
            (target.pointer.expose_provenance(), target.format),
        );
        let (planned, count) = (request.planned.as_ref(), source.count);
        let convert = move || {
            let from = (ptr::with_exposed_provenance(ends.0.0), ends.0.1);
            let to = (ptr::with_exposed_provenance_mut(ends.1.0), ends.1.1);
            // SAFETY: the caller's promise; both are plain ndarrays that live as long as this call.
            unsafe {
                if planned.is_some_and(|planned| planned.convert(from.0, to.0, count)) {
                    return Ok(true);
                }
                core::cast_few(from, to, count, options, factor)
            }
        };
        if bytes <= KEEPS_INTERPRETER {
            convert()
        } else {
            // Their memory stays: numpy does not free that of arrays with a second owner.
            let _owners = (source.object().clone(), target.object().clone());
            source.object().py().detach(convert)
        }
    } else {
        // SAFETY: as above, and meanwhile the interpreter is not released and no Python code runs: shapes and strides
        // stay as they were checked.
        unsafe {
            if request.is_plain() {
                cast_places(source.shape(), source.place(), target.place()).map(|()| true)
            } else {
                let (from, to) = (source.place().source(), target.place().target(false));
                core::cast_small(source.shape(), &from, &to, options, factor)
            }
        }
    };
    done.map_err(to_python)
}

/// Calls the core for the places of two arrays of a shape.
///
/// # Safety
/// As for [`fill`], for arrays that live as long as this call.
unsafe fn cast_places(shape: &[usize], from: Place<'_>, to: Place<'_>) -> Result<(), Error> {
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    // SAFETY: the caller's promise. Not only elements are apart but extents, so that nothing of the target lies between
    // elements of the source.
    unsafe { core::cast(shape, from.source(), to.target(false), None, &settings)? };
    Ok(())
}
