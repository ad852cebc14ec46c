//! A view of a tensor's memory, whose bounds are checked when it is made.

#![allow(unsafe_code, reason = "vouches for the memory of a view")]

use std::fmt;

use smallvec::SmallVec;

use crate::cast::{Settings, Source, Target};
use crate::compare::Comparison;
use crate::elements::{Element, bytes_of, bytes_of_mut};
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::layout::region::in_c_order;
use crate::quantization::Array;
use crate::report::CastReport;
use crate::survey::Survey;

/// Elements of one format at regular distances in borrowed memory.
///
/// # Examples
/// ```
/// use castwise_core::{Format, Tensor};
/// let data = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let matrix = Tensor::of(&data, &[2, 3])?;
/// let column = Tensor::strided(matrix.data(), 4, Format::FLOAT32, &[2], &[12])?; // 2 and 5
/// let other = [2.0f32, 5.5];
/// let comparison = column.compare(&Tensor::of(&other, &[2])?, 1)?;
/// assert_eq!(comparison.largest_difference, Some((0.5, 1)));
/// # Ok::<(), castwise_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor<'a> {
    data: &'a [u8],
    /// Bytes before the first element.
    offset: usize,
    format: Format,
    shape: SmallVec<[usize; 4]>,
    strides: SmallVec<[isize; 4]>,
}

impl<'a> Tensor<'a> {
    /// Views a slice as a tensor in C order.
    ///
    /// # Errors
    /// [`Error::Length`] if the slice has not the number of elements of the shape; [`Error::InvalidOption`] for a shape of
    /// more bytes than memory can have.
    pub fn of<T: Element>(elements: &'a [T], shape: &[usize]) -> Result<Self, Error> {
        let tensor = Self::new(bytes_of(elements), T::FORMAT, shape);
        tensor.map_err(|error| match error {
            Error::Length { needed, .. } => Error::Length {
                argument: "elements",
                length: elements.len(),
                needed: needed / size_of::<T>(),
            },
            other => other,
        })
    }

    /// Views bytes as a tensor in C order, in native byte order.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` has not the number of bytes of the shape; [`Error::InvalidOption`] for a shape of more bytes
    /// than memory can have.
    pub fn new(data: &'a [u8], format: Format, shape: &[usize]) -> Result<Self, Error> {
        let (strides, needed) = c_order(shape, format)?;
        if data.len() != needed {
            return Err(Error::Length { argument: "data", length: data.len(), needed });
        }
        Ok(Self { data, offset: 0, format, shape: shape.into(), strides })
    }

    /// Views elements of bytes as a tensor: the first element is at `offset`, and `strides` are the bytes between elements
    /// of each axis. Strides may be zero or negative.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if there is no stride for an axis, or if an element lies beyond `data`.
    pub fn strided(
        data: &'a [u8],
        offset: usize,
        format: Format,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self, Error> {
        if shape.len() != strides.len() {
            return Err(Error::InvalidOption {
                message: format!(
                    "strides={strides:?} are not those of shape={shape:?}; give one for each axis."
                ),
            });
        }
        let (usual_strides, _) = c_order(shape, format)?;
        if shape.contains(&0) {
            // Strides between no elements may be any numbers, with which nothing is to be computed.
            return Ok(Self { data, offset: 0, format, shape: shape.into(), strides: usual_strides });
        }
        // A length is at most isize::MAX here, so that a product fits.
        let reaches =
            shape.iter().zip(strides).map(|(&length, &stride)| (length as i128 - 1) * stride as i128);
        let low = offset as i128 + reaches.clone().map(|reach| reach.min(0)).sum::<i128>();
        let last = offset as i128 + reaches.map(|reach| reach.max(0)).sum::<i128>();
        let end = last + format.item_size() as i128;
        if low < 0 || end > data.len() as i128 {
            return Err(Error::InvalidOption {
                message: format!(
                    "shape={shape:?} with strides={strides:?} reaches from byte {low} to {end} of {}; give all bytes.",
                    data.len()
                ),
            });
        }
        let (shape, strides) = (shape.into(), strides.into());
        Ok(Self { data, offset, format, shape, strides })
    }

    /// The bytes that the tensor is a view of.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The format of the elements.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Elements of each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes between elements of each axis.
    #[must_use]
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Casts every element into a slice in C order. Each value is rounded once.
    ///
    /// # Errors
    /// As for [`cast()`](crate::cast()).
    pub fn cast<T: Element>(&self, target: &mut [T], settings: impl Into<Settings>) -> Result<(), Error> {
        let settings = Settings { report: false, ..settings.into() };
        self.cast_by(target, &settings).map(drop)
    }

    /// Casts as [`Tensor::cast`] does, and returns what was lost.
    ///
    /// # Errors
    /// As for [`cast()`](crate::cast()).
    pub fn cast_and_report<T: Element>(
        &self,
        target: &mut [T],
        settings: impl Into<Settings>,
    ) -> Result<CastReport, Error> {
        let settings = Settings { report: true, ..settings.into() };
        Ok(self.cast_by(target, &settings)?.unwrap_or_default())
    }

    fn cast_by<T: Element>(
        &self,
        target: &mut [T],
        settings: &Settings,
    ) -> Result<Option<CastReport>, Error> {
        let (strides, bytes) = c_order(&self.shape, T::FORMAT)?;
        let needed = bytes / size_of::<T>();
        if target.len() != needed {
            return Err(Error::Length { argument: "target", length: target.len(), needed });
        }
        // Bools are copied as they are, and bytes of a file may be others than 0 and 1. As integers these become 1.
        let is_bool = [self.format, T::FORMAT] == [Format::BOOL; 2];
        let format = if is_bool { Format::UINT8 } else { self.format };
        let source = Source { format, ..self.source() };
        // SAFETY: a cast writes codes of the target's format only.
        let bytes = unsafe { bytes_of_mut(target) };
        let target = Target {
            pointer: bytes.as_mut_ptr(),
            strides: &strides,
            format: T::FORMAT,
            swapped: false,
            fresh: false,
        };
        // SAFETY: the constructors checked that all elements, and so the memory between them, are in `data`, which is
        // borrowed. The target has the elements of the shape, and a `&mut` overlaps nothing.
        unsafe { crate::cast::cast(&self.shape, source, target, None, settings) }
    }

    /// Compares the elements of two tensors of one shape: how many differ, and by how much. Formats may differ.
    ///
    /// `threads` is the largest number of threads.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the shapes differ.
    pub fn compare(&self, other: &Tensor<'_>, threads: usize) -> Result<Comparison, Error> {
        if self.shape != other.shape {
            return Err(Error::InvalidOption {
                message: format!(
                    "tensors have shapes {:?} and {:?}; give two of one shape.",
                    &self.shape[..],
                    &other.shape[..]
                ),
            });
        }
        // SAFETY: the constructors checked that all elements are in borrowed memory.
        Ok(unsafe { crate::compare::compare(&self.shape, self.source(), other.source(), true, threads) })
    }

    /// Surveys the magnitudes of the elements: counts by binade, and extremes.
    ///
    /// `threads` is the largest number of threads.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for complex numbers.
    pub fn survey(&self, threads: usize) -> Result<Survey, Error> {
        if matches!(self.format.kind(), Kind::Complex { .. }) {
            return Err(Error::InvalidOption {
                message: format!("tensor has format {:?}; survey its components.", self.format),
            });
        }
        // SAFETY: the constructors checked that all elements are in borrowed memory.
        Ok(unsafe { crate::survey::survey(&self.shape, self.source(), threads) })
    }

    fn source(&self) -> Source<'_> {
        Source { pointer: self.first(), strides: &self.strides, format: self.format, swapped: false }
    }

    /// The tensor as an operand of a quantization, which does not write to it.
    pub(crate) fn array(&self) -> Array {
        Array {
            pointer: self.first().cast_mut(),
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            format: self.format,
        }
    }

    fn first(&self) -> *const u8 {
        self.data.as_ptr().wrapping_add(self.offset)
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, shape, strides, .. } = self;
        let mut text = formatter.debug_struct("Tensor");
        text.field("format", format).field("shape", shape).field("strides", strides).finish_non_exhaustive()
    }
}

/// Returns the bytes between elements of a tensor in C order, for each axis, and the bytes of all.
pub(crate) fn c_order(shape: &[usize], format: Format) -> Result<(SmallVec<[isize; 4]>, usize), Error> {
    in_c_order(shape, format.item_size()).ok_or_else(|| Error::InvalidOption {
        message: format!("shape={shape:?} has more bytes than memory can have; give a smaller one."),
    })
}
