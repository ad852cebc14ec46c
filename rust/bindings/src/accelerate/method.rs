//! Casts that a dtype has registered as array methods of numpy, as ml_dtypes does from 0.7 on.
//!
//! A method is an object with a function `get_loop`, which returns the function that casts elements. numpy's headers say
//! how to make a method, but not where its fields are. So a method of our own is made, with a `get_loop` that we know, and
//! the field is where that pointer is. A second one, without it, shows the function that numpy takes instead: only methods
//! with that one are taken over. If anything looks different, no method is found, and all casts stay as they are.
//!
//! Our `get_loop` calls the original. If that chooses the loop that was tested, ours runs instead, and gets what it needs
//! as numpy's data for loops.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use castwise_core::Format;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyType};

use super::gain;
use super::pair::{BoundaryValues, Pair};
use crate::numpy::{DOUBLE, PyArrayDescr};
use crate::numpy_table::{self, ADD_LOOP, MAKE_UFUNC};

/// The first fields of `PyArrayMethod_Context`, and room for those that later versions of numpy have.
#[repr(C)]
struct Context {
    caller: *mut PyObject,
    method: *mut PyObject,
    descriptors: *const *mut PyObject,
    others: [usize; 13],
}

/// `NpyAuxData`, which numpy copies and frees by its functions.
#[repr(C)]
struct LoopData {
    free: unsafe extern "C" fn(*mut LoopData),
    copy: unsafe extern "C" fn(*mut LoopData) -> *mut LoopData,
    reserved: [usize; 2],
}

/// `PyArrayMethod_StridedLoop`.
type StridedLoop = unsafe extern "C" fn(
    *mut Context,
    *const *mut c_char,
    *const isize,
    *const isize,
    *mut LoopData,
) -> c_int;

/// `PyArrayMethod_GetLoop`: also whether arrays are aligned and whether references move, and strides; it sets the loop, its
/// data and its flags.
type GetLoop = unsafe extern "C" fn(
    *mut Context,
    c_int,
    c_int,
    *const isize,
    *mut Option<StridedLoop>,
    *mut *mut LoopData,
    *mut c_int,
) -> c_int;

/// `PyArrayMethod_Spec`.
#[repr(C)]
struct MethodSpec {
    name: *const c_char,
    inputs: c_int,
    outputs: c_int,
    casting: c_int,
    flags: c_int,
    classes: *mut *mut PyObject,
    slots: *mut ffi::PyType_Slot,
}

/// `NPY_METH_get_loop` and `NPY_METH_strided_loop`.
const GET_LOOP_SLOT: c_int = 3;
const STRIDED_LOOP_SLOT: c_int = 5;
/// `NPY_METH_NO_FLOATINGPOINT_ERRORS`.
const NO_ERRORS: c_int = 2;
/// `PyUFunc_None`: no identity.
const NO_IDENTITY: c_int = -1;

/// A stride that numpy does not know yet.
const UNKNOWN_STRIDE: isize = isize::MAX;

/// The words before the fields of an object.
const HEADER: usize = size_of::<PyObject>() / size_of::<usize>();

thread_local! {
    /// The method that numpy has called a function of ours with.
    static LAST_METHOD: Cell<*mut PyObject> = const { Cell::new(ptr::null_mut()) };
}

/// A loop that leaves its results as they are.
///
/// # Safety
/// As for numpy's loops.
unsafe extern "C" fn note_method(
    context: *mut Context,
    _: *const *mut c_char,
    _: *const isize,
    _: *const isize,
    _: *mut LoopData,
) -> c_int {
    // SAFETY: numpy calls with a context.
    LAST_METHOD.set(unsafe { (*context).method });
    0
}

/// A `get_loop` that returns that loop.
///
/// # Safety
/// As for numpy's.
unsafe extern "C" fn get_noting_loop(
    _: *mut Context,
    _: c_int,
    _: c_int,
    _: *const isize,
    chosen: *mut Option<StridedLoop>,
    data: *mut *mut LoopData,
    flags: *mut c_int,
) -> c_int {
    // SAFETY: numpy calls with places for the three.
    unsafe {
        chosen.write(Some(note_method));
        data.write(ptr::null_mut());
        flags.write(NO_ERRORS);
    }
    0
}

/// Makes a private ufunc of one method on float64 with a function in a slot, and returns the method with the ufunc, which
/// keeps it alive.
fn make_method(
    py: Python<'_>,
    slot: c_int,
    function: *mut c_void,
) -> PyResult<(*mut PyObject, Bound<'_, PyAny>)> {
    type MakeUfunc = unsafe extern "C" fn(
        *const c_void,
        *const c_void,
        *const c_char,
        c_int,
        c_int,
        c_int,
        c_int,
        *const c_char,
        *const c_char,
        c_int,
    ) -> *mut PyObject;
    type AddLoop = unsafe extern "C" fn(*mut PyObject, *mut MethodSpec) -> c_int;
    const NAME: &CStr = c"castwise_probe";
    let entries = numpy_table::ufunc_entries(py)?;
    let class = PyArrayDescr::of_number(py, DOUBLE)?.get_type();
    let mut classes = [class.as_ptr().cast::<PyObject>(); 2];
    let mut slots =
        [ffi::PyType_Slot { slot, pfunc: function }, ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() }];
    let mut spec = MethodSpec {
        name: NAME.as_ptr(),
        inputs: 1,
        outputs: 1,
        casting: 0,
        flags: NO_ERRORS,
        classes: classes.as_mut_ptr(),
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the table of this ABI has these functions at these places. The first makes a new object, or returns null with
    // an exception set; its name lives for ever, and there are no functions of the old kind. The second copies the spec.
    let ufunc = unsafe {
        let (null, none) = (ptr::null(), ptr::null());
        let make = entries.add(MAKE_UFUNC).cast::<MakeUfunc>().read();
        let ufunc = make(null, null, none, 0, 1, 1, NO_IDENTITY, NAME.as_ptr(), NAME.as_ptr(), 0);
        let ufunc = Bound::from_owned_ptr_or_err(py, ufunc)?;
        let add = entries.add(ADD_LOOP).cast::<AddLoop>().read();
        if add(ufunc.as_ptr(), &raw mut spec) < 0 {
            return Err(PyErr::fetch(py));
        }
        ufunc
    };
    LAST_METHOD.set(ptr::null_mut());
    ufunc.call1((PyFloat::new(py, 1.0),))?;
    let method = LAST_METHOD.get();
    if method.is_null() {
        return Err(PyRuntimeError::new_err("numpy did not call the loop of the method"));
    }
    Ok((method, ufunc))
}

/// The size of a class's objects, in words.
fn words_of(class: &Bound<'_, PyType>) -> PyResult<usize> {
    Ok(class.getattr("__basicsize__")?.extract::<usize>()? / size_of::<usize>())
}

/// Reads a word of an object.
///
/// # Safety
/// The object is alive, and has so many words.
unsafe fn word_of(object: *mut PyObject, index: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { object.cast::<usize>().add(index).read() }
}

/// Where methods have their `get_loop`.
pub(super) struct MethodLayout {
    class: Py<PyType>,
    get_loop: usize,
    /// numpy's own `get_loop`.
    default: GetLoop,
    find_cast: Py<PyAny>,
}

impl MethodLayout {
    /// Finds the layout by methods of our own.
    pub(super) fn find(py: Python<'_>) -> PyResult<Option<Self>> {
        let find_cast = py.import("numpy._core._multiarray_umath")?.getattr("_get_castingimpl")?.unbind();
        let ours = get_noting_loop as *mut c_void;
        let (method, _ufunc) = make_method(py, GET_LOOP_SLOT, ours)?;
        let (plain, _other_ufunc) = make_method(py, STRIDED_LOOP_SLOT, note_method as *mut c_void)?;
        // SAFETY: numpy passed these objects to us, and their ufuncs keep them alive.
        let (class, other) = unsafe {
            let [method, plain] = [method, plain].map(|each| Bound::from_borrowed_ptr(py, each));
            (method.get_type(), plain.get_type())
        };
        let words = words_of(&class)?;
        // SAFETY: the objects are alive, and have so many words.
        let places: Vec<usize> =
            unsafe { (HEADER..words).filter(|&index| word_of(method, index) == ours.addr()).collect() };
        let [get_loop] = places[..] else { return Ok(None) };
        if !class.is(&other) {
            return Ok(None);
        }
        // SAFETY: as above. numpy calls what is there, so it is null or a function of this type.
        let default = unsafe {
            let field = plain.cast::<*mut c_void>().add(get_loop).read();
            transmute::<*mut c_void, Option<GetLoop>>(field)
        };
        let Some(default) = default else { return Ok(None) };
        Ok(Some(Self { class: class.unbind(), get_loop, default, find_cast }))
    }

    /// Returns the method of a cast between two dtypes.
    fn method_of<'py>(
        &self,
        source: &Bound<'py, PyArrayDescr>,
        target: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = source.py();
        let (from, to) = (source.get_type(), target.get_type());
        let bound = self.find_cast.bind(py).call1((&from, &to))?;
        // It has two fields: the two classes of dtypes, and the method.
        if bound.is_none() || words_of(&bound.get_type())? != HEADER + 2 {
            return Ok(None);
        }
        // SAFETY: the object is alive, and has so many words.
        let fields = unsafe { [HEADER, HEADER + 1].map(|index| word_of(bound.as_ptr(), index)) };
        if fields.iter().any(|field| *field == 0 || !field.is_multiple_of(align_of::<usize>())) {
            return Ok(None);
        }
        let classes = [from.as_ptr().addr(), to.as_ptr().addr()];
        for (field, other) in [(fields[0], fields[1]), (fields[1], fields[0])] {
            let (first, method) = (field as *const usize, other as *mut PyObject);
            // SAFETY: both fields are pointers to memory of two words or more. The second word is read only if the
            // first one says that this is the array of classes, and what is left is then an object.
            unsafe {
                if first.read() == classes[0] && first.add(1).read() == classes[1] {
                    let class = ffi::Py_TYPE(method);
                    let is_method = class.cast() == self.class.as_ptr();
                    return Ok(is_method.then(|| Bound::from_borrowed_ptr(py, method)));
                }
            }
        }
        Ok(None)
    }
}

/// What becomes of a cast.
pub(super) enum Takeover {
    /// There is no method.
    Absent,
    /// The method has a `get_loop` of its own, as those have that call a function of numpy's tables.
    Unusual,
    /// The method's loop is faster, or gives other bits.
    LeftAlone,
    Slot(MethodSlot),
}

/// The place of the function `get_loop` in a method that can be taken over.
pub(super) struct MethodSlot {
    /// Keeps the place alive.
    _method: Py<PyAny>,
    place: &'static AtomicPtr<c_void>,
    original: GetLoop,
}

/// A cast that is taken over, as the data that numpy gives to its loop. It is never freed.
#[repr(C)]
struct MethodCast {
    data: LoopData,
    get_loop: GetLoop,
    original: StridedLoop,
    pair: Pair,
}

/// The casts, by the addresses of their methods, which live for ever.
#[derive(Default)]
pub(super) struct Casts(HashMap<usize, &'static MethodCast>);

static CASTS: OnceLock<Casts> = OnceLock::new();

impl Casts {
    /// Lets our `get_loop` find the casts.
    pub(super) fn publish(self) {
        // A thread that was faster has found the same.
        CASTS.get_or_init(|| self);
    }

    /// Takes over the method by which numpy now casts between two dtypes, if ours is faster and gives the same bits.
    pub(super) fn take_over(
        &mut self,
        layout: &MethodLayout,
        (source, from): (&Bound<'_, PyArrayDescr>, Format),
        (target, to): (&Bound<'_, PyArrayDescr>, Format),
        boundary_values: &mut BoundaryValues,
    ) -> PyResult<Takeover> {
        let Some(method) = layout.method_of(source, target)? else { return Ok(Takeover::Absent) };
        // SAFETY: the object has this word, a pointer that numpy reads in one access. The slot keeps it alive for ever.
        let place =
            unsafe { AtomicPtr::from_ptr(method.as_ptr().cast::<*mut c_void>().add(layout.get_loop)) };
        let get_loop = layout.default;
        if place.load(Ordering::Relaxed) != get_loop as *mut c_void {
            return Ok(Takeover::Unusual);
        }
        let Some(fewest) = gain::fewest_in_methods(from, to) else { return Ok(Takeover::LeftAlone) };
        let descriptors = [source.as_ptr(), target.as_ptr()];
        let mut context = Context {
            caller: ptr::null_mut(),
            method: method.as_ptr(),
            descriptors: descriptors.as_ptr(),
            others: [0; 13],
        };
        let context = &raw mut context;
        let strides = [from.item_size() as isize, to.item_size() as isize];
        let (mut chosen, mut data, mut flags) = (None, ptr::null_mut(), 0);
        // SAFETY: these are the arguments that numpy gives for aligned, dense arrays of these dtypes.
        let status = unsafe {
            let places = (&raw mut chosen, &raw mut data, &raw mut flags);
            get_loop(context, 1, 0, strides.as_ptr(), places.0, places.1, places.2)
        };
        if status < 0 {
            return Err(PyErr::fetch(source.py()));
        }
        let (Some(original), true) = (chosen, data.is_null()) else { return Ok(Takeover::LeftAlone) };
        let cast = |from: *mut u8, to: *mut u8, count: usize| {
            let (data, count) = ([from.cast(), to.cast()], count as isize);
            // SAFETY: the pair calls this with dense, aligned elements, and the loop was chosen for these.
            unsafe { original(context, data.as_ptr(), &raw const count, strides.as_ptr(), ptr::null_mut()) }
        };
        let Some(pair) = Pair::new(from, to, fewest, cast, boundary_values) else {
            return Ok(Takeover::LeftAlone);
        };
        let data = LoopData { free: keep_data, copy: share_data, reserved: [0; 2] };
        let cast = Box::leak(Box::new(MethodCast { data, get_loop, original, pair }));
        self.0.insert(method.as_ptr().addr(), cast);
        Ok(Takeover::Slot(MethodSlot { _method: method.unbind(), place, original: get_loop }))
    }
}

impl MethodSlot {
    /// Exchanges the original `get_loop` for ours, or back. A function from anyone else stays.
    pub(super) fn set(&self, accelerated: bool) {
        let (original, ours) = (self.original as *mut c_void, get_our_loop as *mut c_void);
        let (old, new) = if accelerated { (original, ours) } else { (ours, original) };
        let _ = self.place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Frees nothing: casts are never freed.
unsafe extern "C" fn keep_data(_: *mut LoopData) {}

/// Copies nothing: casts are never changed.
unsafe extern "C" fn share_data(data: *mut LoopData) -> *mut LoopData {
    data
}

/// The `get_loop` of methods that are taken over.
///
/// # Safety
/// As for numpy's, of such a method.
unsafe extern "C" fn get_our_loop(
    context: *mut Context,
    aligned: c_int,
    move_references: c_int,
    strides: *const isize,
    chosen: *mut Option<StridedLoop>,
    data: *mut *mut LoopData,
    flags: *mut c_int,
) -> c_int {
    // SAFETY: numpy calls with a context, and with the strides of two operands.
    let (method, strides_now) = unsafe { ((*context).method, [strides.read(), strides.add(1).read()]) };
    // The casts were published before this function was put in any place.
    let Some(cast) = CASTS.get().and_then(|casts| casts.0.get(&method.addr())) else {
        unreachable!("the method was taken over")
    };
    // SAFETY: the caller's promise is the original's own condition.
    let status = unsafe { (cast.get_loop)(context, aligned, move_references, strides, chosen, data, flags) };
    let (source_size, target_size) = cast.pair.sizes();
    let may_be = |stride: isize, size: usize| stride == size as isize || stride == UNKNOWN_STRIDE;
    let may_be_dense = may_be(strides_now[0], source_size) && may_be(strides_now[1], target_size);
    // SAFETY: the original has written to these places if it did not fail. Data begins a cast, which lives for ever.
    unsafe {
        let is_tested = (*chosen).is_some_and(|chosen| ptr::fn_addr_eq(chosen, cast.original));
        if status >= 0 && may_be_dense && is_tested && (*data).is_null() {
            chosen.write(Some(cast_by_ours));
            data.write((&raw const cast.data).cast_mut());
        }
    }
    status
}

/// The loop of methods that are taken over.
///
/// # Safety
/// As for numpy's, with the data of [`get_our_loop`].
unsafe extern "C" fn cast_by_ours(
    context: *mut Context,
    data: *const *mut c_char,
    count: *const isize,
    strides: *const isize,
    cast: *mut LoopData,
) -> c_int {
    // SAFETY: numpy gives the data that it got with this loop, one count, and pointers and strides of two operands.
    let (cast, elements, [from, to], dense) = unsafe {
        let cast = &*cast.cast::<MethodCast>();
        let (source_size, target_size) = cast.pair.sizes();
        let dense = strides.read() == source_size as isize && strides.add(1).read() == target_size as isize;
        (cast, count.read(), [data.read(), data.add(1).read()], dense)
    };
    let MethodCast { original, pair, .. } = cast;
    if elements <= 0 || !dense {
        // SAFETY: the caller's promise is the original's own condition, without our data.
        return unsafe { original(context, data, count, strides, ptr::null_mut()) };
    }
    // SAFETY: the caller's promise, which is the original's own condition for any part of the elements.
    unsafe {
        pair.cast(from.cast(), to.cast(), elements.cast_unsigned(), |from, to, count| {
            let (data, count) = ([from.cast::<c_char>(), to.cast()], count as isize);
            original(context, data.as_ptr(), &raw const count, strides, ptr::null_mut())
        })
    }
}
