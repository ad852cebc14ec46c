//! Which casts ours are faster than.

use castwise_core::Format;
use castwise_core::format::Kind;

use super::pair::{FEWEST, FEWEST_SIMPLE, FEWEST_VECTORS};

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

/// Returns the number of elements from which on ours is faster than a function of numpy's tables; `None` if that is as fast
/// as memory, as vectorized ones are.
pub(super) fn fewest_in_tables(source: Format, target: Format) -> Option<usize> {
    let float = source.integer_range().is_none();
    match (How::of(source), How::of(target)) {
        (How::Emulated, _) | (_, How::Emulated) => Some(FEWEST),
        (How::Machine, How::Truncated) => float.then_some(FEWEST_VECTORS),
        // For float64, checking the range takes as long as the original cast.
        (How::Machine, How::Small) => (float && source.row().bits == 32).then_some(FEWEST),
        _ => None,
    }
}

/// The same for the loop of a method. These take strides, so only casts between bytes are vectorized.
pub(super) fn fewest_in_methods(source: Format, target: Format) -> Option<usize> {
    let is_integer = |format: Format| format.integer_range().is_some();
    let is_byte_integer = |format: Format| is_integer(format) && format.item_size() == 1;
    let is_wide = |format: Format| format.item_size() >= 8;
    let is_unsigned_float =
        |format: Format| format.float().is_some_and(|spec| spec.sign_bit() == 0 && spec.mantissa_bits > 0);
    match (How::of(source), How::of(target)) {
        _ if is_byte_integer(source) && is_byte_integer(target) => None,
        // Our casts of these pairs take longer at all lengths, or gain less than a tenth.
        _ if is_integer(source) && is_wide(source) && is_unsigned_float(target) => None,
        (How::Small, How::Machine) if target.item_size() > 8 => None,
        (How::Emulated, _) => Some(FEWEST),
        (from, How::Emulated) if from == How::Small || !is_integer(source) => Some(FEWEST),
        _ => Some(FEWEST_SIMPLE),
    }
}
