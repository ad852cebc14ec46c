//! The machine's own integers, converted by the language: Rust's `as` has exactly castwise's defaults.
//!
//! Integers wrap into integers, and round to nearest even into floats. Bools and integers with unused storage bits are
//! extended to a byte first. Float sources are in [`super::from_float`].

use std::marker::PhantomData;

use num_traits::AsPrimitive;

use super::stage::{Elements, Span, SpanLoop, Stage};
use crate::codec::decode::IntegerValue;
use crate::format::{Format, Kind};
use crate::plain::Plain;

/// Converts one machine type to another; with `NARROW`, the source has unused bits.
struct Convert<S, T, const NARROW: bool>(IntegerValue<u8>, PhantomData<fn(S) -> T>);

// SAFETY: the loop writes one result for each element.
unsafe impl<S: Native + AsPrimitive<T>, T: Copy + 'static, const NARROW: bool> SpanLoop
    for Convert<S, T, NARROW>
{
    const NAME: &'static str = "Convert";

    #[inline(always)]
    unsafe fn run(&self, Span { source, target, count, .. }: Span) {
        let (value, source, target) = (self.0, source.cast::<S>(), target.cast::<T>());
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe {
                let bits = source.add(i).read_unaligned();
                let number = if NARROW { bits.worth(value) } else { bits };
                target.add(i).write_unaligned(number.as_());
            }
        }
    }
}

/// A machine integer, which `as` converts to machine types; to integers by width alone.
trait Native:
    Plain
    + AsPrimitive<u8>
    + AsPrimitive<u16>
    + AsPrimitive<u32>
    + AsPrimitive<u64>
    + AsPrimitive<f32>
    + AsPrimitive<f64>
{
    const UNSIGNED: bool = false;
    /// Integer targets of this many bytes or fewer take the low bits alone, which the unsigned types do.
    const WIDENS_FROM: usize = if Self::UNSIGNED { 0 } else { size_of::<Self>() };

    /// Returns the value of its bits; only formats of a byte have unused ones.
    #[inline(always)]
    fn worth(self, _value: IntegerValue<u8>) -> Self {
        self
    }

    /// Makes the stage to a target format, if that is a machine type.
    fn to<const NARROW: bool>(source: Format, target: Format) -> Option<Box<dyn Stage>> {
        fn convert<S: Native + AsPrimitive<T>, T: Copy + 'static, const NARROW: bool>(
            source: Format,
        ) -> Box<dyn Stage> {
            Elements::boxed(Convert::<S, T, NARROW>(IntegerValue::new(source.row()), PhantomData))
        }
        // Constants, so that the compiler meets no loop that is not used.
        Some(match (target.kind(), target.row().bits) {
            (Kind::Integer { .. }, 8) if const { Self::UNSIGNED || NARROW } => {
                convert::<Self, u8, NARROW>(source)
            }
            (Kind::Integer { .. }, 16) if const { Self::WIDENS_FROM < 2 } => {
                convert::<Self, u16, NARROW>(source)
            }
            (Kind::Integer { .. }, 32) if const { Self::WIDENS_FROM < 4 } => {
                convert::<Self, u32, NARROW>(source)
            }
            (Kind::Integer { .. }, 64) if const { Self::WIDENS_FROM < 8 } => {
                convert::<Self, u64, NARROW>(source)
            }
            (Kind::Float(_), 32) => convert::<Self, f32, NARROW>(source),
            (Kind::Float(_), 64) => convert::<Self, f64, NARROW>(source),
            _ => return None,
        })
    }
}

impl Native for i8 {
    #[inline(always)]
    fn worth(self, value: IntegerValue<u8>) -> Self {
        value.of(self as u8) as Self
    }
}
impl Native for u8 {
    const UNSIGNED: bool = true;

    #[inline(always)]
    fn worth(self, value: IntegerValue<u8>) -> Self {
        value.of(self)
    }
}
impl Native for i16 {}
impl Native for i32 {}
impl Native for i64 {}
impl Native for u16 {
    const UNSIGNED: bool = true;
}
impl Native for u32 {
    const UNSIGNED: bool = true;
}
impl Native for u64 {
    const UNSIGNED: bool = true;
}

/// Makes the stage for a pair whose source is an integer or bool, if the target is a machine type.
pub(crate) fn stage(source: Format, target: Format) -> Option<Box<dyn Stage>> {
    // A target that is not wider takes the low bits, whatever the sign.
    let cuts = matches!(target.kind(), Kind::Integer { .. }) && target.row().bits <= source.row().bits;
    let signed = source.kind() == Kind::Integer { signed: true } && !cuts;
    source.integer_range()?;
    match (signed, source.row().bits) {
        (true, 8) => i8::to::<false>(source, target),
        (true, ..8) => i8::to::<true>(source, target),
        (true, 16) => i16::to::<false>(source, target),
        (true, 32) => i32::to::<false>(source, target),
        (true, 64) => i64::to::<false>(source, target),
        (false, 8) if source.kind() != Kind::Bool => u8::to::<false>(source, target),
        (false, ..=8) => u8::to::<true>(source, target),
        (false, 16) => u16::to::<false>(source, target),
        (false, 32) => u32::to::<false>(source, target),
        (false, 64) => u64::to::<false>(source, target),
        _ => None,
    }
}
