//! `castwise.accelerate`: numpy's casts to and from `ml_dtypes`, carried out by our kernels.
//!
//! ```text
//! x.astype(bfloat16)
//!   numpy looks a C function up: by the target's number, in an array of the source dtype (numpy's own targets)
//!         or a dict of it (targets of ml_dtypes)                               -> slots, replaced and put back here
//!   entry::<PLACE>            one per pair, because the call does not name it
//!     few elements, overlap, another floating-point environment                -> the original function
//!     per piece: values on which hosts differ (`HostAgreement`)                     -> the original function
//!                all else                                                      -> `Prepared`, of the core
//! ```
//!
//! A pair is taken over only if ours is faster, and if boundary values give the same bits by both functions: a release
//! of `ml_dtypes` that casts differently keeps its own. Our functions stay valid for ever, because numpy may be about
//! to call one while the original is put back. They use one thread, as numpy's own loops do.

mod gain;
mod pair;
mod slot;

use std::ffi::c_int;

use castwise_core::Format;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::dtypes;
use crate::numpy::{HALF, NUMBERS_IN_ARRAY, PyArrayDescr, PyArrayDescrMethods, TypeFunctions};
use crate::numpy_table::{self, GET_CAST_FUNCTIONS};
use pair::{BoundaryValues, CastFunction, Pair};
use slot::Slot;

/// All slots that can be taken over.
struct Takeover {
    slots: Vec<Slot>,
    pairs: Vec<(Format, Format)>,
    left_alone: Vec<(Format, Format)>,
}

impl Takeover {
    /// Returns the takeover, made on first use.
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static TAKEOVER: PyOnceLock<Takeover> = PyOnceLock::new();
        TAKEOVER.get_or_try_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let ends = ends(py)?;
        let mut found = Self { slots: Vec::new(), pairs: Vec::new(), left_alone: Vec::new() };
        let mut boundary_values = BoundaryValues::default();
        for (source, descr) in &ends {
            let functions = cast_functions(py, descr)?;
            for (target, other) in &ends {
                let user = descr.num().max(other.num()) >= dtypes::FIRST_USER_NUMBER;
                if !user || descr.num() == other.num() {
                    continue;
                }
                if let Some((slot, original)) = Slot::find(py, functions, other.num())? {
                    found.add(py, (*source, *target), slot, original, &mut boundary_values)?;
                }
            }
        }
        Ok(found)
    }

    /// Adds a slot if its pair can be taken over.
    fn add(
        &mut self,
        py: Python<'_>,
        (source, target): (Format, Format),
        slot: Slot,
        original: CastFunction,
        boundary_values: &mut BoundaryValues,
    ) -> PyResult<()> {
        let list = match Pair::take_over(source, target, original, boundary_values) {
            Some(function) => {
                self.slots.push(slot.with(py, function)?);
                &mut self.pairs
            }
            None => &mut self.left_alone,
        };
        if !list.contains(&(source, target)) {
            list.push((source, target));
        }
        Ok(())
    }
}

/// Returns the dtypes of all formats: numpy's own for each of their type numbers, then those of `ml_dtypes`.
fn ends(py: Python<'_>) -> PyResult<Vec<(Format, Bound<'_, PyArrayDescr>)>> {
    let mut ends = Vec::new();
    let numbers = (0..NUMBERS_IN_ARRAY as c_int).chain([HALF]);
    for number in numbers {
        let descr = PyArrayDescr::of_number(py, number)?;
        if let Some(format) = dtypes::format_of(&descr)? {
            ends.push((format, descr));
        }
    }
    for format in Format::all() {
        let descr = dtypes::descr_of(py, format)?;
        ends.extend(
            descr.filter(|descr| descr.num() >= dtypes::FIRST_USER_NUMBER).map(|descr| (format, descr)),
        );
    }
    Ok(ends)
}

/// Calls numpy's `PyDataType_GetArrFuncs`.
fn cast_functions(py: Python<'_>, descr: &Bound<'_, PyArrayDescr>) -> PyResult<*mut TypeFunctions> {
    type GetFunctions = unsafe extern "C" fn(*mut PyObject) -> *mut TypeFunctions;
    let entries = numpy_table::entries(py)?;
    // SAFETY: the table of this ABI has a function of this type at this place.
    let functions = unsafe { entries.add(GET_CAST_FUNCTIONS).cast::<GetFunctions>().read()(descr.as_ptr()) };
    if functions.is_null() {
        return Err(PyRuntimeError::new_err(format!("numpy knows no cast functions of {descr}")));
    }
    Ok(functions)
}

/// Put our cast functions in the place of numpy's and ml_dtypes', or the originals back.
#[pyfunction]
pub(crate) fn set_accelerated(py: Python<'_>, accelerated: bool) -> PyResult<()> {
    Takeover::get(py)?.slots.iter().try_for_each(|slot| slot.set(py, accelerated))
}

/// The pairs of formats whose casts can be accelerated, and those with a cast that is left alone.
#[pyfunction]
pub(crate) fn accelerated_pairs(py: Python<'_>) -> PyResult<[Vec<(&'static str, &'static str)>; 2]> {
    let takeover = Takeover::get(py)?;
    let names = |pairs: &[(Format, Format)]| {
        pairs.iter().map(|(source, target)| (source.name(), target.name())).collect()
    };
    Ok([names(&takeover.pairs), names(&takeover.left_alone)])
}
