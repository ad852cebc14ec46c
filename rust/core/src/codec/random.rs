//! Counter-based randomness: the draw for an element is a pure function of the seed and the element's index.
//!
//! Seed and the upper half of the index choose two keys, by `SplitMix64`'s finalizer; the keys and the lower half of
//! the index give 32 bits, by multiplications that vectors of every level have. Each key takes every number of 32 bits
//! once over 2^32 indices. That resolves probabilities down to 2^-32; a float32 rarely drops less. Wide draws, for
//! sources of 64 bits, have the same upper half, and a lower one from two keys of their own.

/// `SplitMix64`'s finalizer (Steele, Lea and Flood, 2014): a bijection that mixes all bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The stream of draws that a seed selects.
#[derive(Clone, Copy, Debug)]
pub struct Stream(u64);

impl Stream {
    /// Returns the stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x6a09_e667_f3bc_c909))
    }

    /// The keys of the indices with this upper half; `wide` asks for those of the lower half of wide draws.
    pub(crate) fn keys(self, upper: u32, wide: bool) -> Keys {
        let place = 2 * u64::from(upper) + u64::from(wide) + 1;
        let word = mix(self.0.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        Keys { first: word as u32, second: (word >> 32) as u32 }
    }
}

/// The keys of the draws of 2^32 indices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) first: u32,
    pub(crate) second: u32,
}

/// Spreads indices: 2^32 over the golden ratio.
pub(crate) const GOLDEN: u32 = 0x9e37_79b9;

/// The factors of spread indices.
pub(crate) const MULTIPLIERS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

impl Keys {
    /// Two multiplications with the constants and shifts of least bias that a search by Wellons ("Prospecting for hash
    /// functions", 2018) found, and a key before each. Indices are first spread by the golden ratio, which costs loops an
    /// addition: those a small power of two apart are too much alike for two multiplications.
    #[inline(always)]
    fn draw(self, lower: u32) -> u32 {
        let mut z = lower.wrapping_mul(GOLDEN).wrapping_add(self.first);
        z = (z ^ (z >> 16)).wrapping_mul(MULTIPLIERS[0]);
        z = (z ^ (z >> 15) ^ self.second).wrapping_mul(MULTIPLIERS[1]);
        z ^ (z >> 16)
    }
}

/// Uniform bits, 32 or 64.
pub trait Draw: Copy + Default + Send + Sync + 'static {
    /// The keys of indices that share their upper half.
    type Keys: Copy;
    /// Returns the keys of indices with this upper half.
    fn keys(stream: Stream, upper: u32) -> Self::Keys;
    /// Returns the draw of the index with this lower half.
    fn draw(keys: Self::Keys, lower: u32) -> Self;
}

/// The keys of a draw.
#[derive(Clone, Copy, Debug)]
pub struct Narrow(Keys);

/// The keys of a wide draw's halves.
#[derive(Clone, Copy, Debug)]
pub struct Wide(Keys, Keys);

impl Draw for u32 {
    type Keys = Narrow;

    fn keys(stream: Stream, upper: u32) -> Narrow {
        Narrow(stream.keys(upper, false))
    }
    #[inline(always)]
    fn draw(Narrow(keys): Narrow, lower: u32) -> Self {
        keys.draw(lower)
    }
}

impl Draw for u64 {
    type Keys = Wide;

    fn keys(stream: Stream, upper: u32) -> Wide {
        Wide(stream.keys(upper, false), stream.keys(upper, true))
    }
    #[inline(always)]
    fn draw(Wide(high, low): Wide, lower: u32) -> Self {
        Self::from(high.draw(lower)) << 32 | Self::from(low.draw(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 1 << 18;

    fn draws(seed: u64, upper: u32) -> Vec<u32> {
        let keys = <u32 as Draw>::keys(Stream::new(seed), upper);
        (0..COUNT as u32).map(|lower| u32::draw(keys, lower)).collect()
    }

    /// How far the frequencies of numbers are from equal, in standard deviations of chi-square.
    fn excess(numbers: impl Iterator<Item = u32>, kinds: usize) -> f64 {
        let mut counts = vec![0u32; kinds];
        numbers.for_each(|number| counts[number as usize] += 1);
        let expected = f64::from(counts.iter().sum::<u32>()) / kinds as f64;
        let chi_square: f64 =
            counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let freedom = kinds as f64 - 1.0;
        (chi_square - freedom) / (2.0 * freedom).sqrt()
    }

    /// The top five bits of each of two draws.
    fn pair((one, other): (&u32, &u32)) -> u32 {
        (one >> 27) << 5 | other >> 27
    }

    #[test]
    fn draws_are_uniform_and_do_not_depend_on_each_other() {
        const SIGMAS: f64 = 5.0;
        let mut previous = draws(u64::MAX, 0);
        for seed in [0, 1, 2, 3, 1 << 32] {
            let here = draws(seed, 0);
            for shift in [24, 20, 16, 8, 0] {
                assert!(
                    excess(here.iter().map(|draw| draw >> shift & 0xff), 256).abs() < SIGMAS,
                    "{seed} {shift}"
                );
            }
            // Fibonacci numbers too: multiples of the golden ratio by them are near whole numbers.
            for lag in [1, 2, 3, 4, 5, 8, 16, 32, 64, 256, 1024, 4096, 46_368, 65_536, 75_025] {
                let pairs = here.iter().zip(&here[lag..]).map(pair);
                assert!(excess(pairs, 1024).abs() < SIGMAS, "{seed} {lag}");
            }
            for other in [&previous, &draws(seed, 1)] {
                assert!(excess(here.iter().zip(other).map(pair), 1024).abs() < SIGMAS, "{seed}");
            }
            let keys = <u64 as Draw>::keys(Stream::new(seed), 0);
            let wide: Vec<_> = (0..COUNT as u32).map(|lower| u64::draw(keys, lower)).collect();
            assert!(wide.iter().zip(&here).all(|(wide, &narrow)| (wide >> 32) as u32 == narrow));
            let halves = wide.iter().map(|&wide| (wide >> 59 << 5) as u32 | (wide as u32 >> 27));
            assert!(excess(halves, 1024).abs() < SIGMAS, "{seed}");
            previous = here;
        }
    }
}
