//! The magnitudes of small arrays without their blocks: to survey these takes longer than to read a thousand elements.

#![deny(unsafe_code)]

use std::mem::{replace, take};

use super::outcome::Magnitudes;
use super::tables::{FIELDS, FRACTION, LOWEST, field_of};

const INFINITY: u64 = f64::INFINITY.to_bits();

/// Counts the elements of arrays, one after another, which come in pieces.
pub(super) struct Counter {
    /// By the field of the exponent.
    counts: [u64; FIELDS],
    largest: u64,
    /// The smallest magnitude less one: zero wraps to the largest number.
    below: u64,
    magnitudes: Magnitudes,
}

impl Counter {
    pub(super) fn new() -> Self {
        Self { counts: [0; FIELDS], largest: 0, below: u64::MAX, magnitudes: Magnitudes::default() }
    }

    pub(super) fn add(&mut self, values: &[f64]) {
        let Self { counts, largest, below, magnitudes } = self;
        let others = counts[0] + counts[FIELDS - 1];
        let (mut most, mut least) = (*largest, *below);
        for value in values {
            let bits = value.abs().to_bits();
            counts[(bits >> FRACTION) as usize % FIELDS] += 1;
            most = if bits < INFINITY { bits.max(most) } else { most };
            least = bits.wrapping_sub(1).min(least);
        }
        (*largest, *below) = (most, least);
        if counts[0] + counts[FIELDS - 1] > others {
            add_others(magnitudes, values);
        }
    }

    /// Returns what was counted, and begins with the next array.
    pub(super) fn finish(&mut self) -> Magnitudes {
        let (largest, smallest) =
            (take(&mut self.largest), replace(&mut self.below, u64::MAX).wrapping_add(1));
        let mut magnitudes = take(&mut self.magnitudes);
        magnitudes.largest = f64::from_bits(largest);
        magnitudes.smallest = if smallest < INFINITY { f64::from_bits(smallest) } else { 0.0 };
        (self.counts[0], self.counts[FIELDS - 1]) = (0, 0);
        let fields = field_of(smallest).max(1)..field_of(largest) + 1;
        for (field, count) in self.counts.iter_mut().enumerate().take(fields.end).skip(fields.start) {
            if *count > 0 {
                magnitudes.binades.entry(field as i16 + LOWEST).count = take(count);
            }
        }
        magnitudes
    }
}

/// Adds elements that are zero, subnormal, infinite or NaN.
#[cold]
fn add_others(magnitudes: &mut Magnitudes, values: &[f64]) {
    for bits in values.iter().map(|value| value.abs().to_bits()) {
        match bits {
            0 => magnitudes.zeros += 1,
            INFINITY => magnitudes.infinities += 1,
            _ if bits > INFINITY => magnitudes.nans += 1,
            _ if bits >> FRACTION == 0 => {
                let exponent = bits.ilog2() as i16 + LOWEST + 1 - FRACTION as i16;
                magnitudes.binades.entry(exponent).count += 1;
            }
            _ => {}
        }
    }
}
