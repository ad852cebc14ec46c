//! Conversions that machines have instructions for, under default options: floats to integers and to float64, and those
//! from 64 bits and to bytes that the compiler finds a loop for as well.

#![deny(unsafe_code)]

use super::float_source::{Bf16Source, F16Source, F32Source, F64Source, Floats};
use super::shapes::{Shape, shape_of};
use super::{low_bytes, past_caches, through_f32, to_f64, to_integer};
use crate::codec::options::Overflow;
use crate::codec::pivot::Binary64;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format, Kind};
use crate::kernels::request::pivot_spec;
use crate::kernels::stages::stage::Stage;
use crate::simd::{Conversions, with_vectors};

/// Makes the stage from floats on a level, if there is one.
pub(crate) fn stage(
    source: Format,
    target: Format,
    overflow: Overflow,
    level: Level,
) -> Option<Box<dyn Stage>> {
    let spec = source.float()?;
    with_vectors!(level, vectors => on(vectors, &spec, (target, overflow)))?
}

/// Makes the stage for a pair around the one for single elements, which serves where there is no other.
pub(crate) fn in_registers(pair: (Format, Format), level: Level, elements: Box<dyn Stage>) -> Box<dyn Stage> {
    match low_bytes::registers(pair, level).or_else(|| past_caches::registers(pair, level)) {
        Some(registers) => registers.then(elements),
        None => elements,
    }
}

fn on<V: Conversions>(vectors: V, source: &FloatSpec, target: (Format, Overflow)) -> Option<Box<dyn Stage>> {
    if *source == pivot_spec::<Binary64>() {
        return to(vectors, F64Source, target);
    }
    match shape_of(source)? {
        Shape::F32 => to(vectors, F32Source, target),
        Shape::Bf16 => to(vectors, Bf16Source, target).or_else(|| through(vectors, Bf16Source, target)),
        Shape::F16 => to(vectors, F16Source, target).or_else(|| through(vectors, F16Source, target)),
    }
}

fn to<V: Conversions, F: Floats>(
    vectors: V,
    source: F,
    (target, overflow): (Format, Overflow),
) -> Option<Box<dyn Stage>> {
    match (target.kind(), target.row().bits) {
        (Kind::Integer { .. }, ..8) if F::SIZE == F32Source::SIZE => {
            to_integer::low_bits(vectors, target, overflow)
        }
        (Kind::Integer { signed }, bits) => to_integer::stage(vectors, source, bits, signed),
        _ if const { F::SIZE == F64Source::SIZE } => None,
        (Kind::Float(spec), _) if spec == pivot_spec::<Binary64>() => Some(to_f64::stage(vectors, source)),
        _ => None,
    }
}

/// Makes a stage through float32: these pairs are too rare for a loop of their own.
fn through<V: Conversions, F: Floats>(
    vectors: V,
    source: F,
    target: (Format, Overflow),
) -> Option<Box<dyn Stage>> {
    Some(through_f32::stage(vectors, source, to(vectors, F32Source, target)?, target.0))
}
