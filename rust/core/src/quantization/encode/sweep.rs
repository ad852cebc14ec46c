//! What a block of small integers loses under all scales that may be its best, by a histogram of its magnitudes.
//!
//! Of a magnitude `a`, the code is above `k` where `a > (k + 0.5) * scale`, up to its largest code. With the sum `P` of products
//! of magnitudes and codes, and `Q` of squares of codes, a block loses `energy - scale * (2 * P - scale * Q)`.
//!
//! Bins have the same width in logarithms, so these limits are as many bins apart under each scale. Of running sums over bins,
//! `P` and `Q` of adjacent scales are sums of adjacent numbers, one for each code. Magnitudes in the bin of a limit may get the
//! code beside their own; trials by the elements themselves decide between the best scales.
//!
//! Elements are added in their order, bins and codes in theirs, and no operation is fused: all are the same at every level.

use super::integer_sums::{LANES, MAGIC, in_lanes, sum};
use crate::cpu::{Kernel, Level};

/// Bins of an octave. With 64, random blocks lose 0.0003 dB beside all stored scales; with 32, 0.003.
const RESOLUTION: usize = 64;

/// Bins of magnitudes from 4 downwards, and places before them for limits above 4.
const BINS: usize = 608;
const PAD: usize = 64;
const SIDE: usize = PAD + BINS;

/// Room for bins of all magnitudes, and of those of positive and of negative elements whose largest codes differ.
const PLACES: usize = 2048;

/// What [`LANES`] adjacent scales are times those before.
const GROUP: f32 = 0.840_896_4;

/// Bins whose sums are added to a running sum together.
const WINDOW: usize = 4;

/// The most codes of a magnitude but zero.
const LEVELS: usize = 15;

/// The best scales, which trials decide between.
pub(super) const TOPS: usize = 3;

/// A number of each scale of a group, beside that of squares.
type Pairs = [f32; 2 * LANES];

/// A sweep over the scales of blocks whose codes are between limits.
pub(super) struct Sweep {
    low: i32,
    high: i32,
    has_zeros: bool,
    has_signs: bool,
    /// For each code, the bins from the limit below it to that of a code of 1.
    offsets: Vec<usize>,
    /// The codes that magnitudes of both signs have, and the bins that have sums of each sign for the others.
    shared: usize,
    split: usize,
    /// What rounds scales, as those of [`StoredFloats`](super::integer_search) do, in float32.
    rounding: f32,
}

/// Sums over bins, those over all bins before each, and where elements are.
#[derive(Default)]
pub(super) struct Room {
    sums: Vec<[f32; 2]>,
    running: [Vec<f32>; 3],
    /// Sums of each sign, up to each code above the shared ones; for none of them, zeros.
    counts: [[Pairs; LEVELS + 1]; 2],
    places: Vec<u32>,
    pairs: Vec<[f32; 2]>,
}

/// What is known of a block.
pub(super) struct Block<'a> {
    pub(super) elements: &'a [f32],
    pub(super) weights: &'a [f32],
    /// The recipe's own scale, and the part of it that is tried last.
    pub(super) own: f32,
    pub(super) lowest: f32,
    /// At least what is added to round a scale: the steps of the smallest ones.
    pub(super) least: f32,
}

/// A scale that loses little, and its zero point.
#[derive(Clone, Copy)]
pub(super) struct Top {
    pub(super) scale: f32,
    pub(super) zero: f32,
}

/// Sums over a block.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    pub(super) energy: f64,
    pub(super) weight: f64,
    squares: f64,
    low: f32,
    high: f32,
}

impl Sweep {
    /// Returns the sweep for codes between limits, if these are few, and scales of so many bits of mantissa.
    pub(super) fn new(
        (low, high): (f64, f64),
        has_zeros: bool,
        has_signs: bool,
        mantissa: u32,
    ) -> Option<Self> {
        let (low, high) = (low as i32, high as i32);
        if high - low > LEVELS as i32 {
            return None;
        }
        let levels = if has_zeros { high - low } else { high.max(-low) } as usize;
        let offset = |code: usize| (RESOLUTION as f64 * (2.0 * code as f64 + 1.0).log2()).round() as usize;
        let offsets: Vec<_> = (0..levels).map(offset).collect();
        let shared = if has_zeros { 0 } else { high.min(-low) as usize };
        let split = offsets.get(shared).map_or(0, |offset| BINS - offset);
        let rounding = (2f64.powi(23 - mantissa as i32) + 1.0) as f32;
        Some(Self { low, high, has_zeros, has_signs, offsets, shared, split, rounding })
    }

    /// Finds the best scales of a block, and returns them with its sums.
    pub(super) fn find(&self, level: Level, block: &Block<'_>, room: &mut Room) -> ([Top; TOPS], Totals) {
        room.sums.resize(PLACES, [0.0; 2]);
        for running in &mut room.running {
            running.resize(2 * SIDE, 0.0);
        }
        let Block { elements, weights, .. } = *block;
        room.places.resize(elements.len(), 0);
        room.pairs.resize(elements.len(), [0.0; 2]);
        let Room { sums, places, pairs, .. } = &mut *room;
        let split = self.split;
        let totals = if weights.is_empty() {
            level.run(FindPlaces::<false> { elements, weights, split, places, pairs })
        } else {
            level.run(FindPlaces::<true> { elements, weights, split, places, pairs })
        };
        for (side, bins) in [BINS, split, split].into_iter().enumerate() {
            sums[side * SIDE + PAD..][..bins].fill([0.0; 2]);
        }
        if let Some(sums) = sums.first_chunk_mut::<PLACES>() {
            for (&place, pair) in places.iter().zip(&*pairs) {
                let sum = &mut sums[place as usize % PLACES];
                *sum = [sum[0] + pair[0], sum[1] + pair[1]];
            }
        }
        (level.run(Scales { sweep: self, block, totals, room }), totals)
    }

    /// Returns the zero points that are tried for scales between two.
    fn zeros(&self, scales: [f32; 2], (low, high): (f32, f32)) -> (i32, i32) {
        let ends = scales.map(|scale| {
            // Those under which the least element is not limited, and the largest one.
            let (of_low, of_high) = (self.low as f32 - low / scale, self.high as f32 - high / scale);
            let middle = of_low.midpoint(of_high).round_ties_even();
            if of_high < of_low { (of_high.floor(), of_low.ceil()) } else { (middle, middle) }
        });
        let (first, last) = (ends[0].0.min(ends[1].0), ends[0].1.max(ends[1].1));
        ((first as i32).clamp(self.low, self.high), (last as i32).clamp(self.low, self.high))
    }

    /// Returns the most codes above shared ones of positive and of negative elements, for one of the signs of a scale or for
    /// a zero point.
    fn levels(&self, choice: i32) -> [usize; 2] {
        let (positive, negative) = if self.has_zeros {
            (self.high - choice, choice - self.low)
        } else if choice > 0 {
            (-self.low, self.high)
        } else {
            (self.high, -self.low)
        };
        [positive, negative].map(|levels| levels as usize - self.shared)
    }
}

/// Returns the bin of the logarithm of a magnitude, from that of 4 downwards.
#[inline(always)]
fn bin(bits: u32) -> i32 {
    let exponent = (bits >> 23 & 0xff) as i32;
    let part = f32::from_bits(bits & 0x7f_ffff | 1f32.to_bits()) - 1.0;
    // Within 0.0011 of the logarithm.
    let log = part + part * (1.0 - part) * (0.420_864_54 - 0.156_386_1 * part);
    let bins = (log * RESOLUTION as f32 + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
    (129 - exponent) * RESOLUTION as i32 - bins
}

/// Finds the places of elements among bins, what they add there, and sums over all.
struct FindPlaces<'a, const WEIGHTED: bool> {
    elements: &'a [f32],
    weights: &'a [f32],
    split: usize,
    places: &'a mut [u32],
    pairs: &'a mut [[f32; 2]],
}

impl<const WEIGHTED: bool> Kernel for FindPlaces<'_, WEIGHTED> {
    type Output = Totals;

    #[inline(always)]
    fn run(self) -> Totals {
        let Self { elements, weights, split, places, pairs } = self;
        let count = elements.len();
        let weights = if WEIGHTED { &weights[..count] } else { elements };
        let (places, pairs) = (&mut places[..count], &mut pairs[..count]);
        for index in 0..count {
            let bits = elements[index].to_bits();
            let place = bin(bits).clamp(0, BINS as i32 - 1) as u32;
            let side = if bits >> 31 != 0 { 2 * SIDE as u32 } else { SIDE as u32 };
            let side = if place < split as u32 { side } else { 0 };
            places[index] = place + side + PAD as u32;
            let (magnitude, weight) = (elements[index].abs(), if WEIGHTED { weights[index] } else { 1.0 });
            pairs[index] = [if WEIGHTED { magnitude * weight } else { magnitude }, weight];
        }
        let (mut energy, mut total, mut squares) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
        let (groups, rest) = in_lanes(elements);
        let (factors, others) = in_lanes(weights);
        let last = (elements.len() % LANES > 0).then_some((&rest, &others));
        for (values, factors) in groups.iter().zip(factors).chain(last) {
            for lane in 0..LANES {
                let value = values[lane];
                let square = value * value;
                energy[lane] += if WEIGHTED { square * factors[lane] } else { square };
                low[lane] = if value < low[lane] { value } else { low[lane] };
                high[lane] = if value > high[lane] { value } else { high[lane] };
                if WEIGHTED {
                    total[lane] += factors[lane];
                    squares[lane] += factors[lane] * factors[lane];
                }
            }
        }
        let mut totals = Totals {
            energy: f64::from(sum(energy)),
            weight: if WEIGHTED { f64::from(sum(total)) } else { count as f64 },
            squares: if WEIGHTED { f64::from(sum(squares)) } else { count as f64 },
            low: 0.0,
            high: 0.0,
        };
        for lane in 0..LANES {
            totals.low = if low[lane] < totals.low { low[lane] } else { totals.low };
            totals.high = if high[lane] > totals.high { high[lane] } else { totals.high };
        }
        totals
    }
}

/// Running sums over the bins of a side.
struct RunningSums<'a> {
    sums: &'a [f32],
    running: &'a mut [f32],
    done: usize,
}

impl<'a> RunningSums<'a> {
    fn new(sums: &'a [[f32; 2]], running: &'a mut [f32]) -> Self {
        Self { sums: sums.as_flattened(), running, done: 2 * PAD }
    }

    /// Adds bins up to one, and those of some groups after it, if they are not added yet.
    #[inline(always)]
    fn extend(&mut self, bin: usize) {
        const WIDTH: usize = 2 * WINDOW;
        let start = self.done;
        if start >= 2 * (PAD + bin.min(BINS)) {
            return;
        }
        let end = 2 * (PAD + (bin + 3 * LANES).min(BINS)).next_multiple_of(WINDOW);
        let mut last = [0f32; WIDTH];
        last.copy_from_slice(&self.running[start - WIDTH..start]);
        let to = self.running[start..end].as_chunks_mut::<WIDTH>().0;
        // Bins, and those one, two and three before them.
        let zero = self.sums[start..end].as_chunks::<WIDTH>().0;
        let one = self.sums[start - 2..end - 2].as_chunks::<WIDTH>().0;
        let two = self.sums[start - 4..end - 4].as_chunks::<WIDTH>().0;
        let three = self.sums[start - 6..end - 6].as_chunks::<WIDTH>().0;
        for ((((to, zero), one), two), three) in to.iter_mut().zip(zero).zip(one).zip(two).zip(three) {
            for lane in 0..WIDTH {
                last[lane] += (zero[lane] + one[lane]) + (two[lane] + three[lane]);
            }
            *to = last;
        }
        self.done = end;
    }

    /// Returns what magnitudes above limits of adjacent scales add for some codes: to products themselves, to squares of codes
    /// twice the lower code and one.
    #[inline(always)]
    fn above(&self, limit: usize, offsets: &[usize], factors: &[[f32; LANES]]) -> Pairs {
        let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
        for (offset, factors) in offsets.iter().zip(factors) {
            if let Some(above) = self.running[2 * (limit - offset) - 2..].first_chunk::<{ 2 * LANES }>() {
                for lane in 0..LANES {
                    low[lane] += above[lane] * factors[lane];
                    high[lane] += above[LANES + lane] * factors[lane];
                }
            }
        }
        let mut pairs = [0f32; 2 * LANES];
        pairs[..LANES].copy_from_slice(&low);
        pairs[LANES..].copy_from_slice(&high);
        pairs
    }
}

/// What products and squares of codes are multiplied by.
static FACTORS: [[f32; LANES]; LEVELS] = {
    let mut factors = [[1.0; LANES]; LEVELS];
    let mut index = 0;
    while index < LEVELS * LANES / 2 {
        factors[index / (LANES / 2)][index % (LANES / 2) * 2 + 1] = (index / (LANES / 2) * 2 + 1) as f32;
        index += 1;
    }
    factors
};

/// Goes from large scales to small ones.
struct Scales<'a> {
    sweep: &'a Sweep,
    block: &'a Block<'a>,
    totals: Totals,
    room: &'a mut Room,
}

/// The best scale of each lane.
struct Best {
    errors: [f32; LANES],
    scales: [f32; LANES],
    zeros: [f32; LANES],
}

impl Kernel for Scales<'_> {
    type Output = [Top; TOPS];

    #[inline(always)]
    fn run(self) -> [Top; TOPS] {
        let Self { sweep, block, totals, room } = self;
        let Sweep { low, high, has_zeros, ref offsets, shared, split, .. } = *sweep;
        let Room { sums, running: [of_all, of_positive, of_negative], counts, .. } = room;
        let (all, signs) = sums.split_at_mut(SIDE);
        let (positive, negative) = signs.split_at_mut(SIDE);
        if shared > 0 {
            let both = positive[PAD..].as_flattened().iter().zip(negative[PAD..].as_flattened());
            let all = all[PAD..PAD + split].as_flattened_mut();
            for (sum, (positive, negative)) in all.iter_mut().zip(both) {
                *sum += positive + negative;
            }
        }
        let mut all = RunningSums::new(all, of_all);
        let mut sides = [RunningSums::new(positive, of_positive), RunningSums::new(negative, of_negative)];
        // As many elements of equal weight have the same deviation of sums of squares, which are uniform in a step: 0.9 over
        // its root.
        let root = (totals.weight / totals.squares.sqrt()) as f32;
        let largest = 1.0 + 3.6 / root;
        let mut scale = block.own / (1.0 - 2.7 / root).max(0.25).sqrt();
        // The limit of a code of 1 is half a scale.
        let limit = bin(scale.to_bits()) + (PAD + RESOLUTION) as i32;
        let mut limit = (limit.max(0) as usize).max(offsets.last().copied().unwrap_or_default() + 1);
        // What is limited to the farthest codes loses least where both ends lose the same.
        let (extent, ends, reach) = if has_zeros {
            (totals.high - totals.low, 2.0, high - low)
        } else {
            (totals.high.max(-totals.low), 1.0, high.max(-low))
        };
        let mut best = Best { errors: [f32::INFINITY; LANES], scales: [0.0; LANES], zeros: [0.0; LANES] };
        let mut least = f32::INFINITY;
        while limit + LANES <= SIDE {
            let mut common = [0f32; 2 * LANES];
            if shared > 0 {
                all.extend((limit + LANES).saturating_sub(PAD));
                common = all.above(limit, &offsets[..shared], &FACTORS[..shared]);
            }
            if let Some(offset) = offsets.get(shared) {
                for (side, counts) in sides.iter_mut().zip(&mut *counts) {
                    side.extend((limit + LANES - offset).saturating_sub(PAD));
                    for (index, offset) in offsets[shared..].iter().enumerate() {
                        let code = shared + index;
                        let mut sums = side.above(limit, &[*offset], &FACTORS[code..=code]);
                        for lane in 0..2 * LANES {
                            sums[lane] += counts[index][lane];
                        }
                        counts[index + 1] = sums;
                    }
                }
            }
            let next = scale * GROUP;
            let (first, last) = if has_zeros {
                sweep.zeros([scale, next], (totals.low, totals.high))
            } else {
                (0, i32::from(sweep.has_signs))
            };
            let mut group = [f32::INFINITY; LANES];
            for choice in first..=last {
                let [positive, negative] = sweep.levels(choice);
                let sums = (&common, &counts[0][positive], &counts[1][negative]);
                let (sign, zero) = match (has_zeros, choice) {
                    (true, zero) => (1.0, zero as f32),
                    (false, 0) => (1.0, 0.0),
                    _ => (-1.0, 0.0),
                };
                let rounding = (sweep.rounding, block.least);
                best.add(sums, (totals.energy as f32, rounding), (sign, zero), &mut group);
            }
            let mut of_group = f32::INFINITY;
            for error in group {
                of_group = if error < of_group { error } else { of_group };
            }
            least = if of_group < least { of_group } else { least };
            scale = next;
            limit += LANES;
            // The weight of the largest magnitude is not known.
            let is_limited =
                block.weights.is_empty() && extent - (ends * least).sqrt() > reach as f32 * scale;
            let is_worse = scale < block.own && of_group > least * largest;
            if is_limited || is_worse || scale < block.lowest {
                break;
            }
        }
        best.tops()
    }
}

impl Best {
    /// Tries the scales of a group, at the lowest points of their parabolas but rounded.
    #[inline(always)]
    fn add(
        &mut self,
        (common, positive, negative): (&Pairs, &Pairs, &Pairs),
        (energy, (rounding, least)): (f32, (f32, f32)),
        (sign, zero): (f32, f32),
        group: &mut [f32; LANES],
    ) {
        let Self { errors, scales, zeros } = self;
        let mut pairs = *common;
        for lane in 0..2 * LANES {
            pairs[lane] += positive[lane] + negative[lane];
        }
        let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
        for lane in 0..LANES {
            (products[lane], squares[lane]) = (pairs[2 * lane], pairs[2 * lane + 1]);
        }
        for lane in 0..LANES {
            let (product, square) = (products[lane], squares[lane]);
            let refit = product / square;
            let refit = if square > 0.0 { refit } else { 0.0 };
            let split = refit * rounding;
            let split = if split > least { split } else { least };
            let scale = split - (split - refit);
            let error = energy - scale * ((product + product) - scale * square);
            let error = if error > 0.0 { error } else { 0.0 };
            let is_less = error < errors[lane];
            errors[lane] = if is_less { error } else { errors[lane] };
            scales[lane] = if is_less { scale * sign } else { scales[lane] };
            zeros[lane] = if is_less { zero } else { zeros[lane] };
            group[lane] = if error < group[lane] { error } else { group[lane] };
        }
    }

    /// Returns the best ones, each once.
    #[inline(always)]
    fn tops(mut self) -> [Top; TOPS] {
        let mut tops = [Top { scale: 0.0, zero: 0.0 }; TOPS];
        for top in &mut tops {
            let mut key = u32::MAX;
            for lane in 0..LANES {
                let other = self.errors[lane].to_bits() / LANES as u32 * LANES as u32 + lane as u32;
                key = if other < key { other } else { key };
            }
            let lane = key as usize % LANES;
            if key >= f32::INFINITY.to_bits() {
                break;
            }
            let (scale, zero) = (self.scales[lane], self.zeros[lane]);
            *top = Top { scale, zero };
            for lane in 0..LANES {
                let is_same = (self.scales[lane] == scale) & (self.zeros[lane] == zero);
                self.errors[lane] = if is_same { f32::INFINITY } else { self.errors[lane] };
            }
        }
        tops
    }
}
