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
//! * `bands`: the order of work; `amaxes`: the largest magnitudes that it begins with.
//! * `scales`: the steps of recipes; `rounded`: in which dtype. `pieces`: values to codes.
//! * `scale_tables`, `tables`, `by_tables`: the same for bf16, without arithmetic but for that of the tables.

mod amaxes;
mod bands;
mod by_tables;
mod encoder;
mod operands;
mod pieces;
mod rounded;
mod scale_tables;
mod scales;
mod source;
mod tables;

use encoder::Encoder;
use operands::refuse;
pub use operands::{Encoded, Encoding, FourOverSix};
pub use rounded::global_scale;
use rounded::single;
pub use source::block_amax;

use super::packing::Packing;
use super::real::Real;
use crate::codec::options::Rounding;
use crate::cpu::Level;
use crate::error::Error;

/// Encodes floats of any format and strides; those of more than 32 bits by float64's arithmetic. Returns the plan, for
/// other arrays like these.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes and formats that do not fit, and for an element that is not finite;
/// [`Error::UnknownOption`] for a recipe that the scheme has not. What was written by then is of no use.
///
/// # Safety
/// The elements of `x` and of the global scale are readable, those of the other arrays writable, and they overlap
/// neither themselves nor each other.
pub unsafe fn encode(encoding: Encoding, to: &Encoded, threads: usize) -> Result<BlockEncoder, Error> {
    // SAFETY: passed on.
    unsafe {
        // An error would name other indices than the caller's.
        if let Some((encoding, to)) = exchanged(&encoding, to)
            && let Ok(mut encoder) = BlockEncoder::by_rows(encoding, &to)
            && encoder.run(threads).is_ok()
        {
            return Ok(encoder);
        }
        let mut encoder = BlockEncoder::by_rows(encoding, to)?;
        encoder.run(threads)?;
        Ok(encoder)
    }
}

/// Exchanges rows and columns, if blocks are parts of one column and that is the same: items are moved at once then.
fn exchanged(encoding: &Encoding, to: &Encoded) -> Option<(Encoding, Encoded)> {
    let (tall, wide) = encoding.block;
    let is_plain = encoding.packing == Packing::Dense && encoding.scheme.bits == u8::BITS;
    if wide != 1 || tall == 1 || !is_plain || encoding.rounding == Some(Rounding::Stochastic) {
        return None;
    }
    let (mut encoding, mut to, rank) = (encoding.clone(), to.clone(), encoding.x.shape.len());
    if rank < 2 || to.arrays().any(|array| array.shape.len() != rank) {
        return None;
    }
    for array in to.arrays().chain([&mut encoding.x]) {
        array.shape.swap(rank - 2, rank - 1);
        array.strides.swap(rank - 2, rank - 1);
    }
    encoding.block = (wide, tall);
    Some((encoding, to))
}

/// An encoding that is planned once, and run for any arrays of the same shapes, strides and formats.
#[allow(missing_debug_implementations, reason = "casts are loops: there is nothing to show")]
pub struct BlockEncoder(By);

enum By {
    F32(Box<Encoder<f32>>),
    F64(Box<Encoder<f64>>),
}

/// Calls the encoder of either real.
macro_rules! by_real {
    ($by:expr, $encoder:ident => $call:expr) => {
        match $by {
            By::F32($encoder) => $call,
            By::F64($encoder) => $call,
        }
    };
}

impl BlockEncoder {
    /// # Safety
    /// As for [`encode`], of a global scale.
    unsafe fn by_rows(encoding: Encoding, to: &Encoded) -> Result<Self, Error> {
        let name = encoding.x.format.name();
        let Some(spec) = encoding.x.format.float() else {
            return refuse(format!("x has dtype {name}; use a real float."));
        };
        // SAFETY: passed on.
        Ok(Self(unsafe {
            if spec.fits_in(&single()) {
                By::F32(Box::new(Encoder::new(encoding, to)?))
            } else {
                By::F64(Box::new(Encoder::new(encoding, to)?))
            }
        }))
    }

    /// Whether it is for the active level of the CPU, and for any elements.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        by_real!(&self.0, encoder => encoder.is_repeatable())
    }

    /// # Safety
    /// As for [`encode`].
    unsafe fn run(&mut self, threads: usize) -> Result<(), Error> {
        // SAFETY: passed on.
        unsafe { by_real!(&mut self.0, encoder => encoder.run(threads)) }
    }

    /// Encodes other arrays, given the first elements of `x`, `data` and `scale`, and the place of one global scale, which is
    /// found, if there is one.
    ///
    /// # Errors
    /// As for [`encode`], which names the element that is not finite.
    ///
    /// # Safety
    /// As for [`encode`]; there are no other arrays.
    pub unsafe fn repeat(
        &mut self,
        places: [*mut u8; 3],
        global: Option<*mut f32>,
        threads: usize,
    ) -> Result<(), Error> {
        // SAFETY: passed on.
        unsafe {
            by_real!(&mut self.0, encoder => {
                encoder.place(places, global, threads)?;
                encoder.run(threads)
            })
        }
    }
}

impl<T: Real> Encoder<T> {
    fn is_repeatable(&self) -> bool {
        let others = self.zero_point.is_some() || self.bias.is_some();
        let is_own = self.what.amax.is_none() || !self.global.is_empty();
        self.level == Level::active() && !others && is_own
    }

    /// Sees other arrays, and finds their global scale.
    ///
    /// # Safety
    /// As for [`BlockEncoder::repeat`].
    unsafe fn place(
        &mut self,
        [x, data, scale]: [*mut u8; 3],
        global: Option<*mut f32>,
        threads: usize,
    ) -> Result<(), Error> {
        self.source.x.set_first(x);
        self.data.set_first(data);
        self.scale.set_first(scale);
        let Some(global) = global else { return Ok(()) };
        self.what.x.pointer = x;
        // SAFETY: the caller's promise.
        let amax = unsafe {
            if self.finds_amaxes() { self.find_amaxes(threads) } else { block_amax(&self.what.x, threads)? }
        };
        // The element that is not finite is found later.
        let amax = if amax.is_finite() { amax } else { 1.0 };
        let found = global_scale(amax as f32, self.recipe.name, self.what.x.format, self.what.global_max)?;
        self.what.amax = Some(amax);
        self.global.fill(T::from_f32(found));
        // SAFETY: the caller's promise.
        unsafe { global.write_unaligned(found) };
        Ok(())
    }
}
