//! Arguments as numpy arrays, read as `numpy.asarray` reads them; masks and nulls, which would be lost, are refused.

use castwise_core::Format;
use castwise_core::parse::find as format_named;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::foreign;
use crate::numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray};

/// The most axes of an array of numpy: deeper lists are refused by numpy.
const MOST_AXES: usize = 64;

/// What makes an object an array for numpy, which then does not look at its items.
const PROTOCOLS: [&str; 3] = ["__array__", "__array_interface__", "__array_struct__"];

/// Read an argument as numpy.asarray does, unless it has a mask or nulls; arrays of other libraries by their adapters.
///
/// Raises
/// ------
/// TypeError
///     It has a mask or nulls, or numpy cannot read it; the message begins with the name of the argument.
/// ValueError
///     Nested lists of unequal lengths.
#[pyfunction]
#[pyo3(name = "read_array")]
pub(crate) fn read_array<'py>(argument: &str, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    as_plain(read(argument, x)?.as_any())
}

/// Reads an argument: an array as it is, of any class; others as [`read_array()`] says.
pub(crate) fn read<'py>(argument: &str, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = x.cast::<PyUntypedArray>() {
        refuse_masked(argument, array.as_any())?;
        return Ok(array.clone());
    }
    if is_number(x) {
        return as_plain(x);
    }
    if is_list(x) {
        let mut fault = None;
        let is_wanted = &mut |item: &Bound<'py, PyAny>| {
            if !is_foreign(item) {
                return is_masked(item);
            }
            match host_array(item) {
                Ok((array, has_nulls)) => has_nulls || is_masked(&array),
                Err(error) => {
                    fault = Some(error);
                    true
                }
            }
        };
        if let Some((path, item)) = find(x, MOST_AXES, is_wanted) {
            return Err(match fault {
                Some(error) => unreadable(argument, x, error),
                None => absent(&place(argument, &path), &item),
            });
        }
    } else if is_foreign(x) {
        let (array, has_nulls) = host_array(x).map_err(|error| unreadable(argument, x, error))?;
        return if has_nulls { Err(absent(argument, x)) } else { plain_of(argument, &array) };
    }
    static SUBCLASSES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let array = SUBCLASSES.import(x.py(), "numpy", "asanyarray")?.call1((x,));
    plain_of(argument, &array.map_err(|error| unreadable(argument, x, error))?)
}

/// Reads an array of another library: those of its elements that are not null, and whether others are.
fn host_array<'py>(x: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, bool)> {
    static HOST_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    HOST_ARRAY.import(x.py(), "castwise.arrays.host_arrays", "host_array")?.call1((x,))?.extract()
}

fn plain_of<'py>(argument: &str, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    refuse_masked(argument, array)?;
    as_plain(array)
}

/// Returns what is wrong with an argument that is not an array of numpy; the rest of a message.
pub(crate) fn class_fault(x: &Bound<'_, PyAny>) -> Option<String> {
    if x.is_instance_of::<PyUntypedArray>() {
        return None;
    }
    let name = x.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    Some(format!("is of type {name}; give a numpy array."))
}

/// Returns what `numpy.asarray` makes of a value: an array without the rules of its class.
fn as_plain<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static PLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Ok(array) = value.cast_exact::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    Ok(PLAIN.import(value.py(), "numpy", "asarray")?.call1((value,))?.cast_into()?)
}

/// Returns the first item of nested lists that is wanted, with its indices; the value itself if it is no list.
///
/// Errors of the items' own code are numpy's to meet again.
fn find<'py>(
    value: &Bound<'py, PyAny>,
    depth: usize,
    is_wanted: &mut impl FnMut(&Bound<'py, PyAny>) -> bool,
) -> Option<(Vec<usize>, Bound<'py, PyAny>)> {
    if depth == 0 || is_number(value) {
        return None;
    }
    if !is_list(value) {
        return is_wanted(value).then(|| (Vec::new(), value.clone()));
    }
    value.try_iter().ok()?.enumerate().find_map(|(index, item)| {
        let (mut path, item) = find(&item.ok()?, depth - 1, is_wanted)?;
        path.insert(0, index);
        Some((path, item))
    })
}

/// Returns whether a value is a number or text of Python, or a scalar of numpy.
fn is_number(value: &Bound<'_, PyAny>) -> bool {
    static SCALAR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyComplex>()
        || value.is_exact_instance_of::<PyString>()
        || SCALAR
            .import(value.py(), "numpy", "generic")
            .and_then(|scalar| value.is_instance(scalar.as_any()))
            .unwrap_or(false)
}

/// Returns whether numpy looks at the items of a value.
fn is_list(value: &Bound<'_, PyAny>) -> bool {
    if value.is_exact_instance_of::<PyList>() || value.is_exact_instance_of::<PyTuple>() {
        return true;
    }
    let has = |name| value.get_type().hasattr(name).unwrap_or(false);
    !value.is_instance_of::<PyUntypedArray>()
        && has("__len__")
        && has("__getitem__")
        && !is_foreign(value)
        && !value.is_instance_of::<PyDict>()
        && !value.is_instance_of::<PyString>()
        && !value.is_instance_of::<PyBytes>()
}

/// Returns whether a value is an array for numpy, or of a library with an adapter.
fn is_foreign(value: &Bound<'_, PyAny>) -> bool {
    has_protocol(value) || foreign::adapter_of(value).is_ok_and(|adapter| adapter.is_some())
}

fn has_protocol(value: &Bound<'_, PyAny>) -> bool {
    PROTOCOLS.iter().any(|name| value.hasattr(name).unwrap_or(false))
}

/// Returns whether a value is an array with a mask: a `numpy.ma.MaskedArray`, or of a class of its kind.
fn is_masked(value: &Bound<'_, PyAny>) -> bool {
    // The common case first: an exact ndarray needs no look at its class.
    if value.is_exact_instance_of::<PyUntypedArray>() || !value.is_instance_of::<PyUntypedArray>() {
        return false;
    }
    value.getattr("mask").is_ok_and(|mask| !mask.is_none() && !mask.is_callable())
}

fn refuse_masked(argument: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
    if is_masked(array) { Err(absent(argument, array)) } else { Ok(()) }
}

/// Makes the error for an array some of whose elements are absent: it has a mask, or nulls, which its library fills by a
/// method of one of these names.
fn absent(place: &str, array: &Bound<'_, PyAny>) -> PyErr {
    let first = |names: &[&'static str]| {
        names.iter().find(|name| array.get_type().hasattr(**name).unwrap_or(false)).copied()
    };
    let filled = first(&["fill_null", "fillna"]).map(|name| format!("`.{name}(value)`"));
    let dropped = first(&["drop_nulls", "drop_null", "dropna"]).map(|name| format!("`.{name}()`"));
    let remedies: Vec<_> = filled.into_iter().chain(dropped).collect();
    if !remedies.is_empty() {
        let remedy = remedies.join(" or its ");
        return PyTypeError::new_err(format!(
            "{place} has nulls, which would become numbers; give its {remedy} instead."
        ));
    }
    let plain = if array.hasattr("unmasked").unwrap_or(false) { "unmasked" } else { "data" };
    PyTypeError::new_err(format!(
        "{place} is a masked array, whose mask would be lost; give its `.{plain}` or its `.filled(value)` instead."
    ))
}

/// Names an item of nested lists, as `x[0][2]`.
fn place(argument: &str, path: &[usize]) -> String {
    path.iter().fold(argument.to_owned(), |place, index| format!("{place}[{index}]"))
}

fn class_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().fully_qualified_name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// Makes the error for a value that numpy refuses, of the class of numpy's error.
fn unreadable(argument: &str, x: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = x.py();
    let class = error.get_type(py);
    let known =
        [py.get_type::<PyTypeError>(), py.get_type::<PyValueError>(), py.get_type::<PyRuntimeError>()];
    if !known.iter().any(|known| class.is(known)) {
        // Other classes may need more than a text.
        let _ = error.value(py).call_method1("add_note", (format!("in {argument}, which numpy reads"),));
        return error;
    }
    let text = error.value(py).to_string();
    let text = text.trim_end_matches('.');
    let refusal = match find(x, MOST_AXES, &mut |item| !item.is_instance_of::<PyUntypedArray>()) {
        Some((path, item)) if has_protocol(&item) => {
            let remedy = match foreign::adapter_of(&item) {
                Ok(Some(_)) if !path.is_empty() => "cast it by itself, or all of them by castwise.cast_tree",
                _ => "give a numpy array of its values",
            };
            let (place, class) = (place(argument, &path), class_of(&item));
            let message = format!("{place} is of type {class}, which numpy cannot read ({text}); {remedy}.");
            PyErr::from_type(error.get_type(py), message)
        }
        Some((path, item)) => no_number(&place(argument, &path), &item),
        None => PyValueError::new_err(format!(
            "{argument} is of type {}, which numpy cannot read ({text}); give an array, a number, or lists of equal \
             lengths.",
            class_of(x)
        )),
    };
    refusal.set_cause(py, Some(error));
    refusal
}

/// Makes the error for a value of which numpy makes objects; None if they are numbers, of too many bits.
pub(super) fn no_numbers(argument: &str, x: &Bound<'_, PyAny>) -> Option<PyErr> {
    let (path, item) = find(x, MOST_AXES, &mut |item| !item.is_instance_of::<PyUntypedArray>())?;
    Some(no_number(&place(argument, &path), &item))
}

/// What a path or a name of a file is answered.
const OF_FILES: &str = "castwise.checkpoint casts files (cast_file) and surveys them (survey_file)";

/// Returns what to do with an array of a dtype that has no format.
pub(super) fn remedy(argument: &str, descr: &Bound<'_, PyArrayDescr>, axes: usize) -> String {
    let wider = |name| format!("give {argument}.astype(numpy.{name}), which may round");
    match (descr.kind(), descr.itemsize()) {
        // What numpy.save makes of the dtypes of ml_dtypes.
        (b'V', size @ (1 | 2)) if !descr.has_parts() => {
            let name = format_named(if size == 2 { "bf16" } else { "fp8" }).map_or("", Format::name);
            format!("say what its bytes are, such as {argument}.view(ml_dtypes.{name})")
        }
        (b'f', _) => wider("float64"),
        (b'c', _) => wider("complex128"),
        (b'U' | b'S', _) if argument == "scale" => {
            "give a number such as 2.0, or an array of numbers".to_owned()
        }
        (b'U' | b'S', _) if axes == 0 => OF_FILES.to_owned(),
        _ => "convert it to a numeric dtype first".to_owned(),
    }
}

/// Makes the error for an item of which numpy makes an object.
fn no_number(place: &str, item: &Bound<'_, PyAny>) -> PyErr {
    let has = |name| item.hasattr(name).unwrap_or(false);
    let is_class = |name: &str| {
        let classes = item.get_type().mro();
        classes
            .iter()
            .any(|class| class.getattr("__module__").is_ok_and(|module| module.to_string().starts_with(name)))
    };
    let (fault, remedy) = if has("__fspath__") {
        (", a path", OF_FILES.to_owned())
    } else if has("named_parameters") {
        (", which is not an array", "castwise.adapters.torch.cast_module casts a module".to_owned())
    } else if has("get_weights") {
        let library = if is_class("tf_keras") { "tf_keras" } else { "keras" };
        (", which is not an array", format!("castwise.adapters.{library}.cast_model casts a model"))
    } else if has_protocol(item) && has("__dlpack__") {
        (", of which numpy makes objects", "give a numpy array of numbers".to_owned())
    } else if has("__dlpack__") {
        (", which numpy reads by DLPack only", format!("give numpy.from_dlpack({place})"))
    } else if has("shape") && has("dtype") {
        (", which is not an array that numpy can read", "give a numpy array".to_owned())
    } else if has("items") {
        (", which is not an array", "cast the arrays in it by castwise.cast_tree".to_owned())
    } else {
        (", of which numpy makes no number", "give an array, a number, or lists of numbers".to_owned())
    };
    PyTypeError::new_err(format!("{place} is of type {}{fault}; {remedy}.", class_of(item)))
}
