//! Loss scales for Python: frozen values around the core's machines.

use std::hash::{Hash, Hasher};

use castwise_logic::loss_scale::{
    DynamicLossScale as Core, FixedLossScale as CoreFixed, Knob, Knobs, Number, Preset, State,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple, PyType};

use crate::arguments::{real, truth, whole};
use crate::error::to_python;
use crate::saved_state::{SavedState, from_config};

/// A loss scale that never changes.
///
/// Parameters
/// ----------
/// scale : float
///     Positive and finite, kept as a float32.
/// skip_nonfinite : bool
///     Leave out steps whose gradients are not finite. False: apply them, as TensorFlow's FixedLossScale does.
///
/// Raises
/// ------
/// ValueError
///     A scale that is zero, negative, infinite, NaN, or becomes so as a float32.
#[pyclass(frozen, eq, hash, module = "castwise._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FixedLossScale {
    core: CoreFixed,
}

#[pymethods]
impl FixedLossScale {
    #[new]
    #[pyo3(signature = (scale, *, skip_nonfinite=true))]
    fn new(scale: &Bound<'_, PyAny>, skip_nonfinite: bool) -> PyResult<Self> {
        let scale = real("scale", scale)?;
        Ok(Self { core: CoreFixed::new(scale, skip_nonfinite).map_err(to_python)? })
    }

    /// What the loss is multiplied by.
    #[getter]
    fn scale(&self) -> f64 {
        self.core.scale()
    }

    /// Whether steps with gradients that are not finite are left out.
    #[getter]
    fn skip_nonfinite(&self) -> bool {
        self.core.skips_nonfinite()
    }

    /// The scale for the next step (this one), and whether this step's gradients apply.
    fn next<'py>(slf: &Bound<'py, Self>, finite: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, Self>, bool)> {
        let applies = slf.get().core.applies(truth(finite)?);
        Ok((slf.clone(), applies))
    }

    /// As next, and None: nothing happens to it.
    fn transition<'py>(
        slf: &Bound<'py, Self>,
        finite: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, Self>, bool, Option<&'static str>)> {
        let (next, applies) = Self::next(slf, finite)?;
        Ok((next, applies, None))
    }

    /// What from_config takes.
    fn get_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let config = PyDict::new(py);
        config.set_item("scale", self.core.scale())?;
        config.set_item("skip_nonfinite", self.core.skips_nonfinite())?;
        Ok(config)
    }

    /// The value that get_config described.
    #[classmethod]
    fn from_config<'py>(
        class: &Bound<'py, PyType>,
        config: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        from_config(class, config)
    }

    /// Nothing changes, so nothing is to be saved: an empty dict.
    fn state_dict<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyDict> {
        PyDict::new(slf.py())
    }

    /// This value; ValueError for the state of another class.
    fn with_state<'py>(slf: &Bound<'py, Self>, state: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        SavedState::new("FixedLossScale".to_owned(), &[], state)?;
        Ok(slf.clone())
    }

    fn __repr__(&self) -> String {
        let skips = if self.core.skips_nonfinite() { "" } else { ", skip_nonfinite=False" };
        format!("FixedLossScale({:?}{skips})", self.core.scale())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        Ok((slf.get_type().getattr("from_config")?, (slf.get().get_config(slf.py())?,)))
    }
}

impl Hash for FixedLossScale {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.core.scale().to_bits(), self.core.skips_nonfinite()).hash(state);
    }
}

/// A loss scale that looks for the largest value under which gradients stay finite: a value, not an object that
/// changes.
///
/// After `growth_interval` finite steps it is multiplied by `growth_factor`; after `hysteresis` nonfinite steps in a
/// row, and at each further one, by `backoff_factor`. It never leaves [minimum, maximum].
///
/// Parameters
/// ----------
/// initial_scale : float, optional
///     Default 2**15. It and the limits are rounded to float32, which scales are; a preset keeps the number as given
///     for its config.
/// growth_interval : int, optional
///     Default 2000.
/// growth_factor : float, optional
///     Above 1; default 2.
/// backoff_factor : float, optional
///     Between 0 and 1; default 0.5.
/// minimum, maximum : float, optional
///     Default 2**-24 and 2**24.
/// hysteresis : int, optional
///     Default 1.
/// preset : str
///     "castwise", or a library to imitate transition by transition, its defaults and defects included: "keras",
///     "tf_keras", "tf", "torch", "jmp", "mpx", "megatron", "apex". Each lets those parameters be set that the
///     original has. Scales are computed in float32, as they do it (apex: float64).
///
/// Raises
/// ------
/// ValueError
///     A parameter out of its domain (presets are as lenient as their originals), or one that the preset lacks.
///
/// Examples
/// --------
/// >>> scale = DynamicLossScale(initial_scale=4.0, growth_interval=2)
/// >>> scale, applies = scale.next(True)
/// >>> scale, applies = scale.next(True)
/// >>> scale.scale, applies
/// (8.0, True)
/// >>> scale.next(False)[0].scale
/// 4.0
#[pyclass(frozen, eq, hash, module = "castwise._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DynamicLossScale {
    core: Core,
}

#[pymethods]
impl DynamicLossScale {
    #[new]
    #[pyo3(
        signature = (initial_scale=None, growth_interval=None, growth_factor=None, backoff_factor=None, *,
                     minimum=None, maximum=None, hysteresis=None, preset="castwise"),
        text_signature = "(initial_scale=None, growth_interval=None, growth_factor=None, backoff_factor=None, *, minimum=None, maximum=None, hysteresis=None, preset='castwise')"
    )]
    #[expect(clippy::too_many_arguments, reason = "the public signature")]
    fn new(
        initial_scale: Option<&Bound<'_, PyAny>>,
        growth_interval: Option<&Bound<'_, PyAny>>,
        growth_factor: Option<&Bound<'_, PyAny>>,
        backoff_factor: Option<&Bound<'_, PyAny>>,
        minimum: Option<&Bound<'_, PyAny>>,
        maximum: Option<&Bound<'_, PyAny>>,
        hysteresis: Option<&Bound<'_, PyAny>>,
        preset: &str,
    ) -> PyResult<Self> {
        let preset = Preset::named(preset).map_err(to_python)?;
        let mut knobs = preset.defaults;
        let given = [
            (Knob::InitialScale, initial_scale),
            (Knob::GrowthInterval, growth_interval),
            (Knob::GrowthFactor, growth_factor),
            (Knob::BackoffFactor, backoff_factor),
            (Knob::Minimum, minimum),
            (Knob::Maximum, maximum),
            (Knob::Hysteresis, hysteresis),
        ];
        for (knob, value) in given {
            if let Some(value) = value {
                refuse_unless_settable(preset, knob, value)?;
                set(&mut knobs, knob, value)?;
            }
        }
        Ok(Self { core: Core::new(preset, knobs).map_err(to_python)? })
    }

    /// What the loss is multiplied by.
    #[getter]
    fn scale(&self) -> f64 {
        self.core.state().scale
    }

    /// Finite steps since the scale last changed.
    #[getter]
    fn counter(&self) -> i64 {
        self.core.state().counter
    }

    /// Nonfinite steps that are left before the scale backs off.
    #[getter]
    fn hysteresis_left(&self) -> i64 {
        self.core.state().hysteresis_left
    }

    /// Nonfinite steps in a row that found the scale at its minimum.
    #[getter]
    fn floor_steps(&self) -> i64 {
        self.core.state().floor_steps
    }

    /// The scale it began with: in float32, as the scale itself; with a preset as given, which is what the original's
    /// config holds.
    #[getter]
    fn initial_scale(&self) -> f64 {
        self.core.knobs().initial_scale
    }

    /// Finite steps between growths.
    #[getter]
    fn growth_interval(&self) -> i64 {
        self.core.knobs().growth_interval
    }

    /// What the scale is multiplied by when it grows.
    #[getter]
    fn growth_factor(&self) -> f64 {
        self.core.knobs().growth_factor
    }

    /// What the scale is multiplied by when it backs off.
    #[getter]
    fn backoff_factor(&self) -> f64 {
        self.core.backoff_factor()
    }

    /// Where backing off stops; None where the preset has no floor.
    #[getter]
    fn minimum(&self) -> Option<f64> {
        self.core.knobs().minimum
    }

    /// Where growth stops; None where the preset has no such limit.
    #[getter]
    fn maximum(&self) -> Option<f64> {
        self.core.knobs().maximum
    }

    /// Nonfinite steps before the scale backs off.
    #[getter]
    fn hysteresis(&self) -> i64 {
        self.core.knobs().hysteresis
    }

    /// The name of the library it imitates, or "castwise".
    #[getter]
    fn preset(&self) -> &'static str {
        self.core.preset().name
    }

    /// How the preset takes a step: the columns of its row, by name.
    #[getter]
    fn _rules<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.core.preset().rules().into_py_dict(py)
    }

    /// The scale for the next step, and whether this step's gradients apply.
    ///
    /// Parameters
    /// ----------
    /// finite : bool
    ///     Whether all gradients of this step were finite; also numpy's and other libraries' boolean scalars.
    fn next(&self, finite: &Bound<'_, PyAny>) -> PyResult<(Self, bool)> {
        let transition = self.core.next(truth(finite)?);
        Ok((Self { core: transition.next }, transition.applies))
    }

    /// As next, and what happened to the scale: None, "grew", "backed off", "held back" (by the hysteresis), "at the
    /// floor", "at the ceiling", or "lost" (0, infinite or NaN, which only presets reach).
    fn transition(&self, finite: &Bound<'_, PyAny>) -> PyResult<(Self, bool, Option<&'static str>)> {
        let transition = self.core.next(truth(finite)?);
        let event = transition.event.map(castwise_logic::loss_scale::Event::name);
        Ok((Self { core: transition.next }, transition.applies, event))
    }

    /// The parameters, without the state: what from_config takes.
    fn get_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let config = PyDict::new(py);
        for &knob in self.core.preset().settable {
            config.set_item(knob.name(), knob_value(py, self.core.knobs(), knob)?)?;
        }
        config.set_item("preset", self.core.preset().name)?;
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

    /// The state, under the keys of the preset's original: for "torch" what torch.amp.GradScaler saves and loads.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        for &(key, field) in self.core.preset().state {
            match self.core.get(field) {
                Number::Real(value) => state.set_item(key, value)?,
                Number::Whole(value) => state.set_item(key, value)?,
            }
        }
        Ok(state)
    }

    /// The value in a saved state.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     Keys that are missing or that the preset does not know; numbers that it refuses.
    fn with_state(&self, state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let fields = self.core.preset().state;
        let keys: Vec<_> = fields.iter().map(|&(key, _)| key).collect();
        let owner = format!("DynamicLossScale with preset='{}'", self.core.preset().name);
        let state = SavedState::new(owner, &keys, state)?;
        let mut numbers = Vec::with_capacity(fields.len());
        for &(key, field) in fields {
            let value = state.get(key)?;
            let number = match self.core.get(field) {
                Number::Real(_) => Number::Real(real(key, &value)?),
                Number::Whole(_) => Number::Whole(whole(key, &value)?),
            };
            numbers.push((field, number));
        }
        Ok(Self { core: self.core.with_state(&numbers).map_err(to_python)? })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown = |value: Py<PyAny>| Ok::<_, PyErr>(value.bind(py).repr()?.to_string());
        let knobs = self.core.preset().settable.iter().map(|&knob| {
            Ok(format!("{}={}, ", knob.name(), shown(knob_value(py, self.core.knobs(), knob)?)?))
        });
        let knobs: String = knobs.collect::<PyResult<_>>()?;
        let State { scale, counter, .. } = *self.core.state();
        let scale = shown(scale.into_pyobject(py)?.into_any().unbind())?;
        let preset = self.core.preset().name;
        Ok(format!("DynamicLossScale({knobs}preset='{preset}') at scale={scale}, counter={counter}"))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.import("castwise._core")?.getattr("restore_loss_scale")?;
        let State { scale, counter, hysteresis_left, floor_steps } = *self.core.state();
        let arguments = (self.get_config(py)?, (scale, counter, hysteresis_left, floor_steps));
        (restore, arguments).into_pyobject(py)
    }
}

impl Hash for DynamicLossScale {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let State { scale, counter, .. } = *self.core.state();
        // Adding zero gives both zeros, which are equal, the same bits.
        (self.core.preset().name, (scale + 0.0).to_bits(), counter).hash(hasher);
    }
}

/// What `DynamicLossScale.__reduce__` takes apart, put together again.
#[pyfunction]
pub(crate) fn restore_loss_scale<'py>(
    py: Python<'py>,
    config: &Bound<'py, PyDict>,
    state: (f64, i64, i64, i64),
) -> PyResult<DynamicLossScale> {
    let made = py.get_type::<DynamicLossScale>().call((), Some(config))?;
    let (scale, counter, hysteresis_left, floor_steps) = state;
    let state = State { scale, counter, hysteresis_left, floor_steps };
    Ok(DynamicLossScale { core: made.cast::<DynamicLossScale>()?.get().core.in_state(state) })
}

fn refuse_unless_settable(preset: &Preset, knob: Knob, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if preset.settable.contains(&knob) {
        return Ok(());
    }
    let settable: Vec<_> = preset.settable.iter().map(|knob| knob.name()).collect();
    Err(PyValueError::new_err(format!(
        "{}={} is not valid with preset='{}', which lets {} be set; leave it out or use preset='castwise'.",
        knob.name(),
        value.repr()?,
        preset.name,
        settable.join(", ")
    )))
}

fn set(knobs: &mut Knobs, knob: Knob, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match knob {
        Knob::InitialScale => knobs.initial_scale = real(knob.name(), value)?,
        Knob::GrowthInterval => knobs.growth_interval = whole(knob.name(), value)?,
        Knob::GrowthFactor => knobs.growth_factor = real(knob.name(), value)?,
        Knob::BackoffFactor => knobs.backoff_factor = real(knob.name(), value)?,
        Knob::Minimum => knobs.minimum = Some(real(knob.name(), value)?),
        Knob::Maximum => knobs.maximum = Some(real(knob.name(), value)?),
        Knob::Hysteresis => knobs.hysteresis = whole(knob.name(), value)?,
    }
    Ok(())
}

fn knob_value(py: Python<'_>, knobs: &Knobs, knob: Knob) -> PyResult<Py<PyAny>> {
    let real = match knob {
        Knob::GrowthInterval => return Ok(knobs.growth_interval.into_pyobject(py)?.into_any().unbind()),
        Knob::Hysteresis => return Ok(knobs.hysteresis.into_pyobject(py)?.into_any().unbind()),
        Knob::InitialScale => Some(knobs.initial_scale),
        Knob::GrowthFactor => Some(knobs.growth_factor),
        Knob::BackoffFactor => Some(knobs.backoff_factor),
        Knob::Minimum => knobs.minimum,
        Knob::Maximum => knobs.maximum,
    };
    Ok(real.into_pyobject(py)?.into_any().unbind())
}
