//! Sums over the elements of a block of integers, for trials of scales side by side: of what elements lose, in float32, or of
//! products of codes, in integers.

use crate::codec::pivot::{Binary64, FloatPivot};
use crate::cpu::level::run_portable;
use crate::cpu::{Kernel, Level, RawKernel};
#[cfg(target_arch = "x86_64")]
use crate::simd::Vectors;
use crate::simd::{Vector, with_vectors};

/// Trials that are made together.
pub(super) const LANES: usize = 16;

pub(super) type Lanes<T> = [T; LANES];

/// Elements whose squares are added in float32.
const CHUNK: usize = 1024;

/// Added to a small float32 and subtracted again, it leaves the nearest integer, ties to even; the last bits of the sum are
/// that integer.
const MAGIC: f32 = 1.5 / f32::EPSILON;

/// Of an element of 1, the integer.
const UNIT: f32 = (1 << 14) as f32;

/// Pairs of elements whose products with codes, of at most 8 bits and a sign, are added in 32 bits.
const PAIRS: usize = 64;

/// Adds squares, each times its weight, if there are any, to about their sum.
pub(super) fn energy(elements: &[f32], weights: &[f32]) -> f64 {
    let mut sums = [0f32; LANES];
    for (start, group) in elements.chunks(LANES).enumerate() {
        let weights = weights.get(start * LANES..).unwrap_or_default();
        if let (Some(group), Some(weights)) = (group.first_chunk::<LANES>(), weights.first_chunk::<LANES>()) {
            for lane in 0..LANES {
                sums[lane] += group[lane] * group[lane] * weights[lane];
            }
        } else {
            for (place, &element) in group.iter().enumerate() {
                sums[place] += element * element * weights.get(place).copied().unwrap_or(1.0);
            }
        }
    }
    sums.into_iter().map(f64::from).sum()
}

/// Makes trials one after the other. The sums of an element's lane have their elements in order, at every level.
pub(super) struct Sums<'a> {
    pub(super) elements: &'a [f32],
    /// None, if all are 1.
    pub(super) weights: &'a [f32],
    pub(super) batch: &'a Batch,
    pub(super) energy: f64,
}

/// Scales of trials, and the codes that these have.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    /// Lanes with a trial; the others have no number of interest.
    pub(super) count: usize,
    pub(super) scales: Lanes<f64>,
    pub(super) low: Lanes<i16>,
    pub(super) high: Lanes<i16>,
}

/// What trials give: errors, those of the lowest points of their parabolas, and the scales of these. Errors of lanes without a
/// trial are infinite.
pub(super) struct Outcome {
    pub(super) errors: Lanes<f64>,
    pub(super) lowest: Lanes<f64>,
    pub(super) refits: Lanes<f64>,
}

/// Finds the least two keys of errors: their bits as float32, in the same order, whose last bits are the lane.
pub(super) struct Rank<'a>(pub(super) &'a Lanes<f64>);

impl Kernel for Rank<'_> {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let mut keys = [0; LANES];
        for (lane, (key, &error)) in keys.iter_mut().zip(self.0).enumerate() {
            // Roundings may leave less than nothing.
            let error = if error < 0.0 { 0.0 } else { error };
            *key = ((error as f32).to_bits() & !LANE) | lane as u32;
        }
        let first = least(&keys);
        for key in &mut keys {
            // The same scale with another sign, or in another lane, is no other trial: it becomes one of the largest.
            *key = key.wrapping_sub(first).wrapping_sub(LANE + 1);
        }
        [first, least(&keys).wrapping_add(LANE + 1).wrapping_add(first)]
    }
}

/// Returns the least key, by halves, which are registers.
#[inline(always)]
fn least(keys: &Lanes<u32>) -> u32 {
    let (mut eight, mut four) = ([0; 8], [0; 4]);
    for lane in 0..8 {
        eight[lane] = keys[lane].min(keys[8 + lane]);
    }
    for lane in 0..4 {
        four[lane] = eight[lane].min(eight[4 + lane]);
    }
    four[0].min(four[2]).min(four[1].min(four[3]))
}

/// The bits of a key that are the lane.
const LANE: u32 = LANES as u32 - 1;

/// Returns the error of a key.
#[inline]
pub(super) fn rank(key: u32) -> f64 {
    f64::from(f32::from_bits(key & !LANE))
}

/// Returns the lane of a key.
#[inline]
pub(super) fn lane(key: u32) -> usize {
    (key & LANE) as usize
}

/// Adds lanes, always in the same order.
#[inline(always)]
fn total(lanes: Lanes<f32>) -> f64 {
    let (mut eight, mut four) = ([0f32; 8], [0f32; 4]);
    for lane in 0..8 {
        eight[lane] = lanes[lane] + lanes[8 + lane];
    }
    for lane in 0..4 {
        four[lane] = eight[lane] + eight[4 + lane];
    }
    f64::from((four[0] + four[2]) + (four[1] + four[3]))
}

/// A scale, and the codes that it has, as numbers.
#[derive(Clone, Copy)]
struct Step {
    inverse: f32,
    low: f32,
    high: f32,
}

impl Step {
    /// Adds squares of what elements lose, in steps, and its products with codes.
    #[inline(always)]
    fn add(
        self,
        elements: &Lanes<f32>,
        weights: &Lanes<f32>,
        [mut squares, mut slopes]: [Lanes<f32>; 2],
    ) -> [Lanes<f32>; 2] {
        let Self { inverse, low, high } = self;
        for lane in 0..LANES {
            let quotient = elements[lane] * inverse;
            let code = (quotient + MAGIC) - MAGIC;
            let code = if code > low { code } else { low };
            let code = if code < high { code } else { high };
            let lost = quotient - code;
            let weighted = lost * weights[lane];
            squares[lane] += lost * weighted;
            slopes[lane] += code * weighted;
        }
        [squares, slopes]
    }
}

impl Kernel for Sums<'_> {
    type Output = Outcome;

    #[inline(always)]
    fn run(self) -> Outcome {
        let Self { elements, weights, batch, energy } = self;
        let (mut squares, mut slopes) = ([f64::INFINITY; LANES], [0f64; LANES]);
        for lane in 0..batch.count.min(LANES) {
            let inverse = 1.0 / batch.scales[lane] as f32;
            let step = Step { inverse, low: f32::from(batch.low[lane]), high: f32::from(batch.high[lane]) };
            (squares[lane], slopes[lane]) = (0.0, 0.0);
            for (chunk, elements) in elements.chunks(CHUNK).enumerate() {
                let weights = weights.get(chunk * CHUNK..).unwrap_or_default();
                let (groups, rest) = elements.as_chunks::<LANES>();
                let factors = weights.as_chunks::<LANES>().0;
                let mut sums = [[0f32; LANES]; 2];
                for (index, elements) in groups.iter().enumerate() {
                    sums = step.add(elements, factors.get(index).unwrap_or(&[1.0; LANES]), sums);
                }
                if !rest.is_empty() {
                    // Zeros lose nothing.
                    let (mut elements, mut factors) = ([0f32; LANES], [1f32; LANES]);
                    elements[..rest.len()].copy_from_slice(rest);
                    for (factor, weight) in factors.iter_mut().zip(weights.iter().skip(groups.len() * LANES))
                    {
                        *factor = *weight;
                    }
                    sums = step.add(&elements, &factors, sums);
                }
                squares[lane] += total(sums[0]);
                slopes[lane] += total(sums[1]);
            }
        }
        let (mut errors, mut lowest, mut refits) = (squares, squares, slopes);
        for lane in 0..LANES {
            let scale = f64::from(batch.scales[lane] as f32);
            let step = scale * scale;
            // The squares of codes, as elements are codes and what they lose.
            let codes = energy / step - (slopes[lane] + slopes[lane] + squares[lane]);
            let moves = slopes[lane] / codes;
            let moves = if codes > 1e-3 { moves } else { 0.0 };
            refits[lane] = scale + scale * moves;
            errors[lane] = squares[lane] * step;
            lowest[lane] = (squares[lane] - slopes[lane] * moves) * step;
        }
        Outcome { errors, lowest, refits }
    }
}

/// The elements of a block as integers, two beside each other; where errors are weighted, their products with weights, and
/// these.
pub(super) type Shorts<'a> = [&'a [[i16; 2]]; 3];

/// Room for them.
#[derive(Default)]
pub(super) struct ShortsRoom([Vec<[i16; 2]>; 3]);

impl ShortsRoom {
    /// Makes integers of elements below 2 and weights of at most 1; returns the sum of their squares, in the unit of elements.
    pub(super) fn fill(&mut self, level: Level, elements: &[f32], weights: &[f32]) -> f64 {
        let pairs = elements.len().div_ceil(2);
        let [shorts, products, factors] = self.0.each_mut().map(|shorts| {
            shorts.resize(pairs, [0; 2]);
            if let Some(last) = shorts.last_mut() {
                // None may be there.
                last[1] = 0;
            }
            shorts.as_flattened_mut()
        });
        if weights.is_empty() {
            level.run(Shorten { elements, shorts })
        } else {
            level.run(ShortenWeighted { elements, weights, shorts, products, factors })
        }
    }

    /// Returns those that were made last.
    pub(super) fn shorts(&self) -> Shorts<'_> {
        self.0.each_ref().map(|shorts| &shorts[..])
    }
}

/// Returns the nearest integer of 16 bits.
#[inline(always)]
fn shorten(value: f32) -> i16 {
    let (least, most) = (f32::from(i16::MIN), f32::from(i16::MAX));
    let value = value * UNIT;
    let value = if value > least { value } else { least };
    let value = if value < most { value } else { most };
    (value + MAGIC).to_bits() as i16
}

struct Shorten<'a> {
    elements: &'a [f32],
    shorts: &'a mut [i16],
}

impl Kernel for Shorten<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut sum = 0i64;
        for (short, &element) in self.shorts.iter_mut().zip(self.elements) {
            *short = shorten(element);
            sum += i64::from(i32::from(*short) * i32::from(*short));
        }
        sum as f64 / f64::from(UNIT * UNIT)
    }
}

struct ShortenWeighted<'a> {
    elements: &'a [f32],
    weights: &'a [f32],
    shorts: &'a mut [i16],
    products: &'a mut [i16],
    factors: &'a mut [i16],
}

impl Kernel for ShortenWeighted<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Self { elements, weights, shorts, products, factors } = self;
        let count = elements.len();
        let (weights, shorts) = (&weights[..count], &mut shorts[..count]);
        let (products, factors) = (&mut products[..count], &mut factors[..count]);
        let mut sum = 0i64;
        for index in 0..count {
            shorts[index] = shorten(elements[index]);
            products[index] = shorten(elements[index] * weights[index]);
            factors[index] = shorten(weights[index]);
            sum += i64::from(i32::from(shorts[index]) * i32::from(products[index]));
        }
        sum as f64 / f64::from(UNIT * UNIT)
    }
}

/// Makes trials in lanes, of elements as integers: sums are exact. A quotient near the middle of two codes may have the other
/// one; errors are those of the codes that quotients have.
#[derive(Clone, Copy)]
pub(super) struct CodeSums<'a, const WEIGHTED: bool> {
    pub(super) shorts: Shorts<'a>,
    pub(super) batch: &'a Batch,
    pub(super) energy: f64,
}

/// A pair of elements, their products with weights, and these.
type Pairs = [[i16; 2]; 3];

/// Returns the bits of two integers.
#[inline(always)]
fn bits(pair: [i16; 2]) -> u32 {
    u32::from(pair[0] as u16) | u32::from(pair[1] as u16) << 16
}

impl<const WEIGHTED: bool> CodeSums<'_, WEIGHTED> {
    /// The largest magnitude of codes for which sums have room.
    pub(super) const MOST: f64 = if WEIGHTED { 16.0 } else { 256.0 };

    pub(super) fn run(self, level: Level) -> Outcome {
        #[cfg(target_arch = "x86_64")]
        if self.batch.count <= LANES / 2
            && let Some(vectors) = Vectors::narrow(level)
        {
            // SAFETY: the vectors are there.
            return unsafe { vectors.run(InRegisters(self, vectors)) };
        }
        let outcome = with_vectors!(level, vectors => {
            // SAFETY: the vectors are there.
            unsafe { vectors.run(InRegisters(self, vectors)) }
        });
        // SAFETY: it has no requirements.
        outcome.unwrap_or_else(|| unsafe { run_portable(self) })
    }

    /// Returns what gives codes.
    #[inline(always)]
    fn factors(&self) -> CodeFactors {
        let Batch { scales, low, high, .. } = *self.batch;
        // A quotient has as many bits after the point as the product of the largest element has room for.
        let most = f32::from(i16::MAX);
        let mut least = f64::INFINITY;
        for scale in scales {
            least = if scale.abs() < least { scale.abs() } else { least };
        }
        let least = (f64::from(most) * least).to_bits();
        let bits = ((least >> Binary64::MANTISSA) as i64 - Binary64::BIAS - 1).clamp(1, 14);
        let unit = f32::from(1i16 << bits) * 2.0;
        let mut factors = CodeFactors {
            inverses: [[0; 2]; LANES],
            low: [[0; 2]; LANES],
            high: [[0; 2]; LANES],
            rounding: 1 << (15 - bits),
        };
        for lane in 0..LANES {
            let inverse = unit / scales[lane] as f32;
            let inverse = if inverse < most { inverse } else { most };
            let inverse = if inverse > -most { inverse } else { -most };
            factors.inverses[lane] = [(inverse + MAGIC).to_bits() as i16; 2];
            factors.low[lane] = [low[lane]; 2];
            factors.high[lane] = [high[lane]; 2];
        }
        factors
    }

    /// Adds up what gives, for a chunk, sums of products of elements and codes, and of squares of codes.
    #[inline(always)]
    fn outcome(&self, sums_of: impl Fn(Shorts<'_>) -> [Lanes<i32>; 2]) -> Outcome {
        let (mut products, mut squares) = ([0f64; LANES], [0f64; LANES]);
        let [elements, of_weights, weights] = self.shorts;
        let (mut start, pairs) = (0, elements.len());
        while start < pairs {
            let end = pairs.min(start + PAIRS);
            let sums = sums_of([&elements[start..end], &of_weights[start..end], &weights[start..end]]);
            for lane in 0..LANES {
                products[lane] += f64::from(sums[0][lane]);
                squares[lane] += f64::from(sums[1][lane]);
            }
            start = end;
        }
        let (mut errors, mut lowest, mut refits) = ([0f64; LANES], [0f64; LANES], [0f64; LANES]);
        let of_squares = if WEIGHTED { 1.0 / f64::from(UNIT) } else { 1.0 };
        for lane in 0..LANES {
            let (scale, square) = (self.batch.scales[lane], squares[lane] * of_squares);
            let product = products[lane] * (1.0 / f64::from(UNIT));
            let refit = product / square;
            let refit = if square > 0.0 { refit } else { scale };
            let lost = if lane < self.batch.count { self.energy } else { f64::INFINITY };
            refits[lane] = refit;
            errors[lane] = lost - scale * (product + product - scale * square);
            lowest[lane] = lost - refit * product;
        }
        Outcome { errors, lowest, refits }
    }
}

/// What becomes codes: elements times inverses of scales, rounded, and limited.
struct CodeFactors {
    inverses: Lanes<[i16; 2]>,
    low: Lanes<[i16; 2]>,
    high: Lanes<[i16; 2]>,
    /// What leaves the integer of a quotient.
    rounding: i16,
}

impl<const WEIGHTED: bool> Kernel for CodeSums<'_, WEIGHTED> {
    type Output = Outcome;

    #[inline(always)]
    fn run(self) -> Outcome {
        let factors = self.factors();
        let nearest = |a: i16, b: i16| ((i32::from(a) * i32::from(b) + (1 << 14)) >> 15) as i16;
        self.outcome(|chunk| {
            let (mut products, mut squares) = ([0i32; LANES], [0i32; LANES]);
            for ((elements, of_weights), weights) in chunk[0].iter().zip(chunk[1]).zip(chunk[2]) {
                let of_weights = if WEIGHTED { of_weights } else { elements };
                for side in 0..2 {
                    let weight = if WEIGHTED { i32::from(weights[side]) } else { 1 };
                    for lane in 0..LANES {
                        let quotient = nearest(elements[side], factors.inverses[lane][0]);
                        let code = nearest(quotient, factors.rounding);
                        let code = i32::from(code.max(factors.low[lane][0]).min(factors.high[lane][0]));
                        products[lane] += i32::from(of_weights[side]) * code;
                        squares[lane] += code * code * weight;
                    }
                }
            }
            [products, squares]
        })
    }
}

struct InRegisters<'a, const WEIGHTED: bool, V>(CodeSums<'a, WEIGHTED>, V);

/// What becomes codes, in registers.
struct Registers<const WEIGHTED: bool, V: Vector> {
    inverses: V::Integers,
    low: V::Integers,
    high: V::Integers,
    rounding: V::Integers,
}

impl<const WEIGHTED: bool, V: Vector> Registers<WEIGHTED, V> {
    /// Adds the products of two elements and their codes, and the squares of these.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn add(
        &self,
        [elements, of_weights, weights]: Pairs,
        [products, squares]: [V::Integers; 2],
    ) -> [V::Integers; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let elements = V::splat32(bits(elements));
            let of_weights = if WEIGHTED { V::splat32(bits(of_weights)) } else { elements };
            let quotients = V::nearest_product16(elements, self.inverses);
            let codes = V::nearest_product16(quotients, self.rounding);
            let codes = V::min_signed16(V::max_signed16(codes, self.low), self.high);
            let square = if WEIGHTED {
                V::pair_products32(V::mul16(codes, codes), V::splat32(bits(weights)))
            } else {
                V::pair_products32(codes, codes)
            };
            let product = V::pair_products32(of_weights, codes);
            [V::add32(products, product), V::add32(squares, square)]
        }
    }
}

impl<const WEIGHTED: bool, V: Vector> RawKernel for InRegisters<'_, WEIGHTED, V> {
    type Output = Outcome;

    #[inline(always)]
    unsafe fn run(self) -> Outcome {
        let factors = self.0.factors();
        let lanes = self.0.batch.count.min(LANES) * size_of::<i32>();
        self.0.outcome(|chunk| {
            let mut sums = [[0i32; LANES]; 2];
            let [elements, products, weights] = chunk;
            let count = elements.len();
            let (products, weights) = (&products[..count], &weights[..count]);
            let mut offset = 0;
            while offset < lanes {
                // SAFETY: the vectors are there; lanes of all arrays have 4 bytes, and registers end where arrays do.
                unsafe {
                    let registers = Registers::<WEIGHTED, V> {
                        inverses: V::load(factors.inverses.as_ptr().cast::<u8>().add(offset)),
                        low: V::load(factors.low.as_ptr().cast::<u8>().add(offset)),
                        high: V::load(factors.high.as_ptr().cast::<u8>().add(offset)),
                        rounding: V::splat16(factors.rounding as u16),
                    };
                    let mut added = [V::splat16(0); 2];
                    for index in 0..count {
                        added = registers.add([elements[index], products[index], weights[index]], added);
                    }
                    V::store(sums[0].as_mut_ptr().cast::<u8>().add(offset), added[0]);
                    V::store(sums[1].as_mut_ptr().cast::<u8>().add(offset), added[1]);
                }
                offset += V::BYTES;
            }
            sums
        })
    }
}
