//! `castwise.accelerate`: numpy's casts to and from `ml_dtypes`, carried out by our kernels.
//!
//! ```text
//! x.astype(bfloat16)
//!   numpy looks a C function up, in slots that are replaced and put back here: from ml_dtypes 0.7 on the function
//!         `get_loop` of the cast's method; before, by the target's number in an array of the source dtype
//!         (numpy's own targets) or a dict of it (targets of ml_dtypes)
//!   `method::cast_by_ours`    one for all methods, with the pair as data that numpy keeps with a loop
//!   `legacy::entry::<PLACE>`  one per pair, because the call does not name it
//!     few elements, overlap, another floating-point environment                -> the original function
//!     per piece: values on which hosts differ (`HostAgreement`)                     -> the original function
//!                all else                                                      -> `Prepared`, of the core
//! ```
//!
//! A pair is taken over only if ours is faster, and if boundary values give the same bits by both functions: a release
//! of `ml_dtypes` that casts differently keeps its own. Our functions stay valid for ever, because numpy may be about
//! to call one while the original is put back. They use one thread, as numpy's own loops do.

mod gain;
mod legacy;
mod method;
mod pair;
mod slot;

use std::ffi::c_int;

use castwise_core::Format;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::dtypes;
use crate::numpy::{HALF, NUMBERS_IN_ARRAY, PyArrayDescr, PyArrayDescrMethods, TypeFunctions};
use crate::numpy_table::{self, GET_CAST_FUNCTIONS};
use method::{Casts, MethodLayout, Takeover};
use pair::BoundaryValues;
use slot::Slot;

/// All slots that can be taken over.
struct Replacements {
    slots: Vec<Slot>,
    pairs: Vec<(Format, Format)>,
    left_alone: Vec<(Format, Format)>,
}

impl Replacements {
    /// Returns them, found on first use.
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static REPLACEMENTS: PyOnceLock<Replacements> = PyOnceLock::new();
        REPLACEMENTS.get_or_try_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let ends = ends(py)?;
        let mut found = Self { slots: Vec::new(), pairs: Vec::new(), left_alone: Vec::new() };
        let mut boundary_values = BoundaryValues::default();
        // Whatever is missing or refused in numpy, its methods are left alone. An interrupt is no refusal.
        let layout = match MethodLayout::find(py) {
            Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
            layout => layout.ok().flatten(),
        };
        let mut casts = Casts::default();
        for (source, descr) in &ends {
            let functions = cast_functions(py, descr)?;
            for (target, other) in &ends {
                let user = descr.num().max(other.num()) >= dtypes::FIRST_USER_NUMBER;
                if !user || descr.num() == other.num() {
                    continue;
                }
                let pair = (*source, *target);
                let ends = ((descr, pair.0), (other, pair.1));
                let takeover = match &layout {
                    Some(layout) => casts.take_over(layout, ends.0, ends.1, &mut boundary_values)?,
                    None => Takeover::Absent,
                };
                match takeover {
                    Takeover::Slot(slot) => found.add(pair, Some(Slot::Method(slot))),
                    Takeover::LeftAlone => found.add(pair, None),
                    Takeover::Absent | Takeover::Unusual => {
                        if let Some((slot, original)) = Slot::find(py, functions, other.num())? {
                            let ours = legacy::take_over(pair.0, pair.1, original, &mut boundary_values);
                            found.add(pair, ours.map(|ours| slot.with(py, ours)).transpose()?);
                        } else if matches!(takeover, Takeover::Unusual) {
                            found.add(pair, None);
                        }
                    }
                }
            }
        }
        casts.publish();
        Ok(found)
    }

    /// Adds a slot that is taken over, or a cast that is left alone.
    fn add(&mut self, pair: (Format, Format), slot: Option<Slot>) {
        let list = if slot.is_some() { &mut self.pairs } else { &mut self.left_alone };
        if !list.contains(&pair) {
            list.push(pair);
        }
        self.slots.extend(slot);
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
    Replacements::get(py)?.slots.iter().try_for_each(|slot| slot.set(py, accelerated))
}

/// The pairs of formats whose casts can be accelerated, and those with a cast that is left alone.
#[pyfunction]
pub(crate) fn accelerated_pairs(py: Python<'_>) -> PyResult<[Vec<(&'static str, &'static str)>; 2]> {
    let replacements = Replacements::get(py)?;
    let names = |pairs: &[(Format, Format)]| {
        pairs.iter().map(|(source, target)| (source.name(), target.name())).collect()
    };
    Ok([names(&replacements.pairs), names(&replacements.left_alone)])
}
