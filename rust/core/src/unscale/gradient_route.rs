//! Chooses the stages for tiles of gradients, by pair of formats.

#![deny(unsafe_code)]

use super::fused;
use super::multiply::{Factor, Multiply, ODD_PRODUCT, PRODUCT, QUOTIENT};
use crate::codec::options::{Options, Overflow};
use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::format::{Format, Specials};
use crate::kernels::code_bounds::CodeBounds;
use crate::kernels::request::Request;
use crate::kernels::stages::assemble;
use crate::kernels::stages::from_float;
use crate::kernels::stages::stage::Stage;
use crate::kernels::vectors::direct;

/// The reciprocal of a scale: multiplying by it divides by the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reciprocal(pub(super) f64);

impl Reciprocal {
    /// Computes the reciprocal as a float64.
    ///
    /// # Errors
    /// [`Error::InvalidNumber`] for a scale whose reciprocal is zero or infinite as a float32, or no number.
    pub fn of(scale: f64) -> Result<Self, Error> {
        let (factor, narrow) =
            DefaultEnvironment::compute(scale, |scale| (1.0 / scale, (1.0 / scale) as f32));
        if narrow.is_finite() && narrow.to_bits() << 1 != 0 {
            return Ok(Self(factor));
        }
        Err(Error::InvalidNumber {
            argument: "scale",
            value: scale,
            valid: "a finite number whose reciprocal a float32 holds",
        })
    }

    /// Computes the reciprocal rounded to float32, by which `torch` and TensorFlow multiply float64 gradients too.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_f32(scale: f64) -> Result<Self, Error> {
        let Self(factor) = Self::of(scale)?;
        Ok(Self(DefaultEnvironment::compute(factor, |factor| f64::from(factor as f32))))
    }
}

fn no_float(source: Format, target: Option<Format>) -> Error {
    let refused = target.filter(|_| source.float().is_some()).unwrap_or(source);
    Error::InvalidOption {
        message: format!("a gradient of {refused:?} cannot be unscaled; use real floats."),
    }
}

/// The stages for a pair of formats.
pub(super) struct GradientRoute {
    pub(super) decode: Option<Box<dyn Stage>>,
    pub(super) multiply: Option<Box<dyn Multiply>>,
    pub(super) encode: Option<Box<dyn Stage>>,
    /// Finds results that became infinite in rounding to the target.
    pub(super) scan: Option<CodeBounds>,
    /// One loop for all stages, where there is one.
    pub(super) fused: Option<Box<dyn Multiply>>,
    /// Whether lanes are the results.
    pub(super) ends_in_lanes: bool,
    /// Lanes have 64 bits.
    pub(super) wide: bool,
}

/// The operation on each value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// It is multiplied.
    Times(f64),
    /// It is divided.
    Over(f64),
}

pub(super) struct Routes {
    pub(super) operation: Operation,
    pub(super) overflow: Overflow,
    pub(super) level: Level,
    pub(super) known: Vec<(Format, Option<Format>, GradientRoute)>,
}

impl Routes {
    /// Returns the index of the route of a pair.
    pub(super) fn find(&mut self, source: Format, target: Option<Format>) -> Result<usize, Error> {
        let found = self.known.iter().position(|known| (known.0, known.1) == (source, target));
        if let Some(found) = found {
            return Ok(found);
        }
        let route = match target {
            None => Some(GradientRoute::look(source)),
            Some(target) if source.float().is_none() || target.float().is_none() => None,
            Some(target) if source.row().bits == 64 || target.row().bits == 64 => {
                let exact = target.row().bits == 64;
                let multiply: Box<dyn Multiply> = match self.operation {
                    Operation::Times(factor) if exact => {
                        Box::new(Factor::<Binary64, PRODUCT>::new(factor.to_bits()))
                    }
                    Operation::Times(factor) => {
                        Box::new(Factor::<Binary64, ODD_PRODUCT>::new(factor.to_bits()))
                    }
                    Operation::Over(divisor) => {
                        Box::new(Factor::<Binary64, QUOTIENT>::new(divisor.to_bits()))
                    }
                };
                GradientRoute::new::<Binary64>(source, target, multiply, (self.overflow, self.level))
            }
            Some(target) => match self.operation {
                Operation::Times(factor) => {
                    let factor = factor as f32;
                    let multiply = Box::new(Factor::<Binary32, PRODUCT>::new(factor.to_bits()));
                    let plain = self.overflow == Overflow::Ieee;
                    let fused = if plain { fused::stage(source, target, factor, self.level) } else { None };
                    GradientRoute::new::<Binary32>(source, target, multiply, (self.overflow, self.level))
                        .map(|route| GradientRoute { fused, ..route })
                }
                Operation::Over(divisor) => {
                    let divide = Box::new(Factor::<Binary32, QUOTIENT>::new((divisor as f32).to_bits()));
                    GradientRoute::new::<Binary32>(source, target, divide, (self.overflow, self.level))
                }
            },
        };
        self.known.push((source, target, route.ok_or_else(|| no_float(source, target))?));
        Ok(self.known.len() - 1)
    }
}

impl GradientRoute {
    /// Makes a route that only tests codes.
    fn look(source: Format) -> Self {
        Self {
            decode: None,
            multiply: None,
            encode: None,
            scan: finite_codes(source),
            fused: None,
            ends_in_lanes: false,
            wide: false,
        }
    }

    fn new<P: FloatPivot>(
        source: Format,
        target: Format,
        multiply: Box<dyn Multiply>,
        (overflow, level): (Overflow, Level),
    ) -> Option<Self> {
        let options = Options { overflow, ..Options::default() };
        let request = Request { options, ..Request::plain(source, target) };
        let is_pivot = target.item_size() == size_of::<P::Lane>();
        let encode = if is_pivot {
            None
        } else if target.row().bits == 32 {
            Some(from_float::from_float64(target, overflow)?)
        } else {
            let vectors = direct::from_lanes::<P>(&request, level);
            let fast = vectors.or_else(|| assemble::fast_encoder::<P>(&request));
            Some(fast.or_else(|| assemble::encoder::<P>(&request))?)
        };
        let scan = if is_pivot { None } else { finite_codes(target) };
        Some(Self {
            decode: assemble::decoder::<P>(source),
            multiply: Some(multiply),
            encode,
            scan,
            fused: None,
            ends_in_lanes: is_pivot,
            wide: size_of::<P::Lane>() == 8,
        })
    }
}

/// Returns the bounds of the codes that are finite; `None` for a format whose codes all are.
fn finite_codes(format: Format) -> Option<CodeBounds> {
    let (spec, size) = (format.float()?, format.item_size());
    let bounds = |mask, base, high| Some(CodeBounds { mask, flip: 0, base, low: 0, high, size });
    let (magnitudes, full) = (spec.magnitude_mask(), u64::MAX >> (64 - 8 * size));
    match spec.specials {
        Specials::Finite => None,
        // Negative zero's code, the one NaN, becomes the largest number.
        Specials::Fnuz => bounds(full, spec.sign_bit() + 1, full - 1),
        _ => bounds(magnitudes, 0, spec.infinity_code().unwrap_or(magnitudes) - 1),
    }
}
