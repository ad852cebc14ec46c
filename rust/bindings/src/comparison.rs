//! The comparison of two arrays for Python.

use castwise_core::cast::num_threads;
use castwise_core::compare::{self as core, Losses};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::array::{Array, Place, shown};
use crate::error::to_python;
use crate::report::CastReport;
use crate::runtime::{bytes_of_items, parse_threads, release};

/// Where two arrays differ, and by how much.
#[pyclass(frozen, eq, module = "castwise._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    core: core::Comparison,
}

impl Comparison {
    pub(crate) fn new(core: core::Comparison) -> Self {
        Self { core }
    }

    fn losses<T>(&self, read: impl FnOnce(&Losses) -> T) -> Option<T> {
        self.core.losses.as_deref().map(read)
    }
}

#[pymethods]
impl Comparison {
    /// Elements.
    #[getter]
    fn count(&self) -> u64 {
        self.core.count
    }

    /// Elements with the same bits.
    #[getter]
    fn equal_bits(&self) -> u64 {
        self.core.equal_bits
    }

    /// Elements with other bits, unless both are NaN.
    #[getter]
    fn different(&self) -> u64 {
        self.core.different
    }

    /// The most ulps that elements differ by that are finite in both, and the first flat index of them; None without.
    #[getter]
    fn largest_ulps(&self) -> Option<(u64, u64)> {
        self.core.largest_ulps
    }

    /// The largest difference of elements that are finite in both, and the first flat index of it; None without.
    #[getter]
    fn largest_difference(&self) -> Option<(f64, u64)> {
        self.core.largest_difference
    }

    /// The flat index of the first different pair that is not finite in both; None without.
    #[getter]
    fn first_special(&self) -> Option<u64> {
        self.core.first_special
    }

    /// Elements that are finite in both; None if losses were not measured.
    #[getter]
    fn finite(&self) -> Option<u64> {
        self.losses(|losses| losses.finite)
    }

    /// Elements that are finite in both and equal; None if losses were not measured.
    #[getter]
    fn finite_equal(&self) -> Option<u64> {
        self.losses(|losses| losses.finite_equal)
    }

    /// The flat index of the first element that is finite in the first array only; None without.
    #[getter]
    fn first_lost(&self) -> Option<u64> {
        self.losses(|losses| losses.first_lost).flatten()
    }

    /// The largest difference over the magnitude in the first array, of elements that are finite in both and not zero in the
    /// first, and the first flat index of it; None without, or if losses were not measured.
    #[getter]
    fn largest_relative(&self) -> Option<(f64, u64)> {
        self.losses(|losses| losses.largest_relative).flatten()
    }

    /// The root of the mean squared difference; None if losses were not measured.
    #[getter]
    fn rms_error(&self) -> Option<f64> {
        self.losses(|losses| losses.report.rms_error())
    }

    /// What the second array lost of the first, as of a cast; None if losses were not measured.
    #[getter]
    fn report(&self) -> Option<CastReport> {
        self.losses(|losses| CastReport::new(losses.report.clone()))
    }
}

/// Compare two arrays of one shape, of any formats.
///
/// Elements of one format are compared as they are. Of two formats, both are converted first: to float32 if that holds
/// both, else to float64, beside which the rest of a 64-bit integer counts. With `measure` the losses are found too.
#[pyfunction]
#[pyo3(signature = (x, y, *, measure=false, threads=None))]
pub(crate) fn compare(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
    measure: bool,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<Comparison> {
    let pair = Pair::from_arguments([x, y], threads)?;
    let (shape, [first, second], threads) = pair.operands();
    let call = move || {
        // SAFETY: numpy vouched for both (see `crate::array`), which are of this shape; `pair` keeps them alive.
        unsafe { core::compare(shape, first.source(), second.source(), measure, threads) }
    };
    let core = release(py, pair.bytes(), call);
    Ok(Comparison::new(core))
}

/// Return what an array lost of another, as `compare` measures it.
#[pyfunction]
pub(crate) fn report_losses(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
) -> PyResult<CastReport> {
    let pair = Pair::from_arguments([x, y], None)?;
    let (shape, [first, second], _) = pair.operands();
    // SAFETY: numpy vouched for both (see `crate::array`), which are of this shape; `pair` keeps them alive.
    let call = move || unsafe { core::report(shape, first.source(), second.source()) };
    Ok(CastReport::new(release(py, pair.bytes(), call)))
}

/// Return the ratio of signal to noise, in decibels, of each array of a stack and the one of another stack.
#[pyfunction]
pub(crate) fn compare_stacks(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
) -> PyResult<Vec<f64>> {
    let pair = Pair::from_arguments([x, y], None)?;
    let (shape, [first, second], _) = pair.operands();
    // SAFETY: numpy vouched for both (see `crate::array`), which are of this shape; `pair` keeps them alive.
    let call = move || unsafe { core::ratios(shape, [first.source(), second.source()]) };
    let bytes = bytes_of_items(pair.bytes(), shape.first().copied().unwrap_or(0));
    release(py, bytes, call).map_err(to_python)
}

/// Tell whether two arrays of one shape have one format and the same bits.
#[pyfunction]
#[pyo3(signature = (x, y, *, threads=None))]
pub(crate) fn have_same_bits(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    let pair = Pair::from_arguments([x, y], threads)?;
    let (shape, [first, second], threads) = pair.operands();
    let call = move || {
        // SAFETY: numpy vouched for both (see `crate::array`), which are of this shape; `pair` keeps them alive.
        unsafe { core::have_same_bits(shape, first.source(), second.source(), threads) }
    };
    Ok(release(py, pair.bytes(), call))
}

/// Two arrays of one shape, and a number of threads.
struct Pair<'py> {
    first: Array<'py>,
    second: Array<'py>,
    threads: usize,
}

impl<'py> Pair<'py> {
    fn from_arguments(
        [first, second]: [&Bound<'py, PyAny>; 2],
        threads: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
        let (first, second) = (Array::from_argument("x", first)?, Array::from_argument("y", second)?);
        if second.shape() != first.shape() {
            return Err(PyValueError::new_err(format!(
                "y has shape {}, x has shape {}; they must be equal.",
                shown(second.shape()),
                shown(first.shape())
            )));
        }
        Ok(Self { first, second, threads })
    }

    fn operands(&self) -> (&[usize], [Place<'_>; 2], usize) {
        (self.first.shape(), [self.first.place(), self.second.place()], self.threads)
    }

    fn bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }
}
