//! Loads floats of 16 bits or more as vectors of float32, or of bf16 rounded to odd (see [`crate::codec::odd_bf16`]).

use crate::simd::halves::{nearest_bf16, to_odd};
use crate::simd::{Conversions, Vector, rounding};

/// A register of bf16.
#[derive(Clone, Copy)]
pub(crate) struct OddBf16<I> {
    /// The upper 16 bits, truncated: their signs are right.
    pub(crate) cut: I,
    /// The same rounded to odd: the last bit records whether anything was cut off.
    pub(crate) odd: I,
}

/// A source of float32 or bf16 vectors. Each operation needs the level's features, and as many elements at the pointer as
/// it gives.
///
/// # Safety
/// An operation reads no other memory than elements of [`Floats::SIZE`] bytes, as many as it gives.
pub(crate) unsafe trait Floats: Copy + Send + Sync + 'static {
    /// Bytes of an element.
    const SIZE: usize;
    /// Whether elements are loaded as they are, without a factor.
    const PLAIN: bool = false;
    /// Whether a shift makes them float32.
    const SHIFTED: bool = false;
    /// Whether NaN exists.
    const NAN: bool = true;
    /// Whether nonzero values below 2^-95 exist.
    const TINY: bool = true;
    /// The binary logarithm of the largest magnitude, rounded up, where it is small.
    const MOST: Option<u32> = None;
    /// Loads a register of float32.
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s;
    /// Does the same for rounding to nearest into targets whose values are all well within float32's normal range.
    #[inline(always)]
    unsafe fn f32s_midrange<V: Vector>(&self, source: *const u8) -> V::F32s {
        self.f32s::<V>(source)
    }
    /// Loads two registers of float32.
    #[inline(always)]
    unsafe fn pair<V: Vector>(&self, source: *const u8) -> [V::F32s; 2] {
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe { [self.f32s::<V>(source), self.f32s::<V>(source.add(V::BYTES / 4 * Self::SIZE))] }
    }
    /// Loads two registers as [`Floats::f32s_midrange`] does.
    #[inline(always)]
    unsafe fn pair_midrange<V: Vector>(&self, source: *const u8) -> [V::F32s; 2] {
        let second = source.wrapping_add(V::BYTES / 4 * Self::SIZE);
        [self.f32s_midrange::<V>(source), self.f32s_midrange::<V>(second)]
    }
    /// Loads a register of bf16 rounded to nearest even; `one` is 1 in every 16-bit lane. `None` if some are NaN or
    /// need a slower way.
    #[inline(always)]
    unsafe fn nearest_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        let [first, second] = self.pair::<V>(source);
        if V::any_nan([first, second]) { None } else { Some(nearest_bf16::<V>(first, second, one)) }
    }
    /// Loads four registers of 32-bit integers, as [`Conversions::truncated`] makes them, or with an unsigned range; a
    /// source may round them in another way.
    #[inline(always)]
    unsafe fn truncated_four<V: Conversions, const SIGNED: bool>(
        &self,
        source: [*const u8; 4],
    ) -> [V::Integers; 4] {
        // No `map`: the instructions of a level are not inlined into closures.
        let (a, b) = (self.f32s::<V>(source[0]), self.f32s::<V>(source[1]));
        let (c, d) = (self.f32s::<V>(source[2]), self.f32s::<V>(source[3]));
        if !SIGNED {
            return V::truncated_unsigned([a, b, c, d]);
        }
        let quick = truncated_quickly::<V>([a, b, c, d]);
        if V::any_doubtful(quick) {
            return [V::truncated(a), V::truncated(b), V::truncated(c), V::truncated(d)];
        }
        quick
    }
    /// Loads two registers of float64.
    #[inline(always)]
    unsafe fn f64s<V: Conversions>(&self, source: *const u8) -> [V::Integers; 2] {
        V::to_f64(self.f32s::<V>(source))
    }
    /// Loads a register of bf16; `one` is 1 in every 16-bit lane.
    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> OddBf16<V::Integers> {
        odd_bf16::<V>(self.pair::<V>(source), one)
    }
}

/// Truncates four registers.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn truncated_quickly<V: Conversions>([a, b, c, d]: [V::F32s; 4]) -> [V::Integers; 4] {
    [
        V::rounded_quickly::<{ rounding::TOWARDS_ZERO }>(a),
        V::rounded_quickly::<{ rounding::TOWARDS_ZERO }>(b),
        V::rounded_quickly::<{ rounding::TOWARDS_ZERO }>(c),
        V::rounded_quickly::<{ rounding::TOWARDS_ZERO }>(d),
    ]
}

/// Returns two registers of float32 as one of bf16.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn odd_bf16<V: Vector>(
    [first, second]: [V::F32s; 2],
    one: V::Integers,
) -> OddBf16<V::Integers> {
    round_to_odd::<V>(V::unzip16(V::bits(first), V::bits(second)), one)
}

/// Rounds to odd, from registers of the lower and of the upper 16 bits.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn round_to_odd<V: Vector>(
    (low, cut): (V::Integers, V::Integers),
    one: V::Integers,
) -> OddBf16<V::Integers> {
    OddBf16 { cut, odd: to_odd::<V>(low, cut, one) }
}

/// float32.
#[derive(Clone, Copy)]
pub(crate) struct F32Source;

// SAFETY: every operation reads as many elements as it gives, of that size.
unsafe impl Floats for F32Source {
    const SIZE: usize = 4;
    const PLAIN: bool = true;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::from_bits(V::load(source))
    }

    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> OddBf16<V::Integers> {
        round_to_odd::<V>(V::load_unzipped16(source), one)
    }
}

/// bf16: the upper 16 bits of a float32.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Source;

// SAFETY: every operation reads as many elements as it gives, of that size.
unsafe impl Floats for Bf16Source {
    const SIZE: usize = 2;
    const PLAIN: bool = true;
    const SHIFTED: bool = true;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::load_bf16(source)
    }

    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, _one: V::Integers) -> OddBf16<V::Integers> {
        let cut = V::load(source);
        OddBf16 { cut, odd: cut }
    }
}

/// float16.
#[derive(Clone, Copy)]
pub(crate) struct F16Source;

// SAFETY: every operation reads as many elements as it gives, of that size.
unsafe impl Floats for F16Source {
    const SIZE: usize = 2;
    const PLAIN: bool = true;
    const TINY: bool = false;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::load_f16(source)
    }
}

/// float64 rounded to nearest in float32.
#[derive(Clone, Copy)]
pub(super) struct NearestF64Source;

// SAFETY: every operation reads as many elements as it gives, of that size.
unsafe impl Floats for NearestF64Source {
    const SIZE: usize = 8;
    const PLAIN: bool = true;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::load_f64_nearest(source)
    }
}

/// float64 rounded to odd in float32: rounding from there to two bits fewer is correct.
#[derive(Clone, Copy)]
pub(super) struct F64Source;

// SAFETY: every operation reads as many elements as it gives, of that size.
unsafe impl Floats for F64Source {
    const SIZE: usize = 8;
    const PLAIN: bool = true;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::load_f64(source)
    }

    #[inline(always)]
    unsafe fn f32s_midrange<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::load_f64_midrange(source)
    }

    #[inline(always)]
    unsafe fn nearest_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        V::nearest_bf16_of_f64(source, one)
    }

    #[inline(always)]
    unsafe fn truncated_four<V: Conversions, const SIGNED: bool>(
        &self,
        [a, b, c, d]: [*const u8; 4],
    ) -> [V::Integers; 4] {
        if !SIGNED {
            return [
                V::truncated_f64::<false>(a),
                V::truncated_f64::<false>(b),
                V::truncated_f64::<false>(c),
                V::truncated_f64::<false>(d),
            ];
        }
        let quick = [
            V::truncated_quickly_f64(a),
            V::truncated_quickly_f64(b),
            V::truncated_quickly_f64(c),
            V::truncated_quickly_f64(d),
        ];
        if V::any_doubtful(quick) {
            return [
                V::truncated_f64::<true>(a),
                V::truncated_f64::<true>(b),
                V::truncated_f64::<true>(c),
                V::truncated_f64::<true>(d),
            ];
        }
        quick
    }

    #[inline(always)]
    unsafe fn f64s<V: Conversions>(&self, source: *const u8) -> [V::Integers; 2] {
        [V::load(source), V::load(source.add(V::BYTES))]
    }
}
