//! Vector operations for loops that the compiler does not vectorize well: packing and unpacking of bytes and u16,
//! float16 conversions, table lookups.
//!
//! [`Vector`] and the traits that extend it have one implementation per level. An algorithm is written once over them, as
//! a [`RawKernel`](crate::cpu::RawKernel) that [`Vector::run`] runs; levels without an implementation take the loops over
//! single elements.
//!
//! An unsafe function of this room needs the features of its level, and as many bytes at its pointers as it moves. Its body is
//! made of instructions of that level and of functions with the same needs, on the same bytes or parts of them; so the body
//! is not marked again. A block of its own is for what needs more, and says why that is so.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this room says"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod caches;
mod conversions;
pub(crate) mod halves;
mod intervals;
// Big-endian machines number lanes in another order than memory.
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod nibble_tables;
mod stochastic;
mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Avx2, short_tables};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use caches::{fence, prefetch};
pub(crate) use conversions::Conversions;
pub(crate) use intervals::{INTERVALS, Intervals};
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) use neon::Neon;
pub(crate) use nibble_tables::NibbleTables;
pub(crate) use stochastic::StochasticOps;
pub(crate) use vector::{
    MOST_BYTES, Rest, SHORT_TABLE_BYTES, TABLE_BYTES, Tables, Vector, or_masked, rarely, rounding,
    unknown_one,
};

use crate::cpu::{InstructionSet, Level};

/// The vectors of a level. A value exists only on a machine that has the instructions, because it is made here only,
/// from a [`Level`].
pub(crate) enum Vectors {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon(Neon),
    None,
}

impl Vectors {
    pub(crate) fn of(level: Level) -> Self {
        match level.set() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Self::Avx512(Avx512(level)),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Self::Avx2(Avx2(level)),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            InstructionSet::Neon => Self::Neon(Neon(level)),
            _ => Self::None,
        }
    }

    /// Those of 256 bits, which AVX-512 has as well: for few lanes.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn narrow(level: Level) -> Option<Avx2> {
        matches!(level.set(), InstructionSet::Avx512 | InstructionSet::Avx2).then_some(Avx2(level))
    }

    /// Those of a level with short tables.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_short_tables(level: Level) -> Option<Avx2> {
        if let Self::Avx2(vectors) = Self::of(level) { Some(vectors) } else { None }
    }
}

/// Evaluates an expression with a name bound to the [`Vector`] of a level, and optionally one to its type; `None` on
/// levels without vectors. After `Tables,` it is `None` on those without [`Tables`] too.
macro_rules! with_vectors {
    (Tables, $level:expr, $vectors:ident $(: $type:ident)? => $body:expr) => {
        match $crate::simd::Vectors::of($level) {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Vectors::Avx512($vectors) => {
                $(type $type = $crate::simd::Avx512;)?
                Some($body)
            }
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            $crate::simd::Vectors::Neon($vectors) => {
                $(type $type = $crate::simd::Neon;)?
                Some($body)
            }
            _ => None,
        }
    };
    ($level:expr, $vectors:ident $(: $type:ident)? => $body:expr) => {
        match $crate::simd::Vectors::of($level) {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Vectors::Avx512($vectors) => {
                $(type $type = $crate::simd::Avx512;)?
                Some($body)
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Vectors::Avx2($vectors) => {
                $(type $type = $crate::simd::Avx2;)?
                Some($body)
            }
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            $crate::simd::Vectors::Neon($vectors) => {
                $(type $type = $crate::simd::Neon;)?
                Some($body)
            }
            $crate::simd::Vectors::None => None,
        }
    };
}
pub(crate) use with_vectors;
