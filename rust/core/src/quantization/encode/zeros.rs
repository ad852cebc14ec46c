//! Signs of zeros: producers store some codes of zero without one.

use super::codes::Operands;
use crate::cpu::Level;
use crate::quantization::arithmetic::{Area, Blocks, on_level};
use crate::quantization::real::{Bits, Real};
use crate::quantization::recipe::{Family, PositiveZeros, Recipe};
use crate::quantization::scaled::Float;

/// Replaces elements whose codes a recipe stores as positive zeros by these.
pub(super) struct Zeros {
    pub(super) recipe: &'static Recipe,
    /// Stored scales have a byte each.
    pub(super) has_bytes: bool,
    pub(super) level: Level,
}

impl Zeros {
    /// Returns the elements, in the room if some were replaced, given the stored scales of their band.
    ///
    /// # Safety
    /// The elements are readable, and the room has as many; it is theirs, or apart from them.
    pub(super) unsafe fn make_positive<T: Real>(
        &self,
        mut operands: Operands,
        scales: &[u8],
        room: *mut u8,
    ) -> Operands {
        // SAFETY: the caller's promise.
        operands.area = unsafe {
            if T::IS_SINGLE && operands.float == Float::Bf16 {
                self.replace::<T, u16>(&operands, scales, room)
            } else {
                self.replace::<T, T::Bits>(&operands, scales, room)
            }
        };
        operands
    }

    /// # Safety
    /// As for [`make_positive`](Self::make_positive), of elements of this size.
    unsafe fn replace<T: Real, B: Bits>(
        &self,
        operands: &Operands,
        scales: &[u8],
        room: *mut u8,
    ) -> Area<*const u8> {
        let (area, Blocks { width, begun }) = (operands.area.cast::<B>(), operands.blocks);
        let Area { rows, columns, .. } = area;
        let negative = B::max_value() ^ (B::max_value() >> 1);
        let of_blocks = self.recipe.positive_zeros == PositiveZeros::OfZeroBlocks;
        let scales = if of_blocks && self.has_bytes { &scales[operands.places.clone()] } else { &[] };
        let mut is_any = scales.contains(&0);
        if !of_blocks {
            on_level!(self.level, <T: Real, B: Bits>, area: Area<*const B> = area, negative: B = negative,
                is_any: &'a mut bool = &mut is_any; {
                let Area { rows, columns, .. } = area;
                for row in 0..rows {
                    let from = area.row(row);
                    // Not in memory, where compilers make no vectors of it.
                    let mut found = false;
                    for column in 0..columns {
                        // SAFETY: the caller's promise.
                        found |= unsafe { from.add(column).read_unaligned() } == negative;
                    }
                    *is_any |= found;
                }
            });
        }
        if !is_any {
            return operands.area;
        }
        // Below the smallest scale of two levels all codes are zero; 2^-127 is a scale like others.
        let is_all = of_blocks && self.recipe.family == Family::TwoLevel;
        let room = room.cast::<B>();
        for row in 0..rows {
            for column in 0..columns {
                let is_zero = !of_blocks || scales.get((begun + column) / width) == Some(&0);
                // SAFETY: the caller's promise.
                unsafe {
                    let element = area.row(row).add(column).read_unaligned();
                    let is_replaced = is_zero && (is_all || element == negative);
                    *room.add(row * columns + column) = if is_replaced { B::default() } else { element };
                }
            }
        }
        let pitch = (columns * size_of::<B>()) as isize;
        Area { first: room.cast_const().cast(), pitch, rows, columns }
    }
}
