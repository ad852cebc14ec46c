//! What is found where two arrays are compared.

#![deny(unsafe_code)]

use crate::cpu::DefaultEnvironment;
use crate::report::CastReport;

/// Where two arrays differ, and by how much.
///
/// Elements of one format are compared as they are. Of two formats, both are converted first: to float32 if that holds
/// both, else to float64, beside which the rest of a 64-bit integer counts; a real number has the imaginary part +0.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// Elements.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub count: u64,
    /// Elements with the same bits.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub equal_bits: u64,
    /// Elements with other bits, unless both are NaN.
    pub different: u64,
    /// Of elements that are different but finite in both arrays, how many numbers of the format they are apart, at most,
    /// and the flat index of the first such pair; of real floats only.
    pub largest_ulps: Option<(u64, u64)>,
    /// Of elements that are different but finite in both arrays, the largest absolute difference in float64, and the flat
    /// index of the first such pair.
    pub largest_difference: Option<(f64, u64)>,
    /// The flat index of the first different pair that is not finite in both arrays.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub first_special: Option<u64>,
    /// What the second array lost of the first, if that was asked for.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub losses: Option<Box<Losses>>,
}

/// What the second array lost of the first. Complex numbers count as two components each.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Losses {
    /// Finite in both arrays.
    pub finite: u64,
    /// Finite in both arrays, and equal.
    pub finite_equal: u64,
    /// The flat index of the first element that is finite in the first array only.
    pub first_lost: Option<u64>,
    /// Of elements that are finite in both arrays and not zero in the first, the largest difference over the magnitude in
    /// the first array, as float64, and the flat index of the first such pair; none if nothing differs.
    pub largest_relative: Option<(f64, u64)>,
    /// As of a cast from the first array to the second: `exact` counts equal values, `overflowed` finite ones that are
    /// infinite or NaN in the second, and `underflowed` those that are zero in the second only, NaN among them. Sums are exact;
    /// where one format is float32, and the other a signed float of 8, 16 or 32 bits, they are of squares rounded to float32.
    pub report: CastReport,
}

impl Losses {
    fn merge(&mut self, more: &Self) {
        self.finite += more.finite;
        self.finite_equal += more.finite_equal;
        self.first_lost = first_of(self.first_lost, more.first_lost);
        raise(&mut self.largest_relative, more.largest_relative);
        self.report += &more.report;
    }
}

impl Comparison {
    /// Returns what the second array lost of the first, as of a cast from the first to the second: `exact` counts equal
    /// values, `overflowed` finite ones that are infinite or NaN in the second, and `underflowed` those that are zero in the
    /// second only, NaN among them. Complex numbers count as two components each. None if losses were not measured.
    #[must_use]
    pub fn report(&self) -> Option<&CastReport> {
        self.losses.as_ref().map(|losses| &losses.report)
    }

    pub(crate) fn merge(&mut self, more: &Self) {
        self.count += more.count;
        self.equal_bits += more.equal_bits;
        self.different += more.different;
        raise(&mut self.largest_ulps, more.largest_ulps);
        raise(&mut self.largest_difference, more.largest_difference);
        self.first_special = first_of(self.first_special, more.first_special);
        if let Some(more) = &more.losses {
            self.losses.get_or_insert_default().merge(more);
        }
    }
}

pub(super) fn first_of(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Takes the larger of two numbers with their indices; of equal ones that with the smaller index.
pub(super) fn raise<T: PartialOrd>(largest: &mut Option<(T, u64)>, more: Option<(T, u64)>) {
    let Some(more) = more else { return };
    // Subnormal numbers are not zero, whatever the environment of the thread.
    let stays = DefaultEnvironment::compute((&*largest, &more), |(largest, more)| {
        largest
            .as_ref()
            .is_some_and(|largest| largest.0 > more.0 || (largest.0 == more.0 && largest.1 < more.1))
    });
    if !stays {
        *largest = Some(more);
    }
}
