//! The places of elements and the orders of memory, as numbers.

use castwise_core::Format;
use castwise_core::cast::{Scales, Source, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::numpy::{MemoryOrder, PyUntypedArray, PyUntypedArrayMethods, flags};

/// Axes whose lengths and strides cost no allocation.
pub(crate) const INLINE: usize = 2;

/// The memory of an array for the core, as numbers: pointers are not `Send`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(super) address: usize,
    pub(super) strides: &'a [isize],
    pub(super) format: Format,
    pub(super) swapped: bool,
}

impl<'a> Place<'a> {
    /// Returns it as a source, valid while the array lives.
    pub(crate) fn source(self) -> Source<'a> {
        Source {
            pointer: std::ptr::with_exposed_provenance(self.address),
            strides: self.strides,
            format: self.format,
            swapped: self.swapped,
        }
    }

    /// Returns it as a target, valid while the array lives; `fresh` if it is a new, uninitialized array.
    pub(crate) fn target(self, fresh: bool) -> Target<'a> {
        Target {
            pointer: std::ptr::with_exposed_provenance_mut(self.address),
            strides: self.strides,
            format: self.format,
            swapped: self.swapped,
            fresh,
        }
    }

    /// Returns it as factors, valid while the array lives; it holds native float64.
    pub(crate) fn scales(self) -> Scales<'a> {
        Scales { pointer: std::ptr::with_exposed_provenance(self.address), strides: self.strides }
    }
}

/// Returns the address of an array's first element, and its flags.
pub(super) fn fields(object: &Bound<'_, PyUntypedArray>) -> (*mut u8, i32) {
    let fields = object.fields();
    (fields.data.cast(), fields.flags)
}

/// Formats a shape, or strides, as numpy does.
pub(crate) fn shown(numbers: &[impl ToString]) -> String {
    let words: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    format!("({}{})", words.join(", "), if words.len() == 1 { "," } else { "" })
}

/// The memory order of a new array, in numpy's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    C,
    Fortran,
    Any,
    Keep,
}

impl Order {
    pub(crate) fn parse(order: &Bound<'_, PyAny>) -> PyResult<Self> {
        match Self::named(order) {
            Some(order) => Ok(order),
            None => Err(PyValueError::new_err(format!(
                "order={} is not valid; use one of \"C\", \"F\", \"A\", \"K\".",
                order.repr()?
            ))),
        }
    }

    /// Returns the order of a letter, if it is one.
    pub(crate) fn named(order: &Bound<'_, PyAny>) -> Option<Self> {
        match &*order.cast::<PyString>().ok()?.to_cow().ok()? {
            "C" | "c" => Some(Self::C),
            "F" | "f" => Some(Self::Fortran),
            "A" | "a" => Some(Self::Any),
            "K" | "k" => Some(Self::Keep),
            _ => None,
        }
    }

    /// Returns the array flags of which one must be set for this order; `None` if every array is in it.
    pub(super) fn flags(self) -> Option<i32> {
        match self {
            Self::C => Some(flags::C_CONTIGUOUS),
            Self::Fortran => Some(flags::F_CONTIGUOUS),
            Self::Any => Some(flags::C_CONTIGUOUS | flags::F_CONTIGUOUS),
            Self::Keep => None,
        }
    }

    pub(super) fn to_numpy(self) -> MemoryOrder {
        match self {
            Self::C => MemoryOrder::C,
            Self::Fortran => MemoryOrder::Fortran,
            Self::Any => MemoryOrder::Any,
            Self::Keep => MemoryOrder::Keep,
        }
    }
}
