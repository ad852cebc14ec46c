//! Floats to packed codes with their scales, band by band.
//!
//! ```text
//! item of work: whole blocks of a matrix of the stack, for one thread
//! band:         blocks side by side. Largest magnitudes; scales and factors by the recipe; codes; packing
//! ```
//! A row of blocks that is no longer than a piece is read once. Blocks of more elements than an item have their largest
//! magnitudes found before, by all threads.
//!
//! * `operands`, `plan`: what is asked for, and what follows from it. `source`: the weight, piece by piece.
//! * `amaxes`, `scales`, `codes`, `packed`: what blocks and elements become, each of what is before it.
//! * `zeros`: what becomes of their signs.
//! * `scale_errors`: what a stored scale loses. `scale_search`: scales of least squared error; `error_table`: the same by a
//!   table, of bf16; `integer_search`: those of integers, with zero points, by `integer_sums`; `importance`: what weights
//!   them.
//! * `by_tables`: scales and codes of bf16 without arithmetic.
//! * `encoder`: the pass that orders them.

mod amaxes;
mod by_tables;
mod codes;
mod encoder;
#[cfg(target_arch = "x86_64")]
mod error_table;
mod importance;
mod integer_search;
mod integer_sums;
mod operands;
mod packed;
mod plan;
mod scale_errors;
mod scale_search;
mod scales;
mod source;
mod zeros;

pub use amaxes::block_amax;
use encoder::Encoder;
use operands::refuse;
pub use operands::{Encoded, Encoding, ScaleChoice};

use super::packing::Packing;
use super::recipe::Recipe;
use super::rounded::single;
use crate::codec::options::Rounding;
use crate::cpu::DefaultEnvironment;
use crate::error::Error;

/// Encodes floats of any format and strides; those of more than 32 bits by float64's arithmetic. Returns the plan, for
/// other arrays like these.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes and formats that do not fit, and for an element that is not finite;
/// [`Error::UnknownOption`] for a recipe that the scheme has not. What was written by then is of no use.
///
/// # Safety
/// The elements of `x`, of the global scale and of importance are readable, those of the other arrays writable;
/// what is written overlaps neither itself nor anything else.
pub unsafe fn encode(encoding: Encoding, to: &Encoded, threads: usize) -> Result<BlockEncoder, Error> {
    // A plan computes too: with global scales, and what a search compares with.
    let _environment = DefaultEnvironment::enter();
    // SAFETY: passed on.
    unsafe {
        // An error would name other indices than the caller's.
        if let Some((encoding, to)) = exchanged(&encoding, to)
            && let Ok(mut encoder) = BlockEncoder::by_rows(encoding, &to)
            && encoder.encode(threads).is_ok()
        {
            return Ok(encoder);
        }
        let mut encoder = BlockEncoder::by_rows(encoding, to)?;
        encoder.encode(threads)?;
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
    let importance = encoding.importance.as_mut();
    if importance.as_ref().is_some_and(|array| array.shape.len() != rank) {
        return None;
    }
    for array in to.arrays().chain([&mut encoding.x]).chain(importance) {
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

impl BlockEncoder {
    /// # Safety
    /// As for [`encode`], of a global scale and of importance.
    unsafe fn by_rows(encoding: Encoding, to: &Encoded) -> Result<Self, Error> {
        let name = encoding.x.format.name();
        let Some(spec) = encoding.x.format.float() else {
            return refuse(format!("x has dtype {name}; use a real float."));
        };
        let scheme = encoding.scheme;
        let recipe = Recipe::find(encoding.recipe.as_deref(), scheme.family, scheme.name)?;
        // SAFETY: passed on.
        Ok(Self(unsafe {
            if spec.fits_in(&single()) {
                By::F32(Box::new(plan::plan(encoding, to, recipe, recipe.steps.f32)?))
            } else {
                By::F64(Box::new(plan::plan(encoding, to, recipe, recipe.steps.f64)?))
            }
        }))
    }

    /// Whether it is for the active level of the CPU, and for any elements.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        match &self.0 {
            By::F32(encoder) => encoder.is_repeatable(),
            By::F64(encoder) => encoder.is_repeatable(),
        }
    }

    /// # Safety
    /// As for [`encode`].
    // Its two callers need no copy each: 3 KB.
    #[inline(never)]
    unsafe fn encode(&mut self, threads: usize) -> Result<(), Error> {
        // SAFETY: passed on.
        unsafe {
            match &mut self.0 {
                By::F32(encoder) => encoder.encode(threads),
                By::F64(encoder) => encoder.encode(threads),
            }
        }
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
        let _environment = DefaultEnvironment::enter();
        // SAFETY: passed on.
        unsafe {
            match &mut self.0 {
                By::F32(encoder) => encoder.place(places, global, threads)?,
                By::F64(encoder) => encoder.place(places, global, threads)?,
            }
            self.encode(threads)
        }
    }
}
