//! The float layouts that vectors have operations for.

#![deny(unsafe_code)]

use crate::codec::pivot::Binary32;
use crate::format::{FloatSpec, Specials};
use crate::kernels::request::pivot_spec;

/// A layout that vectors load and store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    F32,
    Bf16,
    F16,
}

fn spec_16(exponent_bits: u32, mantissa_bits: u32, bias: i32) -> FloatSpec {
    FloatSpec { signed: true, exponent_bits, mantissa_bits, bias, specials: Specials::Ieee }
}

/// Returns the layout of bf16.
pub(crate) fn bf16_spec() -> FloatSpec {
    spec_16(8, 7, 127)
}

/// Returns the layout of float16.
pub(super) fn f16_spec() -> FloatSpec {
    spec_16(5, 10, 15)
}

/// Returns the layout of a format, if vectors have operations for it.
pub(crate) fn shape_of(spec: &FloatSpec) -> Option<Shape> {
    let known =
        [(Shape::F32, pivot_spec::<Binary32>()), (Shape::Bf16, bf16_spec()), (Shape::F16, f16_spec())];
    known.into_iter().find(|(_, known)| known == spec).map(|(shape, _)| shape)
}
