//! The floats that blocks are computed in: float32, or float64 for exact results.
//!
//! Unsafe functions need what those of [`crate::kernels::vectors`] do: their bodies are not marked again either.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this module says"
)]

use num_traits::PrimInt;
use operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};

use crate::codec::product::odd_product;
use crate::cpu::level::run_portable;
use crate::cpu::{Level, RawKernel};
use crate::format::Format;
use crate::kernels::vectors::shapes::bf16_spec;
use crate::plain::Plain;
use crate::simd::Vector;
use crate::simd::halves::larger_magnitudes;

/// An operation of two tiles.
pub(super) mod operation {
    pub(crate) const SUBTRACT: u8 = 0;
    pub(crate) const MULTIPLY: u8 = 1;
    pub(crate) const DIVIDE: u8 = 2;
    pub(crate) const ADD: u8 = 3;
}

/// Bits of a float with a sign: without it, they are in the order of magnitudes, and NaN is the largest.
pub(super) trait Bits: Copy + Default + Ord + PrimInt {
    #[inline(always)]
    fn magnitude(self) -> Self {
        self & (Self::max_value() >> 1)
    }
    /// Magnitudes of a register of them, or what they were.
    ///
    /// # Safety
    /// The level's features.
    unsafe fn raised<V: Vector>(most: V::Integers, bits: V::Integers) -> V::Integers;
    /// The largest of a register of magnitudes.
    ///
    /// # Safety
    /// The level's features.
    unsafe fn most<V: Vector>(magnitudes: V::Integers) -> Self;
}

impl Bits for u16 {
    #[inline(always)]
    unsafe fn raised<V: Vector>(most: V::Integers, bits: V::Integers) -> V::Integers {
        V::max16(most, V::and(bits, V::splat16(Self::MAX >> 1)))
    }

    #[inline(always)]
    unsafe fn most<V: Vector>(magnitudes: V::Integers) -> Self {
        V::most16(magnitudes)
    }
}

impl Bits for u32 {
    #[inline(always)]
    unsafe fn raised<V: Vector>(most: V::Integers, bits: V::Integers) -> V::Integers {
        larger_magnitudes::<V>(most, bits)
    }

    #[inline(always)]
    unsafe fn most<V: Vector>(magnitudes: V::Integers) -> Self {
        V::most32(magnitudes)
    }
}

/// `raise_largest` has no registers of float64.
impl Bits for u64 {
    #[inline(always)]
    unsafe fn raised<V: Vector>(most: V::Integers, _bits: V::Integers) -> V::Integers {
        most
    }

    #[inline(always)]
    unsafe fn most<V: Vector>(_magnitudes: V::Integers) -> Self {
        0
    }
}

/// float32, or float64 for exact results.
///
/// # Safety
/// `Bits` is the unsigned integer of its size: values may be viewed as bits, and any bits as values.
pub(super) unsafe trait Real: Plain + PartialOrd + Default {
    /// The format of this name.
    const FORMAT: &'static str;
    /// Whether it is float32. Weights of more than 32 bits are rare: what is only fast for others is not compiled for them.
    const IS_SINGLE: bool;
    /// 1.
    const ONE: Self;
    /// Its bits.
    type Bits: Bits;
    /// Returns a float32 as it is.
    fn from_f32(value: f32) -> Self;
    /// Returns a float64 as it is, or rounded.
    fn from_f64(value: f64) -> Self;
    /// Returns it as a float64.
    fn to_f64(self) -> f64;
    /// Returns the larger magnitude of two values, where NaN is the largest.
    fn larger(self, other: Self) -> Self;
    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Limits a number.
    fn limited(self, low: Self, high: Self) -> Self;
    /// Applies an operation; `ODD` rounds to odd, for results that are rounded once more. NaN is the positive one.
    fn combine<const OPERATION: u8, const ODD: bool>(self, other: Self) -> Self;
    /// Returns them as they are, if they are float32.
    fn f32s(values: &[Self]) -> Option<&[f32]>;
    /// Runs a kernel on a level; those of float64 are compiled once, for the level of every CPU.
    ///
    /// # Safety
    /// As for the kernel's [`RawKernel::run`].
    unsafe fn run<K: RawKernel>(level: Level, kernel: K) -> K::Output;
}

macro_rules! real {
    (
        $real:ty, $bits:ty, $name:literal, $f32s:expr,
        |$level:ident, $kernel:ident| $run:expr, |$operation:ident, $a:ident, $b:ident| $odd:expr
    ) => {
        // SAFETY: the bits given are those of its `from_bits`.
        unsafe impl Real for $real {
            const FORMAT: &'static str = $name;
            const IS_SINGLE: bool = size_of::<Self>() == size_of::<f32>();
            const ONE: Self = 1.0;
            type Bits = $bits;

            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                Self::from(value)
            }

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            // Bits of magnitudes are in the order of their values, and integers are faster to compare.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Self::from_bits(self.abs().to_bits().max(other.abs().to_bits()))
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                self.abs() < Self::INFINITY
            }

            #[inline(always)]
            fn limited(self, low: Self, high: Self) -> Self {
                self.max(low).min(high)
            }

            #[inline(always)]
            fn combine<const OPERATION: u8, const ODD: bool>(self, other: Self) -> Self {
                let ($operation, $a, $b) = (OPERATION, self, other);
                let result = match OPERATION {
                    SUBTRACT => self - other,
                    _ if ODD => $odd,
                    MULTIPLY => self * other,
                    DIVIDE => self / other,
                    _ => self + other,
                };
                // The sign of a NaN that an operation makes depends on the machine.
                if result.is_nan() { Self::NAN } else { result }
            }

            #[inline(always)]
            fn f32s(values: &[Self]) -> Option<&[f32]> {
                $f32s(values)
            }

            #[inline(always)]
            unsafe fn run<K: RawKernel>($level: Level, $kernel: K) -> K::Output {
                $run
            }
        }
    };
}
real!(f32, u32, "float32", Some, |level, kernel| level.run_raw(kernel), |_operation, a, _b| a);
real!(
    f64,
    u64,
    "float64",
    |_| None,
    |_level, kernel| run_portable(kernel),
    |operation, a, b| match operation {
        MULTIPLY => odd_product(a, b),
        DIVIDE => odd_quotient(a, b),
        ADD => odd_sum(a, b),
        _ => a,
    }
);

/// Returns a result rounded to odd, given the one rounded to nearest and the sign of what is missing.
#[inline(always)]
fn to_odd(result: f64, missing: f64) -> f64 {
    let bits = result.to_bits();
    let grows = (missing < 0.0) == (result < 0.0);
    let odd = if grows { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let exact = missing == 0.0 || !result.is_finite() || result == 0.0;
    if exact || bits & 1 == 1 { result } else { f64::from_bits(odd) }
}

/// `a / b` rounded to odd, for numbers with the exponents of float32 or products of two of them.
#[inline(always)]
fn odd_quotient(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    let rest = quotient.mul_add(-b, a);
    to_odd(quotient, if b < 0.0 { -rest } else { rest })
}

/// `a + b` rounded to odd (the error by Knuth's two-sum).
#[inline(always)]
fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    to_odd(sum, (a - (sum - part)) + (b - part))
}

/// Returns the format of the upper halves of float32.
pub(super) fn bf16() -> Format {
    let is_bf16 = |format: &Format| format.float() == Some(bf16_spec());
    Format::all().find(is_bf16).unwrap_or_else(|| unreachable!("the table has bfloat16"))
}

/// Returns the format of a real type.
pub(super) fn format<T: Real>() -> Format {
    Format::named(T::FORMAT).unwrap_or_else(|| unreachable!("the table has float32 and float64"))
}
