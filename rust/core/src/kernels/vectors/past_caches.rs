//! Loops beside the compiler's own, under default options: 64 bits to 32 (integers to float32 and to their lower halves,
//! float64 to float32), and narrower integers to floats. The compiler's are as fast while the results stay in the caches,
//! which these pass by where they do not; and these make complex numbers too.

use super::float_source::NearestF64Source;
use super::integer_source::IntegerSource;
use super::then_elements::Registers;
use super::to_f32::ToF32;
use super::to_f64::ToF64;
use super::vector_loop::{Step, quarters};
use crate::codec::pivot::Binary32;
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::kernels::request::pivot_spec;
use crate::simd::{Conversions, Vector, with_vectors};

/// Integers of `SIZE` bytes to float32, rounded to nearest.
#[derive(Clone, Copy)]
struct NearestF32<const SIZE: usize, const SIGNED: bool>;

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector, const SIZE: usize, const SIGNED: bool> Step<V, 4> for NearestF32<SIZE, SIGNED> {
    const NAME: &'static str = "NearestF32";
    const FROM: usize = SIZE;
    const ZEROS: bool = true;
    type Ready = ();

    #[inline(always)]
    unsafe fn ready(&self) {}

    #[inline(always)]
    unsafe fn step((): (), source: *const u8) -> [V::Integers; 4] {
        // No `map`: the instructions of a level are not inlined into closures.
        let [a, b, c, d] = if SIZE == size_of::<u64>() {
            V::nearest_of_64_bits::<SIGNED>(source)
        } else {
            let [a, b, c, d] = quarters::<V>(source, SIZE);
            [
                V::load_integers::<SIZE, SIGNED>(a),
                V::load_integers::<SIZE, SIGNED>(b),
                V::load_integers::<SIZE, SIGNED>(c),
                V::load_integers::<SIZE, SIGNED>(d),
            ]
        };
        [V::bits(a), V::bits(b), V::bits(c), V::bits(d)]
    }
}

/// 64-bit integers to their lower 32 bits.
#[derive(Clone, Copy)]
struct Lower32;

// SAFETY: a step reads the elements that it converts, and no others.
unsafe impl<V: Vector> Step<V, 4> for Lower32 {
    const NAME: &'static str = "Lower32";
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
                V::even::<4>(V::load(a), V::load(a.add(V::BYTES))),
                V::even::<4>(V::load(b), V::load(b.add(V::BYTES))),
                V::even::<4>(V::load(c), V::load(c.add(V::BYTES))),
                V::even::<4>(V::load(d), V::load(d.add(V::BYTES))),
            ]
        }
    }
}

/// Fewer elements are as fast in the compiler's loop, which has no steps.
const FEWEST: usize = 1 << 13;

/// Fewer elements are faster one by one, where the compiler takes integers one by one.
const FEWEST_IN_ROW: usize = 1 << 8;

/// Fewer narrow integers are as fast in the compiler's loops, and would not be stored past the caches.
const FEWEST_NARROW: usize = 1 << 21;

/// Makes the loop for a pair of formats on a level.
pub(super) fn registers((source, target): (Format, Format), level: Level) -> Option<Registers> {
    with_vectors!(level, vectors => on(vectors, source, target))?
}

fn on<V: Conversions>(vectors: V, source: Format, target: Format) -> Option<Registers> {
    let (from, to) = (source.row().bits, target.row().bits);
    let streams = V::STREAMS && (from, to) == (u64::BITS, u32::BITS);
    match (source.kind(), target.kind()) {
        (Kind::Integer { signed }, Kind::Float(spec)) if spec == pivot_spec::<Binary32>() => {
            Some(match (from, signed) {
                (8, true) => Registers::new(vectors, NearestF32::<1, true>, FEWEST_NARROW),
                (8, false) => Registers::new(vectors, NearestF32::<1, false>, FEWEST_NARROW),
                (16, true) => Registers::new(vectors, NearestF32::<2, true>, FEWEST_NARROW),
                (16, false) => Registers::new(vectors, NearestF32::<2, false>, FEWEST_NARROW),
                (32, true) => Registers::new(vectors, NearestF32::<4, true>, FEWEST_NARROW),
                (32, false) => Registers::new(vectors, NearestF32::<4, false>, FEWEST_NARROW),
                (64, true) if streams => Registers::new(vectors, NearestF32::<8, true>, FEWEST_IN_ROW),
                (64, false) if streams => Registers::new(vectors, NearestF32::<8, false>, FEWEST_IN_ROW),
                _ => return None,
            })
        }
        (Kind::Integer { signed }, Kind::Float(_)) if to == u64::BITS => Some(match (from, signed) {
            (8, true) => Registers::new(vectors, ToF64(IntegerSource::<1, true>), FEWEST_NARROW),
            (8, false) => Registers::new(vectors, ToF64(IntegerSource::<1, false>), FEWEST_NARROW),
            (16, true) => Registers::new(vectors, ToF64(IntegerSource::<2, true>), FEWEST_NARROW),
            (16, false) => Registers::new(vectors, ToF64(IntegerSource::<2, false>), FEWEST_NARROW),
            _ => return None,
        }),
        _ if !streams => None,
        (Kind::Integer { .. }, Kind::Integer { .. }) => Some(Registers::new(vectors, Lower32, FEWEST)),
        (Kind::Float(_), Kind::Float(_)) => {
            Some(Registers::new(vectors, ToF32::new(NearestF64Source), FEWEST))
        }
        _ => None,
    }
}
