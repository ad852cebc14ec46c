//! Dtype policies: names in, values out.

use std::sync::OnceLock;

use castwise_core::codec::options::Named;
use castwise_logic::policy::{self, Class, Dialect, Exception, JMP, KERAS, Policy, Refused, TF_LAYER, TF2};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::attribute;

/// By the names that Python calls them.
const DIALECTS: [(&str, &Dialect); 4] =
    [("keras", &KERAS), ("tf", &TF2), ("tf_layer", &TF_LAYER), ("jmp", &JMP)];

fn find_dialect(name: &str) -> PyResult<(&'static str, &'static Dialect)> {
    DIALECTS.iter().find(|(called, _)| *called == name).copied().ok_or_else(|| {
        let names: Vec<&str> = DIALECTS.iter().map(|&(called, _)| called).collect();
        PyValueError::new_err(format!("dialect={name:?} is not valid; use one of {names:?}."))
    })
}

fn refused(error: Refused) -> PyErr {
    match error.exception {
        Exception::Value => PyValueError::new_err(error.message),
        Exception::Type => PyTypeError::new_err(error.message),
    }
}

fn argument_text<'a>(argument: &str, value: &'a Bound<'_, PyAny>) -> PyResult<std::borrow::Cow<'a, str>> {
    match value.cast::<PyString>() {
        Ok(text) => text.to_cow(),
        Err(_) => Err(PyTypeError::new_err(format!("{argument}={} must be a str.", value.repr()?))),
    }
}

/// Dialect, class and arguments; None before `__init__`.
type State = Option<(String, String, Vec<String>)>;

/// The base class of all policies: the value that a name means. It is set once, by `__init__`.
#[pyclass(name = "PolicyBase", module = "castwise._core", subclass, frozen)]
pub(crate) struct PolicyBase {
    value: OnceLock<(Policy, &'static str)>,
    /// As Python objects, once they were asked for: layers read them at every call.
    compute_dtype: PyOnceLock<Py<PyAny>>,
    variable_dtype: PyOnceLock<Py<PyAny>>,
}

/// Lets the dtypes of policies be read without PyO3's getters where they have been made.
pub(crate) fn keep_dtypes(py: Python<'_>) -> PyResult<()> {
    attribute::keep::<PolicyBase>(py, "compute_dtype", |policy, py| policy.compute_dtype.get(py))?;
    attribute::keep::<PolicyBase>(py, "variable_dtype", |policy, py| policy.variable_dtype.get(py))
}

impl PolicyBase {
    fn value(&self) -> PyResult<&Policy> {
        self.value.get().map(|(policy, _)| policy).ok_or_else(|| {
            PyRuntimeError::new_err(
                "the policy has no name yet: its class's __init__ must call super().__init__(name).",
            )
        })
    }

    fn set(&self, value: Policy, dialect: &'static str) -> PyResult<()> {
        self.value
            .set((value, dialect))
            .map_err(|_| PyRuntimeError::new_err("a policy cannot be changed; make a new one."))
    }
}

/// A dtype's name or None, made once.
fn cached<'a>(
    py: Python<'_>,
    place: &PyOnceLock<Py<PyAny>>,
    name: impl FnOnce() -> PyResult<Option<&'a str>>,
) -> PyResult<Py<PyAny>> {
    let make = || {
        Ok::<_, PyErr>(
            name()?.map_or_else(|| py.None(), |name| PyString::intern(py, name).into_any().unbind()),
        )
    };
    Ok(place.get_or_try_init(py, make)?.clone_ref(py))
}

#[pymethods]
impl PolicyBase {
    // Subclasses have arguments of their own.
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(name=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let (compute_dtype, variable_dtype) = (PyOnceLock::new(), PyOnceLock::new());
        Self { value: OnceLock::new(), compute_dtype, variable_dtype }
    }

    /// A plain policy of Keras; without a name, the one that the class's `_name_in_force()` gives.
    #[pyo3(signature = (name = None, *others, **unknown))]
    fn __init__(
        slf: &Bound<'_, Self>,
        name: Option<&Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        if unknown.is_some() || !others.is_empty() {
            // PyO3's own errors would name this base class.
            let class = slf.get_type().name()?;
            let keys = unknown.map_or_else(Vec::new, |unknown| unknown.keys().iter().collect());
            let keys: Vec<String> = keys.iter().map(|key| format!("{key}=")).collect();
            let extra = if keys.is_empty() { "more than one argument".to_owned() } else { keys.join(", ") };
            return Err(PyTypeError::new_err(format!(
                "{class} does not take {extra}; it takes name= alone."
            )));
        }
        let in_force;
        let name = if let Some(name) = name {
            name
        } else {
            in_force = slf.call_method0(intern!(slf.py(), "_name_in_force"))?;
            &in_force
        };
        let value = policy::plain(&argument_text("name", name)?, &KERAS).map_err(refused)?;
        slf.get().set(value, DIALECTS[0].0)
    }

    /// In place of `__init__`: a plain policy of another dialect.
    fn _set_plain(&self, name: &Bound<'_, PyAny>, dialect: &str) -> PyResult<()> {
        let (called, dialect) = find_dialect(dialect)?;
        self.set(policy::plain(&argument_text("name", name)?, dialect).map_err(refused)?, called)
    }

    /// In place of `__init__`: what Keras' class of that name makes of its arguments.
    fn _set_quantized(
        &self,
        class_name: &str,
        mode: &Bound<'_, PyAny>,
        source_name: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let class = Class::parse(class_name).map_err(|_| {
            PyValueError::new_err(format!("class_name={class_name:?} is not a class of policies."))
        })?;
        // Keras looks a mode up before it looks what it is.
        let mode = argument_text("mode", mode)
            .map_err(|error| PyValueError::new_err(error.value(mode.py()).to_string()))?;
        let source_name = argument_text("source_name", source_name)?;
        self.set(policy::quantized(class, &mode, &source_name).map_err(refused)?, DIALECTS[0].0)
    }

    /// The policy's name, canonical but for the spelling of one dtype.
    #[getter]
    fn name(&self) -> PyResult<&str> {
        Ok(self.value()?.name())
    }

    /// The dtype that layers compute in.
    #[getter]
    fn compute_dtype(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        cached(py, &self.compute_dtype, || Ok(self.value()?.compute_dtype()))
    }

    /// The dtype that layers keep their variables in.
    #[getter]
    fn variable_dtype(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        cached(py, &self.variable_dtype, || Ok(self.value()?.variable_dtype()))
    }

    /// `"int8"`, `"float8"`, `"int4"`, `"gptq"`, `"awq"`, `"ternary"`, or None.
    #[getter]
    fn _quantization_mode(&self) -> PyResult<Option<&str>> {
        Ok(self.value()?.quantization_mode())
    }

    /// The name of the policy without its quantization.
    #[getter]
    fn _plain_name(&self) -> PyResult<&str> {
        Ok(self.value()?.source_name())
    }

    /// The mode's parameters, as pairs of name and int.
    #[getter]
    fn _parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.value()?.parameters().collect::<Vec<_>>())
    }

    /// The dictionary that Keras writes in files for it.
    fn get_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let config = PyDict::new(py);
        for (key, value) in self.value()?.config() {
            config.set_item(key, value)?;
        }
        Ok(config)
    }

    /// As every Python object, but never by the older protocols, which would make it anew by its arguments.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i32) -> PyResult<Bound<'py, PyAny>> {
        let object = slf.py().get_type::<PyAny>();
        object.call_method1(intern!(slf.py(), "__reduce_ex__"), (slf, protocol.max(2)))
    }

    /// What copies and pickles are made of: dialect, class and arguments of the value, then what every object has.
    fn __getstate__<'py>(slf: &Bound<'py, Self>) -> PyResult<(State, Bound<'py, PyAny>)> {
        let value = slf.get().value.get().map(|(policy, dialect)| {
            let arguments = policy.config().into_iter().map(|(_, value)| value.to_owned()).collect();
            ((*dialect).to_owned(), policy.class().name().to_owned(), arguments)
        });
        let object = slf.py().get_type::<PyAny>();
        Ok((value, object.call_method1(intern!(slf.py(), "__getstate__"), (slf,))?))
    }

    fn __setstate__(slf: &Bound<'_, Self>, state: (State, Bound<'_, PyAny>)) -> PyResult<()> {
        let (value, attributes) = state;
        let (dict, slots) = match attributes.cast::<PyTuple>() {
            Ok(pair) => (pair.get_item(0)?, Some(pair.get_item(1)?)),
            Err(_) => (attributes, None),
        };
        for attributes in [Some(dict), slots].into_iter().flatten().filter(|attributes| !attributes.is_none())
        {
            for (name, value) in attributes.cast::<PyDict>()? {
                slf.setattr(name.cast::<PyString>()?, value)?;
            }
        }
        let Some((dialect, class_name, arguments)) = value else { return Ok(()) };
        let (called, dialect) = find_dialect(&dialect)?;
        let class = Class::parse(&class_name);
        let policy = match (class, arguments.as_slice()) {
            (Ok(Class::Plain), [name]) => policy::plain(name, dialect),
            (Ok(class), [mode, source]) => policy::quantized(class, mode, source),
            _ => return Err(PyValueError::new_err("the state is not that of a policy.")),
        };
        slf.get().set(policy.map_err(refused)?, called)
    }

    /// Whether another policy means the same, in the same dialect.
    fn _means(&self, other: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(self.value()? == other.get().value()?)
    }
}

/// The class in Keras of the policy called `name`, and the arguments of its constructor.
#[pyfunction]
pub(crate) fn parse_policy<'py>(
    py: Python<'py>,
    name: &str,
) -> PyResult<(&'static str, Bound<'py, PyTuple>)> {
    let policy = policy::parse(name, &KERAS).map_err(refused)?;
    let arguments: Vec<&str> = policy.config().into_iter().map(|(_, value)| value).collect();
    Ok((policy.class().name(), PyTuple::new(py, arguments)?))
}

/// The dtype that a spelling means in a dialect.
#[pyfunction]
#[pyo3(signature = (spelling, dialect = "keras"))]
pub(crate) fn parse_dtype(spelling: &str, dialect: &str) -> PyResult<String> {
    Ok(policy::parse_dtype(spelling, find_dialect(dialect)?.1).map_err(refused)?.into_owned())
}

/// The three dtypes (params, compute, output) of a policy in jmp's language; `half` is what that word stands for.
#[pyfunction]
pub(crate) fn parse_assignment(text: &str, half: &str) -> PyResult<(String, String, String)> {
    let dtypes = policy::parse_assignment(text, half).map_err(refused)?;
    Ok((dtypes.params.into_owned(), dtypes.compute.into_owned(), dtypes.output.into_owned()))
}

/// The dtypes that a dialect takes for floatx.
#[pyfunction]
pub(crate) fn floatx_dtypes<'py>(py: Python<'py>, dialect: &str) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, find_dialect(dialect)?.1.floatx)
}

/// The compute dtype of a name that stands for two dtypes, as "mixed_float16"; None for other names.
#[pyfunction]
pub(crate) fn mixed_compute_dtype(name: &str, dialect: &str) -> PyResult<Option<&'static str>> {
    Ok(find_dialect(dialect)?.1.mixed_compute_dtype(name))
}

/// The word that a dialect writes for a dtype; the dtype itself where it has none.
#[pyfunction]
pub(crate) fn dtype_word<'a>(dtype: &'a str, dialect: &str) -> PyResult<&'a str> {
    Ok(find_dialect(dialect)?.1.word_for(dtype))
}
