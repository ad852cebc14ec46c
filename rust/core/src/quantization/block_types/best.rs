//! Blocks of less squared error than those of llama.cpp.
//!
//! Blocks of llama.cpp are the start, and those that its searches find if errors are weighted by importance alone, or not at
//! all. Then scales are changed as long as that lowers the error, which is that of what is stored. The least error is taken,
//! added up in float64; of several the earlier one, so that no block has a larger error than that of llama.cpp.

use super::half;
use super::layout::{BlockType, MOST_BYTES, MOST_ELEMENTS};
use super::search::{Columns, LANES, Lanes, lanes, nearest_code};
use super::super_blocks::{self, Numbers};
use super::{decode_block, pack_codes, small, weights};

/// How often scales are changed in turn.
const ROUNDS: usize = 4;
/// How many trials of a search over divisions of a range are refined.
const REFINED: usize = 4;
/// Between two trials, the product of a scale and the farthest code changes by this part of a step.
const SPACING: f32 = 0.3;

/// A block, and what it loses.
pub(super) struct Best {
    bytes: [u8; MOST_BYTES],
    loss: f64,
}

impl Best {
    pub(super) fn new() -> Self {
        Self { bytes: [0; MOST_BYTES], loss: f64::INFINITY }
    }

    /// Takes a block if it is the first one, or better.
    pub(super) fn offer(&mut self, row: &BlockType, x: &[f32], importance: &[f32], block: &[u8]) -> bool {
        let mut values = [0f32; MOST_ELEMENTS];
        decode_block(row, block, &mut values[..x.len()]);
        let mut sums = [0f64; 4];
        for (index, (x, importance)) in x.iter().zip(importance).enumerate() {
            let difference = f64::from(*x) - f64::from(values[index]);
            sums[index % 4] += difference * difference * f64::from(*importance);
        }
        let loss = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        let is_better = loss < self.loss;
        if is_better {
            self.loss = loss;
            self.bytes[..row.bytes].copy_from_slice(block);
        }
        is_better
    }

    pub(super) fn block(&self, row: &BlockType) -> &[u8] {
        &self.bytes[..row.bytes]
    }
}

/// Elements of a part, the weights of their errors, and the least and the largest code, where that of zero is 0.
#[derive(Clone, Copy)]
struct Part<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    codes: (f32, f32),
}

impl Part<'_> {
    fn code(&self, x: f32, inverse: f32, minimum: f32) -> f32 {
        nearest_code((x + minimum) * inverse, self.codes.0, self.codes.1)
    }

    /// Returns what the codes nearest to elements lose.
    #[inline(always)]
    fn loss(&self, scale: f32, minimum: f32) -> f32 {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut sums: Lanes = [0.0; LANES];
        for (x, w) in self.x.as_chunks::<LANES>().0.iter().zip(self.weights.as_chunks::<LANES>().0) {
            sums = lanes(|lane| {
                let code = self.code(x[lane], inverse, minimum);
                let difference = scale * code - minimum - x[lane];
                sums[lane] + w[lane] * difference * difference
            });
        }
        sums.iter().sum()
    }

    /// Returns sums over elements, for codes that are times a factor, and minima that are.
    #[inline(always)]
    fn sums(&self, scale: f32, minimum: f32, factors: (f32, f32)) -> Sums {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut sums = [[0f32; LANES]; 5];
        for (x, w) in self.x.as_chunks::<LANES>().0.iter().zip(self.weights.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let code = self.code(x[lane], inverse, minimum);
                let (weighted, product) = (w[lane] * code, w[lane] * x[lane]);
                let terms = [weighted * code, weighted * x[lane], weighted, w[lane], product];
                for (sum, term) in sums.iter_mut().zip(terms) {
                    sum[lane] += term;
                }
            }
        }
        let [pp, px, pq, qq, qx] = sums.map(|sum| f64::from(sum.iter().sum::<f32>()));
        let (p, q) = (f64::from(factors.0), f64::from(factors.1));
        Sums { pp: p * p * pp, px: p * px, pq: p * q * pq, qq: q * q * qq, qx: q * qx }
    }
}

/// Sums of `p * p`, `p * x` and so on, where an element `x` is about `scale * p - minimum * q`.
#[derive(Clone, Copy, Default)]
struct Sums {
    pp: f64,
    px: f64,
    pq: f64,
    qq: f64,
    qx: f64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.pp += other.pp;
        self.px += other.px;
        self.pq += other.pq;
        self.qq += other.qq;
        self.qx += other.qx;
    }

    /// Returns the scale and the minimum of least squares.
    fn solve(&self, has_minimum: bool) -> (f32, f32) {
        let determinant = self.pp * self.qq - self.pq * self.pq;
        if has_minimum && determinant > 0.0 {
            let scale = (self.px * self.qq - self.pq * self.qx) / determinant;
            return (scale as f32, ((self.pq * self.px - self.pp * self.qx) / determinant) as f32);
        }
        (if self.pp > 0.0 { (self.px / self.pp) as f32 } else { 0.0 }, 0.0)
    }
}

/// Returns weights of which the largest is from 1 to 2; false if all are zero.
pub(super) fn scaled(importance: &[f32], weights: &mut [f32]) -> bool {
    let most = importance.iter().fold(0f32, |most, &number| if number > most { number } else { most });
    if most < f32::MIN_POSITIVE {
        return false;
    }
    // A power of two, in float64: its reciprocal may be beyond float32.
    let power = f64::from(f32::from_bits(most.to_bits() & 0x7f80_0000));
    weights.iter_mut().zip(importance).for_each(|(w, number)| *w = (f64::from(*number) / power) as f32);
    true
}

/// Improves a block of 256 elements.
pub(super) fn improve_super_block(
    row: &BlockType,
    x: &[f32; MOST_ELEMENTS],
    importance: &[f32],
    best: &mut Best,
) {
    let mut weights = [0f32; MOST_ELEMENTS];
    if !scaled(importance, &mut weights) {
        return;
    }
    let length = super_blocks::part_length(row);
    let codes = code_range(row);
    let part_of = |part: usize| {
        let range = part * length..(part + 1) * length;
        Part { x: &x[range.clone()], weights: &weights[range], codes }
    };
    let has_minimum = row.minimum.is_some();
    let count = MOST_ELEMENTS / length;
    let (low, high) = super_blocks::number_range(row);
    let mut numbers = super_blocks::numbers(row, best.block(row));
    for _ in 0..ROUNDS {
        for part in 0..count {
            let elements = part_of(part);
            let (scale, minimum) = (numbers.scales[part], numbers.minima[part]);
            let (mut least, mut found) = (f32::INFINITY, (scale, minimum));
            for change in [0, -1, 1, -2, 2] {
                for other in if has_minimum { &[0, -1, 1][..] } else { &[0][..] } {
                    let pair = ((scale + change).clamp(low, high), (minimum + other).clamp(0, high));
                    let loss = elements.loss(numbers.scale * pair.0 as f32, numbers.minimum * pair.1 as f32);
                    if loss < least {
                        (least, found) = (loss, pair);
                    }
                }
            }
            (numbers.scales[part], numbers.minima[part]) = found;
        }
        let is_better = offer_numbers(row, x, importance, &numbers, best);
        let mut sums = Sums::default();
        for part in 0..count {
            let factors = (numbers.scales[part] as f32, numbers.minima[part] as f32);
            sums.add(&part_of(part).sums(numbers.scale * factors.0, numbers.minimum * factors.1, factors));
        }
        let (scale, minimum) = sums.solve(has_minimum);
        (numbers.scale, numbers.minimum) = (half::round(scale), half::round(minimum.max(0.0)));
        if !(offer_numbers(row, x, importance, &numbers, best) || is_better) {
            break;
        }
    }
}

/// Makes a block of the scales of parts, and offers it.
fn offer_numbers(
    row: &BlockType,
    x: &[f32; MOST_ELEMENTS],
    importance: &[f32],
    numbers: &Numbers,
    best: &mut Best,
) -> bool {
    let (mut block, mut codes) = ([0u8; MOST_BYTES], [0u8; MOST_ELEMENTS]);
    let block = &mut block[..row.bytes];
    super_blocks::store_numbers(row, numbers, block);
    super_blocks::encode_by_stored_scales(row, x, &mut codes, block);
    pack_codes(row, &codes, block);
    best.offer(row, x, importance, block)
}

/// Returns the least and the largest code, where that of zero is 0.
fn code_range(row: &BlockType) -> (f32, f32) {
    let count = (1 << row.bits) as f32;
    match (row.minimum.is_some(), row.bits) {
        (true, _) => (0.0, count - 1.0),
        (false, 8) => (1.0 - count / 2.0, count / 2.0 - 1.0), // as llama.cpp has them
        (false, _) => (-count / 2.0, count / 2.0 - 1.0),
    }
}

/// Improves up to eight blocks of 32 elements.
pub(super) fn improve_small(row: &BlockType, x: &[f32], importance: &[f32], best: &mut [Best]) {
    let mut scaled_weights = [0f32; small::ELEMENTS * LANES];
    let mut has_weights = [false; LANES];
    let runs = importance.chunks_exact(small::ELEMENTS).zip(scaled_weights.chunks_exact_mut(small::ELEMENTS));
    for (has_weights, (importance, weights)) in has_weights.iter_mut().zip(runs) {
        *has_weights = scaled(importance, weights);
    }
    let columns = weights::columns(x, small::ELEMENTS);
    let is_weighted = importance.iter().any(|&number| number != importance[0]);
    let trials = trials(row, &columns, &weights::columns(&scaled_weights, small::ELEMENTS), is_weighted);
    let runs = x.chunks_exact(small::ELEMENTS).zip(importance.chunks_exact(small::ELEMENTS));
    for (lane, ((x, importance), best)) in runs.zip(best).enumerate() {
        if has_weights[lane] {
            let range = lane * small::ELEMENTS..(lane + 1) * small::ELEMENTS;
            let part = Part { x, weights: &scaled_weights[range], codes: code_range(row) };
            for (scale, minimum) in trials.of_block(lane) {
                refine_small(row, part, importance, scale, minimum, best);
            }
            let start = small::parts(row, best.block(row));
            refine_small(row, part, importance, start.scales[0], start.minima[0], best);
        }
    }
}

/// The best scales and minima so far, of each block.
struct Trials {
    gains: [Lanes; REFINED],
    scales: [Lanes; REFINED],
    minima: [Lanes; REFINED],
}

/// A scale and a minimum for each block, and what of the error they take away.
struct Trial {
    gains: Lanes,
    scales: Lanes,
    minima: Lanes,
}

impl Trials {
    fn new() -> Self {
        let zeros = [[0.0; LANES]; REFINED];
        Self { gains: [[f32::NEG_INFINITY; LANES]; REFINED], scales: zeros, minima: zeros }
    }

    /// Takes what is better than one of them.
    fn offer(&mut self, trial: &Trial) {
        for lane in 0..LANES {
            let Some(place) = (0..REFINED).find(|&place| trial.gains[lane] > self.gains[place][lane]) else {
                continue;
            };
            for place in (place..REFINED - 1).rev() {
                self.gains[place + 1][lane] = self.gains[place][lane];
                self.scales[place + 1][lane] = self.scales[place][lane];
                self.minima[place + 1][lane] = self.minima[place][lane];
            }
            self.gains[place][lane] = trial.gains[lane];
            self.scales[place][lane] = trial.scales[lane];
            self.minima[place][lane] = trial.minima[lane];
        }
    }

    /// Returns the best scales and minima of a block.
    fn of_block(&self, lane: usize) -> impl Iterator<Item = (f32, f32)> {
        (0..REFINED)
            .filter(move |&place| self.gains[place][lane] > f32::NEG_INFINITY)
            .map(move |place| (self.scales[place][lane], self.minima[place][lane]))
    }
}

/// Divides the range of each block, or its largest magnitude, in many ways; with weights that differ, an outlier may be
/// limited to a code that is far from it.
#[inline(never)]
fn trials(row: &BlockType, x: &Columns, weights: &Columns, is_weighted: bool) -> Trials {
    let (low, high) = code_range(row);
    let (mut least, mut most) = (x[0], x[0]);
    for x in x {
        least = lanes(|lane| if x[lane] < least[lane] { x[lane] } else { least[lane] });
        most = lanes(|lane| if x[lane] > most[lane] { x[lane] } else { most[lane] });
    }
    let amax = lanes(|lane| if most[lane] > -least[lane] { most[lane] } else { -least[lane] });
    let mut trials = Trials::new();
    if row.bits == 8 {
        // All float16 of a range, which are farther from each other than codes need it.
        let (most, steps) = if is_weighted { (150.0, 512) } else { (128.0, 256) };
        let mut scales = lanes(|lane| half::round(amax[lane] / most));
        for _ in 0..steps {
            let divisors = lanes(|lane| 1.0 / scales[lane]);
            let sums = code_sums(x, weights, [0.0; LANES], divisors, (low, high));
            let gains = lanes(|lane| scales[lane] * (2.0 * sums.px[lane] - scales[lane] * sums.pp[lane]));
            trials.offer(&Trial { gains, scales, minima: [0.0; LANES] });
            scales = scales.map(|scale| half::step(scale, 1));
        }
        return trials;
    }
    let has_minimum = row.minimum.is_some();
    let spread = lanes(|lane| if has_minimum { most[lane] - least[lane] } else { amax[lane] });
    let reach = if has_minimum { high } else { -low };
    let last = reach * if is_weighted { 2.5 } else { 1.5 };
    // Of a range, which of its ends stays if it is limited; of magnitudes, the sign of the scale.
    let variants: &[f32] = if has_minimum { &[0.0, 0.5, 1.0] } else { &[1.0, -1.0] };
    let mut range = 0.55 * reach;
    while range < last {
        for variant in variants {
            let trial = if has_minimum {
                let divisors = lanes(|lane| range / spread[lane]);
                let origins = lanes(|lane| least[lane] + variant * (spread[lane] - reach / divisors[lane]));
                affine_trial(&code_sums(x, weights, origins, divisors, (low, high)), origins)
            } else {
                let divisors = lanes(|lane| variant * range / spread[lane]);
                let sums = code_sums(x, weights, [0.0; LANES], divisors, (low, high));
                let scales = lanes(|lane| sums.px[lane] / sums.pp[lane]);
                Trial { gains: lanes(|lane| scales[lane] * sums.px[lane]), scales, minima: [0.0; LANES] }
            };
            trials.offer(&trial);
        }
        range *= 1.0 + SPACING / reach;
    }
    trials
}

/// Weighted sums over the codes of blocks, and their elements less an origin.
struct CodeSums {
    pp: Lanes,
    px: Lanes,
    p: Lanes,
    x: Lanes,
    w: Lanes,
}

/// Adds up what the codes of divisions and origins make.
#[inline(never)]
fn code_sums(
    x: &Columns,
    weights: &Columns,
    origins: Lanes,
    divisors: Lanes,
    (low, high): (f32, f32),
) -> CodeSums {
    let [mut pp, mut px, mut p, mut sum_x, mut sum_w] = [[0f32; LANES]; 5];
    for (x, w) in x.iter().zip(weights) {
        let x = lanes(|lane| x[lane] - origins[lane]);
        let code = lanes(|lane| nearest_code(x[lane] * divisors[lane], low, high));
        let product = lanes(|lane| w[lane] * code[lane]);
        pp = lanes(|lane| pp[lane] + product[lane] * code[lane]);
        px = lanes(|lane| px[lane] + product[lane] * x[lane]);
        p = lanes(|lane| p[lane] + product[lane]);
        sum_x = lanes(|lane| sum_x[lane] + w[lane] * x[lane]);
        sum_w = lanes(|lane| sum_w[lane] + w[lane]);
    }
    CodeSums { pp, px, p, x: sum_x, w: sum_w }
}

/// Returns the scales and minima of least squares, from sums about the weighted means.
fn affine_trial(sums: &CodeSums, origins: Lanes) -> Trial {
    let CodeSums { pp, px, p, x, w } = sums;
    let variance = lanes(|lane| pp[lane] - p[lane] * p[lane] / w[lane]);
    let covariance = lanes(|lane| px[lane] - p[lane] * x[lane] / w[lane]);
    let scales = lanes(|lane| covariance[lane] / variance[lane]);
    let minima = lanes(|lane| (scales[lane] * p[lane] - x[lane]) / w[lane] - origins[lane]);
    Trial { gains: lanes(|lane| scales[lane] * covariance[lane]), scales, minima }
}

/// Refines the scale and the minimum of a block of 32 elements, as they are stored, and offers the best.
fn refine_small(
    row: &BlockType,
    part: Part<'_>,
    importance: &[f32],
    scale: f32,
    minimum: f32,
    best: &mut Best,
) {
    let has_minimum = row.minimum.is_some();
    let (mut scale, mut minimum) = (half::round(scale), half::round(minimum));
    let mut least = part.loss(scale, minimum);
    let mut take = |pair: (f32, f32), scale: &mut f32, minimum: &mut f32| {
        let loss = part.loss(pair.0, pair.1);
        let is_better = loss < least;
        if is_better {
            (least, *scale, *minimum) = (loss, pair.0, pair.1);
        }
        is_better
    };
    for _ in 0..ROUNDS {
        let (new_scale, new_minimum) = part.sums(scale, minimum, (1.0, 1.0)).solve(has_minimum);
        let pair = (half::round(new_scale), if has_minimum { half::round(new_minimum) } else { 0.0 });
        let mut is_better = take(pair, &mut scale, &mut minimum);
        for change in [-1, 1] {
            is_better |= take((half::step(scale, change), minimum), &mut scale, &mut minimum);
            if has_minimum {
                is_better |= take((scale, half::step(minimum, change)), &mut scale, &mut minimum);
            }
        }
        if !is_better {
            break;
        }
    }
    let mut block = [0u8; MOST_BYTES];
    let block = &mut block[..row.bytes];
    half::write(block, row.scale, scale);
    if let Some(place) = row.minimum {
        half::write(block, place, -minimum);
    }
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let offset = if has_minimum || row.bits == 8 { 0.0 } else { -part.codes.0 };
    let mut codes = [0u8; small::ELEMENTS];
    for (code, &x) in codes.iter_mut().zip(part.x) {
        *code = (part.code(x, inverse, minimum) + offset) as i32 as u8;
    }
    small::store(row, codes, block);
    best.offer(row, part.x, importance, block);
}
