//! `castwise.caster`: a cast whose dtypes and options are read once.

use castwise_core::Format;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFloat, PyInt, PyString, PyTuple};

use crate::array::{Array, Plain, reading};
use crate::dtypes;
use crate::foreign;
use crate::numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use crate::small::{self, Request, unless_none};
use crate::vectorcall::{Arguments, Callable, Names, Subclass};

/// The options that a caster takes, all of them of `cast`.
const OPTIONS: [&str; 9] =
    ["rounding", "overflow", "nan", "scale", "order", "copy", "report", "threads", "like"];

/// One side of a cast.
#[derive(Debug)]
struct Side {
    format: Format,
    descr: Py<PyArrayDescr>,
}

impl Side {
    fn parse(argument: &'static str, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (format, descr) = dtypes::parse_argument(argument, dtype)?;
        Ok(Self { format, descr: descr.unbind() })
    }

    /// Returns what the side is called in Python: a name of `castwise.formats()`, unless its byte order is the other.
    fn name(&self, py: Python<'_>) -> String {
        let descr = self.descr.bind(py);
        if descr.is_native_byteorder() == Some(false) {
            return descr.to_string();
        }
        self.format.name().to_owned()
    }
}

/// A cast from one dtype to another, with its options read once: for loops over small arrays.
///
/// ``c = castwise.caster(source, target, **options)`` makes it. ``c(x)`` then returns what ``castwise.cast(x, target,
/// **options)`` returns, and ``c(x, out=y)`` what ``castwise.cast(x, out=y, **options)`` returns, with the same bits,
/// in less time: for one element, parsing the arguments takes most of the time of a cast.
///
/// A caster does not change, may be called by several threads at once, and can be copied and pickled.
///
/// Parameters
/// ----------
/// source : dtype or str
///     The dtype of every x, byte order included; what cast takes as dtype.
/// target : dtype or str
///     The target, as dtype of cast.
/// rounding, overflow, nan, scale, order, copy, report, threads, like
///     As in cast. An array of scales is copied. Without a seed, stochastic rounding draws afresh at each call. seed= is
///     refused, because each call would draw the same numbers; castwise.cast takes one for each call.
///
/// Attributes
/// ----------
/// source, target : dtype
///     As given, as numpy's objects.
/// options : dict
///     The options that were given.
///
/// Raises
/// ------
/// TypeError
///     An unknown dtype or option; complex to real. By a call: x of another dtype than source (lists and scalars are
///     read as numpy.asarray reads them), or out of another dtype than target.
/// ValueError
///     An option with a wrong value. By a call: a wrong out, a scale that does not broadcast, NaN with nan="raise".
/// OverflowError
///     By a call, with overflow="raise".
///
/// Examples
/// --------
/// >>> to_float8 = castwise.caster("float32", "float8_e4m3fn", overflow="saturate")
/// >>> to_float8
/// caster('float32', 'float8_e4m3fn', overflow='saturate')
/// >>> to_float8(np.array([1.0, 1e6], np.float32)).astype(float).tolist()
/// [1.0, 448.0]
#[pyclass(frozen, subclass, name = "caster", module = "castwise._core")]
#[derive(Debug)]
pub(crate) struct Caster {
    source: Side,
    target: Side,
    options: Py<PyDict>,
    /// What small calls need; `None` if all are left to `cast`.
    request: Option<Request>,
}

#[pymethods]
impl Caster {
    #[new]
    #[pyo3(
        signature = (source, target, **options),
        text_signature = "(source, target, *, rounding=None, overflow='ieee', nan='keep', scale=None, order='K', copy=True, report=False, threads=None, like=None)"
    )]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = options.map_or_else(|| Ok(PyDict::new(py)), PyDictMethods::copy)?;
        for name in options.keys() {
            refuse_unknown(&name.extract::<String>()?)?;
        }
        let (source, target) = (Side::parse("source", source)?, Side::parse("target", target)?);
        let numpy = py.import("numpy")?;
        let scale = options.get_item("scale")?.filter(|scale| !scale.is_none());
        let mut axes = Vec::new();
        if let Some(scale) = scale.filter(|scale| !is_number(scale)) {
            let scale = numpy.call_method1("array", (reading::read("scale", &scale)?,))?;
            scale.call_method1("setflags", (false,))?;
            axes = scale.getattr("shape")?.extract()?;
            options.set_item("scale", scale)?;
        }
        // An array without elements, with which every scale broadcasts: `cast` refuses wrong options.
        axes.insert(0, 0usize);
        let none = numpy.call_method1("empty", (PyTuple::new(py, axes)?, &source.descr))?;
        cast(py)?.call((none, &target.descr), Some(&options))?;
        let request = Self::request(py, &source, &target, &options)?;
        Ok(Self { source, target, options: options.unbind(), request })
    }

    #[pyo3(signature = (x, *, out=None))]
    fn __call__<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = x.py();
        if let Some(adapter) = foreign::adapter_of(x)? {
            let format = foreign::format_of_array(&adapter, x)?;
            if format.as_deref() != Some(self.source.format.name()) {
                let format = format.unwrap_or_else(|| "that no format describes".to_owned());
                return Err(self.other_dtype(py, &format));
            }
            let options = self.options.bind(py).copy()?;
            if let Some(out) = out {
                options.set_item("out", out)?;
            }
            return cast(py)?.call((x, self.target.descr.bind(py)), Some(&options));
        }
        let array = Array::from_argument("x", x)?;
        let (source, target) = (self.source.descr.bind(py), self.target.descr.bind(py));
        if !array.object.dtype().is_equiv_to(source) {
            return Err(self.other_dtype(py, &array.object.dtype().to_string()));
        }
        let options = self.options.bind(py);
        let Some(out) = out else { return cast(py)?.call((array.object, target), Some(options)) };
        if let Ok(out) = out.cast::<PyUntypedArray>()
            && dtypes::format_of(&out.dtype())? != Some(self.target.format)
        {
            return Err(PyTypeError::new_err(format!(
                "out has dtype {}, but this caster is to {}; give an out of that dtype.",
                out.dtype(),
                self.target.name(py)
            )));
        }
        let options = options.copy()?;
        options.set_item("out", out)?;
        cast(py)?.call((array.object, target), Some(&options))
    }

    /// The dtype of every x.
    #[getter]
    fn source(&self, py: Python<'_>) -> Py<PyArrayDescr> {
        self.source.descr.clone_ref(py)
    }

    /// The dtype of every result.
    #[getter]
    fn target(&self, py: Python<'_>) -> Py<PyArrayDescr> {
        self.target.descr.clone_ref(py)
    }

    /// The options that were given, a new dict.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.options.bind(py).copy()
    }

    /// For pickle and copy: the same call.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = py.import("castwise")?.getattr("caster")?;
        let partial = py.import("functools")?.getattr("partial")?;
        let sides = (class, self.source.name(py), self.target.name(py));
        let call = partial.call(sides, Some(self.options.bind(py)))?;
        Ok((call, PyTuple::empty(py)).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let [source, target] =
            [&self.source, &self.target].map(|side| PyString::new(py, &side.name(py)).repr());
        let mut parts = vec![source?.to_string(), target?.to_string()];
        for (name, value) in self.options.bind(py) {
            parts.push(format!("{name}={}", shown(&value.repr()?.to_cow()?)));
        }
        Ok(format!("caster({})", parts.join(", ")))
    }
}

/// The text of an option, on one line and without its middle if it is long, as that of an array of scales is.
fn shown(text: &str) -> String {
    const LETTERS: usize = 80;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let letters: Vec<char> = words.chars().collect();
    if letters.len() <= LETTERS {
        return words;
    }
    let (begin, end) = (&letters[..LETTERS / 2], &letters[letters.len() - LETTERS / 4..]);
    [begin, &['.'; 3], end].concat().into_iter().collect()
}

impl Caster {
    fn other_dtype(&self, py: Python<'_>, dtype: &str) -> PyErr {
        PyTypeError::new_err(format!(
            "x has dtype {dtype}, but this caster is from {}; give an array of that dtype, or use castwise.cast, which \
             takes any.",
            self.source.name(py)
        ))
    }

    /// Reads the options for small calls, of dtypes in native byte order.
    fn request(
        py: Python<'_>,
        source: &Side,
        target: &Side,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Option<Request>> {
        let sides = [source, target].map(|side| side.descr.bind(py).is_native_byteorder() != Some(false));
        let report = options.get_item("report")?.map_or(Ok(false), |report| report.is_truthy())?;
        let found =
            ["rounding", "overflow", "nan", "scale", "order", "copy"].map(|name| options.get_item(name));
        let [rounding, overflow, nan, scale, order, copy] = found;
        // Without a seed, each call draws one.
        let found = [rounding?, overflow?, nan?, scale?, None, order?, copy?];
        let request = Request::read(found.each_ref().map(|value| value.as_ref().map(Bound::as_borrowed)));
        let likes = options.get_item("like")?.is_some_and(|like| !like.is_none());
        let request = request.filter(|_| sides == [true, true] && !report && !likes);
        request.map(|request| request.between((source.format, target.format))).transpose()
    }
}

impl Callable for Caster {
    #[inline]
    fn short<'py>(&self, arguments: &Arguments<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static NAMES: Names<2> = Names::new(["x", "out"]);
        let (Some(request), Some([Some(x), out])) = (&self.request, arguments.read(&NAMES, 1)) else {
            return Ok(None);
        };
        let (from, to) = (&self.source, &self.target);
        let Some(source) = Plain::of_dtype(&x, from.format, &from.descr)? else { return Ok(None) };
        let Some(out) = unless_none(out) else {
            let descr = to.descr.bind(arguments.py()).clone();
            return small::cast_to_new(&source, &x, (to.format, descr), request);
        };
        let Some(target) = Plain::of_dtype(&out, to.format, &to.descr)? else { return Ok(None) };
        small::cast_into(&source, &target, &out, request)
    }

    fn subclass() -> &'static PyOnceLock<Subclass> {
        static SUBCLASS: PyOnceLock<Subclass> = PyOnceLock::new();
        &SUBCLASS
    }
}

fn refuse_unknown(name: &str) -> PyResult<()> {
    let text = match name {
        _ if OPTIONS.contains(&name) => return Ok(()),
        "out" => "out= is given to a call: c = castwise.caster(source, target); c(x, out=out).".to_owned(),
        "dtype" => "dtype= is target= here: castwise.caster(source, target).".to_owned(),
        "seed" => "seed= would draw the same numbers at each call; leave it out for new ones, or use castwise.cast with \
                   a seed for each call."
            .to_owned(),
        _ => format!("{name}= is not an option of castwise.caster; use {}.", OPTIONS.join(", ")),
    };
    Err(PyTypeError::new_err(text))
}

/// Returns whether a scale is a number of Python, which does not change.
fn is_number(scale: &Bound<'_, PyAny>) -> bool {
    scale.is_exact_instance_of::<PyFloat>() || scale.is_exact_instance_of::<PyInt>()
}

/// `castwise.cast`.
fn cast(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CAST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CAST.import(py, "castwise._core", "cast")
}
