//! Integers of 32 and 64 bits to those of 8 or fewer, wrapped: their lowest bytes. For levels without long tables,
//! where the compiler's own loop has more instructions.

use super::then_elements::Registers;
use super::vector_loop::{Step, quarters};
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::simd::{Conversions, with_nibbles};

/// The bits that are kept of integers of `SIZE` bytes.
#[derive(Clone, Copy)]
struct LowBytes<const SIZE: usize>(u8);

impl<const SIZE: usize> LowBytes<SIZE> {
    /// Loads the lower 32 bits of as many elements as a register has 32-bit lanes.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    #[inline(always)]
    unsafe fn low32<V: Conversions>(source: *const u8) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let first = V::load(source);
            if SIZE == 4 { first } else { V::even32(first, V::load(source.add(V::BYTES))) }
        }
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions, const SIZE: usize> Step<V, 1> for LowBytes<SIZE> {
    const FROM: usize = SIZE;
    type Ready = V::Integers;

    #[inline(always)]
    unsafe fn ready(&self) -> V::Integers {
        // SAFETY: the trait's contract.
        unsafe { V::splat32(self.0.into()) }
    }

    #[inline(always)]
    unsafe fn step(mask: V::Integers, source: *const u8) -> [V::Integers; 1] {
        let [a, b, c, d] = quarters::<V>(source, SIZE);
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes.
        unsafe {
            [V::clamp_to_8::<false>([
                V::and(Self::low32::<V>(a), mask),
                V::and(Self::low32::<V>(b), mask),
                V::and(Self::low32::<V>(c), mask),
                V::and(Self::low32::<V>(d), mask),
            ])]
        }
    }
}

/// Fewer elements are faster one by one.
const FEWEST: usize = 1 << 8;

/// Makes the loop for a pair of integer formats on a level that has no instruction for it.
pub(super) fn registers((source, target): (Format, Format), level: Level) -> Option<Registers> {
    let integers = [source, target].map(|format| matches!(format.kind(), Kind::Integer { .. }));
    if integers != [true; 2] || target.item_size() > 1 {
        return None;
    }
    let mask = u8::MAX >> (u8::BITS - target.row().bits);
    with_nibbles!(level, vectors => match source.item_size() {
        4 => Some(Registers::new::<_, _, 1>(vectors, LowBytes::<4>(mask), FEWEST)),
        8 => Some(Registers::new::<_, _, 1>(vectors, LowBytes::<8>(mask), FEWEST)),
        _ => None,
    })?
}
