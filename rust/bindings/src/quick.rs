//! Casts of a few dense elements without options. There the call costs more than the cast, and most of what
//! [`crate::cast`] looks at cannot matter; whatever is not obviously simple is left to it.

use castwise_core::cast::Prepared;
use numpy::PyArrayDescrMethods;
use pyo3::prelude::*;

use crate::array::Dense;
use crate::dtypes;
use crate::error::to_python;

/// Elements up to which it is worth it: other threads wait for the interpreter no longer than some microseconds.
const MOST: usize = 1 << 14;

/// The result, or `None` if the cast is not one of these.
pub(crate) fn cast<'py>(
    x: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    match (dtype, out) {
        (Some(dtype), None) if Dense::of(x)?.is_some_and(|source| source.count <= MOST) => {
            // What numpy takes for a dtype may run code of its own, so this comes before the array is read.
            let (format, descr) = dtypes::parse_argument("dtype", dtype)?;
            let Some(source) = Dense::of(x)? else { return Ok(None) };
            if descr.is_native_byteorder() == Some(false) {
                return Ok(None);
            }
            let new = source.empty_like(descr)?;
            let target = Dense::known(&new, format);
            // SAFETY: it is new, so apart from all others; numpy gives it the shape of its prototype and, as that is
            // dense, its order.
            unsafe { fill(&source, &target)? };
            Ok(Some(new.into_any()))
        }
        (None, Some(out)) => {
            let Some(source) = Dense::of(x)?.filter(|source| source.count <= MOST) else { return Ok(None) };
            let Some(target) = Dense::of(out)?.filter(|target| target.takes(&source)) else {
                return Ok(None);
            };
            // SAFETY: the target takes the elements of the source: that was just found.
            unsafe { fill(&source, &target)? };
            Ok(Some(out.clone()))
        }
        _ => Ok(None),
    }
}

/// Casts one array into another.
///
/// # Safety
/// The target is writeable, has as many elements in the same order, and is apart from the source.
unsafe fn fill(source: &Dense<'_, '_>, target: &Dense<'_, '_>) -> PyResult<()> {
    let prepared = Prepared::new(source.format, None, target.format).map_err(to_python)?;
    // SAFETY: the caller's promise; both are plain ndarrays of dense elements that live as long as this call, in which
    // the interpreter is not let go and nobody's code runs.
    unsafe { prepared.run(source.pointer, target.pointer, source.count) };
    Ok(())
}
