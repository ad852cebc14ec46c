//! Integers of 32 and 64 bits to those of 8 or fewer, wrapped: their lowest bytes. For levels without long tables,
//! where the compiler's own loop has more instructions.

use super::vector_loop::{InSteps, Step, quarters};
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::kernels::stages::stage::{Span, Stage};
use crate::simd::{Conversions, Vector, with_nibbles};

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

/// Converts whole registers by one stage and the remaining elements one by one, which is faster than to pad a register.
struct ThenElements {
    registers: Box<dyn Stage>,
    elements: Box<dyn Stage>,
    /// Elements per register.
    step: usize,
    /// Bytes of a source element.
    size: usize,
}

// SAFETY: one stage writes the first, the other the rest.
unsafe impl Stage for ThenElements {
    unsafe fn run(&self, level: Level, span: Span) {
        let whole = if span.count < FEWEST { 0 } else { span.count - span.count % self.step };
        let rest = Span {
            source: span.source.wrapping_add(whole * self.size),
            target: span.target.wrapping_add(whole),
            count: span.count - whole,
            ..span
        };
        // SAFETY: the caller's promise: these are the elements of the span, one after the other.
        unsafe {
            if whole > 0 {
                self.registers.run(level, Span { count: whole, ..span });
            }
            self.elements.run(level, rest);
        }
    }

    fn aligns(&self) -> bool {
        true
    }
}

/// Makes the stage for a pair of integer formats on a level that has no instruction for it, around the one for single
/// elements.
pub(crate) fn stage(
    (source, target): (Format, Format),
    level: Level,
    elements: Box<dyn Stage>,
) -> Box<dyn Stage> {
    let integers = [source, target].map(|format| matches!(format.kind(), Kind::Integer { .. }));
    if integers != [true; 2] || target.item_size() > 1 {
        return elements;
    }
    let (size, mask) = (source.item_size(), u8::MAX >> (u8::BITS - target.row().bits));
    let registers = with_nibbles!(level, vectors: V => match size {
        4 => Some((InSteps::<V, _, 1>::boxed(vectors, LowBytes::<4>(mask)), V::BYTES)),
        8 => Some((InSteps::<V, _, 1>::boxed(vectors, LowBytes::<8>(mask)), V::BYTES)),
        _ => None,
    });
    match registers.flatten() {
        Some((registers, step)) => Box::new(ThenElements { registers, elements, step, size }),
        None => elements,
    }
}
