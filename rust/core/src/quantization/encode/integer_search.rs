//! The stored scale of least squared error for each block of integers, with the zero point of the block, if it has one.
//!
//! For a scale, each element becomes the nearest integer that is a code. Where codes do not change, the error is a parabola
//! of the scale: each trial gives the error and the lowest point of its parabola, and the error is not larger there. The error
//! has many such pieces, so that no bound ends the search; trials are as close as codes need it.
//!
//! * Trials go down from a scale above that of the largest magnitude, in steps of a part of the largest code. Those end
//!   where the largest magnitude alone, limited to the farthest code, loses as much as the least error so far.
//! * The lowest points of the best parabolas, rounded to stored scales, are tried, and those that follow from these.
//!
//! Beside all stored scales, tried in float64, blocks lose less than 0.001 dB on average (`tests/quantization/test_scales.py`).
//! [`LANES`] trials are made together, a lane each, the elements in their order, and no operation is fused: sums are the same
//! at every level.

use super::amaxes::BlockAmaxes;
use super::scales::{Limits, Scales};
use super::source::{Elements, Source};
use crate::codec::reference::worth;
use crate::cpu::{Kernel, Level};
use crate::format::FloatSpec;
use crate::quantization::arithmetic::PIECE;
use crate::quantization::real::Real;
use crate::quantization::recipe::Signs;
use crate::quantization::steps::{BlockScales, refill};
use crate::quantization::work::{Columns, Place};

/// Trials that are made together.
const LANES: usize = 16;

type Lanes<T> = [T; LANES];

/// Elements whose squares are added in float32.
const CHUNK: usize = 256;

/// Added to a small float32 and subtracted again, it leaves the nearest integer, ties to even.
const MAGIC: f32 = 1.5 / f32::EPSILON;

/// Parabolas whose lowest points are tried, and how often such points follow from others.
const POINTS: usize = 8;
const ROUNDS: usize = 3;

/// Between two trials, the largest code times a scale changes by this part of a step. Of 0.1 to 0.4, the largest that leaves
/// 0.001 dB, of normal and Student's t values in blocks of 32 to 4096.
const SPACING: f64 = 0.2;

/// No scale below this part of the largest magnitude's is tried.
const LOWEST: f64 = 0.2;

/// Squares of quotients of this size, and smaller ones, are roundings of float32.
const EXACT: f64 = 1.0 / (1u64 << 28) as f64;

/// How scales are stored.
#[derive(Clone, Copy)]
struct StoredFloats {
    /// What rounds a float64: `c - (c - y)` with `c = y * split` (Veltkamp's splitting), but at least `least`, next to which
    /// float64 has the steps of the smallest numbers.
    split: f64,
    least: f64,
    /// The distance of a number from the next one is a part of it, of its power of two.
    part: f64,
    /// float32 has so many that a lowest point needs no neighbor.
    is_dense: bool,
}

impl StoredFloats {
    fn new(spec: &FloatSpec) -> Self {
        let bits = f64::MANTISSA_DIGITS as i32 - 1;
        let mantissa = spec.mantissa_bits as i32;
        Self {
            split: 2f64.powi(bits - mantissa) + 1.0,
            least: 1.5 * 2f64.powi(bits) * worth(spec, 1),
            part: 2f64.powi(-mantissa),
            is_dense: spec.mantissa_bits > 16,
        }
    }

    /// Returns the nearest number to a magnitude.
    fn round(&self, magnitude: f64) -> f64 {
        let split = (magnitude * self.split).max(self.least);
        split - (split - magnitude)
    }

    /// Returns the number that is nearest to a magnitude on the other side than another one.
    fn other(&self, magnitude: f64, nearest: f64) -> f64 {
        let power = f64::from_bits(nearest.to_bits() >> (f64::MANTISSA_DIGITS - 1) << (f64::MANTISSA_DIGITS - 1));
        let step = power * self.part;
        self.round(if magnitude > nearest { nearest + step } else { nearest - step })
    }
}

/// A scale, and the zero point of a block.
#[derive(Clone, Copy, Default, PartialEq)]
struct Trial {
    scale: f64,
    zero: f64,
}

/// The lowest point of a parabola, and the error there.
#[derive(Clone, Copy)]
struct Point {
    error: f64,
    trial: Trial,
}

const NOWHERE: Point = Point { error: f64::INFINITY, trial: Trial { scale: 0.0, zero: 0.0 } };

/// Finds scales and zero points of least squared error.
pub(super) struct IntegerSearch {
    stored: StoredFloats,
    /// The integers that codes may be.
    low: f64,
    high: f64,
    has_zeros: bool,
    has_signs: bool,
    /// The largest scale whose products the dtype of the weight has.
    most: f64,
    /// The part of a scale between two trials.
    spacing: f64,
    /// An error is less than that of the recipe's own scale if it is below this part of it. A quotient near the middle of two
    /// codes may be rounded to the other one, which changes a square by less than `reach * 2^-19` of it; additions round
    /// off at most 2^-16 of a sum.
    less: f64,
}

impl IntegerSearch {
    /// Returns the search for codes between limits, with zero points or not, given how scales are stored, and the largest
    /// number that decoded elements may become.
    pub(super) fn new<T: Real>(
        limits: Limits<T>,
        has_zeros: bool,
        signs: Signs,
        stored: &FloatSpec,
        most: f64,
    ) -> Self {
        let (low, high) = (limits.low.to_f64(), limits.high.to_f64());
        let mut search = Self {
            stored: StoredFloats::new(stored),
            low,
            high,
            has_zeros,
            // Zero points turn codes around already.
            has_signs: signs == Signs::Both && !has_zeros && low != -high,
            most: 0.0,
            spacing: 0.0,
            less: 0.0,
        };
        let reach = search.reach();
        search.most = (most / reach).min(worth(stored, stored.max_code()));
        search.spacing = SPACING / reach;
        search.less = 1.0 - reach * 2f64.powi(-19) - 2f64.powi(-16);
        search
    }

    /// Returns the largest magnitude of codes, less their zero point.
    fn reach(&self) -> f64 {
        if self.has_zeros { self.high - self.low } else { -self.low }
    }

    /// Replaces the scales of a band, which are those of the largest magnitudes, where others are better, and zero points
    /// with them.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn improve<T: Real>(
        &self,
        (place, columns, width): (Place, Columns, usize),
        (source, scales): (&Source<T>, &Scales<T>),
        (elements, room): (&mut Elements<T>, &mut Vec<f32>),
        amaxes: &BlockAmaxes<T>,
        blocks: &mut BlockScales<T>,
    ) {
        let level = Level::active();
        let group = (PIECE / (place.rows * width)).max(1) * width;
        for (number, columns) in columns.groups(group).enumerate() {
            let first = number * (group / width);
            room.clear();
            room.resize(place.rows * columns.count, 0.0);
            // SAFETY: the caller's promise.
            unsafe { gather((place, columns, width), source, elements, (&amaxes.amax[first..], room)) };
            for (index, elements) in room.chunks(place.rows * width).enumerate() {
                let block = first + index;
                let amax = amaxes.amax[block].to_f64();
                if amax == 0.0 || !amax.is_finite() {
                    continue;
                }
                let zero = blocks.shifts.get(block).filter(|_| self.has_zeros);
                let zero = zero.map_or(0.0, |zero| zero.to_f64());
                let own = Trial { scale: blocks.scale[block].to_f64(), zero };
                let mut trials = Trials::new(level, self, elements, power(amax));
                let Trial { scale, zero } = trials.search(own, amax);
                blocks.scale[block] = T::from_f64(scale);
                if self.has_zeros {
                    blocks.shifts[block] = T::from_f64(zero);
                }
            }
        }
        scales.stored.round(&mut blocks.scale, &mut blocks.bytes);
        if scales.recipe.steps.properties.of_unstored {
            refill(&mut blocks.factors, &blocks.scale);
        }
    }
}

/// Returns the power of two that brings a magnitude to between 1 and 2, or close to it, so that no square underflows.
fn power(amax: f64) -> f64 {
    const MOST: i64 = 126;
    let exponent = (amax.to_bits() >> (f64::MANTISSA_DIGITS - 1)) as i64 - 1023;
    f64::from_bits(((1023 - exponent.clamp(-MOST, MOST)) as u64) << (f64::MANTISSA_DIGITS - 1))
}

/// Copies the elements of blocks side by side, times the powers of two of their largest magnitudes, those of a block after
/// each other.
///
/// # Safety
/// The elements are readable.
unsafe fn gather<T: Real>(
    (place, columns, width): (Place, Columns, usize),
    source: &Source<T>,
    elements: &mut Elements<T>,
    (amaxes, room): (&[T], &mut [f32]),
) {
    let Elements { stored, values } = elements;
    for piece in columns.groups(PIECE) {
        for part in place.pieces(piece.count) {
            // SAFETY: the caller's promise; there is room for a piece.
            let area = unsafe { source.load(part, piece, stored, values.0.as_mut_ptr()) };
            for row in 0..area.rows {
                let above = part.row - place.row + row;
                let mut column = 0;
                while column < area.columns {
                    let before = piece.start - columns.start + column;
                    let (block, within) = (before / width, before % width);
                    let wide = width.min(columns.count - block * width);
                    let count = (wide - within).min(area.columns - column);
                    let start = block * place.rows * width + above * wide + within;
                    let from = area.row(row).wrapping_add(column);
                    let power = power(amaxes[block].to_f64());
                    for (index, to) in room[start..start + count].iter_mut().enumerate() {
                        // SAFETY: the area has so many columns.
                        let value = unsafe { from.add(index).read_unaligned() }.to_f64();
                        *to = if size_of::<T>() == size_of::<f32>() {
                            value as f32 * power as f32
                        } else {
                            (value * power) as f32
                        };
                    }
                    column += count;
                }
            }
        }
    }
}

/// The trials of a block.
struct Trials<'a> {
    level: Level,
    search: &'a IntegerSearch,
    /// Times the power of two.
    elements: &'a [f32],
    power: f64,
    /// The sum of their squares.
    energy: f64,
    /// Those that are made next.
    next: Lanes<Trial>,
    count: usize,
    /// The error of the first trial, and the least one so far, and where.
    own_error: f64,
    least: Point,
    /// The lowest points of the best parabolas, the best first.
    points: [Point; POINTS],
}

impl<'a> Trials<'a> {
    fn new(level: Level, search: &'a IntegerSearch, elements: &'a [f32], power: f64) -> Self {
        let energy = elements.chunks(CHUNK).map(square_sum).sum();
        Self {
            level,
            search,
            elements,
            power,
            energy,
            next: [Trial::default(); LANES],
            count: 0,
            own_error: f64::NAN,
            least: NOWHERE,
            points: [NOWHERE; POINTS],
        }
    }

    /// Returns the best scale and zero point, given the recipe's own and the largest magnitude.
    fn search(&mut self, own: Trial, amax: f64) -> Trial {
        let search = self.search;
        let (low, high) = if search.has_zeros { self.extremes() } else { (-amax, amax) };
        // What is limited to the farthest codes loses least where both ends lose the same.
        let (extent, ends) = if search.has_zeros { (high - low, 2f64) } else { (amax, 1.0) };
        let reach = search.reach();
        // The squares of so few quotients may be less than they usually are by this part.
        let part = (1.0 - 2.7 / (self.elements.len() as f64).sqrt()).max(0.25);
        let mut scale = (own.scale / part.sqrt()).min(search.most);
        self.add(own);
        let mut last = own.scale;
        while scale > own.scale * LOWEST
            && extent - (ends * self.least.error).sqrt() / self.power <= reach * scale
        {
            let stored = search.stored.round(scale);
            if stored != last && stored > 0.0 {
                self.add_scale(stored, (low, high));
            }
            last = stored;
            scale *= 1.0 - search.spacing;
        }
        self.flush();
        for _ in 1..ROUNDS {
            let points = std::mem::replace(&mut self.points, [NOWHERE; POINTS]);
            for Point { error, trial } in points {
                if error < self.least.error {
                    self.add_near(trial);
                }
            }
            self.flush();
        }
        let step = own.scale * self.power;
        let is_exact = self.own_error < EXACT * step * step * self.elements.len() as f64;
        let is_less = self.least.error < self.own_error * search.less;
        if is_less && !is_exact { self.least.trial } else { own }
    }

    /// Returns the least and the largest element, or zero.
    fn extremes(&self) -> (f64, f64) {
        let (mut low, mut high) = (0f32, 0f32);
        for &element in self.elements {
            low = if element < low { element } else { low };
            high = if element > high { element } else { high };
        }
        (f64::from(low) / self.power, f64::from(high) / self.power)
    }

    /// Adds the trials of a scale, of elements from one to another.
    fn add_scale(&mut self, scale: f64, (low, high): (f64, f64)) {
        let search = self.search;
        if search.has_zeros {
            // The zero points under which the least element is not limited, and the largest one.
            let (of_low, of_high) = (search.low - low / scale, search.high - high / scale);
            let middle = ((of_low + of_high) / 2.0).round_ties_even();
            let is_limited = of_high < of_low;
            let (first, last) = if is_limited { (of_high.floor(), of_low.ceil()) } else { (middle, middle) };
            let (mut zero, last) = (first.max(search.low), last.min(search.high));
            while zero <= last {
                self.add(Trial { scale, zero });
                zero += 1.0;
            }
        } else {
            self.add(Trial { scale, zero: 0.0 });
            if search.has_signs && scale * (search.high + 0.5) < high {
                self.add(Trial { scale: -scale, zero: 0.0 });
            }
        }
    }

    /// Adds the stored scales next to one.
    fn add_near(&mut self, Trial { scale, zero }: Trial) {
        let stored = self.search.stored;
        let (magnitude, sign) = (scale.abs(), scale.signum());
        let nearest = stored.round(magnitude);
        let other = if stored.is_dense { nearest } else { stored.other(magnitude, nearest) };
        for magnitude in [nearest, other] {
            let trial = Trial { scale: magnitude * sign, zero };
            let is_new = self.count == 0 || self.next[self.count - 1] != trial;
            if magnitude > 0.0 && magnitude <= self.search.most && is_new {
                self.add(trial);
            }
        }
    }

    fn add(&mut self, trial: Trial) {
        self.next[self.count] = trial;
        self.count += 1;
        if self.count == LANES {
            self.flush();
        }
    }

    /// Makes the trials that were added.
    fn flush(&mut self) {
        if self.count == 0 {
            return;
        }
        let Self { search, power, energy, elements, .. } = *self;
        let (mut scales, mut low, mut high) = ([1f32; LANES], [0f32; LANES], [0f32; LANES]);
        for (lane, trial) in self.next[..self.count].iter().enumerate() {
            scales[lane] = (trial.scale * power) as f32;
            low[lane] = (search.low - trial.zero) as f32;
            high[lane] = (search.high - trial.zero) as f32;
        }
        let [squares, slopes] = self.level.run(Sums { elements, scales, low, high });
        for lane in 0..std::mem::take(&mut self.count) {
            let trial = self.next[lane];
            let (square, slope) = (squares[lane], slopes[lane]);
            let step = (trial.scale * power) * (trial.scale * power);
            let error = square * step;
            if self.own_error.is_nan() {
                self.own_error = error;
            }
            if error < self.least.error {
                self.least = Point { error, trial };
            }
            // The sum of the squares of codes, as elements are codes and what they lose.
            let codes = energy / step - 2.0 * slope - square;
            if codes > 0.5 {
                let lowest = Trial { scale: trial.scale * (1.0 + slope / codes), ..trial };
                self.note(Point { error: error - step * slope * slope / codes, trial: lowest });
            }
        }
    }

    /// Notes a point among the best.
    fn note(&mut self, mut point: Point) {
        for other in &mut self.points {
            if point.error < other.error {
                std::mem::swap(&mut point, other);
            }
        }
    }
}

fn square_sum(elements: &[f32]) -> f64 {
    // Sums side by side, which wait for none.
    let mut sums = [0f32; 8];
    let (groups, rest) = elements.as_chunks::<8>();
    for group in groups {
        for (sum, element) in sums.iter_mut().zip(group) {
            *sum += element * element;
        }
    }
    sums.iter().chain(&[rest.iter().map(|element| element * element).sum::<f32>()]).map(|&sum| f64::from(sum)).sum()
}

/// For each trial: the sum of the squares of what elements lose, in steps, and that of its products with codes. Elements are in
/// turn and trials in lanes, so that no sum is in parts.
struct Sums<'a> {
    elements: &'a [f32],
    scales: Lanes<f32>,
    low: Lanes<f32>,
    high: Lanes<f32>,
}

impl Kernel for Sums<'_> {
    type Output = [Lanes<f64>; 2];

    #[inline(always)]
    fn run(self) -> [Lanes<f64>; 2] {
        let Self { elements, scales, low, high } = self;
        let mut inverses = [0f32; LANES];
        for lane in 0..LANES {
            inverses[lane] = 1.0 / scales[lane];
        }
        let mut totals = [[0f64; LANES]; 2];
        for elements in elements.chunks(CHUNK) {
            let (mut squares, mut slopes) = ([0f32; LANES], [0f32; LANES]);
            for &element in elements {
                for lane in 0..LANES {
                    let quotient = element * inverses[lane];
                    let code = (quotient + MAGIC) - MAGIC;
                    let code = if code > low[lane] { code } else { low[lane] };
                    let code = if code < high[lane] { code } else { high[lane] };
                    let lost = quotient - code;
                    squares[lane] += lost * lost;
                    slopes[lane] += lost * code;
                }
            }
            for lane in 0..LANES {
                totals[0][lane] += f64::from(squares[lane]);
                totals[1][lane] += f64::from(slopes[lane]);
            }
        }
        totals
    }
}
