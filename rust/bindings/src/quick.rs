//! Casts of a few dense elements without options. There the call costs more than the cast, and most of what
//! [`crate::cast`] looks at cannot matter; whatever is not obviously simple is left to it.

use castwise_core::cast::Prepared;
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
            let (_, descr) = dtypes::parse_argument("dtype", dtype)?;
            let Some(source) = Dense::of(x)? else { return Ok(None) };
            let new = source.empty_like(descr)?;
            Ok(fill(&source, &new)?.then_some(new))
        }
        (None, Some(out)) => match Dense::of(x)? {
            Some(source) if source.count <= MOST && fill(&source, out)? => Ok(Some(out.clone())),
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Casts into an array; returns whether it did.
fn fill(source: &Dense<'_, '_>, target: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(target) = Dense::of(target)?.filter(|target| target.takes(source)) else { return Ok(false) };
    let prepared = Prepared::new(source.format, None, target.format).map_err(to_python)?;
    // SAFETY: both are plain ndarrays of this many dense elements, apart from each other and the target writeable; they
    // live as long as this call, in which the interpreter is not let go and nobody's code runs.
    unsafe { prepared.run(source.pointer, target.pointer, source.count) };
    Ok(true)
}
