//! Which casts ours are faster than.

use castwise_core::Format;
use castwise_core::format::Kind;

/// How the original functions compute with the components of a format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// With instructions for it.
    Machine,
    /// As the upper 16 bits of a float32.
    Truncated,
    /// Element by element, bit by bit.
    Emulated,
    /// As integers of a byte, with tests for floats that they cannot hold.
    Small,
}

impl How {
    fn of(format: Format) -> Self {
        let format = format.component().unwrap_or(format);
        match format.kind() {
            Kind::Float(spec) if format.row().bits <= 16 => {
                let upper_half = spec.exponent_bits == 8 && spec.mantissa_bits > 0;
                if upper_half { Self::Truncated } else { Self::Emulated }
            }
            Kind::Integer { .. } if format.row().bits < 8 => Self::Small,
            _ => Self::Machine,
        }
    }
}

/// Returns whether the original function is slower than memory; vectorized ones are not.
pub(super) fn gains(source: Format, target: Format) -> bool {
    let float = source.integer_range().is_none();
    match (How::of(source), How::of(target)) {
        (How::Emulated, _) | (_, How::Emulated) => true,
        (How::Machine, How::Truncated) => float,
        // For float64, checking the range takes as long as the original cast.
        (How::Machine, How::Small) => float && source.row().bits == 32,
        _ => false,
    }
}

/// Returns whether the original function of a pair that is taken over is vectorized nonetheless.
pub(super) fn is_vectors(source: Format, target: Format) -> bool {
    (How::of(source), How::of(target)) == (How::Machine, How::Truncated)
}
