//! Sums over the elements of a block of integers, for trials of scales side by side: of what elements lose, in float32, or of
//! products of codes, in integers.

use crate::codec::pivot::{Binary64, FloatPivot};
use crate::cpu::level::run_portable;
use crate::cpu::{Kernel, Level, RawKernel};
use crate::simd::{Vector, with_vectors};

/// Trials that are made together.
pub(super) const LANES: usize = 16;

pub(super) type Lanes<T> = [T; LANES];

/// Elements whose squares are added in float32.
const CHUNK: usize = 256;

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

/// Makes trials in lanes, the elements in turn, so that no sum is in parts.
pub(super) struct Sums<'a, const WEIGHTED: bool> {
    pub(super) elements: &'a [f32],
    pub(super) weights: &'a [f32],
    pub(super) batch: Batch,
    pub(super) energy: f64,
    /// Whether errors give the keys, or those of lowest points.
    pub(super) is_stored: bool,
}

/// Scales of trials, and the codes that these have.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub(super) scales: Lanes<f64>,
    pub(super) low: Lanes<i16>,
    pub(super) high: Lanes<i16>,
}

/// What trials give: errors, those of the lowest points of their parabolas, the scales of these, and the least two keys of
/// either.
pub(super) struct Outcome {
    pub(super) errors: Lanes<f64>,
    pub(super) lowest: Lanes<f64>,
    pub(super) refits: Lanes<f64>,
    pub(super) keys: [u32; 2],
}

/// Finds the least two keys.
struct Rank(Sought);

impl Kernel for Rank {
    type Output = Outcome;

    #[inline(always)]
    fn run(self) -> Outcome {
        let Sought { errors, lowest, refits, is_stored } = self.0;
        let mut keys = keys(if is_stored { &errors } else { &lowest });
        let first = least(&keys);
        for key in &mut keys {
            // The same scale with another sign, or in another lane, is no other trial: it becomes one of the largest.
            *key = key.wrapping_sub(first).wrapping_sub(LANE + 1);
        }
        let second = least(&keys).wrapping_add(LANE + 1).wrapping_add(first);
        Outcome { errors, lowest, refits, keys: [first, second] }
    }
}

/// An [`Outcome`] whose keys are not known, and what gives them.
pub(super) struct Sought {
    errors: Lanes<f64>,
    lowest: Lanes<f64>,
    refits: Lanes<f64>,
    is_stored: bool,
}

impl Sought {
    /// A kernel of its own, as it follows on several.
    pub(super) fn rank(self, level: Level) -> Outcome {
        level.run(Rank(self))
    }
}

/// The bits of a key that are the lane.
const LANE: u32 = LANES as u32 - 1;

/// Returns the bits of errors as float32, in the same order, whose last bits are the lane.
#[inline(always)]
pub(super) fn keys(errors: &Lanes<f64>) -> Lanes<u32> {
    let mut keys = [0; LANES];
    for lane in 0..LANES {
        // Roundings may leave less than nothing.
        let error = if errors[lane] < 0.0 { 0.0 } else { errors[lane] };
        keys[lane] = ((error as f32).to_bits() & !LANE) | lane as u32;
    }
    keys
}

#[inline(always)]
pub(super) fn least(keys: &Lanes<u32>) -> u32 {
    let mut least = u32::MAX;
    for &key in keys {
        least = if key < least { key } else { least };
    }
    least
}

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

impl<const WEIGHTED: bool> Kernel for Sums<'_, WEIGHTED> {
    type Output = Sought;

    #[inline(always)]
    fn run(self) -> Sought {
        let Self { elements, weights, batch, energy, is_stored } = self;
        let (mut inverses, mut low, mut high) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for lane in 0..LANES {
            inverses[lane] = 1.0 / batch.scales[lane] as f32;
            low[lane] = f32::from(batch.low[lane]);
            high[lane] = f32::from(batch.high[lane]);
        }
        // Squares of what elements lose, in steps, and its products with codes.
        let (mut squares, mut slopes) = ([0f64; LANES], [0f64; LANES]);
        let mut start = 0;
        while start < elements.len() {
            let end = elements.len().min(start + CHUNK);
            let (mut square, mut slope) = ([0f32; LANES], [0f32; LANES]);
            for index in start..end {
                let element = elements[index];
                let weight = if WEIGHTED { weights[index] } else { 1.0 };
                for lane in 0..LANES {
                    let quotient = element * inverses[lane];
                    let code = (quotient + MAGIC) - MAGIC;
                    let code = if code > low[lane] { code } else { low[lane] };
                    let code = if code < high[lane] { code } else { high[lane] };
                    let lost = quotient - code;
                    let weighted = if WEIGHTED { lost * weight } else { lost };
                    square[lane] += lost * weighted;
                    slope[lane] += code * weighted;
                }
            }
            for lane in 0..LANES {
                squares[lane] += f64::from(square[lane]);
                slopes[lane] += f64::from(slope[lane]);
            }
            start = end;
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
        Sought { errors, lowest, refits, is_stored }
    }
}

/// Makes integers of elements below 2, two beside each other; returns the sum of their squares, in the unit of elements.
pub(super) fn shorten(level: Level, elements: &[f32], shorts: &mut Vec<[i16; 2]>) -> f64 {
    shorts.resize(elements.len().div_ceil(2), [0; 2]);
    if let Some(last) = shorts.last_mut() {
        // None may be there.
        last[1] = 0;
    }
    level.run(Shorten { elements, shorts: shorts.as_flattened_mut() })
}

struct Shorten<'a> {
    elements: &'a [f32],
    shorts: &'a mut [i16],
}

impl Kernel for Shorten<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let (least, most) = (f32::from(i16::MIN), f32::from(i16::MAX));
        let mut sum = 0i64;
        for (short, &element) in self.shorts.iter_mut().zip(self.elements) {
            let value = element * UNIT;
            let value = if value > least { value } else { least };
            let value = if value < most { value } else { most };
            *short = (value + MAGIC).to_bits() as i16;
            sum += i64::from(i32::from(*short) * i32::from(*short));
        }
        sum as f64 / f64::from(UNIT * UNIT)
    }
}

/// Makes trials in lanes, of elements as integers: sums are exact. A quotient near the middle of two codes may have the other
/// one; errors are those of the codes that quotients have.
#[derive(Clone, Copy)]
pub(super) struct CodeSums<'a> {
    pub(super) shorts: &'a [[i16; 2]],
    pub(super) batch: Batch,
    /// A scale that is not above any.
    pub(super) least: f64,
    pub(super) energy: f64,
    /// As for [`Sums`].
    pub(super) is_stored: bool,
}

impl CodeSums<'_> {
    pub(super) fn run(self, level: Level) -> Sought {
        let sought = with_vectors!(level, vectors => {
            // SAFETY: the vectors are there.
            unsafe { vectors.run(InRegisters(self, vectors)) }
        });
        // SAFETY: it has no requirements.
        sought.unwrap_or_else(|| unsafe { run_portable(self) })
    }

    /// Returns what gives codes.
    #[inline(always)]
    fn factors(&self) -> CodeFactors {
        let Batch { scales, low, high } = self.batch;
        // A quotient has as many bits after the point as the product of the largest element has room for.
        let most = f32::from(i16::MAX);
        let least = (f64::from(most) * self.least).to_bits();
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
    fn sought(&self, sums_of: impl Fn(&[[i16; 2]]) -> [Lanes<i32>; 2]) -> Sought {
        let (mut products, mut squares) = ([0f64; LANES], [0f64; LANES]);
        let mut start = 0;
        while start < self.shorts.len() {
            let end = self.shorts.len().min(start + PAIRS);
            let sums = sums_of(&self.shorts[start..end]);
            for lane in 0..LANES {
                products[lane] += f64::from(sums[0][lane]);
                squares[lane] += f64::from(sums[1][lane]);
            }
            start = end;
        }
        let (mut errors, mut lowest, mut refits) = ([0f64; LANES], [0f64; LANES], [0f64; LANES]);
        for lane in 0..LANES {
            let (scale, square) = (self.batch.scales[lane], squares[lane]);
            let product = products[lane] * (1.0 / f64::from(UNIT));
            let refit = product / square;
            let refit = if square > 0.0 { refit } else { scale };
            refits[lane] = refit;
            errors[lane] = self.energy - scale * (product + product - scale * square);
            lowest[lane] = self.energy - refit * product;
        }
        Sought { errors, lowest, refits, is_stored: self.is_stored }
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

impl Kernel for CodeSums<'_> {
    type Output = Sought;

    #[inline(always)]
    fn run(self) -> Sought {
        let factors = self.factors();
        let nearest = |a: i16, b: i16| ((i32::from(a) * i32::from(b) + (1 << 14)) >> 15) as i16;
        self.sought(|chunk| {
            let (mut products, mut squares) = ([0i32; LANES], [0i32; LANES]);
            for &element in chunk.as_flattened() {
                for lane in 0..LANES {
                    let quotient = nearest(element, factors.inverses[lane][0]);
                    let code = nearest(quotient, factors.rounding);
                    let code = i32::from(code.max(factors.low[lane][0]).min(factors.high[lane][0]));
                    products[lane] += i32::from(element) * code;
                    squares[lane] += code * code;
                }
            }
            [products, squares]
        })
    }
}

struct InRegisters<'a, V>(CodeSums<'a>, V);

/// What becomes codes, in registers.
struct Registers<V: Vector> {
    inverses: V::Integers,
    low: V::Integers,
    high: V::Integers,
    rounding: V::Integers,
}

impl<V: Vector> Registers<V> {
    /// Adds the products of two elements and their codes, and the squares of these.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn add(&self, pair: [i16; 2], [products, squares]: [V::Integers; 2]) -> [V::Integers; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let elements = V::splat32(u32::from(pair[0] as u16) | u32::from(pair[1] as u16) << 16);
            let quotients = V::nearest_product16(elements, self.inverses);
            let codes = V::nearest_product16(quotients, self.rounding);
            let codes = V::min_signed16(V::max_signed16(codes, self.low), self.high);
            [
                V::add32(products, V::pair_products32(elements, codes)),
                V::add32(squares, V::pair_products32(codes, codes)),
            ]
        }
    }
}

impl<V: Vector> RawKernel for InRegisters<'_, V> {
    type Output = Sought;

    #[inline(always)]
    unsafe fn run(self) -> Sought {
        let factors = self.0.factors();
        self.0.sought(|chunk| {
            let mut sums = [[0i32; LANES]; 2];
            for offset in (0..size_of::<Lanes<i32>>()).step_by(V::BYTES) {
                // SAFETY: the vectors are there; lanes of all arrays have 4 bytes, and registers end where arrays do.
                unsafe {
                    let registers = Registers::<V> {
                        inverses: V::load(factors.inverses.as_ptr().cast::<u8>().add(offset)),
                        low: V::load(factors.low.as_ptr().cast::<u8>().add(offset)),
                        high: V::load(factors.high.as_ptr().cast::<u8>().add(offset)),
                        rounding: V::splat16(factors.rounding as u16),
                    };
                    // Two sums each, so that none waits for the last addition.
                    let (mut even, mut odd) = ([V::splat16(0); 2], [V::splat16(0); 2]);
                    let mut place = 0;
                    while place + 2 <= chunk.len() {
                        even = registers.add(chunk[place], even);
                        odd = registers.add(chunk[place + 1], odd);
                        place += 2;
                    }
                    if place < chunk.len() {
                        even = registers.add(chunk[place], even);
                    }
                    V::store(sums[0].as_mut_ptr().cast::<u8>().add(offset), V::add32(even[0], odd[0]));
                    V::store(sums[1].as_mut_ptr().cast::<u8>().add(offset), V::add32(even[1], odd[1]));
                }
            }
            sums
        })
    }
}
