//! Floats to packed codes with their scales, band by band.
//!
//! ```text
//! item of work: whole blocks of a matrix of the stack, for one thread
//! band:         blocks side by side. Largest magnitudes; scales and factors by the recipe; codes; packing
//! ```
//! A row of blocks that is no longer than a piece is read once. Blocks of more elements than an item have their largest
//! magnitudes found before, by all threads.
//!
//! * `operands`, `encoder`: what is asked for, and what follows from it. `source`: the weight, piece by piece.
//! * `bands`: the order of work. `scales`: the steps of recipes; `rounded`: in which dtype. `pieces`: values to codes.

mod bands;
mod encoder;
mod operands;
mod pieces;
mod rounded;
mod scales;
mod source;

use encoder::Encoder;
use operands::refuse;
pub use operands::{Encoded, Encoding, FourOverSix};
pub use rounded::global_scale;
use rounded::single;
pub use source::block_amax;

use crate::error::Error;

/// Encodes floats of any format and strides; those of more than 32 bits by float64's arithmetic.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes and formats that do not fit, and for an element that is not finite;
/// [`Error::UnknownOption`] for a recipe that the scheme has not. What was written by then is of no use.
///
/// # Safety
/// The elements of `x` and of the global scale are readable, those of the other arrays writable, and they overlap
/// neither themselves nor each other.
pub unsafe fn encode(encoding: &Encoding<'_>, to: &Encoded<'_>, threads: usize) -> Result<(), Error> {
    let name = encoding.x.format.name();
    let Some(spec) = encoding.x.format.float() else {
        return refuse(format!("x has dtype {name}; use a real float."));
    };
    // SAFETY: passed on.
    unsafe {
        if spec.fits_in(&single()) {
            Encoder::<f32>::new(encoding, to)?.run(threads)
        } else {
            Encoder::<f64>::new(encoding, to)?.run(threads)
        }
    }
}
