//! Codes that show where two casts differ: few enough to test at every start, and near every threshold between results.

#![deny(unsafe_code)]

use crate::format::{Format, Kind};

/// Bits below the leading one at which a second bit is set: beyond the significand of every format of 16 bits or fewer.
const REACH: u32 = 13;

/// Returns dense elements of a format in native byte order: every code of a format of one byte; of wider ones the
/// powers of two, the midpoints to the next code of narrower formats, and the codes next to all of these.
#[must_use]
pub fn boundary_values(format: Format) -> Vec<u8> {
    if let Some(component) = format.component() {
        let (size, parts) = (component.item_size(), boundary_values(component));
        let elements = parts.chunks_exact(size).zip(parts.chunks_exact(size).rev());
        return elements.flat_map(|(real, imaginary)| [real, imaginary].concat()).collect();
    }
    if format.item_size() == 1 {
        return (0..=u8::MAX).collect();
    }
    let bits = format.row().bits;
    let mut codes = Vec::new();
    match format.kind() {
        Kind::Float(spec) => {
            let leading = 1 << spec.mantissa_bits;
            // float64 has more exponents than any other format needs.
            let middle = spec.bias as u64;
            let fields = (0..1 << spec.exponent_bits).filter(|field: &u64| field.abs_diff(middle) < 160);
            let ends = [0, spec.max_code() >> spec.mantissa_bits];
            for field in fields.chain(ends) {
                let binade = field << spec.mantissa_bits;
                around(leading, spec.mantissa_bits, |offset| {
                    let code = binade.wrapping_add(offset);
                    codes.extend([code, code | spec.sign_bit()]);
                });
            }
            let top = spec.infinity_code().unwrap_or(spec.max_code());
            codes.extend([top - 1, top, top + 1].map(|code| code | spec.sign_bit()));
        }
        _ => {
            for exponent in 0..bits {
                let power = 1u64 << exponent;
                around(power, exponent, |offset| {
                    let number = power.wrapping_add(offset);
                    codes.extend([number, number.wrapping_neg()]);
                });
            }
        }
    }
    let size = format.item_size();
    let bytes = |code: u64| {
        let bytes =
            if cfg!(target_endian = "big") { code.swap_bytes() << (64 - bits) } else { code }.to_ne_bytes();
        bytes.into_iter().take(size)
    };
    codes.into_iter().flat_map(bytes).collect()
}

/// Visits offsets within the binade of a leading bit: single bits below it, and their neighbors.
fn around(leading: u64, exponent: u32, mut visit: impl FnMut(u64)) {
    [0, 1, leading - 1].into_iter().for_each(&mut visit);
    for distance in 1..=REACH.min(exponent) {
        let bit = leading >> distance;
        [bit.wrapping_sub(1), bit, bit + 1].into_iter().for_each(&mut visit);
    }
}
