//! Plain arrays, read without copying their shape and strides.

use castwise_core::Format;
use castwise_core::layout::region::{extent, overlaps_itself};
use pyo3::prelude::*;
#[cfg(Py_GIL_DISABLED)]
use smallvec::SmallVec;

#[cfg(Py_GIL_DISABLED)]
use super::place::INLINE;
use super::place::{Order, Place, fields};
use crate::dtypes;
use crate::numpy::{
    PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, flags, new_like,
};

const ORDERS: i32 = flags::C_CONTIGUOUS | flags::F_CONTIGUOUS;

/// A plain ndarray in native byte order.
///
/// Everything is read at once, but shape and strides are borrowed from numpy: they are valid as long as the interpreter
/// is not released and no Python code runs. Where threads run without a lock, they are copied.
pub(crate) struct Plain<'a, 'py> {
    object: &'a Bound<'py, PyUntypedArray>,
    pub(crate) pointer: *mut u8,
    pub(crate) count: usize,
    pub(crate) format: Format,
    flags: i32,
    #[cfg(Py_GIL_DISABLED)]
    shape: SmallVec<[usize; INLINE]>,
    #[cfg(Py_GIL_DISABLED)]
    strides: SmallVec<[isize; INLINE]>,
}

impl<'a, 'py> Plain<'a, 'py> {
    /// Reads an array of a format in native byte order.
    #[inline(always)]
    fn new(object: &'a Bound<'py, PyUntypedArray>, format: Format) -> Self {
        let (pointer, flags) = fields(object);
        let shape = object.shape();
        #[cfg(Py_GIL_DISABLED)]
        let shape = SmallVec::from(shape);
        Self {
            object,
            pointer,
            count: shape.iter().product(),
            format,
            flags,
            #[cfg(Py_GIL_DISABLED)]
            shape,
            #[cfg(Py_GIL_DISABLED)]
            strides: object.strides().into(),
        }
    }

    /// Reads an object, if it is such an array.
    // Inlined, because a result that is handed on in memory is read before it has arrived there, which stalls.
    #[inline(always)]
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let Ok(object) = object.cast_exact::<PyUntypedArray>() else { return Ok(None) };
        let descr = object.dtype();
        let Some(format) = dtypes::format_of(&descr)? else { return Ok(None) };
        let native = descr.is_native_byteorder() != Some(false);
        Ok(native.then(|| Self::new(object, format)))
    }

    /// Reads an object, if it is such an array of a format; `descr` is a dtype of the format in native byte order, and the
    /// quicker way for arrays that have just this object.
    #[inline(always)]
    pub(crate) fn of_dtype(
        object: &'a Bound<'py, PyAny>,
        format: Format,
        descr: &Py<PyArrayDescr>,
    ) -> PyResult<Option<Self>> {
        if let Ok(array) = object.cast_exact::<PyUntypedArray>()
            && array.fields().descr == descr.as_ptr()
        {
            return Ok(Some(Self::new(array, format)));
        }
        Self::of_other_dtype(object, format)
    }

    #[cold]
    fn of_other_dtype(object: &'a Bound<'py, PyAny>, format: Format) -> PyResult<Option<Self>> {
        Ok(Self::of(object)?.filter(|array| array.format == format))
    }

    /// Reads the array that [`Plain::empty_like`] has just made, of a format in native byte order; `None` if another
    /// thread gave the prototype another shape before numpy read it.
    pub(crate) fn fresh(object: &'a Bound<'py, PyUntypedArray>, like: &Self, format: Format) -> Option<Self> {
        let array = Self { count: like.count, ..Self::new(object, format) };
        (cfg!(not(Py_GIL_DISABLED)) || array.shape() == like.shape()).then_some(array)
    }

    pub(crate) fn object(&self) -> &Bound<'py, PyUntypedArray> {
        self.object
    }

    #[cfg(not(Py_GIL_DISABLED))]
    pub(crate) fn shape(&self) -> &[usize] {
        self.object.shape()
    }

    #[cfg(Py_GIL_DISABLED)]
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    #[cfg(not(Py_GIL_DISABLED))]
    pub(crate) fn strides(&self) -> &[isize] {
        self.object.strides()
    }

    #[cfg(Py_GIL_DISABLED)]
    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Returns the bytes of its elements.
    pub(crate) fn size(&self) -> usize {
        self.count * self.format.item_size()
    }

    /// Returns whether it and another array of its shape are both dense in C order, or both in Fortran order.
    pub(crate) fn is_dense_as(&self, other: &Self) -> bool {
        self.flags & other.flags & ORDERS != 0
    }

    /// Returns whether it and another array of its shape are both dense in C order.
    pub(crate) fn is_dense_in_order(&self, other: &Self) -> bool {
        self.flags & other.flags & flags::C_CONTIGUOUS != 0
    }

    /// Returns whether another array may be cast into it, element by element in any order.
    pub(crate) fn takes(&self, source: &Self) -> bool {
        let ((start, end), (other, others_end)) = (self.extent(), source.extent());
        let apart = start >= others_end || other >= end;
        self.is_writeable() && apart && self.shape() == source.shape() && !self.overlaps_itself()
    }

    /// Returns whether its memory order is `order`.
    pub(crate) fn is_in_order(&self, order: Order) -> bool {
        order.flags().is_none_or(|flags| self.flags & flags != 0)
    }

    pub(crate) fn is_writeable(&self) -> bool {
        self.flags & flags::WRITEABLE != 0
    }

    fn is_dense(&self) -> bool {
        self.flags & ORDERS != 0
    }

    /// Returns the addresses of its first byte and one past its last.
    fn extent(&self) -> (usize, usize) {
        let start = self.pointer.addr();
        if self.is_dense() {
            return (start, start + self.size());
        }
        let axes = self.shape().iter().copied().zip(self.strides().iter().copied());
        extent(start, axes, self.format.item_size())
    }

    fn overlaps_itself(&self) -> bool {
        !self.is_dense() && overlaps_itself(self.shape(), self.strides(), self.format.item_size())
    }

    /// Returns its place, for the core.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            address: self.pointer.expose_provenance(),
            strides: self.strides(),
            format: self.format,
            swapped: false,
        }
    }

    /// Makes a new array of its shape, laid out as numpy would.
    pub(crate) fn empty_like(
        &self,
        order: Order,
        descr: Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        new_like(self.object, order.to_numpy(), descr)
    }
}
