//! What machines convert themselves, under default options: floats to integers, and to float64.

use super::shapes::{Shape, shape_of};
use super::upper_source::{Doubles, Floats, IeeeHalves, Singles, UpperHalves};
use super::{through_singles, to_double, to_integer};
use crate::cast::request::pivot_spec;
use crate::cast::stages::stage::Stage;
use crate::codec::pivot::Binary64;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format, Kind};
use crate::simd::{Whole, with_vectors};

/// The stage from floats on a level, if it has one.
pub(in crate::cast) fn stage(source: Format, target: Format, level: Level) -> Option<Box<dyn Stage>> {
    let spec = source.float()?;
    with_vectors!(level, V => on::<V>(&spec, target))?
}

fn on<V: Whole>(source: &FloatSpec, target: Format) -> Option<Box<dyn Stage>> {
    if *source == pivot_spec::<Binary64>() {
        return to::<V, _>(Doubles, target);
    }
    match shape_of(source)? {
        Shape::Single => to::<V, _>(Singles, target),
        Shape::UpperHalf => to::<V, _>(UpperHalves, target).or_else(|| through::<V, _>(UpperHalves, target)),
        Shape::IeeeHalf => to::<V, _>(IeeeHalves, target).or_else(|| through::<V, _>(IeeeHalves, target)),
    }
}

fn to<V: Whole, F: Floats>(source: F, target: Format) -> Option<Box<dyn Stage>> {
    match (target.kind(), target.row().bits) {
        (Kind::Integer { signed }, bits) => to_integer::stage::<V, F>(source, bits, signed),
        (Kind::Float(spec), _) if spec == pivot_spec::<Binary64>() && F::SIZE < 8 => {
            to_double::stage::<V, F>(source)
        }
        _ => None,
    }
}

/// Through float32, as seldom as it is asked for.
fn through<V: Whole, F: Floats>(source: F, target: Format) -> Option<Box<dyn Stage>> {
    through_singles::stage::<V, F>(source, to::<V, _>(Singles, target)?, target)
}
