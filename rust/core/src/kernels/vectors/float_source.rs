//! Floats of 16 bits or more as vectors of upper halves, rounded to odd (see [`crate::codec::odd_bf16`]), or of singles.

use crate::simd::{Conversions, Vector};

/// A register of upper halves.
#[derive(Clone, Copy)]
pub(super) struct OddBf16<I> {
    /// The halves as they are: their signs, at least, are right.
    pub(super) cut: I,
    /// The halves with a last bit that records what was cut off.
    pub(super) odd: I,
}

/// Where singles or their upper halves come from.
///
/// # Safety
/// Each operation needs the level's features, and as many elements at the pointer as it gives.
pub(super) trait Floats: Copy + Send + Sync + 'static {
    /// Bytes of an element.
    const SIZE: usize;
    /// Whether they are singles but for a shift.
    const SHIFTED: bool = false;
    /// Whether some numbers but zero are below 2^-95.
    const TINY: bool = true;
    /// A register of singles.
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s;
    /// The same, for targets all of whose numbers are well within the normal ones of float32, and nearest roundings.
    #[inline(always)]
    unsafe fn f32s_midrange<V: Vector>(&self, source: *const u8) -> V::F32s {
        // SAFETY: the trait's contract.
        unsafe { self.f32s::<V>(source) }
    }
    /// A register of words, the upper halves of singles rounded to nearest even, `one` being 1 in every word; none where
    /// some are NaN, or need another look.
    #[inline(always)]
    unsafe fn nearest_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe {
            let [first, second] = pair::<V, Self>(*self, source);
            if V::any_nan(first, second) { None } else { Some(V::nearest_bf16(first, second, one)) }
        }
    }
    /// A register of integers of 32 bits, as [`Conversions::truncated`] makes them.
    #[inline(always)]
    unsafe fn truncated<V: Conversions>(&self, source: *const u8) -> V::Integers {
        // SAFETY: the trait's contract.
        unsafe { V::truncated(self.f32s::<V>(source)) }
    }
    /// Two registers of doubles.
    #[inline(always)]
    unsafe fn f64s<V: Conversions>(&self, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract.
        unsafe { V::to_f64(self.f32s::<V>(source)) }
    }
    /// A register of upper halves; `one` is 1 in every word.
    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> OddBf16<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe { odd_bf16::<V>(pair::<V, Self>(*self, source), one) }
    }
}

/// Two registers of singles.
///
/// # Safety
/// The level's features, and as many elements at the pointer.
#[inline(always)]
pub(super) unsafe fn pair<V: Vector, F: Floats>(floats: F, source: *const u8) -> [V::F32s; 2] {
    // SAFETY: the caller's promise; half of the elements lie in the second half of their bytes.
    unsafe { [floats.f32s::<V>(source), floats.f32s::<V>(source.add(V::BYTES / 4 * F::SIZE))] }
}

/// The upper halves of two registers of singles.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn odd_bf16<V: Vector>(
    [first, second]: [V::F32s; 2],
    one: V::Integers,
) -> OddBf16<V::Integers> {
    // SAFETY: the caller's promise.
    unsafe { round_to_odd::<V>(V::unzip16(V::bits(first), V::bits(second)), one) }
}

/// The upper halves of words below and words above.
///
/// # Safety
/// The level's features.
#[inline(always)]
unsafe fn round_to_odd<V: Vector>(
    (low, cut): (V::Integers, V::Integers),
    one: V::Integers,
) -> OddBf16<V::Integers> {
    // SAFETY: the caller's promise.
    unsafe { OddBf16 { cut, odd: V::or(cut, V::min16(low, one)) } }
}

/// float32.
#[derive(Clone, Copy)]
pub(super) struct F32Source;

impl Floats for F32Source {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        // SAFETY: the trait's contract.
        unsafe { V::from_bits(V::load(source)) }
    }

    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> OddBf16<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe { round_to_odd::<V>(V::load_unzipped16(source), one) }
    }
}

/// float32 with the upper half of its bits.
#[derive(Clone, Copy)]
pub(super) struct Bf16Source;

impl Floats for Bf16Source {
    const SIZE: usize = 2;
    const SHIFTED: bool = true;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        // SAFETY: the trait's contract.
        unsafe { V::load_bf16(source) }
    }

    #[inline(always)]
    unsafe fn odd_bf16<V: Vector>(&self, source: *const u8, _one: V::Integers) -> OddBf16<V::Integers> {
        // SAFETY: the trait's contract.
        let cut = unsafe { V::load(source) };
        OddBf16 { cut, odd: cut }
    }
}

/// IEEE half precision.
#[derive(Clone, Copy)]
pub(super) struct F16Source;

impl Floats for F16Source {
    const SIZE: usize = 2;
    const TINY: bool = false;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        // SAFETY: the trait's contract.
        unsafe { V::load_f16(source) }
    }
}

/// float64, rounded to odd: whatever has two bits less than float32 is rounded correctly from it.
#[derive(Clone, Copy)]
pub(super) struct F64Source;

impl Floats for F64Source {
    const SIZE: usize = 8;

    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        // SAFETY: the trait's contract.
        unsafe { V::load_f64(source) }
    }

    #[inline(always)]
    unsafe fn f32s_midrange<V: Vector>(&self, source: *const u8) -> V::F32s {
        // SAFETY: the trait's contract.
        unsafe { V::load_f64_midrange(source) }
    }

    #[inline(always)]
    unsafe fn nearest_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe { V::nearest_bf16_of_f64(source, one) }
    }

    #[inline(always)]
    unsafe fn truncated<V: Conversions>(&self, source: *const u8) -> V::Integers {
        // SAFETY: the trait's contract.
        unsafe { V::truncated_f64(source) }
    }

    #[inline(always)]
    unsafe fn f64s<V: Conversions>(&self, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract.
        unsafe { [V::load(source), V::load(source.add(V::BYTES))] }
    }
}
