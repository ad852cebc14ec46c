//! Values of a format as float64.

use crate::codec::pivot::{Binary64, Int64, Pivot, Uint64};
use crate::cpu::Level;
use crate::format::{Format, Kind};
use crate::kernels::stages::assemble;
use crate::kernels::stages::stage::{Span, Stage};

/// Reads values of a format as float64, with a remainder where float64 does not hold them.
pub(crate) enum Values {
    /// The format is float64.
    Same,
    Exact(Box<dyn Stage>),
    Signed,
    Unsigned,
}

impl Values {
    pub(crate) fn new(format: Format) -> Self {
        match (format.row().bits, format.kind()) {
            (64, Kind::Integer { signed: true }) => Self::Signed,
            (64, Kind::Integer { signed: false }) => Self::Unsigned,
            _ => assemble::decoder::<Binary64>(format).map_or(Self::Same, Self::Exact),
        }
    }

    /// Returns whether float64 holds all values, without remainders.
    pub(crate) fn is_exact(&self) -> bool {
        matches!(self, Self::Same | Self::Exact(_))
    }

    /// Writes the value of each code as a sum of two float64; the second is zero beforehand, and only written where it
    /// differs.
    ///
    /// # Safety
    /// `codes` is valid for as many elements as the slices are long.
    pub(crate) unsafe fn read(&self, level: Level, codes: *const u8, near: &mut [f64], rest: &mut [f64]) {
        let target = near.as_mut_ptr().cast::<u8>();
        match self {
            // SAFETY: the caller's promise for the codes; `near` is ours.
            Self::Same => unsafe { codes.copy_to_nonoverlapping(target, size_of_val(near)) },
            Self::Exact(stage) => {
                let span = Span { source: codes, target, count: near.len(), ..Span::EMPTY };
                // SAFETY: the caller's promise for the codes; `near` is ours.
                unsafe { stage.run(level, span) };
            }
            // SAFETY: the caller's promise.
            Self::Signed => unsafe { split::<Int64>(codes, near, rest) },
            // SAFETY: the caller's promise.
            Self::Unsigned => unsafe { split::<Uint64>(codes, near, rest) },
        }
    }
}

/// # Safety
/// As for [`Values::read`].
unsafe fn split<P: Pivot<Bits = u64>>(codes: *const u8, near: &mut [f64], rest: &mut [f64]) {
    for (i, (near, rest)) in near.iter_mut().zip(rest).enumerate() {
        // SAFETY: the caller's promise.
        let word = unsafe { codes.cast::<u64>().add(i).read_unaligned() };
        (*near, *rest) = P::to_f64_pair(word);
    }
}
