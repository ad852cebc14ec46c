//! The differences within a tile.

#![deny(unsafe_code)]

use crate::cpu::Kernel;

/// The columns of a tile, of one component each.
pub(super) struct Columns<'a> {
    pub(super) codes: [&'a [u64]; 2],
    pub(super) values: [&'a [f64]; 2],
    /// What float64 does not hold of integers; zeros for other formats.
    pub(super) rests: [&'a [f64]; 2],
}

/// What differs in a tile.
#[derive(Default)]
pub(super) struct TileDifferences {
    pub(super) equal_bits: u64,
    pub(super) different: u64,
    /// The largest absolute difference of pairs that are different but finite.
    pub(super) difference: Option<f64>,
    /// The largest number of ulps, if they are counted.
    pub(super) ulps: Option<u64>,
    /// Whether a different pair is not finite.
    pub(super) is_special: bool,
}

/// Not a difference: in the column of differences, of elements that are the same.
const SAME: f64 = -1.0;

/// Not a difference: of elements that are different and not finite.
pub(super) const SPECIAL: f64 = -2.0;

/// Compares real numbers, with `RESTS` also of 64-bit integers. Columns of differences, and of ulps plus one, are filled
/// in; 0 is none.
pub(super) struct Real<'a, const RESTS: bool> {
    pub(super) columns: Columns<'a>,
    /// All bits but the sign of the codes, if ulps are counted.
    pub(super) magnitude: Option<u64>,
    pub(super) differences: &'a mut [f64],
    pub(super) ulps: &'a mut [u64],
}

impl<const RESTS: bool> Kernel for Real<'_, RESTS> {
    type Output = TileDifferences;

    #[inline(always)]
    fn run(self) -> TileDifferences {
        let Self { columns, magnitude, differences, ulps } = self;
        let Columns { codes: [a, b], values: [x, y], rests: [before, after] } = columns;
        let mut tile = TileDifferences::default();
        // Of the bits of floats, whose order is that of integers: compilers do not vectorize extremes of floats.
        let mut largest = i64::MIN;
        let (mut equal_bits, mut different, mut special) = (0, 0, 0);
        let pairs = a.iter().zip(b).zip(x).zip(y).zip(before.iter().zip(after)).zip(&mut *differences);
        for (((((a, b), x), y), (before, after)), difference) in pairs {
            let rest = if RESTS { after - before } else { 0.0 };
            let is_nan = x.is_nan() & y.is_nan();
            let is_equal = (a == b) & (rest == 0.0);
            let differs = !is_equal & !is_nan;
            let is_finite = x.is_finite() & y.is_finite();
            let gap = if is_finite { ((y - x) + rest).abs() } else { SPECIAL };
            *difference = if differs { gap } else { SAME };
            equal_bits += u64::from(is_equal);
            different += u64::from(differs);
            special |= u64::from(differs & !is_finite);
            largest = (difference.to_bits() as i64).max(largest);
        }
        (tile.equal_bits, tile.different, tile.is_special) = (equal_bits, different, special != 0);
        tile.difference = (largest >= 0).then_some(f64::from_bits(largest as u64));
        if let Some(mask) = magnitude {
            let mut most = 0;
            for (((a, b), difference), ulps) in a.iter().zip(b).zip(&*differences).zip(ulps) {
                let (low, high) = (a & mask, b & mask);
                let distance = if (a ^ b) & !mask == 0 { low.abs_diff(high) } else { low + high };
                *ulps = if *difference >= 0.0 { distance + 1 } else { 0 };
                most = most.max(*ulps);
            }
            tile.ulps = most.checked_sub(1);
        }
        tile
    }
}

/// Compares complex numbers: pairs of components. The column of differences, one for each number, is filled in.
pub(super) struct Complex<'a> {
    pub(super) columns: Columns<'a>,
    pub(super) differences: &'a mut [f64],
}

impl Kernel for Complex<'_> {
    type Output = TileDifferences;

    #[inline(always)]
    fn run(self) -> TileDifferences {
        let Columns { codes, values, rests } = self.columns;
        let [(a, _), (b, _)] = codes.map(<[u64]>::as_chunks::<2>);
        let [(x, _), (y, _)] = values.map(<[f64]>::as_chunks::<2>);
        let [(before, _), (after, _)] = rests.map(<[f64]>::as_chunks::<2>);
        let mut tile = TileDifferences::default();
        let pairs = a.iter().zip(b).zip(x).zip(y).zip(before.iter().zip(after)).zip(self.differences);
        for (((((a, b), x), y), (before, after)), difference) in pairs {
            let is_nan = |value: &[f64; 2]| value.iter().any(|part| part.is_nan());
            let is_equal = a == b && before == after;
            let differs = !(is_equal || is_nan(x) && is_nan(y));
            let is_finite = [x, y].into_iter().flatten().all(|part| part.is_finite());
            *difference = match (differs, is_finite) {
                (false, _) => SAME,
                (true, false) => SPECIAL,
                (true, true) => ((y[0] - x[0]) + (after[0] - before[0])).hypot(y[1] - x[1]),
            };
            tile.equal_bits += u64::from(is_equal);
            tile.different += u64::from(differs);
            tile.is_special |= differs & !is_finite;
            if *difference >= 0.0 {
                tile.difference = Some(tile.difference.unwrap_or(0.0).max(*difference));
            }
        }
        tile
    }
}

/// Returns the difference of two complex numbers over the magnitude of the first; 0 unless both are finite, and the first is
/// not zero.
pub(super) fn relative_complex(x: [f64; 2], y: [f64; 2]) -> f64 {
    let size = x[0].hypot(x[1]);
    if size == 0.0 || !x.into_iter().chain(y).all(f64::is_finite) {
        return 0.0;
    }
    let relative = (y[0] - x[0]).hypot(y[1] - x[1]) / size;
    if relative.is_finite() {
        return relative;
    }
    // The quarters of finite numbers do not differ by more than float64 holds.
    let [x, y] = [x, y].map(|number| number.map(|part| part / 4.0));
    (y[0] - x[0]).hypot(y[1] - x[1]) / x[0].hypot(x[1])
}
