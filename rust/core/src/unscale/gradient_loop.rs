//! The trait of all fused loops over gradients.

use crate::cpu::Level;

/// A loop from codes to codes.
pub(super) trait Loop: Send + Sync {
    /// Writes the products; returns the bits of the largest magnitude as a float32, where NaN is beyond infinity.
    ///
    /// # Safety
    /// As for [`super::multiply::Multiply::run`], with elements of the two formats.
    unsafe fn run(&self, level: Level, source: *const u8, target: *mut u8, count: usize) -> u32;
}
