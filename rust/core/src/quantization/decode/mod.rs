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

use super::real::Real;
use super::rows::Array;
use super::work::{Item, ItemPass, run_items};
use crate::cpu::Level;
use crate::error::Error;

/// Decodes into floats of any format and strides.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes that do not fit each other and formats that an operand cannot have.
///
/// # Safety
/// The elements of all arrays are readable, those of `out` writable, and it overlaps neither itself nor the others.
pub unsafe fn decode(decoding: Decoding, out: &Array, threads: usize) -> Result<(), Error> {
    // SAFETY: passed on.
    unsafe { BlockDecoder::new(decoding, out)?.run(out.pointer, threads) }
}

/// A decoding that is planned once, and run into any arrays of a shape, strides and format.
#[allow(missing_debug_implementations, reason = "casts are loops: there is nothing to show")]
pub struct BlockDecoder(By);

enum By {
    F32(Box<Decoder<f32>>),
    F64(Box<Decoder<f64>>),
}

impl BlockDecoder {
    /// Plans it, for arrays like `out`. Group indices, divisors and code maps are read now.
    ///
    /// # Errors
    /// As for [`decode`].
    ///
    /// # Safety
    /// As for [`decode`], of what is read.
    pub unsafe fn new(decoding: Decoding, out: &Array) -> Result<Self, Error> {
        // SAFETY: passed on.
        Ok(Self(unsafe {
            if decoding.exact {
                By::F64(Box::new(Decoder::new(decoding, out)?))
            } else {
                By::F32(Box::new(Decoder::new(decoding, out)?))
            }
        }))
    }

    /// Whether it is for the active level of the CPU, and reads nothing but when it is run.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        fn is_so<T>(decoder: &Decoder<T>) -> bool {
            decoder.level == Level::active() && decoder.groups.is_none() && decoder.divisors.is_none()
        }
        match &self.0 {
            By::F32(decoder) => is_so(decoder),
            By::F64(decoder) => is_so(decoder),
        }
    }

    /// Decodes into an array, given its first element.
    ///
    /// # Errors
    /// None of a plan that has been made.
    ///
    /// # Safety
    /// As for [`decode`].
    pub unsafe fn run(&mut self, out: *mut u8, threads: usize) -> Result<(), Error> {
        // SAFETY: passed on.
        unsafe {
            match &mut self.0 {
                By::F32(decoder) => decoder.run(out, threads),
                By::F64(decoder) => decoder.run(out, threads),
            }
        }
    }
}

impl<T: Real> Decoder<T> {
    /// # Safety
    /// As for [`decode`].
    unsafe fn run(&mut self, out: *mut u8, threads: usize) -> Result<(), Error> {
        self.out.set_first(out);
        // SAFETY: the caller's promise.
        let global =
            unsafe { self.extent.per_matrix(self.what.global_scale.as_ref().map(|(array, _)| array))? };
        self.global.clear();
        self.global.extend(global.into_iter().map(T::from_f32));
        let bytes = self.data.size() * self.data.width() + self.out.size() * self.extent.columns;
        // SAFETY: the caller's promise.
        unsafe { run_items(self, &self.extent, self.piece, bytes, threads) };
        Ok(())
    }
}

impl<T: Real> ItemPass for Decoder<T> {
    type Buffers = (Ends, Buffers<T>);
    type Outcome = ();

    /// Decodes an item.
    unsafe fn process_item(&self, item: &Item, (ends, buffers): &mut (Ends, Buffers<T>), (): &mut ()) {
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

    fn merge((): &mut (), (): ()) {}
}
