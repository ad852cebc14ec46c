//! `CastReport` for Python.

use castwise_core::report::{CastReport as Core, CompactReport};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a cast lost. `a + b` merges two reports; the result does not depend on the order.
#[pyclass(frozen, eq, module = "castwise")]
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CastReport {
    core: Box<CompactReport>,
}

impl From<Box<CompactReport>> for CastReport {
    fn from(core: Box<CompactReport>) -> Self {
        Self { core }
    }
}

impl CastReport {
    pub(crate) fn new(core: Core) -> Self {
        Self { core: Box::new(core.into()) }
    }

    /// As the core adds and measures it.
    fn whole(&self) -> Core {
        CompactReport::clone(&self.core).into()
    }

    /// The counts, in the order they are shown.
    fn counts(&self) -> [(&'static str, u64); 10] {
        let core = &self.core;
        [
            ("count", core.count),
            ("exact", core.exact),
            ("overflowed", core.overflowed),
            ("saturated", core.saturated),
            ("underflowed", core.underflowed),
            ("subnormal", core.subnormal),
            ("nan_in", core.nan_in),
            ("nan_out", core.nan_out),
            ("inf_in", core.inf_in),
            ("zero_in", core.zero_in),
        ]
    }

    /// The magnitudes, in the order they are shown.
    fn magnitudes(&self) -> [(&'static str, f64); 5] {
        let core = &self.core;
        [
            ("amax", core.amax),
            ("amin_nonzero", core.amin_nonzero),
            ("max_abs_error", core.max_abs_error),
            ("max_rel_error", core.max_rel_error),
            ("sqnr_db", self.whole().sqnr_db()),
        ]
    }
}

#[pymethods]
impl CastReport {
    /// A report of nothing, to merge others into.
    #[new]
    fn empty() -> Self {
        Self::default()
    }

    /// Elements (components, for complex dtypes).
    #[getter]
    fn count(&self) -> u64 {
        self.core.count
    }

    /// Elements whose value is preserved; NaN to NaN and infinity to infinity count.
    #[getter]
    fn exact(&self) -> u64 {
        self.core.exact
    }

    /// Values beyond the range that became infinity or NaN, or wrapped into an integer.
    #[getter]
    fn overflowed(&self) -> u64 {
        self.core.overflowed
    }

    /// Values beyond the range that became its limit.
    #[getter]
    fn saturated(&self) -> u64 {
        self.core.saturated
    }

    /// Nonzero finite values within the range that became zero.
    #[getter]
    fn underflowed(&self) -> u64 {
        self.core.underflowed
    }

    /// Results that are nonzero subnormals of the target.
    #[getter]
    fn subnormal(&self) -> u64 {
        self.core.subnormal
    }

    /// NaN among the sources.
    #[getter]
    fn nan_in(&self) -> u64 {
        self.core.nan_in
    }

    /// NaN among the results.
    #[getter]
    fn nan_out(&self) -> u64 {
        self.core.nan_out
    }

    /// Infinities among the sources.
    #[getter]
    fn inf_in(&self) -> u64 {
        self.core.inf_in
    }

    /// Zeros among the sources, after scaling.
    #[getter]
    fn zero_in(&self) -> u64 {
        self.core.zero_in
    }

    /// Largest finite magnitude among the sources, after scaling.
    #[getter]
    fn amax(&self) -> f64 {
        self.core.amax
    }

    /// Smallest nonzero finite magnitude among the sources, after scaling; 0.0 if there is none.
    #[getter]
    fn amin_nonzero(&self) -> f64 {
        self.core.amin_nonzero
    }

    /// Largest difference between a finite source and its result; inf if such a result is infinite or NaN.
    #[getter]
    fn max_abs_error(&self) -> f64 {
        self.core.max_abs_error
    }

    /// Largest such difference, relative to a nonzero source; inf if max_abs_error is.
    #[getter]
    fn max_rel_error(&self) -> f64 {
        self.core.max_rel_error
    }

    /// Signal to quantization-noise ratio in decibels; inf without error, -inf if max_abs_error is inf, else nan if
    /// all sources are zero.
    #[getter]
    fn sqnr_db(&self) -> f64 {
        self.whole().sqnr_db()
    }

    /// All fields as a dict of Python numbers.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        self.counts().iter().try_for_each(|(name, value)| dict.set_item(name, value))?;
        self.magnitudes().iter().try_for_each(|(name, value)| dict.set_item(name, value))?;
        Ok(dict)
    }

    /// For notebooks: what was lost first, as tables with the meanings of the rows.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("castwise.rendering.losses")?.call_method1("html_of_report", (slf,))
    }

    fn __add__(&self, other: &Self) -> Self {
        let mut sum = self.whole();
        sum += &other.whole();
        Self::new(sum)
    }

    /// `sum(reports)` begins with 0.
    fn __radd__<'py>(slf: PyRef<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if other.extract::<u64>().is_ok_and(|zero| zero == 0) {
            return Ok(slf.into_pyobject(py)?.into_any().unbind());
        }
        Ok(py.NotImplemented())
    }

    /// For pickle and copy: everything, the sums of squares to the last bit.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let restore = py.import("castwise._core")?.getattr("restore_report")?;
        let CompactReport { amax, amin_nonzero, max_abs_error, max_rel_error, ref signal, ref noise, .. } =
            *self.core;
        let counts = self.counts().map(|(_, value)| value);
        let magnitudes = [amax, amin_nonzero, max_abs_error, max_rel_error];
        let state = (counts, magnitudes, signal, noise);
        Ok((restore, state).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        let counts = self.counts().map(|(name, value)| format!("{name}={value}"));
        let magnitudes = self.magnitudes().map(|(name, value)| format!("{name}={}", show(value)));
        format!("CastReport({}, {})", counts.join(", "), magnitudes.join(", "))
    }

    fn __str__(&self) -> String {
        let share = |value: u64| 100.0 * value as f64 / self.core.count.max(1) as f64;
        let counts =
            self.counts().map(|(name, value)| format!("{name:<14}{value:>14}{:>9.3} %\n", share(value)));
        let magnitudes = self.magnitudes().map(|(name, value)| format!("{name:<14}{:>14}\n", show(value)));
        format!("{}{}", counts.concat(), magnitudes.concat()).trim_end().to_owned()
    }
}

/// A float in six digits, spelled as Python does.
fn show(value: f64) -> String {
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    format!("{rounded:?}").to_lowercase()
}

/// What `CastReport.__reduce__` takes apart, put together again.
#[pyfunction]
pub(crate) fn restore_report(
    counts: [u64; 10],
    magnitudes: [f64; 4],
    signal: (usize, Vec<u64>),
    noise: (usize, Vec<u64>),
) -> PyResult<CastReport> {
    let [count, exact, overflowed, saturated, underflowed, subnormal, nan_in, nan_out, inf_in, zero_in] =
        counts;
    let [amax, amin_nonzero, max_abs_error, max_rel_error] = magnitudes;
    let report = CastReport::from(Box::new(CompactReport {
        count,
        exact,
        overflowed,
        saturated,
        underflowed,
        subnormal,
        nan_in,
        nan_out,
        inf_in,
        zero_in,
        amax,
        amin_nonzero,
        max_abs_error,
        max_rel_error,
        signal,
        noise,
    }));
    match disagreement(&report) {
        Some(text) => Err(PyValueError::new_err(format!("saved report is damaged ({text}); cast again."))),
        None => Ok(report),
    }
}

/// What no cast reports.
fn disagreement(report: &CastReport) -> Option<String> {
    let &CompactReport { count, underflowed, nan_in, inf_in, zero_in, amax, amin_nonzero, .. } =
        &*report.core;
    if let Some((name, part)) = report.counts().into_iter().find(|&(_, part)| part > count) {
        return Some(format!("{name}={part} and count={count}"));
    }
    // No element is two of these.
    if [underflowed, nan_in, inf_in, zero_in].map(u128::from).iter().sum::<u128>() > count.into() {
        return Some(format!(
            "underflowed={underflowed}, nan_in={nan_in}, inf_in={inf_in}, zero_in={zero_in} and count={count}"
        ));
    }
    let magnitudes = &report.magnitudes()[..4];
    if let Some((name, value)) = magnitudes.iter().find(|(_, value)| value.is_nan() || *value < 0.0) {
        return Some(format!("{name}={value}"));
    }
    (amin_nonzero > amax).then(|| format!("amin_nonzero={amin_nonzero} and amax={amax}"))
}
