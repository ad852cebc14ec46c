//! Codes to values, of a format or by a map.

use crate::cast::Prepared;
use crate::cpu::Level;
use crate::quantization::nearest::look_up;
use crate::quantization::real::Real;

/// What codes mean.
pub(super) enum CodeValues {
    /// Values of a format.
    Cast(Prepared),
    /// Entries of a map.
    Map(Box<[f32; 256]>),
}

/// Every byte.
pub(super) static NUMBERS: [u8; 256] = {
    let mut numbers = [0; 256];
    let mut i = 0;
    while i < 256 {
        numbers[i] = i as u8;
        i += 1;
    }
    numbers
};

impl CodeValues {
    /// Turns codes into values.
    ///
    /// # Safety
    /// As many codes are readable.
    pub(super) unsafe fn fill<T: Real>(&self, level: Level, codes: *const u8, values: &mut [T]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Map(map) => look_up(level, map, codes, values),
                Self::Cast(cast) => cast.convert(codes, values.as_mut_ptr().cast(), values.len()),
            }
        }
    }
}
