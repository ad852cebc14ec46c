//! numpy's table of C functions and classes, by the numbers of their entries.
//!
//! numpy never moves an entry within one version of its ABI, as extensions are compiled with these numbers. Its header
//! `__multiarray_api.h` has them, and `tests/test_sources.py` compares.

use std::ffi::c_void;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;

/// `PyArray_GetNDArrayCVersion`: the version of the ABI, in the upper byte the major one.
const ABI_VERSION: usize = 0;
/// `PyArray_Type`, a class.
pub(crate) const ARRAY_TYPE: usize = 2;
/// `PyArrayDescr_Type`, a class.
pub(crate) const DESCR_TYPE: usize = 3;
/// `PyArray_DescrFromType`.
pub(crate) const DESCR_FROM_TYPE: usize = 45;
/// `PyArray_DescrConverter2`.
pub(crate) const DESCR_CONVERTER: usize = 175;
/// `PyArray_EquivTypes`.
pub(crate) const EQUIVALENT_TYPES: usize = 182;
/// `PyArray_Empty`.
pub(crate) const EMPTY: usize = 184;
/// `PyArray_NewLikeArray`.
pub(crate) const NEW_LIKE_ARRAY: usize = 277;
/// `PyDataMem_SetHandler`.
#[cfg(target_os = "linux")]
pub(crate) const SET_HANDLER: usize = 304;
/// `PyDataMem_GetHandler`.
#[cfg(target_os = "linux")]
pub(crate) const GET_HANDLER: usize = 305;
/// `PyDataMem_DefaultHandler`, a variable.
#[cfg(target_os = "linux")]
pub(crate) const DEFAULT_HANDLER: usize = 306;
/// `_PyDataType_GetArrFuncs`, since numpy 2.0.
pub(crate) const GET_CAST_FUNCTIONS: usize = 365;

/// `PyUFunc_FromFuncAndData`, of the table of ufuncs.
pub(crate) const MAKE_UFUNC: usize = 1;
/// `PyUFunc_AddLoopFromSpec`, of that table since numpy 2.0.
pub(crate) const ADD_LOOP: usize = 43;

/// The major version of the ABI whose entries these are.
const MAJOR_VERSION: u32 = 2;

/// The first entry of the table.
struct Table(*const *const c_void);

// SAFETY: nothing in the table changes.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Returns the first entry of the table, which lives as long as the process.
#[inline(always)]
pub(crate) fn entries(py: Python<'_>) -> PyResult<*const *const c_void> {
    static TABLE: PyOnceLock<Table> = PyOnceLock::new();
    Ok(TABLE.get_or_try_init(py, || find(py))?.0)
}

/// Returns the first entry of the table of ufuncs, which lives as long.
pub(crate) fn ufunc_entries(py: Python<'_>) -> PyResult<*const *const c_void> {
    // Only the other table has the version.
    entries(py)?;
    let module = py.import("numpy._core._multiarray_umath")?;
    let capsule = module.getattr("_UFUNC_API")?.cast_into::<PyCapsule>()?;
    Ok(capsule.pointer_checked(None)?.cast::<*const c_void>().as_ptr().cast_const())
}

#[cold]
fn find(py: Python<'_>) -> PyResult<Table> {
    let capsule = py.import("numpy._core.multiarray")?.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
    let entries = capsule.pointer_checked(None)?.cast::<*const c_void>().as_ptr().cast_const();
    // SAFETY: every version of numpy has this function at this place, to be asked before any other is used.
    let version = unsafe { entries.add(ABI_VERSION).cast::<unsafe extern "C" fn() -> u32>().read()() };
    if version >> 24 != MAJOR_VERSION {
        return Err(PyRuntimeError::new_err(format!("numpy has the unknown C ABI {version:#x}")));
    }
    Ok(Table(entries))
}
