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
use smallvec::SmallVec;
pub use source::block_amax;

use super::packing::Packing;
use super::rows::Array;
use crate::codec::options::Rounding;
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
    // SAFETY: passed on.
    unsafe {
        if let Some(done) = by_columns(encoding, to, threads)
            && done.is_ok()
        {
            return done;
        }
        by_rows(encoding, to, threads)
    }
}

/// Encodes with rows and columns exchanged, if blocks are parts of one column and that is the same: items are moved at
/// once then. An error names other indices than the caller's.
///
/// # Safety
/// As for [`encode`].
unsafe fn by_columns(encoding: &Encoding<'_>, to: &Encoded<'_>, threads: usize) -> Option<Result<(), Error>> {
    let (tall, wide) = encoding.block;
    let is_plain = encoding.packing == Packing::Dense && encoding.scheme.bits == u8::BITS;
    let arrays = [Some(encoding.x), Some(to.data), Some(to.scale), to.zero_point, to.bias];
    let rank = encoding.x.shape.len();
    let fits = |array: &Array<'_>| array.shape.len() == rank && rank >= 2;
    if wide != 1
        || tall == 1
        || !is_plain
        || encoding.rounding == Some(Rounding::Stochastic)
        || !arrays.iter().flatten().all(fits)
    {
        return None;
    }
    let exchanged = arrays.map(|array| array.map(|array| Exchanged::of(&array)));
    let [Some(x), Some(data), Some(scale), zero_point, bias] =
        exchanged.each_ref().map(|array| array.as_ref().map(Exchanged::get))
    else {
        return None;
    };
    let encoding = Encoding { x, block: (wide, tall), ..*encoding };
    // SAFETY: the caller's promise, for the same elements.
    Some(unsafe { by_rows(&encoding, &Encoded { data, scale, zero_point, bias }, threads) })
}

/// An array with rows and columns exchanged.
struct Exchanged<'a> {
    array: Array<'a>,
    shape: SmallVec<[usize; 4]>,
    strides: SmallVec<[isize; 4]>,
}

impl<'a> Exchanged<'a> {
    fn of(array: &Array<'a>) -> Self {
        let (mut shape, mut strides) =
            (SmallVec::from_slice(array.shape), SmallVec::from_slice(array.strides));
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        strides.swap(last - 1, last);
        Self { array: *array, shape, strides }
    }

    fn get(&self) -> Array<'_> {
        Array { shape: &self.shape, strides: &self.strides, ..self.array }
    }
}

/// # Safety
/// As for [`encode`].
unsafe fn by_rows(encoding: &Encoding<'_>, to: &Encoded<'_>, threads: usize) -> Result<(), Error> {
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
