//! Packed codes with their scales to floats, piece by piece.
//!
//! ```text
//! item of work: some rows and columns of a matrix of the stack, for one thread
//! piece:        gather the containers, unpack, codes to floats; minus zero point, times scale, plus bias; round, scatter
//! ```
//! Scales and zero points are spread over the columns of a piece once for all rows that share them.
//!
//! * `operands`, `decoder`: what is asked for, and what follows from it.
//! * `pieces`: any codes; `tables`: many codes of a block.

mod decoder;
mod operands;
mod pieces;
mod tables;

use decoder::{Buffers, Decoder, Ends, Way};
pub use operands::{Decoding, GlobalUse, Meaning};

use super::held::with_held;
use super::real::Real;
use super::rows::Array;
use super::work::{Item, run_items};
use crate::error::Error;

/// Decodes into floats of any format and strides.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes that do not fit each other and formats that an operand cannot have.
///
/// # Safety
/// The elements of all arrays are readable, those of `out` writable, and it overlaps neither itself nor the others.
pub unsafe fn decode(decoding: &Decoding<'_>, out: Array<'_>, threads: usize) -> Result<(), Error> {
    // SAFETY: passed on.
    unsafe {
        if decoding.exact {
            Decoder::<f64>::new(decoding, out)?.run(threads)
        } else {
            Decoder::<f32>::new(decoding, out)?.run(threads)
        }
    }
}

impl<T: Real> Decoder<'_, T> {
    /// # Safety
    /// As for [`decode`].
    unsafe fn run(&self, threads: usize) -> Result<(), Error> {
        let bytes = self.data.size() * self.data.width() + self.out.size() * self.extent.columns;
        // SAFETY: the caller's promise; items are apart.
        run_items(&self.extent, self.piece, bytes, threads, |item| unsafe {
            with_held(|(ends, buffers)| self.item(item, ends, buffers));
            Ok(())
        })
    }

    /// Decodes the rows and columns of one item.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn item(&self, item: &Item, ends: &mut Ends, buffers: &mut Buffers<T>) {
        // SAFETY: passed on.
        unsafe {
            match self.way {
                Way::Pieces => self.pieces(item, ends, buffers),
                Way::NibblesByScale(shift) => self.nibbles_by_scale(item, shift, ends, buffers),
                Way::NibblesByBlock(shift) => self.nibbles_by_block(item, shift, ends, buffers),
                Way::Bytes => self.bytes(item, ends, buffers),
            }
        }
    }
}
