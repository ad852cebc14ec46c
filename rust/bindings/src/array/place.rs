//! Where elements are and in which order, as numbers.

use castwise_core::Format;
use castwise_core::cast::{Scales, Source, Target};
use numpy::npyffi::{NPY_ORDER, flags};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;

/// Axes whose lengths and strides cost no allocation.
pub(super) const INLINE: usize = 2;

/// What the core is told about an array. In numbers: pointers do not cross threads without a promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(super) address: usize,
    pub(super) strides: &'a [isize],
    pub(super) format: Format,
    pub(super) swapped: bool,
}

impl<'a> Place<'a> {
    /// Bytes between elements, per axis.
    pub(crate) fn strides(self) -> &'a [isize] {
        self.strides
    }

    /// The same place, with its strides somewhere else.
    pub(crate) fn with_strides(self, strides: &[isize]) -> Place<'_> {
        Place { strides, ..self }
    }

    /// To read from, while the array lives.
    pub(crate) fn source(self) -> Source<'a> {
        Source {
            pointer: std::ptr::with_exposed_provenance(self.address),
            strides: self.strides,
            format: self.format,
            swapped: self.swapped,
        }
    }

    /// To write to, while the array lives; `fresh` if nobody else has seen it.
    pub(crate) fn target(self, fresh: bool) -> Target<'a> {
        Target {
            pointer: std::ptr::with_exposed_provenance_mut(self.address),
            strides: self.strides,
            format: self.format,
            swapped: self.swapped,
            fresh,
        }
    }

    /// Factors to read, while the array lives; it holds native doubles.
    pub(crate) fn scales(self) -> Scales<'a> {
        Scales { pointer: std::ptr::with_exposed_provenance(self.address), strides: self.strides }
    }
}

/// Whether two of an array's elements may share memory. Sorted by stride, each axis must step over all that the smaller
/// ones reach; the few layouts that interleave without meeting are taken to overlap.
pub(super) fn overlaps_itself(shape: &[usize], strides: &[isize], size: usize) -> bool {
    let axes = shape.iter().zip(strides);
    let axes = axes.map(|(&length, &stride)| (stride.unsigned_abs(), length));
    let mut axes: SmallVec<[_; INLINE]> = axes.filter(|&(_, length)| length > 1).collect();
    axes.sort_unstable();
    let mut reach = size;
    axes.into_iter().any(|(stride, length)| {
        let overlaps = stride < reach;
        reach = reach.saturating_add(stride.saturating_mul(length - 1));
        overlaps
    })
}

/// A shape as numpy shows it.
pub(crate) fn shown(shape: &[usize]) -> String {
    let lengths: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("({}{})", lengths.join(", "), if shape.len() == 1 { "," } else { "" })
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

    /// The one of a letter, if it is one.
    pub(crate) fn named(order: &Bound<'_, PyAny>) -> Option<Self> {
        match &*order.cast::<PyString>().ok()?.to_cow().ok()? {
            "C" | "c" => Some(Self::C),
            "F" | "f" => Some(Self::Fortran),
            "A" | "a" => Some(Self::Any),
            "K" | "k" => Some(Self::Keep),
            _ => None,
        }
    }

    /// The flags of arrays of which one says that they are in this order; `None` if all are.
    pub(super) fn flags(self) -> Option<i32> {
        match self {
            Self::C => Some(flags::NPY_ARRAY_C_CONTIGUOUS),
            Self::Fortran => Some(flags::NPY_ARRAY_F_CONTIGUOUS),
            Self::Any => Some(flags::NPY_ARRAY_C_CONTIGUOUS | flags::NPY_ARRAY_F_CONTIGUOUS),
            Self::Keep => None,
        }
    }

    pub(super) fn to_numpy(self) -> NPY_ORDER {
        match self {
            Self::C => NPY_ORDER::NPY_CORDER,
            Self::Fortran => NPY_ORDER::NPY_FORTRANORDER,
            Self::Any => NPY_ORDER::NPY_ANYORDER,
            Self::Keep => NPY_ORDER::NPY_KEEPORDER,
        }
    }
}
