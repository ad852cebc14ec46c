//! float32 and float64 to each other and to integers, by the machine's own instructions.
//!
//! The results are those of the general route: conversions with canonical NaN, and truncation into integers, clamped;
//! NaN gives 0.

use std::marker::PhantomData;

use num_traits::Float;

use super::stage::{Elements, Span, SpanLoop, Stage};
use crate::codec::encode::unclamped_range;
use crate::codec::options::Overflow;
use crate::codec::pivot::{narrow, widen};
use crate::format::{Format, Kind};
use crate::plain::Plain;

/// An elementwise conversion between machine types.
trait Convert<T>: Plain {
    fn convert(self) -> T;
}

impl Convert<f64> for f32 {
    #[inline(always)]
    fn convert(self) -> f64 {
        f64::from_bits(widen(self.to_bits()))
    }
}

impl Convert<f32> for f64 {
    #[inline(always)]
    fn convert(self) -> f32 {
        f32::from_bits(narrow(self.to_bits()))
    }
}

/// Clamps a number; NaN gives the lower limit. Each comparison is one instruction; `clamp` and `max` need more, for
/// NaN.
#[inline(always)]
fn clamp<F: Float>(number: F, low: F, high: F) -> F {
    let above = if number > low { number } else { low };
    if above < high { above } else { high }
}

macro_rules! truncate {
    ($($float:ty => $($integer:ty)*;)*) => {$($(
        impl Convert<$integer> for $float {
            #[inline(always)]
            fn convert(self) -> $integer {
                const LOW: $float = <$integer>::MIN as $float;
                // The limit itself, or the float below it where only the next power of two is a float.
                const ROUNDED: $float = <$integer>::MAX as $float;
                const FITS: bool = ROUNDED as i128 == <$integer>::MAX as i128;
                const HIGH: $float = if FITS { ROUNDED } else { ROUNDED.next_down() };
                let clamped = clamp(self, LOW, HIGH);
                // SAFETY: LOW <= clamped <= HIGH, both of which are in the integer's range, and it is not NaN.
                let truncated = unsafe { clamped.to_int_unchecked::<$integer>() };
                let whole = if !FITS && self > HIGH { <$integer>::MAX } else { truncated };
                if self.is_nan() { 0 } else { whole }
            }
        }
    )*)*};
}
truncate! {
    f32 => i32 i64 u32 u64;
    f64 => i32 i64 u32 u64;
}

/// Clamps an integer to limits of 16 bits or fewer. The value is within them already; the clamp shows the compiler that
/// vectors may be packed with saturation.
#[inline(always)]
fn low_bits(whole: i32, low: i32, high: i32) -> u16 {
    whole.clamp(low, high) as u16
}

macro_rules! truncate_short {
    ($($float:ty => $($integer:ty)*;)*) => {$($(
        impl Convert<$integer> for $float {
            #[inline(always)]
            fn convert(self) -> $integer {
                let number = if self.is_nan() { 0.0 } else { self };
                let clamped = clamp(number, <$integer>::MIN as $float, <$integer>::MAX as $float);
                // SAFETY: it is between the limits of the integer, which are within those of i32.
                let whole = unsafe { clamped.to_int_unchecked::<i32>() };
                low_bits(whole, <$integer>::MIN as i32, <$integer>::MAX as i32) as $integer
            }
        }
    )*)*};
}
truncate_short! {
    f32 => i8 i16 u8 u16;
    f64 => i8 i16 u8 u16;
}

impl<F: Plain + Float> Convert<bool> for F {
    #[inline(always)]
    fn convert(self) -> bool {
        self != F::zero()
    }
}

/// With `PORTABLE`, the loop is compiled for no other level: these have vectors for the pair.
struct Floats<S, T, const PORTABLE: bool>(PhantomData<fn(S) -> T>);

// SAFETY: the loop writes one result for each element.
unsafe impl<S: Convert<T> + 'static, T: 'static, const PORTABLE: bool> SpanLoop for Floats<S, T, PORTABLE> {
    const NAME: &'static str = "Floats";
    const PORTABLE: bool = PORTABLE;

    #[inline(always)]
    unsafe fn run(&self, Span { source, target, count, .. }: Span) {
        let (source, target) = (source.cast::<S>(), target.cast::<T>());
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe { target.add(i).write_unaligned(source.add(i).read_unaligned().convert()) };
        }
    }
}

fn boxed<S: Convert<T> + 'static, T: 'static>() -> Box<dyn Stage> {
    Elements::boxed(Floats::<S, T, false>(PhantomData))
}

fn portable<S: Convert<T> + 'static, T: 'static>() -> Box<dyn Stage> {
    Elements::boxed(Floats::<S, T, true>(PhantomData))
}

/// Truncation into integers of fewer bits than the byte that they are stored in.
#[derive(Clone, Copy)]
pub(crate) struct ToByte<F> {
    /// Numbers strictly between the two are truncated to an i32 and keep its low bits.
    below: F,
    above: F,
    /// Other numbers become these limits of the format.
    low: i32,
    high: i32,
    pub(crate) code_mask: i32,
}

macro_rules! to_byte {
    ($($float:ty)*) => {$(
        // SAFETY: the loop writes one result for each element.
        unsafe impl SpanLoop for ToByte<$float> {
            const NAME: &'static str = "ToByte";

            #[inline(always)]
            unsafe fn run(&self, Span { source, target, count, .. }: Span) {
                let (to_byte, source) = (*self, source.cast::<$float>());
                for i in 0..count {
                    // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
                    unsafe { target.add(i).write(to_byte.code(source.add(i).read_unaligned())) };
                }
            }
        }

        impl ToByte<$float> {
            /// Returns the code of a number.
            #[inline(always)]
            pub(crate) fn code(self, number: $float) -> u8 {
                let Self { below, above, low, high, code_mask } = self;
                let inside = if (number > below) & (number < above) { number } else { 0.0 };
                // SAFETY: it is 0, or its truncation is in the range of i32 (`new`).
                let whole = unsafe { inside.to_int_unchecked::<i32>() };
                let whole = if number <= below { low } else { whole };
                let whole = if number >= above { high } else { whole };
                low_bits(whole & code_mask, 0, i8::MAX.into()) as u8
            }

            /// Returns `None` if the target is not an integer.
            pub(crate) fn new(target: Format, overflow: Overflow) -> Option<Self> {
                let (low, high) = target.integer_range()?;
                let (first, last) = unclamped_range(target, overflow)?;
                // `last + 1` is a power of two, so exact; `first - 1` may round to `first`.
                let (below, above) = ((first - 1) as $float, (last + 1) as $float);
                Some(Self {
                    below: if below == first as $float { below.next_down() } else { below },
                    above,
                    low: low as i32,
                    high: high as i32,
                    code_mask: i32::from(u8::MAX >> (8 - target.row().bits)),
                })
            }
        }
    )*};
}
to_byte!(f32 f64);

/// Makes the stage from a machine float to bool (NaN is true) or to an integer.
fn to_integer<S>(target: Format) -> Option<Box<dyn Stage>>
where
    S: Convert<i8> + Convert<i16> + Convert<i32> + Convert<i64>,
    S: Convert<u8> + Convert<u16> + Convert<u32> + Convert<u64> + Convert<bool> + 'static,
{
    Some(match (target.kind(), target.row().bits) {
        (Kind::Bool, _) => boxed::<S, bool>(),
        (Kind::Integer { signed: true }, 8) => portable::<S, i8>(),
        (Kind::Integer { signed: false }, 8) => portable::<S, u8>(),
        (Kind::Integer { signed: true }, 16) => portable::<S, i16>(),
        (Kind::Integer { signed: true }, 32) => portable::<S, i32>(),
        (Kind::Integer { signed: true }, 64) => portable::<S, i64>(),
        (Kind::Integer { signed: false }, 16) => portable::<S, u16>(),
        (Kind::Integer { signed: false }, 32) => portable::<S, u32>(),
        (Kind::Integer { signed: false }, 64) => portable::<S, u64>(),
        _ => return None,
    })
}

/// Makes the stage from float32 elements or lanes.
pub(crate) fn from_float32(target: Format, overflow: Overflow) -> Option<Box<dyn Stage>> {
    match (target.row().bits, target.kind()) {
        (64, Kind::Float(_)) => Some(boxed::<f32, f64>()),
        (..8, Kind::Integer { .. }) => Some(Elements::boxed(ToByte::<f32>::new(target, overflow)?)),
        _ => to_integer::<f32>(target),
    }
}

/// Makes the stage from float64 elements.
pub(crate) fn from_float64(target: Format, overflow: Overflow) -> Option<Box<dyn Stage>> {
    match (target.row().bits, target.kind()) {
        (32, Kind::Float(_)) => Some(boxed::<f64, f32>()),
        (..8, Kind::Integer { .. }) => Some(Elements::boxed(ToByte::<f64>::new(target, overflow)?)),
        _ => to_integer::<f64>(target),
    }
}
