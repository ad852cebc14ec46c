//! Weights of squared errors, by which scales are searched.

use super::operands::refuse;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Format;
use crate::quantization::arithmetic::Area;
use crate::quantization::rows::{Array, Rows};
use crate::quantization::work::{Columns, Place};

/// A number for each element, of which the squares of errors are multiples.
pub(super) struct Importance {
    rows: Rows,
    level: Level,
}

impl Importance {
    /// Takes the numbers for the elements of `x`, the first axes of which are a stack.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for another dtype or shape, and for the first number that is negative or not finite.
    ///
    /// # Safety
    /// The numbers are readable.
    pub(super) unsafe fn new(importance: &Array, x: &Array, stack: usize) -> Result<Self, Error> {
        if importance.format != Format::FLOAT32 || importance.shape != x.shape {
            return refuse(format!(
                "importance has dtype {} and shape {:?}; give float32 of shape {:?}.",
                importance.format.name(),
                importance.shape,
                x.shape
            ));
        }
        // Along axes without strides, there is one number.
        let axes: Vec<_> =
            importance.shape.iter().zip(&importance.strides).filter(|(_, stride)| **stride != 0).collect();
        let count = if x.shape.contains(&0) { 0 } else { axes.iter().map(|(length, _)| **length).product() };
        for flat in 0..count {
            let (mut rest, mut offset) = (flat, 0);
            for &(&length, &stride) in axes.iter().rev() {
                offset += (rest % length) as isize * stride;
                rest /= length;
            }
            // SAFETY: the caller's promise.
            let value = unsafe { importance.pointer.offset(offset).cast::<f32>().read_unaligned() };
            if !value.is_finite() || value < 0.0 {
                let mut index = vec![0; axes.len()];
                let mut rest = flat;
                for (place, (length, _)) in index.iter_mut().zip(&axes).rev() {
                    (*place, rest) = (rest % **length, rest / **length);
                }
                return refuse(format!(
                    "importance{index:?} is {value}, by which no error can be weighted; give finite numbers that are \
                     not negative."
                ));
            }
        }
        Ok(Self { rows: Rows::new(importance, stack), level: Level::active() })
    }

    /// Returns the numbers for some rows and columns: where they are, or in the room.
    ///
    /// # Safety
    /// The numbers are readable, and there is room for them.
    pub(super) unsafe fn read(&self, place: Place, columns: Columns, room: *mut f32) -> Area<*const f32> {
        let (Place { matrix, row, rows }, Columns { start, count }) = (place, columns);
        let first = self.rows.row(matrix, row);
        // SAFETY: the caller's promise.
        let (first, pitch) = unsafe { self.rows.read(self.level, first, (rows, start, count), room.cast()) };
        Area { first: first.cast(), pitch, rows, columns: count }
    }
}
