//! Packed codes with their scales to floats, piece by piece.
//!
//! ```text
//! item of work: some rows and columns of a matrix of the stack, for one thread
//! piece:        gather the containers, unpack, codes to floats; minus zero point, times scale, plus bias; round, scatter
//! ```
//! Scales and zero points are spread over the columns of a piece once for all rows that share them.
//!
//! * `operands`, `plan`: what is asked for, and what follows from it.
//! * `containers`, `values`, `block_arithmetic`, `results`: what codes become, each of what is before it.
//! * `tables`: all of that at once, for many codes of a block. `decoder`: the pass that orders them.

mod block_arithmetic;
mod containers;
mod decoder;
mod operands;
mod plan;
mod results;
mod tables;
mod values;

use decoder::Decoder;
pub use operands::{Decoding, GlobalUse, Meaning};

use super::rows::Array;
use crate::cpu::DefaultEnvironment;
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
    unsafe { BlockDecoder::new(decoding, out)?.decode(out.pointer, threads) }
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
        // A plan computes too, such as with code maps.
        let _environment = DefaultEnvironment::enter();
        // SAFETY: passed on.
        Ok(Self(unsafe {
            if decoding.exact {
                By::F64(Box::new(plan::plan(decoding, out)?))
            } else {
                By::F32(Box::new(plan::plan(decoding, out)?))
            }
        }))
    }

    /// Sees other arrays of the same shapes, strides and formats, where these are but codes and what blocks have.
    pub(super) fn place(&mut self, decoding: &Decoding) {
        match &mut self.0 {
            By::F32(decoder) => decoder.place(decoding),
            By::F64(decoder) => decoder.place(decoding),
        }
    }

    /// Whether it is for the active level of the CPU, and reads nothing but when it is run.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        match &self.0 {
            By::F32(decoder) => decoder.is_repeatable(),
            By::F64(decoder) => decoder.is_repeatable(),
        }
    }

    /// Decodes into an array, given its first element.
    ///
    /// # Errors
    /// None of a plan that has been made.
    ///
    /// # Safety
    /// As for [`decode`].
    pub unsafe fn decode(&mut self, out: *mut u8, threads: usize) -> Result<(), Error> {
        // Scales of one array are multiplied here.
        let _environment = DefaultEnvironment::enter();
        // SAFETY: passed on.
        unsafe {
            match &mut self.0 {
                By::F32(decoder) => decoder.decode(out, threads),
                By::F64(decoder) => decoder.decode(out, threads),
            }
        }
    }
}
