//! Casts of plain arrays with few elements, for which the call takes longer than the cast: only simple calls are
//! handled here, and all others are left to [`crate::cast`].

use castwise_core::Error;
use castwise_core::cast::{self as core, Prepared, Settings, Source, Target};
use castwise_core::codec::options::Options;
use numpy::PyArrayDescrMethods;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::array::{Order, Place, Plain};
use crate::dtypes;
use crate::error::to_python;

/// Bytes of a source or a result, at most; larger ones gain from threads and from kept memory.
const LARGEST: usize = 1 << 19;

/// Up to this many bytes read and written, the interpreter is kept: other threads wait for it only some microseconds,
/// and releasing it would take a tenth of the time of a copy.
const KEEPS_INTERPRETER: usize = 1 << 18;

/// Axes whose lengths and strides cost no allocation.
const AXES: usize = 4;

/// The options of a cast.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) order: Order,
    pub(crate) copy: bool,
    pub(crate) options: Options,
    /// The factor of all elements.
    pub(crate) factor: Option<f64>,
}

impl Request {
    /// Returns whether there are no options but the format.
    fn is_plain(&self) -> bool {
        self.options == Options::default() && self.factor.is_none()
    }
}

/// Casts an array; `None` if the call is left to [`crate::cast`].
pub(crate) fn cast<'py>(
    x: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    request: &Request,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    match (dtype, out) {
        (Some(dtype), None) => {
            let Some(source) = Plain::of(x)?.filter(|source| source.size() <= LARGEST) else {
                return Ok(None);
            };
            let (format, descr) = dtypes::parse_argument("dtype", dtype)?;
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
            if !request.copy
                && request.is_plain()
                && format == source.format
                && source.is_in_order(request.order)
            {
                return Ok(Some(x.clone()));
            }
            if source.count.saturating_mul(format.item_size()) > LARGEST {
                return Ok(None);
            }
            let new = source.empty_like(request.order, descr)?;
            let target = Plain::fresh(&new, &source, format);
            // SAFETY: it is new: writeable, apart from all others, of the shape of its prototype, and dense.
            let done = unsafe { fill(&source, &target, (x, &new), request)? };
            Ok(done.then(|| new.into_any()))
        }
        (None, Some(out)) => {
            let (Some(source), Some(target)) = (Plain::of(x)?, Plain::of(out)?) else { return Ok(None) };
            // SAFETY: the target takes the elements of the source: that is found before.
            let done = target.takes(&source) && unsafe { fill(&source, &target, (x, out), request)? };
            Ok(done.then(|| out.clone()))
        }
        _ => Ok(None),
    }
}

/// Casts an array into another, as both have been read; returns whether it did.
///
/// # Safety
/// The target is writeable, of the source's shape, its extent is apart from the source's, and its elements from each other.
unsafe fn fill(
    source: &Plain<'_, '_>,
    target: &Plain<'_, '_>,
    owners: (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    request: &Request,
) -> PyResult<bool> {
    if !request.is_plain() {
        // Longer ones are cast without the interpreter.
        if source.size() + target.size() > KEEPS_INTERPRETER {
            return Ok(false);
        }
        let (from, to) = (source.place().source(), target.place().target(false));
        let strides = [from.format, to.format].map(|format| [format.item_size() as isize]);
        let (shape, from, to) = if target.is_dense_as(source) {
            let [source_strides, target_strides] = &strides;
            (
                std::slice::from_ref(&source.count),
                Source { strides: source_strides, ..from },
                Target { strides: target_strides, ..to },
            )
        } else {
            (source.shape(), from, to)
        };
        // SAFETY: as below.
        return unsafe { core::cast_small(shape, &from, &to, &request.options, request.factor) }
            .map_err(to_python);
    }
    if source.size() + target.size() > KEEPS_INTERPRETER {
        // SAFETY: passed on.
        return unsafe { fill_many(source, target, owners) };
    }
    let prepared = Prepared::new(source.format, None, target.format).map_err(to_python)?;
    // SAFETY: the caller's promise; both are plain ndarrays that live as long as this call, in which the interpreter is
    // not released and no Python code runs.
    unsafe {
        if target.is_dense_as(source) {
            prepared.run(source.pointer, target.pointer, source.count);
        } else {
            run(source.shape(), source.place(), target.place()).map_err(to_python)?;
        }
    }
    Ok(true)
}

/// Does the same without the interpreter.
///
/// # Safety
/// As for [`fill`].
unsafe fn fill_many(
    source: &Plain<'_, '_>,
    target: &Plain<'_, '_>,
    (x, out): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
) -> PyResult<bool> {
    if source.size().max(target.size()) > LARGEST {
        return Ok(false);
    }
    let (from, to) = (source.place(), target.place());
    // Other threads may give the arrays other shapes meanwhile. Their memory stays: numpy does not free that of arrays
    // with a second owner.
    let _owners = (x.clone(), out.clone());
    if target.is_dense_as(source) {
        let prepared = Prepared::new(source.format, None, target.format).map_err(to_python)?;
        let count = source.count;
        // SAFETY: the caller's promise; the arrays live as long as their owners here.
        x.py().detach(|| unsafe { prepared.run(from.source().pointer, to.target(false).pointer, count) });
        return Ok(true);
    }
    let shape: SmallVec<[_; AXES]> = source.shape().into();
    let [strides, to_strides] = [from, to].map(|place| SmallVec::<[_; AXES]>::from(place.strides()));
    let (from, to) = (from.with_strides(&strides), to.with_strides(&to_strides));
    // SAFETY: the caller's promise; the arrays live as long as their owners here, and the shape and strides are copies.
    x.py().detach(|| unsafe { run(&shape, from, to) }).map_err(to_python)?;
    Ok(true)
}

/// Calls the core for the places of two arrays of a shape.
///
/// # Safety
/// As for [`fill`], for arrays that live as long as this call.
unsafe fn run(shape: &[usize], from: Place<'_>, to: Place<'_>) -> Result<(), Error> {
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    // SAFETY: the caller's promise. Not only elements are apart but extents, so that nothing of the target lies between
    // elements of the source. Other threads may write to both as with any numpy function (see `crate::cast`).
    unsafe { core::cast(shape, from.source(), to.target(false), None, &settings)? };
    Ok(())
}
