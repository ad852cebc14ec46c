//! What happens to each tile of gradients: the stages for a pair of formats.

use super::assemble::{self, Unwatched};
use super::finite::Scan;
use super::multiply::{Factor, Multiply};
use super::request::Request;
use super::stage::Stage;
use super::{from_float, fused};
use crate::codec::options::Options;
use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::cpu::Level;
use crate::error::Error;
use crate::format::Format;

// Not inlined: the division stays in the environment that the caller has set.
#[inline(never)]
pub(super) fn reciprocal(scale: f64) -> Result<f64, Error> {
    let factor = 1.0 / scale;
    let narrow = factor as f32;
    if narrow.is_finite() && narrow != 0.0 {
        return Ok(factor);
    }
    Err(Error::InvalidOption {
        message: format!(
            "scale={scale:?} is not valid; use a finite number whose reciprocal a float32 holds."
        ),
    })
}

fn no_float(source: Format, target: Option<Format>) -> Error {
    let refused = target.filter(|_| source.float().is_some()).unwrap_or(source);
    Error::InvalidOption {
        message: format!("a gradient of {refused:?} cannot be unscaled; use real floats."),
    }
}

/// What happens to each tile of a pair of formats.
pub(super) struct Route {
    pub(super) decode: Option<Box<dyn Stage>>,
    pub(super) multiply: Option<Box<dyn Multiply>>,
    pub(super) encode: Option<Box<dyn Stage>>,
    /// Finds what rounding to the target has made infinite.
    pub(super) scan: Option<Scan>,
    /// All of this in one loop, where there is one.
    pub(super) fused: Option<Box<dyn Multiply>>,
    /// Lanes are what is written.
    pub(super) ends_in_lanes: bool,
}

pub(super) struct Routes {
    pub(super) factor: f64,
    pub(super) level: Level,
    pub(super) known: Vec<(Format, Option<Format>, Route)>,
}

impl Routes {
    /// The index of the route of a pair.
    pub(super) fn find(&mut self, source: Format, target: Option<Format>) -> Result<usize, Error> {
        let found = self.known.iter().position(|known| (known.0, known.1) == (source, target));
        if let Some(found) = found {
            return Ok(found);
        }
        let route = match target {
            None => Some(Route::look(source)),
            Some(target) if source.float().is_none() || target.float().is_none() => None,
            Some(target) if source.row().bits == 64 || target.row().bits == 64 => {
                let factor = self.factor.to_bits();
                let multiply: Box<dyn Multiply> = if target.row().bits == 64 {
                    Box::new(Factor::<Binary64, false>::new(factor))
                } else {
                    Box::new(Factor::<Binary64, true>::new(factor))
                };
                Route::new::<Binary64>(source, target, multiply)
            }
            Some(target) => {
                let factor = self.factor as f32;
                let multiply = Box::new(Factor::<Binary32, false>::new(factor.to_bits()));
                let fused = fused::stage(source, target, factor, self.level);
                Route::new::<Binary32>(source, target, multiply).map(|route| Route { fused, ..route })
            }
        };
        self.known.push((source, target, route.ok_or_else(|| no_float(source, target))?));
        Ok(self.known.len() - 1)
    }
}

impl Route {
    /// Only looks at the codes.
    fn look(source: Format) -> Self {
        Self {
            decode: None,
            multiply: None,
            encode: None,
            scan: Scan::new(source),
            fused: None,
            ends_in_lanes: false,
        }
    }

    fn new<P: FloatPivot>(source: Format, target: Format, multiply: Box<dyn Multiply>) -> Option<Self> {
        let options = Options::default();
        let request = Request { source, target, options, scaled: false, report: false };
        let is_pivot = target.item_size() == size_of::<P::Lane>();
        let encode = if is_pivot {
            None
        } else if target.row().bits == 32 {
            Some(from_float::from_float64(target)?)
        } else if let Some(fast) = assemble::fast_encoder::<P>(&request) {
            Some(fast)
        } else {
            Some(assemble::encoder::<Unwatched<P>>(&request)?)
        };
        let scan = if is_pivot { None } else { Scan::new(target) };
        Some(Self {
            decode: assemble::decoder::<P>(source),
            multiply: Some(multiply),
            encode,
            scan,
            fused: None,
            ends_in_lanes: is_pivot,
        })
    }
}
