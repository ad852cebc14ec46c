//! Powers of two as scales of blocks.
//!
//! | rule | exponent | used by |
//! |---|---|---|
//! | floor | `floor(log2 amax) - emax` | OCP MX 1.0, torchao, GGUF |
//! | rceil | `ceil(log2(amax / max))` | `TransformerEngine`, `ModelOpt`, gpt-oss, MLX |
//! | ceil | `ceil(log2 amax) - emax` | torchao |
//! | even | as floor, of amax rounded to the mantissa of elements | torchao, Quark |
//! | ct | as even, to 1 bit, or 3 for elements of 6 bits | compressed-tensors |

#![deny(unsafe_code)]

use crate::codec::options::Named;

/// How the exponent of a scale follows from the largest magnitude of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// The power of two of the largest element is that of the largest magnitude.
    Floor,
    /// The smallest one with which no magnitude is beyond the largest element.
    Rceil,
    /// As floor, of the next power of two.
    Ceil,
    /// As floor, after rounding to the mantissa of the element, half up.
    Even,
    /// As even, with the mantissa bits of compressed-tensors.
    CompressedTensors,
}

impl Named for ScaleRule {
    const ARGUMENT: &'static str = "scale_rule";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("floor", Self::Floor),
        ("rceil", Self::Rceil),
        ("ceil", Self::Ceil),
        ("even", Self::Even),
        ("ct", Self::CompressedTensors),
    ];
}

/// The element format, as the rules see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Largest {
    /// The largest finite value.
    pub(super) value: f64,
    /// Mantissa bits.
    pub(super) mantissa_bits: u32,
    /// Bits of a code.
    pub(super) bits: u32,
}

const MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;
const BIAS: i64 = 1023;

/// The bias of E8M0, and its largest finite code.
const E8M0_BIAS: i64 = 127;
const E8M0_MAX: i64 = 254;

/// Returns what [`power_code`] adds to the bits of a magnitude before it takes the exponent.
pub(super) fn addend(rule: ScaleRule, largest: &Largest) -> u64 {
    let fraction = (1 << MANTISSA) - 1;
    let half_up = |kept: u32| 1 << (MANTISSA - kept - 1);
    match rule {
        ScaleRule::Floor => 0,
        ScaleRule::Ceil => fraction,
        // The exponent grows where the fraction is above that of the largest element.
        ScaleRule::Rceil => fraction - (largest.value.to_bits() & fraction),
        ScaleRule::Even => half_up(largest.mantissa_bits),
        ScaleRule::CompressedTensors => half_up(if largest.bits == 6 { 3 } else { 1 }),
    }
}

/// Returns the E8M0 code for a finite magnitude; 0 for 0.
#[inline(always)]
pub(super) fn power_code(amax: f64, addend: u64, largest: &Largest) -> i64 {
    let top = exponent(f64::from_bits(amax.to_bits() + addend));
    (top - exponent(largest.value) + E8M0_BIAS).clamp(0, E8M0_MAX)
}

/// Returns the exponent of a magnitude.
#[inline(always)]
pub(super) fn exponent(magnitude: f64) -> i64 {
    (magnitude.to_bits() >> MANTISSA) as i64 - BIAS
}

/// Returns the value of an E8M0 code below 255.
#[inline(always)]
pub(super) fn power(code: i64) -> f64 {
    f64::from_bits(((code - E8M0_BIAS + BIAS) as u64) << MANTISSA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_give_the_codes_of_their_libraries() {
        // Measured with torchao 0.18 and compressed-tensors 0.20, one block for each amax.
        let amaxes = [2f64.powi(-130), 6.0, 6.99, 7.0, 7.5, 448.0, 463.9, 464.0, 480.0];
        let e2m1 = Largest { value: 6.0, mantissa_bits: 1, bits: 4 };
        let e4m3 = Largest { value: 448.0, mantissa_bits: 3, bits: 8 };
        let rows: [(ScaleRule, &Largest, [i64; 9]); 10] = [
            (ScaleRule::Floor, &e2m1, [0, 127, 127, 127, 127, 133, 133, 133, 133]),
            (ScaleRule::Floor, &e4m3, [0, 121, 121, 121, 121, 127, 127, 127, 127]),
            (ScaleRule::Rceil, &e2m1, [0, 127, 128, 128, 128, 134, 134, 134, 134]),
            (ScaleRule::Rceil, &e4m3, [0, 121, 121, 121, 122, 127, 128, 128, 128]),
            (ScaleRule::Ceil, &e2m1, [0, 128, 128, 128, 128, 134, 134, 134, 134]),
            (ScaleRule::Ceil, &e4m3, [0, 122, 122, 122, 122, 128, 128, 128, 128]),
            (ScaleRule::Even, &e2m1, [0, 127, 127, 128, 128, 134, 134, 134, 134]),
            (ScaleRule::Even, &e4m3, [0, 121, 121, 121, 121, 127, 127, 127, 127]),
            (ScaleRule::CompressedTensors, &e2m1, [0, 127, 127, 128, 128, 134, 134, 134, 134]),
            (ScaleRule::CompressedTensors, &e4m3, [0, 121, 121, 122, 122, 128, 128, 128, 128]),
        ];
        for (rule, largest, expected) in rows {
            let codes = amaxes.map(|amax| power_code(amax, addend(rule, largest), largest));
            assert_eq!(codes, expected, "{rule:?} {largest:?}");
        }
    }

    #[test]
    fn powers_are_those_of_e8m0() {
        assert_eq!((power(127), power(0), power(254)), (1.0, 2f64.powi(-127), 2f64.powi(127)));
    }
}
