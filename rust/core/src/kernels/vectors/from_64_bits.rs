//! 64 bits to 32, under default options: integers to float32 and to their lower halves, and float64 to float32. The
//! compiler's own loops are as fast while the results stay in the caches, which these pass by where they do not.

use super::float_source::NearestF64Source;
use super::then_elements::Registers;
use super::to_f32::ToF32;
use super::vector_loop::{Step, quarters};
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::simd::{Vector, with_vectors};

/// 64-bit integers to float32, rounded to nearest.
#[derive(Clone, Copy)]
struct NearestF32<const SIGNED: bool>;

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector, const SIGNED: bool> Step<V, 4> for NearestF32<SIGNED> {
    const FROM: usize = size_of::<u64>();
    const ZEROS: bool = true;
    type Ready = ();

    #[inline(always)]
    unsafe fn ready(&self) {}

    #[inline(always)]
    unsafe fn step((): (), source: *const u8) -> [V::Integers; 4] {
        // SAFETY: the trait's contract. No `map`: the instructions of a level are not inlined into closures.
        unsafe {
            let [a, b, c, d] = V::nearest_of_64_bits::<SIGNED>(source);
            [V::bits(a), V::bits(b), V::bits(c), V::bits(d)]
        }
    }
}

/// 64-bit integers to their lower 32 bits.
#[derive(Clone, Copy)]
struct Lower32;

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector> Step<V, 4> for Lower32 {
    const FROM: usize = size_of::<u64>();
    type Ready = ();

    #[inline(always)]
    unsafe fn ready(&self) {}

    #[inline(always)]
    unsafe fn step((): (), source: *const u8) -> [V::Integers; 4] {
        let [a, b, c, d] = quarters::<V>(source, size_of::<u64>());
        // SAFETY: the trait's contract; each quarter of the elements fills two registers.
        unsafe {
            [
                V::even32(V::load(a), V::load(a.add(V::BYTES))),
                V::even32(V::load(b), V::load(b.add(V::BYTES))),
                V::even32(V::load(c), V::load(c.add(V::BYTES))),
                V::even32(V::load(d), V::load(d.add(V::BYTES))),
            ]
        }
    }
}

/// Fewer elements are as fast in the compiler's loop, which has no steps.
const FEWEST: usize = 1 << 13;

/// Fewer elements are faster one by one, where the compiler takes integers one by one.
const FEWEST_UNSIGNED: usize = 1 << 8;

/// Makes the loop for a pair of formats on a level whose stores can pass by the caches.
pub(super) fn registers((source, target): (Format, Format), level: Level) -> Option<Registers> {
    with_vectors!(level, vectors => on(vectors, source, target))?
}

fn on<V: Vector>(vectors: V, source: Format, target: Format) -> Option<Registers> {
    if !V::STREAMS || (source.row().bits, target.row().bits) != (u64::BITS, u32::BITS) {
        return None;
    }
    match (source.kind(), target.kind()) {
        (Kind::Integer { .. }, Kind::Integer { .. }) => Some(Registers::new(vectors, Lower32, FEWEST)),
        (Kind::Integer { signed: true }, Kind::Float(_)) => {
            Some(Registers::new(vectors, NearestF32::<true>, FEWEST))
        }
        (Kind::Integer { signed: false }, Kind::Float(_)) => {
            Some(Registers::new(vectors, NearestF32::<false>, FEWEST_UNSIGNED))
        }
        (Kind::Float(_), Kind::Float(_)) => {
            Some(Registers::new(vectors, ToF32::new(NearestF64Source), FEWEST))
        }
        _ => None,
    }
}
