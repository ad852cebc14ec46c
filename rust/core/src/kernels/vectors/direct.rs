//! Chooses the vector stage from one float format to another, on levels with vectors.
//!
//! Formats are recognized by their layout. Sources are float32, bf16 and float16 (and the float64 lanes of a pivot);
//! targets are these, floats of 8 bits or fewer, and integers of 8 bits.

#![deny(unsafe_code)]

use super::equal_factor::{equal_factor, is_exact};
use super::error_free_product::{ErrorFreeProduct, Factor};
use super::factor::{Decided, Rounded, RoundedNormal, Ties, Times, Wide};
use super::float_source::{Bf16Source, F16Source, F32Source, F64Source, Floats};
use super::integer_source::IntegerSource;
use super::piecewise_stage;
use super::shapes::{Shape, shape_of};
use super::through_f32;
use super::to_byte;
use super::to_f32;
use super::to_integer;
use super::to_u16;
#[cfg(target_arch = "x86_64")]
use super::{intervals, magic_addition, rounded_down, upper_bytes};
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, Binary64, FloatPivot};
use crate::cpu::Level;
use crate::format::{FloatSpec, Kind, Specials};
use crate::kernels::request::{Count, Request, pivot_format, pivot_spec};
use crate::kernels::stages::stage::Stage;
use crate::simd::{Conversions, Vector, with_vectors};

/// Makes the stage from source to target on a level, if there is one.
pub(crate) fn stage(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    with_vectors!(level, vectors => on(vectors, request))?
}

/// Makes the stage from lanes of float32 or float64 on a level, if there is one: to floats of 16 bits or fewer, from
/// float32 to itself too. The lanes are exact or rounded to odd, so where they come from makes no difference.
pub(crate) fn from_lanes<P: FloatPivot>(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let is_wide = P::MANTISSA == Binary64::MANTISSA;
    if request.tells || (is_wide && request.target.item_size() > 2) {
        return None;
    }
    // From here on the lanes are the source.
    let source = pivot_format::<P>()?;
    let request = Request { source, scaled: false, factor: None, ..*request };
    if is_wide {
        with_vectors!(level, vectors => from(vectors, &request, F64Source))?
    } else {
        with_vectors!(level, vectors => from_f32(vectors, &request))?
    }
}

/// Makes the stage from integers of whole bytes to floats of 16 bits on a level, under default options.
pub(crate) fn from_integers(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let Kind::Integer { signed } = request.source.kind() else { return None };
    if request.scaled || request.tells {
        return None;
    }
    with_vectors!(level, vectors => match (request.source.row().bits, signed) {
        (8, true) => to_16_bits(vectors, request, IntegerSource::<1, true>),
        (8, false) => to_16_bits(vectors, request, IntegerSource::<1, false>),
        (16, true) => to_16_bits(vectors, request, IntegerSource::<2, true>),
        (16, false) => to_16_bits(vectors, request, IntegerSource::<2, false>),
        (32, true) => to_16_bits(vectors, request, IntegerSource::<4, true>),
        (32, false) => to_16_bits(vectors, request, IntegerSource::<4, false>),
        (64, true) => to_16_bits(vectors, request, IntegerSource::<8, true>),
        (64, false) => to_16_bits(vectors, request, IntegerSource::<8, false>),
        _ => None,
    })?
}

fn to_16_bits<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    match shape_of(&request.target.float()?)? {
        Shape::F32 => None,
        Shape::Bf16 => to_u16::to_bf16(vectors, request, source),
        Shape::F16 => to_u16::to_f16(vectors, request, source),
    }
}

/// Makes the stage from integers of 8 bits, times one factor, to float32, if the factor is normal there.
pub(crate) fn scaled_bytes(request: &Request, level: Level) -> Option<Box<dyn Stage>> {
    let Request { source, target, scaled, tells, factor, .. } = *request;
    let to_f32 = target.float() == Some(pivot_spec::<Binary32>());
    let usual = scaled && !tells && to_f32 && request.rounding() == Rounding::NearestEven;
    let factor = factor.filter(|factor| usual && (*factor as f32).is_normal())?;
    match (source.kind(), source.row().bits) {
        (Kind::Integer { signed: true }, 8) => {
            with_vectors!(level, vectors => product(vectors, request, IntegerSource::<1, true>, factor))?
        }
        (Kind::Integer { signed: false }, 8) => {
            with_vectors!(level, vectors => product(vectors, request, IntegerSource::<1, false>, factor))?
        }
        _ => None,
    }
}

fn on<V: Conversions>(vectors: V, request: &Request) -> Option<Box<dyn Stage>> {
    let spec = request.source.float().filter(|_| !request.tells)?;
    let shape = shape_of(&spec)?;
    if let Kind::Integer { signed } = request.target.kind() {
        let encode = to_integer::rounded_stage(vectors, request, signed)?;
        return Some(match shape {
            Shape::F32 => encode,
            Shape::Bf16 => through_f32::stage(vectors, Bf16Source, encode, request.target),
            Shape::F16 => through_f32::stage(vectors, F16Source, encode, request.target),
        });
    }
    if request.scaled {
        let piecewise = if shape == Shape::F32 {
            None
        } else {
            piecewise_stage::of_16_bits(request, spec, vectors.level())
        };
        return piecewise.or_else(|| match shape {
            Shape::F32 => scaled(vectors, request, F32Source),
            Shape::Bf16 => scaled(vectors, request, Bf16Source),
            Shape::F16 => scaled(vectors, request, F16Source),
        });
    }
    if request.source == request.target && shape != Shape::F32 {
        return to_u16::recoded_stage(vectors, request);
    }
    match shape {
        Shape::F32 => from_f32(vectors, request),
        Shape::Bf16 => {
            in_16_bits(request, spec, vectors.level()).or_else(|| from(vectors, request, Bf16Source))
        }
        Shape::F16 => {
            in_16_bits(request, spec, vectors.level()).or_else(|| from(vectors, request, F16Source))
        }
    }
}

/// Makes the stage from a format of 16 bits to one of 8 bits or fewer without float32 between.
fn in_16_bits(request: &Request, spec: FloatSpec, level: Level) -> Option<Box<dyn Stage>> {
    let stage = piecewise_stage::of_16_bits(request, spec, level);
    #[cfg(target_arch = "x86_64")]
    let stage = stage
        .or_else(|| upper_bytes::stage(request, &spec, level))
        .or_else(|| intervals::stage(request, &spec, level));
    stage
}

/// Makes the stage from float32, with any options.
fn from_f32<V: Vector>(vectors: V, request: &Request) -> Option<Box<dyn Stage>> {
    usual(vectors, request, F32Source).or_else(|| {
        if let Some(shape) = shape_of(&request.target.float()?) {
            return to_u16::rounded_stage(vectors, request, shape);
        }
        let stage = piecewise_stage::away_from_zero(request, vectors.level());
        #[cfg(target_arch = "x86_64")]
        let stage = stage.or_else(|| rounded_down::stage(request, vectors.level()));
        stage.or_else(|| to_byte::rounded_stage(vectors, request, F32Source))
    })
}

/// Makes one loop, or two through float32: for roundings that are not the default one, from float64 or to 16 bits; and
/// for the default one, from 16 bits to 8 where no loop serves.
fn from<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    usual(vectors, request, source).or_else(|| match shape_of(&request.target.float()?) {
        // float32 has a faster way to nearest.
        None if const { F::SIZE <= F32Source::SIZE } && request.rounding() != Rounding::NearestEven => {
            to_byte::rounded_stage(vectors, request, source)
        }
        _ => through(vectors, request, source),
    })
}

/// Makes the loop for the default rounding.
fn usual<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    match shape_of(&request.target.float()?) {
        Some(Shape::Bf16) => to_u16::to_bf16(vectors, request, source),
        Some(Shape::F16) => to_u16::to_f16(vectors, request, source),
        // float64 goes through float32 to bytes, and has a loop to float32 elsewhere.
        _ if const { F::SIZE > F32Source::SIZE } => None,
        Some(Shape::F32) => to_f32(vectors, request, source),
        None => to_byte(vectors, request, source),
    }
}

/// Makes the fastest stage of a level to a target of 8 bits or fewer.
fn to_byte<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    // Formats of 16 bits have ways of their own.
    if const { F::SIZE == F16Source::SIZE } {
        return to_byte::stage(vectors, request, source);
    }
    product_to_byte(request, source, vectors.level()).or_else(|| to_byte::stage(vectors, request, source))
}

/// Makes the stage from float32, or a product, to a target of 8 bits or fewer that is not only exponents.
fn product_to_byte<F: Floats>(request: &Request, product: F, level: Level) -> Option<Box<dyn Stage>> {
    let stage = piecewise_stage::of_bf16(request, product, level);
    #[cfg(target_arch = "x86_64")]
    let stage = stage.or_else(|| magic_addition::stage(request, product, level));
    stage
}

/// Makes a stage through a tile of float32, which hold the source exactly or rounded to odd.
fn through<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    let as_f32 = Request { source: pivot_format::<Binary32>()?, scaled: false, factor: None, ..*request };
    Some(through_f32::stage(vectors, source, from_f32(vectors, &as_f32)?, request.target))
}

/// Makes the stage with one factor for all elements, if the factor is normal in float32 and the rounding is to nearest.
fn scaled<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    let (target, factor) = (request.target.float()?, request.factor?);
    let as_f32 = factor as f32;
    let nearest = matches!(request.rounding(), Rounding::NearestEven | Rounding::NearestAway);
    if !as_f32.is_normal() || !nearest {
        return None;
    }
    let is_f32 = f64::from(as_f32) == factor;
    let shape = shape_of(&target);
    if shape == Some(Shape::F32) {
        if request.rounding() != Rounding::NearestEven {
            return None;
        }
        return product(vectors, request, source, factor);
    }
    // The target's smallest subnormal is far above what a float32 product loses.
    let is_coarse = target.specials != Specials::ExponentOnly
        && target.bias + (target.mantissa_bits as i32) < Binary32::BIAS as i32 / 2;
    if shape.is_none() && !is_coarse {
        return None;
    }
    let ties = match shape {
        Some(Shape::Bf16) => Ties::OF_BF16,
        Some(_) => Ties::OF_F16,
        None => Ties::OF_BYTES,
    };
    let decided = Decided::new(source, factor, ties);
    if const { F::SIZE == F32Source::SIZE } {
        let stage = match shape {
            Some(Shape::Bf16) => to_u16::to_bf16(vectors, request, decided),
            Some(_) => to_u16::to_f16(vectors, request, decided),
            None => product_to_byte(request, decided, vectors.level()),
        };
        return stage.or_else(|| through(vectors, request, decided));
    }
    // bf16 inputs of a table are rounded to odd first.
    let grid = if shape.is_some() { target.mantissa_bits + 1 } else { MANTISSA };
    let source_spec = request.source.float()?;
    let equal = if request.count < Count::Many { None } else { equal_factor(&source_spec, grid, factor) };
    let Some(equal) = equal else {
        let in_one = match (shape, is_f32) {
            (None, false) => product_to_byte(request, decided, vectors.level()),
            (None, true) if is_exact(&source_spec, factor) => {
                product_to_byte(request, Rounded { source, factor: as_f32 }, vectors.level())
            }
            _ => None,
        };
        if in_one.is_some() {
            return in_one;
        }
        // The error of subnormal products is below anything that the target keeps.
        return if is_f32 && shape != Some(Shape::Bf16) {
            through(vectors, request, Times::<F, false> { source, factor })
        } else {
            through(vectors, request, decided)
        };
    };
    let rounded = Rounded { source, factor: equal };
    let in_one = match shape {
        Some(Shape::Bf16) => {
            to_u16::to_bf16(vectors, request, RoundedNormal { rounded, exact: Times { source, factor } })
        }
        Some(_) if request.rounding() == Rounding::NearestEven => {
            // Those that are limited have no loop of their own.
            to_u16::to_f16(vectors, request, rounded).or_else(|| through(vectors, request, rounded))
        }
        Some(_) => None,
        None => product_to_byte(request, rounded, vectors.level()),
    };
    let factor = f64::from(equal);
    in_one.or_else(|| through(vectors, request, Times::<F, false> { source, factor }))
}

/// Makes the stage to float32, with any options.
fn to_f32<V: Vector, F: Floats>(vectors: V, request: &Request, source: F) -> Option<Box<dyn Stage>> {
    if request.keeps_specials() {
        return Some(to_f32::stage(vectors, source));
    }
    if F::PLAIN {
        return to_f32::limited_stage(vectors, request, source);
    }
    // Products that are limited are too rare for a loop of their own.
    let limited = to_f32::limited_stage(vectors, request, F32Source)?;
    Some(through_f32::stage(vectors, source, limited, request.target))
}

/// Makes the stage to float32 with a factor that is normal there, held exactly or not.
fn product<V: Vector, F: Floats>(
    vectors: V,
    request: &Request,
    source: F,
    factor: f64,
) -> Option<Box<dyn Stage>> {
    let as_f32 = factor as f32;
    if f64::from(as_f32) == factor {
        // The machine rounds the product once, to float32, which is the target.
        return to_f32(vectors, request, Rounded { source, factor: as_f32 });
    }
    let significant = request.source.float().map_or(u8::BITS, |spec| spec.mantissa_bits + 1);
    if let Some(factor) = Factor::new(factor) {
        if const { F::SIZE == F32Source::SIZE } {
            return to_f32(vectors, request, ErrorFreeProduct::<F, false> { source, factor });
        }
        if factor.is_decided(significant, vectors.level()) {
            return to_f32(vectors, request, ErrorFreeProduct::<F, true> { source, factor });
        }
    }
    to_f32(vectors, request, Wide { source, factor })
}
