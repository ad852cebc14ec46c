//! Elements and the weights of their errors, of eight parts side by side.

use super::search::{Columns, Found, LANES};

/// Returns the mean square of elements, which are added up in their order.
pub(super) fn mean_square(elements: &[f32]) -> f32 {
    elements.iter().fold(0f32, |sum, element| sum + element * element) / elements.len() as f32
}

/// A largest number, and its reciprocal a least one, with which no sum of weighted squares is beyond the range of float32.
const USUAL: f32 = (1u64 << 40) as f32;

/// Returns numbers times a power of two, if the largest one is far from 1; none else. Codes do not depend on that factor.
pub(super) fn brought_to_usual(importance: &[f32]) -> Option<Vec<f32>> {
    let most = importance.iter().fold(0f32, |most, &number| if number > most { number } else { most });
    if most == 0.0 || (1.0 / USUAL..=USUAL).contains(&most) {
        return None;
    }
    let factor = f64::from(most).recip();
    let power = f64::from_bits(factor.to_bits() & f64::INFINITY.to_bits());
    Some(importance.iter().map(|&number| (f64::from(number) * power) as f32).collect())
}

/// Puts up to eight parts of so many numbers side by side; zeros are in place of parts that there are not.
#[inline(always)]
pub(super) fn columns(numbers: &[f32], length: usize) -> Columns {
    let mut columns: Columns = [[0.0; LANES]; 32];
    for (lane, part) in numbers.chunks_exact(length).enumerate() {
        columns.iter_mut().zip(part).for_each(|(column, &number)| column[lane] = number);
    }
    columns
}

/// Takes the codes of a part.
#[inline(always)]
pub(super) fn take_codes(found: &Found, lane: usize, codes: &mut [u8]) {
    codes.iter_mut().zip(&found.codes).for_each(|(code, column)| *code = column[lane] as u8);
}

/// Returns the weights of errors of elements with an importance: with `square`, a mean square of elements around them,
/// magnitudes are part of them.
#[inline(never)]
pub(super) fn importance_weights(x: &Columns, importance: &Columns, square: Option<f32>) -> Columns {
    let mut weights = *importance;
    if let Some(square) = square {
        for (weights, x) in weights.iter_mut().zip(x) {
            weights.iter_mut().zip(x).for_each(|(weight, x)| *weight *= (square + x * x).sqrt());
        }
    }
    weights
}
