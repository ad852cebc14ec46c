//! Floats of 16 bits or more as vectors of upper halves, rounded to odd (see [`crate::codec::upper`]), or of singles.

use crate::simd::{Conversions, Vector};

/// A register of upper halves.
#[derive(Clone, Copy)]
pub(super) struct Upper<I> {
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
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles;
    /// The same, for targets all of whose numbers are well within the normal ones of float32, and nearest roundings.
    #[inline(always)]
    unsafe fn middling_singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { self.singles::<V>(source) }
    }
    /// A register of words, the upper halves of singles rounded to nearest even, `one` being 1 in every word; none where
    /// some are NaN, or need another look.
    #[inline(always)]
    unsafe fn nearest_upper<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe {
            let [first, second] = pair::<V, Self>(*self, source);
            if V::any_nan(first, second) { None } else { Some(V::nearest_upper(first, second, one)) }
        }
    }
    /// A register of integers of 32 bits, as [`Conversions::truncated`] makes them.
    #[inline(always)]
    unsafe fn truncated<V: Conversions>(&self, source: *const u8) -> V::Integers {
        // SAFETY: the trait's contract.
        unsafe { V::truncated(self.singles::<V>(source)) }
    }
    /// Two registers of doubles.
    #[inline(always)]
    unsafe fn doubles<V: Conversions>(&self, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract.
        unsafe { V::doubles(self.singles::<V>(source)) }
    }
    /// A register of upper halves; `one` is 1 in every word.
    #[inline(always)]
    unsafe fn upper<V: Vector>(&self, source: *const u8, one: V::Integers) -> Upper<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe { upper::<V>(pair::<V, Self>(*self, source), one) }
    }
}

/// Two registers of singles.
///
/// # Safety
/// The level's features, and as many elements at the pointer.
#[inline(always)]
pub(super) unsafe fn pair<V: Vector, F: Floats>(floats: F, source: *const u8) -> [V::Singles; 2] {
    // SAFETY: the caller's promise; half of the elements lie in the second half of their bytes.
    unsafe { [floats.singles::<V>(source), floats.singles::<V>(source.add(V::BYTES / 4 * F::SIZE))] }
}

/// The upper halves of two registers of singles.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(super) unsafe fn upper<V: Vector>(
    [first, second]: [V::Singles; 2],
    one: V::Integers,
) -> Upper<V::Integers> {
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
) -> Upper<V::Integers> {
    // SAFETY: the caller's promise.
    unsafe { Upper { cut, odd: V::or(cut, V::min16(low, one)) } }
}

/// float32.
#[derive(Clone, Copy)]
pub(super) struct Singles;

impl Floats for Singles {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::singles(V::load(source)) }
    }

    #[inline(always)]
    unsafe fn upper<V: Vector>(&self, source: *const u8, one: V::Integers) -> Upper<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe { round_to_odd::<V>(V::load_unzipped16(source), one) }
    }
}

/// float32 with the upper half of its bits.
#[derive(Clone, Copy)]
pub(super) struct UpperHalves;

impl Floats for UpperHalves {
    const SIZE: usize = 2;
    const SHIFTED: bool = true;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::load_upper(source) }
    }

    #[inline(always)]
    unsafe fn upper<V: Vector>(&self, source: *const u8, _one: V::Integers) -> Upper<V::Integers> {
        // SAFETY: the trait's contract.
        let cut = unsafe { V::load(source) };
        Upper { cut, odd: cut }
    }
}

/// IEEE half precision.
#[derive(Clone, Copy)]
pub(super) struct IeeeHalves;

impl Floats for IeeeHalves {
    const SIZE: usize = 2;
    const TINY: bool = false;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::load_halves(source) }
    }
}

/// float64, rounded to odd: whatever has two bits less than float32 is rounded correctly from it.
#[derive(Clone, Copy)]
pub(super) struct Doubles;

impl Floats for Doubles {
    const SIZE: usize = 8;

    #[inline(always)]
    unsafe fn singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::load_doubles(source) }
    }

    #[inline(always)]
    unsafe fn middling_singles<V: Vector>(&self, source: *const u8) -> V::Singles {
        // SAFETY: the trait's contract.
        unsafe { V::load_middling_doubles(source) }
    }

    #[inline(always)]
    unsafe fn nearest_upper<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        // SAFETY: the trait's contract.
        unsafe { V::nearest_upper_of_doubles(source, one) }
    }

    #[inline(always)]
    unsafe fn truncated<V: Conversions>(&self, source: *const u8) -> V::Integers {
        // SAFETY: the trait's contract.
        unsafe { V::truncated_doubles(source) }
    }

    #[inline(always)]
    unsafe fn doubles<V: Conversions>(&self, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract.
        unsafe { [V::load(source), V::load(source.add(V::BYTES))] }
    }
}
