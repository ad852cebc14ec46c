//! Integers of 8 to 64 bits as vectors of float32, for rounding to floats of 16 bits.

use super::float_source::Floats;
use crate::codec::decode::{Decoder, OddIntegerDecoder};
use crate::codec::pivot::Binary64;
use crate::simd::halves::up_above_middle;
use crate::simd::{MOST_BYTES, Vector};

/// Integers of `SIZE` bytes.
#[derive(Clone, Copy)]
pub(crate) struct IntegerSource<const SIZE: usize, const SIGNED: bool>;

/// Converts integers to float64, rounded to odd. Rare, so it is compiled once for all loops and levels.
///
/// # Safety
/// So many integers, at most as a register has lanes, are readable at the pointer.
#[cold]
#[inline(never)]
unsafe fn odd_lanes<const SIZE: usize, const SIGNED: bool>(
    source: *const u8,
    count: usize,
) -> [u64; MOST_BYTES / 4] {
    let mut odd = [0; MOST_BYTES / 4];
    for (place, odd) in odd.iter_mut().enumerate().take(count) {
        let code = match (SIZE, SIGNED) {
            (4, true) => source.cast::<i32>().add(place).read_unaligned() as u64,
            (4, false) => source.cast::<u32>().add(place).read_unaligned().into(),
            _ => source.cast::<u64>().add(place).read_unaligned(),
        };
        *odd = OddIntegerDecoder::<Binary64, SIGNED>::default().decode(code);
    }
    odd
}

/// The upper 16 bits of the largest float32 below 2^24, from where on integers are rounded.
const BELOW_ROUNDED: u16 = 0x4b7f;

/// The lower 16 bits of float32 in the middle of two bf16.
const MIDDLE: u16 = 1 << 15;

// SAFETY: every operation reads as many elements as it gives, of that size.
unsafe impl<const SIZE: usize, const SIGNED: bool> Floats for IntegerSource<SIZE, SIGNED> {
    const SIZE: usize = SIZE;
    const NAN: bool = false;
    const TINY: bool = false;
    const MOST: Option<u32> = Some(8 * SIZE as u32 - SIGNED as u32);

    /// Rounds to odd, slowly where float32 does not hold all integers.
    #[inline(always)]
    unsafe fn f32s<V: Vector>(&self, source: *const u8) -> V::F32s {
        if SIZE <= 2 {
            return V::load_integers::<SIZE, SIGNED>(source);
        }
        // SAFETY: the trait's contract: a register of float32 comes from as many integers.
        unsafe { V::load_f64(odd_lanes::<SIZE, SIGNED>(source, V::BYTES / 4).as_ptr().cast()) }
    }

    /// Integers that float32 rounds are beyond float16's range.
    #[inline(always)]
    unsafe fn f32s_midrange<V: Vector>(&self, source: *const u8) -> V::F32s {
        V::load_integers::<SIZE, SIGNED>(source)
    }

    #[inline(always)]
    unsafe fn nearest_bf16<V: Vector>(&self, source: *const u8, one: V::Integers) -> Option<V::Integers> {
        let second = source.wrapping_add(V::BYTES / 4 * SIZE);
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe {
            let a = V::bits(V::load_integers::<SIZE, SIGNED>(source));
            let b = V::bits(V::load_integers::<SIZE, SIGNED>(second));
            if SIZE == 1 {
                // Eight bits are enough.
                return Some(V::unzip16(a, b).1);
            }
            let (low, high) = V::halves(a, b);
            if SIZE > 2 {
                // Rounding twice is wrong only if the first rounding produced a midpoint.
                let is_middle = V::above16(V::splat16(MIDDLE + 1), low);
                if V::any16(is_middle) {
                    let magnitude = V::and(high, V::splat16(MIDDLE - 1));
                    let of_middles = V::choose16(is_middle, magnitude, V::splat16(0));
                    if V::any16(V::above16(of_middles, V::splat16(BELOW_ROUNDED))) {
                        return None;
                    }
                }
            }
            Some(V::halves_in_order(up_above_middle::<V>(low, high, one)))
        }
    }
}
