//! Delayed scaling for Python: a frozen value around the core's, and its one pass over data.

use std::hash::{Hash, Hasher};

use castwise_core::Format;
use castwise_core::cast::num_threads;
use castwise_core::codec::options::Named;
use castwise_core::unscale::{Gradient, quantize};
use castwise_logic::delayed_scaling::{
    AmaxAlgorithm, DelayedScaling as Core, LONGEST_HISTORY, Recipe, default_format,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use crate::arguments::{real, whole_within};
use crate::array::{Array, Order, array_of, shown, target_fault};
use crate::dtypes;
use crate::error::to_python;
use crate::numpy::{FLOAT, PyArrayDescr, PyUntypedArray};
use crate::runtime::parse_threads;
use crate::saved_state::{SavedState, from_config};

const STATE_KEYS: [&str; 3] = ["preset", "scale", "amax_history"];

/// Delayed scaling of one tensor: the scale for a narrow float from the largest magnitudes of earlier steps. A value:
/// each step gives the next.
///
/// Parameters
/// ----------
/// amax_history_length : int
///     Steps that are remembered: 1 to 2**20.
/// margin : int
///     Powers of two that stay free above the largest magnitude.
/// dtype : dtype or str, optional
///     Of the codes; default OCP's E4M3 (float8_e4m3fn), as for weights and activations; gradients take
///     float8_e5m2.
/// amax_algorithm : {"max", "most_recent"}
///     How the history is reduced to one amax.
/// preset : {"castwise", "keras", "transformer_engine"}
///     "castwise": the scale for the next step comes from all amaxes up to this one; NaN and infinity are left out.
///     "keras": Keras 3's update to the last bit, in which an amax acts two steps later and NaN freezes the scale
///     until it has left the history. "transformer_engine": NVIDIA's, in which NaN does the same.
///
/// Raises
/// ------
/// ValueError, TypeError
///     A length below 1 or above 2**20, a margin beyond 100, a dtype that is not a signed float of 16 bits or fewer.
///
/// Examples
/// --------
/// >>> scaling = DelayedScaling(amax_history_length=4)
/// >>> codes, amax = scaling.quantize(np.array([0.5, -224.0], np.float32))
/// >>> amax, scaling.next(amax).scale
/// (224.0, 0.5)
#[pyclass(frozen, eq, hash, module = "castwise._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DelayedScaling {
    core: Core,
}

#[pymethods]
impl DelayedScaling {
    #[new]
    #[pyo3(
        signature = (amax_history_length=None, margin=None, *, dtype=None, amax_algorithm="max", preset="castwise"),
        text_signature = "(amax_history_length=1024, margin=0, *, dtype=None, amax_algorithm='max', preset='castwise')"
    )]
    fn new(
        amax_history_length: Option<&Bound<'_, PyAny>>,
        margin: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        amax_algorithm: &str,
        preset: &str,
    ) -> PyResult<Self> {
        let format = match dtype {
            Some(dtype) => dtypes::parse_argument("dtype", dtype)?.0,
            None => default_format(),
        };
        let recipe = Recipe::parse(preset).map_err(to_python)?;
        let algorithm = AmaxAlgorithm::parse(amax_algorithm).map_err(to_python)?;
        let length = amax_history_length
            .map_or(Ok(1024), |length| whole_within("amax_history_length", length, 1..=LONGEST_HISTORY))?;
        let margin = margin.map_or(Ok(0), |margin| whole_within("margin", margin, -100..=100))?;
        Ok(Self { core: Core::new(format, recipe, algorithm, length, margin).map_err(to_python)? })
    }

    /// What one unit of the codes is worth: values are about codes times scale.
    #[getter]
    fn scale(&self) -> f64 {
        self.core.scale()
    }

    /// The largest magnitudes of former steps, float32, in the order in which the preset's original keeps them.
    #[getter]
    fn amax_history<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyUntypedArray>> {
        array_of(py, self.core.history())
    }

    /// The dtype of the codes.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArrayDescr>>> {
        dtypes::descr_of(py, self.core.format())
    }

    /// Powers of two that stay free above the largest magnitude.
    #[getter]
    fn margin(&self) -> i32 {
        self.core.margin()
    }

    /// Steps that are remembered.
    #[getter]
    fn amax_history_length(&self) -> usize {
        self.core.history().len()
    }

    /// How the history is reduced to one amax.
    #[getter]
    fn amax_algorithm(&self) -> &'static str {
        self.core.algorithm().name()
    }

    /// Whose rules it follows.
    #[getter]
    fn preset(&self) -> &'static str {
        self.core.recipe().name()
    }

    /// The value after a step whose largest magnitude was `amax`; a finite one beyond float32 counts as its largest.
    fn next(&self, amax: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { core: self.core.next(real("amax", amax)?).map_err(to_python)? })
    }

    /// Turn values into codes with the scale as it is, and find the largest magnitude, in one pass.
    ///
    /// Parameters
    /// ----------
    /// x : array
    ///     Real floats, of any shape, strides and byte order.
    /// out : ndarray, optional
    ///     Written in place and returned; the shape of x, the dtype of the codes.
    /// threads : int, optional
    ///     At most this many threads; default get_num_threads().
    ///
    /// Returns
    /// -------
    /// (ndarray, float)
    ///     ``x / scale`` in float32 (of float64 x in float64, so that nothing is rounded before the division), rounded
    ///     to nearest even and saturated, infinities too; NaN stays. (preset "transformer_engine": times the
    ///     reciprocal that it stores.) And the largest magnitude of x, for next(), at once or after all ranks have
    ///     agreed on it; NaN if there is one in x.
    #[pyo3(signature = (x, out=None, *, threads=None))]
    fn quantize<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        threads: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, f64)> {
        let py = x.py();
        let threads = threads.map_or_else(|| Ok(num_threads()), parse_threads)?;
        let mut source = Array::from_argument("x", x)?;
        if source.format.float().is_none() {
            return Err(PyTypeError::new_err(format!(
                "x is {}, which is not a real float; cast it to one first.",
                source.format.name()
            )));
        }
        let target = if let Some(out) = out {
            self.checked_out(out, &source)?
        } else {
            let format = self.core.format();
            let descr = dtypes::descr_of(py, format)?.ok_or_else(|| {
                PyTypeError::new_err(format!("{} has no dtype in the installed ml_dtypes.", format.name()))
            })?;
            source.empty_like(Order::Keep, &descr, format)?
        };
        if target.may_overlap(&source) && !target.coincides_with(&source) {
            source = source.copy()?;
        }
        let (factor, divide) = self.core.operand();
        let (shape, from, to) = (source.shape(), source.place(), target.place());
        let call = move || {
            let values = Gradient { shape, source: from.source(), target: Some(to.target(false)) };
            // SAFETY: numpy vouched for the memory (see `crate::array`); the caller keeps the arrays alive. The target is
            // new, or was checked to be writeable, of this shape and without overlap in itself, and made not to overlap
            // the source but elementwise.
            unsafe { quantize(&values, factor, divide, threads) }
        };
        let amax = py.detach(call).map_err(to_python)?;
        Ok((target.object.into_any(), amax))
    }

    /// Codes times the scale; give the value that quantized them, not the one after it.
    #[pyo3(signature = (codes, dtype=None))]
    fn dequantize<'py>(
        &self,
        codes: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = codes.py();
        let options = PyDict::new(py);
        options.set_item("scale", self.core.scale())?;
        let single = PyArrayDescr::of_number(py, FLOAT)?.into_any();
        let dtype = dtype.unwrap_or(&single);
        py.import("castwise._core")?.getattr("cast")?.call((codes, dtype), Some(&options))
    }

    /// The parameters, without the state: what from_config takes.
    fn get_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let config = PyDict::new(py);
        config.set_item("amax_history_length", self.core.history().len())?;
        config.set_item("margin", self.core.margin())?;
        config.set_item("dtype", self.core.format().name())?;
        config.set_item("amax_algorithm", self.core.algorithm().name())?;
        config.set_item("preset", self.core.recipe().name())?;
        Ok(config)
    }

    /// The value that get_config described, at its first step.
    #[classmethod]
    fn from_config<'py>(
        class: &Bound<'py, PyType>,
        config: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        from_config(class, config)
    }

    /// The state, as JSON takes it: "preset", "scale" (for "transformer_engine" the reciprocal that it stores) and
    /// "amax_history", a list.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        state.set_item("preset", self.preset())?;
        state.set_item("scale", self.core.stored())?;
        state.set_item("amax_history", PyList::new(py, self.core.wide_history())?)?;
        Ok(state)
    }

    /// The value in a saved state; ValueError for that of another preset, for missing or unknown keys, and for
    /// numbers that the preset never reaches.
    fn with_state(&self, state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let state = SavedState::new("DelayedScaling".to_owned(), &STATE_KEYS, state)?;
        let preset = state.get("preset")?;
        if !preset.eq(self.preset())? {
            return Err(PyValueError::new_err(format!(
                "state: preset={} is not valid here, where it is '{}'; load it into the preset that saved it.",
                preset.repr()?,
                self.preset()
            )));
        }
        let stored = real("scale", &state.get("scale")?)?;
        let found = state.get("amax_history")?;
        let found = found.call_method0("tolist").unwrap_or(found);
        let mut history = Vec::new();
        let items = found.try_iter().map_err(|_| {
            let kind = found.get_type();
            PyTypeError::new_err(format!("amax_history is of type {kind}; give a list of numbers."))
        })?;
        for amax in items {
            history.push(real("amax_history", &amax?)?);
        }
        Ok(Self { core: self.core.with_state(stored, &history).map_err(to_python)? })
    }

    fn __repr__(&self) -> String {
        let core = &self.core;
        format!(
            "DelayedScaling(amax_history_length={}, margin={}, dtype='{}', amax_algorithm='{}', preset='{}') at \
             scale={}",
            core.history().len(),
            core.margin(),
            core.format().name(),
            core.algorithm().name(),
            core.recipe().name(),
            core.scale()
        )
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.import("castwise._core")?.getattr("restore_delayed_scaling")?;
        (restore, (self.get_config(py)?, self.state_dict(py)?)).into_pyobject(py)
    }
}

impl DelayedScaling {
    fn checked_out<'py>(&self, out: &Bound<'py, PyAny>, source: &Array<'py>) -> PyResult<Array<'py>> {
        let target = Array::of_numpy("out", out)?;
        let format: Format = self.core.format();
        if target.format != format {
            return Err(PyTypeError::new_err(format!(
                "out has dtype {}; give an array of {}.",
                target.format.name(),
                format.name()
            )));
        }
        if target_fault(&target, Some(source.shape())).is_some() {
            return Err(PyValueError::new_err(format!(
                "out has shape {}, x has shape {}; give a writeable array of that shape, with its own elements.",
                shown(target.shape()),
                shown(source.shape())
            )));
        }
        Ok(target)
    }
}

impl Hash for DelayedScaling {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Adding zero gives both zeros, which are equal, the same bits.
        let bits = |value: &f64| (value + 0.0).to_bits();
        (self.core.format().index(), self.core.recipe().name(), self.core.algorithm().name()).hash(hasher);
        (self.core.margin(), bits(&self.core.stored())).hash(hasher);
        self.core.wide_history().iter().map(bits).for_each(|amax| amax.hash(hasher));
    }
}

/// What `DelayedScaling.__reduce__` takes apart, put together again.
#[pyfunction]
pub(crate) fn restore_delayed_scaling<'py>(
    py: Python<'py>,
    config: &Bound<'py, PyDict>,
    state: &Bound<'py, PyDict>,
) -> PyResult<DelayedScaling> {
    let made = py.get_type::<DelayedScaling>().call((), Some(config))?;
    made.cast::<DelayedScaling>()?.get().with_state(state.as_any())
}
