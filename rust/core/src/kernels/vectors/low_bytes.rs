//! Integers of 16 bits or more to those of 8 or fewer, wrapped: their lowest bytes. From 32 bits and from 64, and from 64
//! to 16 bits and to bool, for levels without long tables, where the compiler's own loops have more instructions.

use super::then_elements::Registers;
use super::vector_loop::{Step, quarters};
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::simd::{Conversions, MOST_BYTES, Vector, with_vectors};

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
        let first = V::load(source);
        if SIZE == 4 { first } else { V::even::<4>(first, V::load(source.add(V::BYTES))) }
    }
}

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions, const SIZE: usize> Step<V, 1> for LowBytes<SIZE> {
    const NAME: &'static str = "LowBytes";
    const FROM: usize = SIZE;
    type Ready = V::Integers;

    #[inline(always)]
    unsafe fn ready(&self) -> V::Integers {
        V::splat32(self.0.into())
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

/// The bits that are kept of integers of 16 bits.
#[derive(Clone, Copy)]
struct LowerBytes(u8);

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector> Step<V, 1> for LowerBytes {
    const NAME: &'static str = "LowerBytes";
    const FROM: usize = size_of::<u16>();
    type Ready = V::Integers;

    #[inline(always)]
    unsafe fn ready(&self) -> V::Integers {
        V::splat8(self.0)
    }

    #[inline(always)]
    unsafe fn step(mask: V::Integers, source: *const u8) -> [V::Integers; 1] {
        let (even, _) = V::unzip8(V::load(source), V::load(source.add(V::BYTES)));
        [V::in_order(V::and(even, mask))]
    }
}

/// 64-bit integers to their lower 16 bits.
#[derive(Clone, Copy)]
struct Lower16;

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions> Step<V, 2> for Lower16 {
    const NAME: &'static str = "Lower16";
    const FROM: usize = size_of::<u64>();
    type Ready = V::Integers;

    #[inline(always)]
    unsafe fn ready(&self) -> V::Integers {
        V::splat32(u16::MAX.into())
    }

    #[inline(always)]
    unsafe fn step(mask: V::Integers, source: *const u8) -> [V::Integers; 2] {
        let [a, b, c, d] = quarters::<V>(source, size_of::<u64>());
        // SAFETY: the trait's contract; each quarter of the elements lies in a quarter of their bytes.
        unsafe {
            let (a, b) = (LowBytes::<8>::low32::<V>(a), LowBytes::<8>::low32::<V>(b));
            let (c, d) = (LowBytes::<8>::low32::<V>(c), LowBytes::<8>::low32::<V>(d));
            [
                V::clamp_to_16::<false>([V::and(a, mask), V::and(b, mask)]),
                V::clamp_to_16::<false>([V::and(c, mask), V::and(d, mask)]),
            ]
        }
    }
}

/// Elements of 64 bits to whether any bit is set; of floats, any but the sign.
#[derive(Clone, Copy)]
struct Truth<const FLOAT: bool>;

/// All bits of float64 but the sign, by halves.
static MAGNITUDES: [u64; MOST_BYTES / 8] = [u64::MAX >> 1; MOST_BYTES / 8];

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Conversions, const FLOAT: bool> Step<V, 1> for Truth<FLOAT> {
    const NAME: &'static str = "Truth";
    const FROM: usize = size_of::<u64>();
    /// The mask, and 1 in every u16.
    type Ready = (V::Integers, V::Integers);

    #[inline(always)]
    unsafe fn ready(&self) -> Self::Ready {
        // SAFETY: the trait's contract; the masks fill a register.
        unsafe { (V::load(MAGNITUDES.as_ptr().cast()), V::splat16(1)) }
    }

    #[inline(always)]
    unsafe fn step((mask, one): Self::Ready, source: *const u8) -> [V::Integers; 1] {
        // SAFETY: the trait's contract; half of the elements lie in the second half of their bytes.
        unsafe {
            let low = truths_of_four::<V, FLOAT>(source, mask);
            let high = truths_of_four::<V, FLOAT>(source.add(4 * V::BYTES), mask);
            let (even, _) = V::unzip8(V::min16(low, one), V::min16(high, one));
            [V::in_order(even)]
        }
    }
}

/// Loads four registers of 64 bits as one of u16, which are zero where those are: clamped, a number stays other than
/// zero.
///
/// # Safety
/// The level's features, and as many elements at the pointer.
#[inline(always)]
unsafe fn truths_of_four<V: Conversions, const FLOAT: bool>(
    source: *const u8,
    mask: V::Integers,
) -> V::Integers {
    let [a, b, c, d] = quarters::<V>(source, size_of::<u32>());
    let (a, b, c, d) = (V::load(a), V::load(b), V::load(c), V::load(d));
    V::clamp_to_8::<true>(if FLOAT {
        [V::and(a, mask), V::and(b, mask), V::and(c, mask), V::and(d, mask)]
    } else {
        [a, b, c, d]
    })
}

/// Fewer elements are faster one by one.
const FEWEST: usize = 1 << 8;

/// Makes the loop for a pair of formats, where the compiler's own has more instructions.
pub(super) fn registers((source, target): (Format, Format), level: Level) -> Option<Registers> {
    let is_integer = |format: Format| matches!(format.kind(), Kind::Integer { .. });
    let mask = u8::MAX >> u8::BITS.saturating_sub(target.row().bits);
    if is_integer(source) && is_integer(target) && (source.item_size(), target.item_size()) == (2, 1) {
        return with_vectors!(level, vectors => Registers::new::<_, _, 1>(vectors, LowerBytes(mask), FEWEST));
    }
    // Compilers know the instructions of other levels.
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = crate::simd::Vectors::with_short_tables(level) {
        return match (source.kind(), source.item_size(), target.kind(), target.item_size()) {
            (Kind::Integer { .. }, 8, Kind::Bool, _) => Some(Registers::new(vectors, Truth::<false>, FEWEST)),
            (Kind::Float(_), 8, Kind::Bool, _) => Some(Registers::new(vectors, Truth::<true>, FEWEST)),
            (Kind::Integer { .. }, 4, Kind::Integer { .. }, 1) => {
                Some(Registers::new::<_, _, 1>(vectors, LowBytes::<4>(mask), FEWEST))
            }
            (Kind::Integer { .. }, 8, Kind::Integer { .. }, 1) => {
                Some(Registers::new::<_, _, 1>(vectors, LowBytes::<8>(mask), FEWEST))
            }
            (Kind::Integer { .. }, 8, Kind::Integer { .. }, 2) => {
                Some(Registers::new::<_, _, 2>(vectors, Lower16, FEWEST))
            }
            _ => None,
        };
    }
    None
}
