//! `castwise.finfo` and `castwise.formats`: the table, for Python.

use castwise_core::Format;
use castwise_core::codec::reference::value_of;
use castwise_core::format::{FloatSpec, Kind};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::dtypes;
use crate::numpy::PyArrayDescr;

/// One row of the table of formats, with the numbers that follow from it.
///
/// What only floats have (`signed` to `specials`, `has_infinity`, `has_nan`, `smallest_normal`,
/// `smallest_subnormal`, `eps`) raises AttributeError for integers and bool; complex formats answer for their
/// components.
#[pyclass(frozen, eq, hash, module = "castwise")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FormatInfo {
    format: Format,
}

impl FormatInfo {
    fn float(&self, attribute: &str) -> PyResult<FloatSpec> {
        // Complex formats answer for their components, as numpy.finfo does.
        let format = self.format.component().unwrap_or(self.format);
        format.float().ok_or_else(|| {
            PyAttributeError::new_err(format!("{} is not a float: it has no {attribute}", format.name()))
        })
    }

    fn limit<'py>(&self, py: Python<'py>, largest: bool) -> PyResult<Bound<'py, PyAny>> {
        if let Some((low, high)) = self.format.integer_range() {
            let limit = if largest { high } else { low };
            return Ok(limit.into_pyobject(py)?.into_any());
        }
        let spec = self.float("limits")?;
        let max = value_of(&spec, spec.max_code());
        let min = if spec.signed { -max } else { value_of(&spec, 0) };
        Ok((if largest { max } else { min }).into_pyobject(py)?.into_any())
    }
}

#[pymethods]
impl FormatInfo {
    /// Canonical name.
    #[getter]
    fn name(&self) -> &'static str {
        self.format.name()
    }

    /// Other names that are accepted.
    #[getter]
    fn aliases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.format.row().aliases)
    }

    /// Bits of one value.
    #[getter]
    fn bits(&self) -> u32 {
        self.format.row().bits
    }

    /// Bytes of one element in a numpy array.
    #[getter]
    fn itemsize(&self) -> usize {
        self.format.item_size()
    }

    /// "bool", "int", "uint", "float" or "complex".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.format.kind() {
            Kind::Bool => "bool",
            Kind::Integer { signed: true } => "int",
            Kind::Integer { signed: false } => "uint",
            Kind::Float(_) => "float",
            Kind::Complex { .. } => "complex",
        }
    }

    /// The format of a complex format's components; None for a real one.
    #[getter]
    fn component(&self) -> Option<Self> {
        self.format.component().map(|format| Self { format })
    }

    /// The numpy dtype; None if the installed ml_dtypes lacks it.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArrayDescr>>> {
        dtypes::descr_of(py, self.format)
    }

    /// Its code in safetensors files, or None.
    #[getter]
    fn safetensors(&self) -> Option<&'static str> {
        self.format.row().safetensors
    }

    /// Whether a float has a sign bit.
    #[getter]
    fn signed(&self) -> PyResult<bool> {
        Ok(self.float("signed")?.signed)
    }

    /// Width of the exponent field.
    #[getter]
    fn exponent_bits(&self) -> PyResult<u32> {
        Ok(self.float("exponent_bits")?.exponent_bits)
    }

    /// Width of the explicit mantissa field.
    #[getter]
    fn mantissa_bits(&self) -> PyResult<u32> {
        Ok(self.float("mantissa_bits")?.mantissa_bits)
    }

    /// Exponent bias.
    #[getter]
    fn bias(&self) -> PyResult<i32> {
        Ok(self.float("bias")?.bias)
    }

    /// "ieee", "finite-nan", "fnuz", "finite" or "exponent-only".
    #[getter]
    fn specials(&self) -> PyResult<&'static str> {
        Ok(self.float("specials")?.specials.name())
    }

    /// Whether infinities exist.
    #[getter]
    fn has_infinity(&self) -> PyResult<bool> {
        Ok(self.float("has_infinity")?.infinity_code().is_some())
    }

    /// Whether NaN exists.
    #[getter]
    fn has_nan(&self) -> PyResult<bool> {
        Ok(self.float("has_nan")?.nan_code().is_some())
    }

    /// Largest finite value.
    #[getter]
    fn max<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.limit(py, true)
    }

    /// Lowest finite value.
    #[getter]
    fn min<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.limit(py, false)
    }

    /// Smallest positive value with a full significand.
    #[getter]
    fn smallest_normal(&self) -> PyResult<f64> {
        let spec = self.float("smallest_normal")?;
        let code = if spec.mantissa_bits == 0 { 0 } else { 1 << spec.mantissa_bits };
        Ok(value_of(&spec, code))
    }

    /// Smallest positive value.
    #[getter]
    fn smallest_subnormal(&self) -> PyResult<f64> {
        let spec = self.float("smallest_subnormal")?;
        let code = u64::from(spec.mantissa_bits != 0);
        Ok(value_of(&spec, code))
    }

    /// Distance from 1.0 to the next larger value.
    #[getter]
    fn eps(&self) -> PyResult<f64> {
        let spec = self.float("eps")?;
        Ok(2f64.powi(-(spec.mantissa_bits as i32)))
    }

    /// For pickle and copy: the row, by its name.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let finfo = py.import("castwise._core")?.getattr("finfo")?;
        Ok((finfo, (self.format.name(),)).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("FormatInfo({:?}, {} bits)", self.format.name(), self.format.row().bits)
    }
}

/// The row of a dtype, with its limits.
///
/// Accepts what ``cast`` takes as ``dtype``, and names whose dtype the installed ml_dtypes lacks. Raises `TypeError`,
/// naming the nearest formats, for an unknown one.
///
/// Examples
/// --------
/// >>> castwise.finfo("float8_e4m3fn").max
/// 448.0
#[pyfunction]
pub(crate) fn finfo(dtype: &Bound<'_, PyAny>) -> PyResult<FormatInfo> {
    if let Ok(name) = dtype.cast::<PyString>()
        && let Some(format) = castwise_core::parse::find(&name.to_cow()?)
    {
        return Ok(FormatInfo { format });
    }
    Ok(FormatInfo { format: dtypes::parse_argument("dtype", dtype)?.0 })
}

/// The names of all formats, in the order of the table.
///
/// Examples
/// --------
/// >>> "bfloat16" in castwise.formats()
/// True
#[pyfunction]
pub(crate) fn formats(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, Format::all().map(Format::name).collect::<Vec<_>>())
}
