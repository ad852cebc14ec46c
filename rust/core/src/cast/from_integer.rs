//! The machine's own integers, converted by the language: Rust's `as` has exactly castwise's defaults.
//!
//! Integers wrap into integers, and round to nearest even into floats. Float sources are in [`super::from_float`].

use std::marker::PhantomData;

use num_traits::AsPrimitive;

use super::stage::{Span, Stage};
use crate::cpu::{Kernel, Level};
use crate::format::{Format, Kind};

/// Elements of one machine type to another.
struct Convert<S, T>(PhantomData<fn(S) -> T>);

struct ConvertLoop<S, T>(Span, PhantomData<fn(S) -> T>);

impl<S: AsPrimitive<T>, T: Copy + 'static> Kernel for ConvertLoop<S, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (source, target) = (self.0.source.cast::<S>(), self.0.target.cast::<T>());
        for i in 0..self.0.count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe { target.add(i).write_unaligned(source.add(i).read_unaligned().as_()) };
        }
    }
}

impl<S: AsPrimitive<T>, T: Copy + 'static> Stage for Convert<S, T> {
    unsafe fn run(&self, level: Level, span: Span) {
        level.run(ConvertLoop::<S, T>(span, PhantomData));
    }
}

/// A machine integer, which `as` converts to every machine type.
trait Native:
    AsPrimitive<i8>
    + AsPrimitive<i16>
    + AsPrimitive<i32>
    + AsPrimitive<i64>
    + AsPrimitive<u8>
    + AsPrimitive<u16>
    + AsPrimitive<u32>
    + AsPrimitive<u64>
    + AsPrimitive<f32>
    + AsPrimitive<f64>
{
    /// The stage to a target format, if that is a machine type.
    fn to(target: Format) -> Option<Box<dyn Stage>> {
        fn convert<S: AsPrimitive<T>, T: Copy + 'static>() -> Box<dyn Stage> {
            Box::new(Convert::<S, T>(PhantomData))
        }
        Some(match (target.kind(), target.row().bits) {
            (Kind::Integer { signed: true }, 8) => convert::<Self, i8>(),
            (Kind::Integer { signed: true }, 16) => convert::<Self, i16>(),
            (Kind::Integer { signed: true }, 32) => convert::<Self, i32>(),
            (Kind::Integer { signed: true }, 64) => convert::<Self, i64>(),
            (Kind::Integer { signed: false }, 8) => convert::<Self, u8>(),
            (Kind::Integer { signed: false }, 16) => convert::<Self, u16>(),
            (Kind::Integer { signed: false }, 32) => convert::<Self, u32>(),
            (Kind::Integer { signed: false }, 64) => convert::<Self, u64>(),
            (Kind::Float(_), 32) => convert::<Self, f32>(),
            (Kind::Float(_), 64) => convert::<Self, f64>(),
            _ => return None,
        })
    }
}

impl Native for i8 {}
impl Native for i16 {}
impl Native for i32 {}
impl Native for i64 {}
impl Native for u8 {}
impl Native for u16 {}
impl Native for u32 {}
impl Native for u64 {}

/// The stage for a pair of machine types whose source is an integer.
pub(super) fn stage(source: Format, target: Format) -> Option<Box<dyn Stage>> {
    match (source.kind(), source.row().bits) {
        (Kind::Integer { signed: true }, 8) => i8::to(target),
        (Kind::Integer { signed: true }, 16) => i16::to(target),
        (Kind::Integer { signed: true }, 32) => i32::to(target),
        (Kind::Integer { signed: true }, 64) => i64::to(target),
        (Kind::Integer { signed: false }, 8) => u8::to(target),
        (Kind::Integer { signed: false }, 16) => u16::to(target),
        (Kind::Integer { signed: false }, 32) => u32::to(target),
        (Kind::Integer { signed: false }, 64) => u64::to(target),
        _ => None,
    }
}
