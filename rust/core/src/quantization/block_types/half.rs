//! float16 in blocks.

/// Returns the float16 that begins at a byte.
pub(super) fn read(block: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
    let (sign, magnitude) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let value = match magnitude >> 10 {
        // A multiple of the least subnormal number, 2**-24.
        0 => (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        0x1f => 0x7f80_0000 | magnitude << 13,
        _ => (magnitude << 13) + (112 << 23),
    };
    f32::from_bits(sign | value)
}

/// Returns false for infinity and NaN.
pub(super) fn is_finite(block: &[u8], at: usize) -> bool {
    block[at + 1] & 0x7c != 0x7c
}

/// Stores a number as a float16, rounded to nearest, ties to even; beyond its range it is infinite.
#[inline(always)]
pub(super) fn write(block: &mut [u8], at: usize, value: f32) {
    let (sign, magnitude) = ((value.to_bits() >> 16) as u16 & 0x8000, value.abs());
    let bits = if magnitude < f32::from_bits(0x3880_0000) {
        // Below 2**-14: the addition rounds to a multiple of 2**-24.
        (magnitude + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let rounded = magnitude.to_bits() + 0xfff + (magnitude.to_bits() >> 13 & 1);
        (rounded >> 13).wrapping_sub(112 << 10).min(0x7c00)
    };
    block[at..at + 2].copy_from_slice(&(sign | bits as u16).to_le_bytes());
}

/// Returns the nearest float16.
#[inline(always)]
pub(super) fn round(value: f32) -> f32 {
    let mut bytes = [0; 2];
    write(&mut bytes, 0, value);
    read(&bytes, 0)
}

/// Returns the float16 that is some steps farther from zero, or nearer to it.
#[inline(always)]
pub(super) fn step(value: f32, steps: i16) -> f32 {
    let mut bytes = [0; 2];
    write(&mut bytes, 0, value);
    let bits = u16::from_le_bytes(bytes);
    let magnitude = (bits & 0x7fff).saturating_add_signed(steps);
    read(&(bits & 0x8000 | magnitude.min(0x7bff)).to_le_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::{read, write};

    #[test]
    fn every_half_is_stored_as_it_was() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
            let (mut block, expected) = ([0; 2], bits.to_le_bytes());
            write(&mut block, 0, read(&expected, 0));
            assert_eq!(block, expected, "{bits:#x}");
        }
    }

    #[test]
    fn numbers_between_are_rounded_to_even() {
        let mut block = [0; 2];
        for (value, bits) in [
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (f32::MAX, 0x7c00),
            (-2f32.powi(-25), 0x8000),
            (2f32.powi(-25) * 1.5, 1),
            (2f32.powi(-14) * (1.0 - 1.0 / 4096.0), 0x400),
        ] {
            write(&mut block, 0, value);
            assert_eq!(u16::from_le_bytes(block), bits, "{value:e}");
        }
    }
}
