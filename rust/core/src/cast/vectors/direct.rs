//! Pairs that whole vectors take from source to target in one step, where the level has vectors.
//!
//! Formats are found by their layout: float32, float32 with a shorter mantissa, and the half that machines convert
//! themselves on one side; those and floats of 8 bits or fewer on the other.

use super::by_cells;
use super::by_sums;
use super::enclosed::{Enclosed, Factor};
use super::equal_factor::equal_factor;
use super::factor::{Decided, Rounded, RoundedNormal, Ties, Times, Wide};
use super::product_to_upper;
use super::to_byte;
use super::to_half;
pub(super) use super::to_half::Shape;
use super::to_single;
use super::upper_source::{Doubles, Floats, IeeeHalves, Singles, UpperHalves};
use crate::cast::request::{Request, pivot_format, pivot_spec};
use crate::cast::stages::stage::Stage;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::codec::upper::MANTISSA;
use crate::cpu::Level;
use crate::format::{FloatSpec, Specials};
use crate::simd::{Vector, with_vectors};

fn half(exponent_bits: u32, mantissa_bits: u32, bias: i32) -> FloatSpec {
    FloatSpec { signed: true, exponent_bits, mantissa_bits, bias, specials: Specials::Ieee }
}

/// The layout of upper halves of float32.
pub(super) fn upper_spec() -> FloatSpec {
    half(8, 7, 127)
}

/// The layout that machines convert themselves.
pub(super) fn half_spec() -> FloatSpec {
    half(5, 10, 15)
}

/// The layout of a format, if vectors know it.
pub(super) fn shape_of(spec: &FloatSpec) -> Option<Shape> {
    let known = [
        (Shape::Single, pivot_spec::<Binary32>()),
        (Shape::UpperHalf, upper_spec()),
        (Shape::IeeeHalf, half_spec()),
    ];
    known.into_iter().find(|(_, known)| known == spec).map(|(shape, _)| shape)
}

/// The stage from source to target on a level, if there is one.
pub(in crate::cast) fn stage(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    with_vectors!(level, V => on::<V>(request))?
}

/// To bytes, in the best way of a level.
fn to_byte<V: Vector, F: Floats>(request: &Request, source: F) -> Option<Box<dyn Stage>> {
    by_cells::of_upper_halves(request, source, V::LEVEL)
        .or_else(|| by_sums::stage(request, source, V::LEVEL))
        .or_else(|| to_byte::stage::<V, F>(request, source))
}

/// The stage from lanes of float32, or of float64, to floats of 16 bits or fewer on a level, if there is one. What the
/// lanes come from does not matter, if only they are as good as exact.
pub(in crate::cast) fn from_lanes<P: FloatPivot>(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    if request.watched() || request.target.item_size() > 2 {
        return None;
    }
    // From here on they are what is cast.
    let source = pivot_format::<P>()?;
    let request = Request { source, scaled: false, factor: None, ..*request };
    if P::MANTISSA == Binary64::MANTISSA {
        with_vectors!(level, V => from::<V, _>(&request, Doubles))?
    } else {
        with_vectors!(level, V => from::<V, _>(&request, Singles))?
    }
}

fn on<V: Vector>(request: &Request) -> Option<Box<dyn Stage>> {
    if request.watched() {
        return None;
    }
    let shape = shape_of(&request.source.float()?)?;
    if request.source == request.target && shape != Shape::Single && !request.scaled {
        return to_half::recoded_stage::<V>(request);
    }
    if request.scaled
        && shape != Shape::Single
        && let Some(stage) = by_cells::of_products(request, request.source.float()?, V::LEVEL)
    {
        return Some(stage);
    }
    match shape {
        Shape::Single => from::<V, _>(request, Singles),
        Shape::UpperHalf => from::<V, _>(request, UpperHalves),
        Shape::IeeeHalf => {
            let cells =
                (!request.scaled).then(|| by_cells::of_words(request, half_spec(), V::LEVEL)).flatten();
            cells.or_else(|| from::<V, _>(request, IeeeHalves))
        }
    }
}

fn from<V: Vector, F: Floats>(request: &Request, source: F) -> Option<Box<dyn Stage>> {
    let target = request.target.float()?;
    if request.scaled {
        return scaled::<V, F>(request, source, &target);
    }
    match shape_of(&target) {
        // Shifting is all there is to do, which the compiler's own loop does best.
        Some(Shape::Single) if F::SHIFTED && request.keeps_specials() => None,
        Some(shape) if request.rounding() != Rounding::NearestEven => {
            to_half::rounded_stage::<V, F>(request, source, shape)
        }
        Some(shape) => to_half::stage::<V, F>(request, source, shape),
        None => to_byte::<V, _>(request, source),
    }
}

/// With a factor that no float32 holds, to float32.
fn enclosed<V: Vector, F: Floats>(request: &Request, source: F, factor: f64) -> Option<Box<dyn Stage>> {
    let significant = request.source.float()?.mantissa_bits + 1;
    match Factor::new(factor) {
        Some(factor) if F::SIZE == 4 => {
            to_single::stage::<V, _>(request, Enclosed::<F, false> { source, factor })
        }
        Some(factor) if factor.is_decided(significant, V::LEVEL) => {
            to_single::stage::<V, _>(request, Enclosed::<F, true> { source, factor })
        }
        _ => to_single::stage::<V, _>(request, Wide { source, factor }),
    }
}

/// With one factor for all, which is not so extreme that products are.
fn scaled<V: Vector, F: Floats>(request: &Request, source: F, target: &FloatSpec) -> Option<Box<dyn Stage>> {
    let factor = request.factor?;
    let single = factor as f32;
    let nearest = matches!(request.rounding(), Rounding::NearestEven | Rounding::NearestAway);
    if !single.is_normal() || !nearest {
        return None;
    }
    let is_single = f64::from(single) == factor;
    let shape = shape_of(target);
    if shape == Some(Shape::Single) {
        // The machine's own product is rounded once, and to where it goes.
        return if is_single {
            to_single::stage::<V, _>(request, Rounded { source, factor: single })
        } else {
            enclosed::<V, F>(request, source, factor)
        };
    }
    // Their smallest subnormal is far above what a product of singles loses.
    let is_coarse = target.specials != Specials::ExponentOnly
        && target.bias + (target.mantissa_bits as i32) < Binary32::BIAS as i32 / 2;
    if shape.is_none() && !is_coarse {
        return None;
    }
    let times = Times::<F, true> { source, factor };
    let decided = |ties: Ties| Decided { times, ties };
    // Upper halves are rounded to odd first.
    let grid = if shape.is_some() { target.mantissa_bits + 1 } else { MANTISSA };
    let equal = equal_factor(&request.source.float()?, grid, factor, request.count);
    let rounded = equal.map(|factor| Rounded { source, factor });
    match (shape, rounded) {
        (Some(Shape::UpperHalf), Some(rounded)) => {
            to_half::nearest_upper::<V, _>(request, RoundedNormal { rounded, exact: times })
        }
        (Some(Shape::UpperHalf), None) => {
            product_to_upper::stage::<V, _>(request, source, factor).or_else(|| {
                let ties = Ties::OF_UPPER;
                let ties = if is_single { ties } else { ties.of_rounded_factor() };
                to_half::nearest_upper::<V, _>(request, decided(ties))
            })
        }
        (Some(_), Some(rounded)) => to_half::nearest_half::<V, _>(request, rounded),
        (Some(_), None) if is_single => {
            let times = Times::<F, false> { source, factor };
            to_half::nearest_half::<V, _>(request, Decided { times, ties: Ties::OF_HALVES })
        }
        (Some(_), None) => {
            to_half::nearest_half::<V, _>(request, decided(Ties::OF_HALVES.of_rounded_factor()))
        }
        (None, Some(rounded)) => to_byte::<V, _>(request, rounded),
        (None, None) if is_single => to_byte::<V, _>(request, Times::<F, false> { source, factor }),
        (None, None) => to_byte::<V, _>(request, times),
    }
}
