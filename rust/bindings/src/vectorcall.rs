//! Calls that take a C array of arguments (PEP 590), read here where reading them by name would take longer than the work.
//!
//! A *short way* answers simple calls, and leaves all others, wrong ones among them, to the general function as PyO3
//! makes it.

use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null_mut};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{
    METH_FASTCALL, METH_KEYWORDS, Py_READONLY, Py_T_PYSSIZET, Py_TPFLAGS_DEFAULT, Py_ssize_t, Py_tp_call,
    Py_tp_doc, Py_tp_members, Py_tp_new, PyCFunction_GetFlags, PyCFunction_GetFunction, PyCFunction_GetSelf,
    PyCFunction_NewEx, PyCFunctionFastWithKeywords, PyMemberDef, PyMethodDef, PyMethodDefPointer, PyObject,
    PyTuple_GetItem, PyTuple_Size, PyType_FromSpecWithBases, PyType_GetSlot, PyType_Slot, PyType_Spec,
    PyTypeObject,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple};

/// Python's flag for types whose instances have a vectorcall function; in the stable ABI since 3.12, and the same before.
const HAVE_VECTORCALL: u32 = 1 << 11;

/// The flags of functions that take an array of arguments, and names.
const CONVENTION: c_int = METH_FASTCALL | METH_KEYWORDS;

/// A bit of the number of arguments which says that the place before them may be used.
const ARGUMENTS_OFFSET: usize = 1 << (usize::BITS - 1);

/// The names of parameters, as Python interns them.
pub(crate) struct Names<const N: usize> {
    words: [&'static str; N],
    interned: PyOnceLock<[Py<PyString>; N]>,
}

impl<const N: usize> Names<N> {
    pub(crate) const fn new(words: [&'static str; N]) -> Self {
        Self { words, interned: PyOnceLock::new() }
    }

    /// Returns the place of a name. Names in source code are interned: their address tells.
    fn place(&self, py: Python<'_>, name: Borrowed<'_, '_, PyAny>) -> Option<usize> {
        let interned =
            self.interned.get_or_init(py, || self.words.map(|word| PyString::intern(py, word).unbind()));
        interned.iter().position(|known| known.as_ptr() == name.as_ptr()).or_else(|| {
            let name = name.cast::<PyString>().ok()?;
            let name = name.to_str().ok()?;
            self.words.iter().position(|&word| word == name)
        })
    }
}

/// The arguments of a call: values by position, then values by name.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a, 'py> {
    py: Python<'py>,
    values: &'a [*mut PyObject],
    names: *mut PyObject,
    /// How many there are by position.
    count: usize,
}

impl<'py> Arguments<'_, 'py> {
    /// # Safety
    /// They are what Python gave to a function that it calls with an array of arguments, during that call.
    unsafe fn new(py: Python<'py>, values: *const *mut PyObject, count: usize, names: *mut PyObject) -> Self {
        // SAFETY: `names` is null or a tuple, and there is a value for each.
        let named = if names.is_null() { 0 } else { unsafe { PyTuple_Size(names) as usize } };
        let all = count + named;
        // SAFETY: there are so many.
        let values = if all == 0 { &[] } else { unsafe { std::slice::from_raw_parts(values, all) } };
        Self { py, values, names, count }
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.py
    }

    /// Returns the value of each parameter, of which the first `positions` may be given by position; `None` if a name is
    /// not among them, or something is given twice.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(
        &self,
        parameters: &Names<N>,
        positions: usize,
    ) -> Option<[Option<Borrowed<'_, 'py, PyAny>>; N]> {
        if self.count > positions {
            return None;
        }
        let mut found = [None; N];
        for (value, place) in (0..self.count).zip(&mut found) {
            *place = Some(self.value(value));
        }
        for value in self.count..self.values.len() {
            let place = parameters.place(self.py, self.name(value - self.count))?;
            if found[place].replace(self.value(value)).is_some() {
                return None;
            }
        }
        Some(found)
    }

    #[inline(always)]
    fn value(&self, place: usize) -> Borrowed<'_, 'py, PyAny> {
        // SAFETY: the caller of the function holds a reference to each argument.
        unsafe { Borrowed::from_ptr(self.py, self.values[place]) }
    }

    fn name(&self, place: usize) -> Borrowed<'_, 'py, PyAny> {
        // SAFETY: there is a name for each value after the first `count`, and the tuple holds a reference to it.
        unsafe { Borrowed::from_ptr(self.py, PyTuple_GetItem(self.names, place as Py_ssize_t)) }
    }

    /// Makes the tuple and the dict that functions without an array of arguments take.
    fn objects(&self) -> PyResult<(Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>)> {
        let positional = PyTuple::new(self.py, (0..self.count).map(|place| self.value(place)))?;
        if self.names.is_null() {
            return Ok((positional, None));
        }
        let named = PyDict::new(self.py);
        for value in self.count..self.values.len() {
            named.set_item(self.name(value - self.count), self.value(value))?;
        }
        Ok((positional, Some(named)))
    }
}

/// Tries a short way: its result, or null with an exception set; `None` if the call is left to the general function.
///
/// PyO3 is not told that the interpreter is attached, which would take a tenth of the time of a call. It only matters to
/// objects that are dropped without a token: short ways drop no `Py`.
fn attempt<'py>(short: impl FnOnce() -> PyResult<Option<Bound<'py, PyAny>>>) -> Option<*mut PyObject> {
    let result = catch_unwind(AssertUnwindSafe(short))
        .unwrap_or_else(|_| Err(PyRuntimeError::new_err("castwise failed; please report it.")));
    Some(to_python(result.transpose()?))
}

/// Returns a result for Python: a new reference, or null with an exception set.
#[inline(always)]
fn to_python(result: PyResult<Bound<'_, PyAny>>) -> *mut PyObject {
    match result {
        Ok(object) => object.into_ptr(),
        Err(error) => {
            // What an error holds is dropped as PyO3 wants it.
            Python::attach(|py| error.restore(py));
            null_mut()
        }
    }
}

/// A module's function with a short way.
pub(crate) trait Function {
    /// Tries the short way.
    fn short<'py>(arguments: &Arguments<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>>;

    /// Where the general function is kept.
    fn general() -> &'static PyOnceLock<PyCFunctionFastWithKeywords>;
}

/// Makes the function: with the name, the documentation and the module of the general one, which gets all calls that the
/// short way leaves.
pub(crate) fn function<'py, F: Function>(general: &Bound<'py, PyCFunction>) -> PyResult<Bound<'py, PyAny>> {
    let py = general.py();
    // SAFETY: it is a builtin function; the calls read its fields.
    let (own, flags, module) = unsafe {
        let general = general.as_ptr();
        (PyCFunction_GetFunction(general), PyCFunction_GetFlags(general), PyCFunction_GetSelf(general))
    };
    let (Some(own), CONVENTION) = (own, flags) else {
        return Err(PyRuntimeError::new_err("the function has another calling convention"));
    };
    // SAFETY: Python calls functions with these flags by this type.
    let own = unsafe { std::mem::transmute::<pyo3::ffi::PyCFunction, PyCFunctionFastWithKeywords>(own) };
    let _ = F::general().set(py, own);
    let definition = PyMethodDef {
        ml_name: CString::new(general.getattr("__name__")?.extract::<String>()?)?.into_raw(),
        ml_meth: PyMethodDefPointer { PyCFunctionFastWithKeywords: call_function::<F> },
        ml_flags: CONVENTION,
        ml_doc: documentation(general)?.into_raw(),
    };
    let name = general.getattr("__module__")?;
    // SAFETY: the definition is never freed; the call returns a new reference, or null with an exception set.
    unsafe {
        let made = PyCFunction_NewEx(Box::into_raw(Box::new(definition)), module, name.as_ptr());
        Bound::from_owned_ptr_or_err(py, made)
    }
}

/// Returns what stands in a C definition for the documentation and the signature of an object.
fn documentation(object: &Bound<'_, PyAny>) -> PyResult<CString> {
    let [name, signature, text] =
        ["__name__", "__text_signature__", "__doc__"].map(|part| object.getattr(part));
    Ok(CString::new(format!("{}{}\n--\n\n{}", name?, signature?, text?))?)
}

/// # Safety
/// As Python calls a function with an array of arguments.
unsafe extern "C" fn call_function<F: Function>(
    module: *mut PyObject,
    values: *const *mut PyObject,
    count: Py_ssize_t,
    names: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: Python calls with the interpreter attached, and with such arguments.
    let (py, arguments) = unsafe {
        let py = Python::assume_attached();
        (py, Arguments::new(py, values, count as usize, names))
    };
    attempt(|| F::short(&arguments)).unwrap_or_else(|| match F::general().get(py) {
        // SAFETY: the arguments are passed on.
        Some(general) => unsafe { general(module, values, count, names) },
        None => null_mut(),
    })
}

/// A class of callable objects with a short way, by which they are called with an array of arguments.
pub(crate) trait Callable: pyo3::PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync {
    /// Tries the short way.
    fn short<'py>(&self, arguments: &Arguments<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>>;

    /// Where what is known of the subclass is kept.
    fn subclass() -> &'static PyOnceLock<Subclass>;
}

/// The functions of the class as PyO3 made it, and where the subclass keeps the function that is called.
pub(crate) struct Subclass {
    new: unsafe extern "C" fn(*mut PyTypeObject, *mut PyObject, *mut PyObject) -> *mut PyObject,
    call: unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject,
    offset: usize,
}

type Vectorcall =
    unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, usize, *mut PyObject) -> *mut PyObject;

/// Makes the subclass of a class whose instances have one field more: the function that Python calls them by.
///
/// PyO3 gives classes a function that takes a tuple and a dict, which Python would have to make for each call.
pub(crate) fn class<'py, C: Callable>(py: Python<'py>, name: &'static CStr) -> PyResult<Bound<'py, PyAny>> {
    let base = py.get_type::<C>();
    let size: usize = base.getattr("__basicsize__")?.extract()?;
    let offset = size.next_multiple_of(align_of::<Vectorcall>());
    // SAFETY: these slots of a class have functions of these types, or null.
    let (new, call) = unsafe {
        let slot = |number: c_int| PyType_GetSlot(base.as_type_ptr(), number);
        let new = std::mem::transmute::<*mut c_void, Option<pyo3::ffi::newfunc>>(slot(Py_tp_new));
        let call = std::mem::transmute::<*mut c_void, Option<pyo3::ffi::ternaryfunc>>(slot(Py_tp_call));
        (new, call)
    };
    let (Some(new), Some(call)) = (new, call) else {
        return Err(PyRuntimeError::new_err("instances of the class cannot be made or called"));
    };
    let _ = C::subclass().set(py, Subclass { new, call, offset });
    let member = PyMemberDef {
        name: c"__vectorcalloffset__".as_ptr(),
        type_code: Py_T_PYSSIZET,
        offset: offset as Py_ssize_t,
        flags: Py_READONLY,
        doc: ptr::null(),
    };
    let members = Box::leak(Box::new([member, PyMemberDef::default()]));
    let documentation = documentation(&base)?;
    let mut slots = [
        PyType_Slot { slot: Py_tp_members, pfunc: members.as_mut_ptr().cast() },
        PyType_Slot { slot: Py_tp_new, pfunc: new_object::<C> as *mut c_void },
        PyType_Slot { slot: Py_tp_doc, pfunc: documentation.as_ptr().cast_mut().cast() },
        PyType_Slot::default(),
    ];
    let mut spec = PyType_Spec {
        name: name.as_ptr(),
        basicsize: (offset + size_of::<Vectorcall>()) as c_int,
        itemsize: 0,
        flags: Py_TPFLAGS_DEFAULT as u32 | HAVE_VECTORCALL,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [&base])?;
    // SAFETY: the members are never freed, the call copies the rest; it returns a new reference, or null
    // with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, PyType_FromSpecWithBases(&raw mut spec, bases.as_ptr())) }
}

/// # Safety
/// As Python calls the function that makes an instance of the subclass.
unsafe extern "C" fn new_object<C: Callable>(
    class: *mut PyTypeObject,
    arguments: *mut PyObject,
    named: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: Python calls with the interpreter attached.
    let py = unsafe { Python::assume_attached() };
    let Some(Subclass { new, offset, .. }) = C::subclass().get(py) else { return null_mut() };
    // SAFETY: the arguments are passed on. An instance of the subclass, which has no subclasses, has the field at this
    // offset, and only this call knows it yet.
    unsafe {
        let made = new(class, arguments, named);
        if !made.is_null() {
            made.cast::<u8>().add(*offset).cast::<Vectorcall>().write(call_object::<C>);
        }
        made
    }
}

/// # Safety
/// As Python calls an instance of the subclass.
unsafe extern "C" fn call_object<C: Callable>(
    object: *mut PyObject,
    values: *const *mut PyObject,
    count: usize,
    names: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: Python calls with the interpreter attached, with such arguments and an instance, which lives meanwhile.
    let (py, arguments, this) = unsafe {
        let py = Python::assume_attached();
        let arguments = Arguments::new(py, values, count & !ARGUMENTS_OFFSET, names);
        (py, arguments, Borrowed::from_ptr(py, object).cast_unchecked::<C>())
    };
    attempt(|| this.get().short(&arguments)).unwrap_or_else(|| {
        let Some(Subclass { call, .. }) = C::subclass().get(py) else { return null_mut() };
        match arguments.objects() {
            Ok((values, named)) => {
                let named = named.as_ref().map_or(null_mut(), Bound::as_ptr);
                // SAFETY: it is the function of the instance's base class, with a tuple and a dict or null.
                unsafe { call(object, values.as_ptr(), named) }
            }
            Err(error) => to_python(Err(error)),
        }
    })
}
