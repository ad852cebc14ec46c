//! Raw numpy memory: arrays in, pointers and strides out; new arrays allocated by numpy.
//!
//! `ml_dtypes` arrays export no buffer protocol, so everything is read off the array object itself.
//!
//! Where a SAFETY text says that numpy vouched for memory, it means this. Pointer, shape and strides are copies of what numpy
//! stores, and all checks are of these copies. Who holds a reference to an array keeps its memory: numpy frees or moves that
//! of an array with other references only in `ndarray.resize(refcheck=False)`, whose documentation leaves that to its caller.
//! A thread that writes to an array while another thread reads it is a data race, in numpy's functions as in these: numpy
//! leaves it to its callers, and Rust defines no result for it.

use castwise_core::Format;
use castwise_core::layout::region::{Region, extent, overlaps_itself, shares_with_itself};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{PyTypeInfo, intern};
use smallvec::SmallVec;

#[cfg(target_os = "linux")]
mod memory;
/// Elsewhere numpy allocates with its own handler.
#[cfg(not(target_os = "linux"))]
mod memory {
    pub(super) fn with_handler<T>(
        _: pyo3::Python<'_>,
        _: usize,
        make: impl Fn() -> pyo3::PyResult<T>,
    ) -> pyo3::PyResult<T> {
        make()
    }
}
mod place;
mod plain;
pub(crate) mod reading;

use crate::dtypes;
use crate::numpy::{
    self, DOUBLE, PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, flags, new_like,
};
use place::fields;
pub(crate) use place::{INLINE, Order, Place, shown};
pub(crate) use plain::Plain;

/// An array whose elements have a format, as read once.
///
/// Pointer, flags, shape and strides are copied together, and everything is checked and run on the copies: a class's own
/// `__array_finalize__`, or another thread, may give the object another shape at any later moment. Its memory stays,
/// for numpy does not move that of an array with a second owner.
#[derive(Debug)]
pub(crate) struct Array<'py> {
    pub(crate) object: Bound<'py, PyUntypedArray>,
    pub(crate) format: Format,
    /// Whether its byte order is not the machine's.
    pub(crate) swapped: bool,
    pointer: *mut u8,
    flags: i32,
    shape: SmallVec<[usize; INLINE]>,
    strides: SmallVec<[isize; INLINE]>,
}

impl<'py> Array<'py> {
    /// Reads an argument: an array as it is, anything else as numpy reads it. Masks are refused.
    pub(crate) fn from_argument(argument: &'static str, x: &Bound<'py, PyAny>) -> PyResult<Self> {
        let object = reading::read(argument, x)?;
        if !object.is(x) && object.dtype().kind() == b'O' {
            return Err(reading::no_numbers(argument, x).unwrap_or_else(|| {
                PyTypeError::new_err(format!(
                    "{argument} has a Python int beyond 64 bits, which no integer dtype holds; make a float of it first."
                ))
            }));
        }
        Self::of(argument, object)
    }

    /// Reads an argument that has to be an array of numpy.
    pub(crate) fn of_numpy(argument: &'static str, x: &Bound<'py, PyAny>) -> PyResult<Self> {
        match reading::class_fault(x) {
            Some(fault) => Err(PyTypeError::new_err(format!("{argument} {fault}"))),
            None => Self::from_argument(argument, x),
        }
    }

    /// Reads an array with its format.
    pub(crate) fn of(argument: &'static str, object: Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        let descr = object.dtype();
        let format = dtypes::format_of(&descr)?.ok_or_else(|| {
            let remedy = reading::remedy(argument, &descr, object.shape().len());
            PyTypeError::new_err(format!(
                "{argument} has dtype {descr}, which castwise does not cast; {remedy}. castwise.formats() lists those \
                 it knows."
            ))
        })?;
        let swapped = descr.is_native_byteorder() == Some(false);
        refuse_reversed(argument, format, &descr, swapped)?;
        Ok(Self::now(object, format, swapped))
    }

    fn now(object: Bound<'py, PyUntypedArray>, format: Format, swapped: bool) -> Self {
        let (pointer, flags) = fields(&object);
        let (shape, strides) = (object.shape().into(), object.strides().into());
        Self { object, format, swapped, pointer, flags, shape, strides }
    }

    /// Returns the address of the first element.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Returns its place, for the core.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            address: self.pointer.expose_provenance(),
            strides: &self.strides,
            format: self.format,
            swapped: self.swapped,
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Returns the bytes of its elements.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>().saturating_mul(self.format.item_size())
    }

    pub(crate) fn is_writeable(&self) -> bool {
        self.flags & flags::WRITEABLE != 0
    }

    /// Returns whether its memory order is `order`.
    pub(crate) fn is_in_order(&self, order: Order) -> bool {
        order.flags().is_none_or(|flags| self.flags & flags != 0)
    }

    /// Returns the addresses of its first byte and one past its last.
    pub(crate) fn extent(&self) -> (usize, usize) {
        let axes = self.shape.iter().copied().zip(self.strides.iter().copied());
        extent(self.pointer().addr(), axes, self.format.item_size())
    }

    /// Returns the region of its elements.
    pub(crate) fn region(&self) -> Region {
        Region::new(self.pointer().addr(), &self.shape, &self.strides, self.format.item_size())
    }

    /// Returns whether it may share memory with another (their extents meet).
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        let (a, b) = (self.extent(), other.extent());
        a.0 < b.1 && b.0 < a.1
    }

    /// Returns whether its elements coincide with those of another, one by one.
    pub(crate) fn coincides_with(&self, other: &Self) -> bool {
        self.pointer() == other.pointer()
            && self.strides() == other.strides()
            && self.format.item_size() == other.format.item_size()
    }

    /// Broadcasts it to a shape; `None` if it does not broadcast.
    pub(crate) fn broadcast_to(&self, shape: &[usize]) -> Option<Self> {
        let added = shape.len().checked_sub(self.shape.len())?;
        let own = self.shape.iter().zip(&self.strides).zip(&shape[added..]);
        let own = own.map(|((&length, &stride), &wanted)| match length {
            1 => Some(0),
            _ => (length == wanted).then_some(stride),
        });
        let strides = std::iter::repeat_n(Some(0), added).chain(own).collect::<Option<_>>()?;
        Some(Self { object: self.object.clone(), shape: shape.into(), strides, ..*self })
    }

    /// Returns whether two of its elements share memory.
    pub(crate) fn shares_with_itself(&self) -> bool {
        self.overlaps_itself() && shares_with_itself(self.shape(), self.strides(), self.format.item_size())
    }

    /// Returns whether two of its elements may share memory.
    pub(crate) fn overlaps_itself(&self) -> bool {
        overlaps_itself(self.shape(), self.strides(), self.format.item_size())
    }

    /// Copies another array of its shape and dtype into it.
    pub(crate) fn fill_from(&self, other: &Self) -> PyResult<()> {
        let py = self.object.py();
        // By Python, not by numpy's table: numpy waits for the lock, and a thread that Python ends there must not unwind.
        let class = PyUntypedArray::type_object(py);
        let arguments = (&self.object, py.Ellipsis(), &other.object);
        class.call_method1(intern!(py, "__setitem__"), arguments).map(drop)
    }

    /// Makes a new array of its shape, laid out as numpy would.
    pub(crate) fn empty_like(
        &self,
        order: Order,
        descr: &Bound<'py, PyArrayDescr>,
        format: Format,
    ) -> PyResult<Self> {
        let py = self.object.py();
        let swapped = descr.is_native_byteorder() == Some(false);
        refuse_reversed("dtype", format, descr, swapped)?;
        let bytes = self.shape.iter().product::<usize>().saturating_mul(format.item_size());
        let make = || new_like(&self.object, order.to_numpy(), descr.clone());
        let object = memory::with_handler(py, bytes, make)?;
        let new = Self::now(object, format, swapped);
        if new.shape == self.shape {
            return Ok(new);
        }
        Err(PyValueError::new_err(
            "an argument was given another shape while it was in use; give the call a copy.",
        ))
    }

    /// Makes a new float64 array of its shape.
    pub(crate) fn empty_double(&self) -> PyResult<Self> {
        let descr = PyArrayDescr::of_number(self.object.py(), DOUBLE)?;
        let format = dtypes::format_of(&descr)?;
        let format = format.ok_or_else(|| PyTypeError::new_err("the table has no double"))?;
        self.empty_like(Order::Keep, &descr, format)
    }

    /// Makes a copy, a plain array for any class.
    pub(crate) fn copy(&self) -> PyResult<Self> {
        let new = self.empty_like(Order::Keep, &self.object.dtype(), self.format)?;
        new.fill_from(self)?;
        Ok(new)
    }
}

/// numpy swaps the two components of its own complex dtypes each; of those that ml_dtypes adds it reverses whole
/// elements, exchanging the components.
fn refuse_reversed(
    argument: &'static str,
    format: Format,
    descr: &Bound<'_, PyArrayDescr>,
    swapped: bool,
) -> PyResult<()> {
    if swapped && format.component().is_some() && descr.num() >= dtypes::FIRST_USER_NUMBER {
        return Err(PyTypeError::new_err(format!(
            "{argument} has dtype {descr} in the other byte order, in which numpy exchanges real and imaginary \
             parts; use the native byte order."
        )));
    }
    Ok(())
}

/// A type of numbers.
///
/// # Safety
/// numpy's dtype of that code has this type.
pub(crate) unsafe trait Element: Copy {
    /// Kind and bytes, as numpy writes them.
    const CODE: &'static str;
}

// SAFETY: it is the type of that dtype.
unsafe impl Element for i64 {
    const CODE: &'static str = "i8";
}
// SAFETY: as above.
unsafe impl Element for u64 {
    const CODE: &'static str = "u8";
}
// SAFETY: as above.
unsafe impl Element for f32 {
    const CODE: &'static str = "f4";
}
// SAFETY: as above.
unsafe impl Element for f64 {
    const CODE: &'static str = "f8";
}

/// Makes an array with one axis of values.
pub(crate) fn array_of<'py, T: Element>(
    py: Python<'py>,
    values: &[T],
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let descr = PyArrayDescr::new(PyString::new(py, T::CODE).as_any())?;
    let new = numpy::empty(&[values.len()], descr)?;
    // SAFETY: the new array has as many elements of this type.
    unsafe { fields(&new).0.cast::<T>().copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(new)
}

/// Returns the values of an array with one axis of float32; `None` of others.
pub(crate) fn float32_values(array: &Array<'_>) -> Option<Vec<f32>> {
    let (&[length], &[stride]) = (array.shape(), array.strides()) else { return None };
    if array.format.name() != "float32" || array.swapped {
        return None;
    }
    // SAFETY: the array is alive, and its elements lie there.
    let value = |index: usize| unsafe {
        array.pointer().offset(index as isize * stride).cast::<f32>().read_unaligned()
    };
    Some((0..length).map(value).collect())
}

/// Why the elements of another array cannot be written to an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetFault {
    Shape,
    ReadOnly,
    /// Two of its elements may share memory: [`Array::shares_with_itself`] says whether they do.
    Overlap,
}

/// Returns what keeps an array from taking elements of a shape, or of its shape.
pub(crate) fn target_fault(target: &Array<'_>, shape: Option<&[usize]>) -> Option<TargetFault> {
    if shape.is_some_and(|shape| shape != target.shape()) {
        Some(TargetFault::Shape)
    } else if !target.is_writeable() {
        Some(TargetFault::ReadOnly)
    } else {
        target.overlaps_itself().then_some(TargetFault::Overlap)
    }
}
