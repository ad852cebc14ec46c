//! The stored scale of least squared error for each block of integers, with the zero point of the block, if it has one.
//!
//! For a scale, each element becomes the nearest integer that is a code. Where codes do not change, the error is a parabola
//! of the scale. A trial gives the error of a scale and the lowest point of its parabola: the error of the scale there is at
//! most that of the point. There are many such parabolas, and no bound leaves few of them, so trials are as close as codes
//! need it:
//!
//! * They go down from a scale above that of the largest magnitude, each by the same part of a step of the largest code. They
//!   end where the largest magnitude alone, limited to the farthest code, loses as much as the least error so far, or where
//!   all are worse than that by more than chance.
//! * The lowest points of the best parabolas, rounded to stored scales, are tried; then scales around the best one, closer to
//!   each other; and the lowest points of these.
//!
//! Beside all stored scales, tried in float64, random blocks lose less than 0.001 dB, which
//! `tests/quantization/test_integer_scales.py` compares.
//! [`LANES`] trials are made together, a lane each, the elements in their order, and no operation is fused: sums are the same
//! at every level.

use super::amaxes::BlockAmaxes;
use super::importance::Importance;
use super::scales::{Limits, Scales};
use super::source::{Elements, Source};
use crate::codec::pivot::{Binary64, FloatPivot};
use crate::codec::reference::worth;
use crate::cpu::{Kernel, Level};
use crate::format::FloatSpec;
use crate::quantization::arithmetic::{Area, PIECE};
use crate::quantization::real::Real;
use crate::quantization::recipe::Signs;
use crate::quantization::steps::BlockScales;
use crate::quantization::work::{Columns, Place};

/// Trials that are made together.
const LANES: usize = 16;

type Lanes<T> = [T; LANES];

/// Elements whose squares are added in float32.
const CHUNK: usize = 256;

/// Added to a small float32 and subtracted again, it leaves the nearest integer, ties to even.
const MAGIC: f32 = 1.5 / f32::EPSILON;

/// Between two trials, the product of a scale and the farthest code changes by this part of a step; around the best trial, by
/// `CLOSE` of it, which leaves no gap before its neighbors.
const SPACING: f64 = 0.4;
const CLOSE: f64 = 1.0 / (LANES / 2) as f64;

/// No scale below this part of the recipe's own is tried.
const LOWEST: f64 = 0.2;

/// Squares of quotients of this size are roundings of float32.
const EXACT: f64 = 1.0 / (1u64 << 28) as f64;

/// How scales are stored.
#[derive(Clone, Copy)]
struct StoredFloats {
    /// What rounds a float64: `c - (c - y)` with `c = y * split` (Veltkamp's splitting), but at least `least`, next to which
    /// float64 has the steps of the smallest numbers.
    split: f64,
    least: f64,
    /// The distance of numbers, as a part of their power of two.
    part: f64,
}

impl StoredFloats {
    fn new(spec: &FloatSpec) -> Self {
        let (bits, mantissa) = (Binary64::MANTISSA as i32, spec.mantissa_bits as i32);
        Self {
            split: 2f64.powi(bits - mantissa) + 1.0,
            least: 1.5 * 2f64.powi(bits) * worth(spec, 1),
            part: 2f64.powi(-mantissa),
        }
    }

    /// Returns the nearest number to a magnitude.
    fn round(&self, magnitude: f64) -> f64 {
        let split = (magnitude * self.split).max(self.least);
        split - (split - magnitude)
    }

    /// Returns the nearest number on the other side of a magnitude, or the same of few numbers.
    fn other(&self, magnitude: f64, nearest: f64) -> f64 {
        let step = f64::from_bits(nearest.to_bits() >> Binary64::MANTISSA << Binary64::MANTISSA) * self.part;
        self.round(if magnitude > nearest { nearest + step } else { nearest - step })
    }
}

/// A scale, and the zero point of a block.
#[derive(Clone, Copy, Default, PartialEq)]
struct Trial {
    scale: f64,
    zero: f64,
}

/// A trial, or what follows from one, and its error.
#[derive(Clone, Copy)]
struct Point {
    error: f64,
    trial: Trial,
}

/// Finds scales and zero points of least squared error.
pub(super) struct IntegerSearch {
    stored: StoredFloats,
    /// The integers that codes may be.
    low: f64,
    high: f64,
    has_zeros: bool,
    has_signs: bool,
    importance: Option<Importance>,
    /// The largest magnitude of codes, less their zero point.
    reach: f64,
    /// The largest scale whose products the dtype of the weight has.
    most: f64,
    /// The part of a scale between two trials.
    spacing: f64,
    /// Lowest points that are tried at a time: float32 has a number next to each.
    points: usize,
    /// An error is less than that of the recipe's own scale if it is below this part of it. A quotient near the middle of two
    /// codes may be rounded to the other one, which changes a square by less than `reach * 2^-19` of it; additions round
    /// off at most 2^-16 of a sum.
    less: f64,
}

/// The elements of blocks times powers of two, those of a block after each other; what weights their errors, and room to read
/// that; these powers, and those of weights; and lowest points.
#[derive(Default)]
pub(super) struct Room {
    elements: Vec<f32>,
    weights: Vec<f32>,
    read: Vec<f32>,
    powers: Vec<f64>,
    points: Vec<Point>,
}

impl IntegerSearch {
    /// Returns the search for codes between limits, with zero points or not, given how scales are stored, and the largest
    /// number of the dtype of the weight.
    pub(super) fn new<T: Real>(
        (limits, has_zeros): (Limits<T>, bool),
        signs: Signs,
        (stored, most): (&FloatSpec, f64),
        importance: Option<Importance>,
    ) -> Self {
        let (low, high) = (limits.low.to_f64(), limits.high.to_f64());
        let reach = if has_zeros { high - low } else { -low };
        let spacing = SPACING / reach;
        let stored_floats = StoredFloats::new(stored);
        Self {
            stored: stored_floats,
            low,
            high,
            has_zeros,
            // Zero points turn codes around already.
            has_signs: signs == Signs::Both && stored.signed && !has_zeros && low != -high,
            importance,
            reach,
            most: (most / reach).min(worth(stored, stored.max_code())),
            spacing,
            // Where trials are closer than stored scales, all of these are tried.
            points: match stored_floats.part / 2.0 {
                part if part >= spacing => 0,
                part if part > spacing / 1024.0 => LANES / 2,
                _ => LANES,
            },
            less: 1.0 - reach * 2f64.powi(-19) - 2f64.powi(-16),
        }
    }

    /// Whether errors are weighted.
    pub(super) fn is_weighted(&self) -> bool {
        self.importance.is_some()
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
        (elements, room): (&mut Elements<T>, &mut Room),
        amaxes: &BlockAmaxes<T>,
        blocks: &mut BlockScales<T>,
    ) {
        let size = place.rows * width.min(columns.count);
        let group = (PIECE / size).max(1) * width;
        room.powers.clear();
        room.powers.extend(amaxes.amax.iter().map(|amax| power(amax.to_f64())));
        for (number, columns) in columns.groups(group).enumerate() {
            let first = number * (group / width);
            let cells = Cells { place, columns, width, first };
            let Elements { stored, values } = &mut *elements;
            room.elements.resize(place.rows * columns.count, 0.0);
            for (part, piece) in cells.parts() {
                // SAFETY: the caller's promise; there is room for a piece.
                unsafe {
                    let area = source.load(part, piece, stored, values.0.as_mut_ptr());
                    cells.copy((part, piece), area, Some(&room.powers), &mut room.elements);
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.read_weights(&cells, room) };
            for (index, start) in (0..room.elements.len()).step_by(size).enumerate() {
                let block = first + index;
                let amax = amaxes.amax[block].to_f64();
                let zero = if self.has_zeros { blocks.shifts[block].to_f64() } else { 0.0 };
                let own = Trial { scale: blocks.scale[block].to_f64(), zero };
                let Trial { scale, zero } = self.best((room, start, size), own, (amax, block));
                blocks.scale[block] = T::from_f64(scale);
                if self.has_zeros {
                    blocks.shifts[block] = T::from_f64(zero);
                }
            }
        }
        scales.stored.round(&mut blocks.scale, &mut blocks.bytes);
        if scales.recipe.steps.properties.of_unstored {
            for (factor, scale) in blocks.factors.iter_mut().zip(&blocks.scale) {
                // A scale that is stored as zero is the recipe's own, whose factor is not.
                if *scale != T::from_f64(0.0) {
                    *factor = *scale;
                }
            }
        }
    }

    /// Returns the best scale and zero point of a block, given where its elements begin, the recipe's own, and the largest
    /// magnitude.
    fn best(
        &self,
        (room, start, size): (&mut Room, usize, usize),
        own: Trial,
        (amax, block): (f64, usize),
    ) -> Trial {
        if amax == 0.0 || !amax.is_finite() {
            return own;
        }
        let Room { elements, weights, points, powers, .. } = room;
        let end = elements.len().min(start + size);
        let weights = weights.get(start..end).unwrap_or_default();
        let block = (&elements[start..end], weights, powers[block]);
        Trials::new(Level::active(), self, block, points).search(own, amax)
    }

    /// Reads what weights the errors of blocks side by side, if they are weighted.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn read_weights(&self, cells: &Cells, room: &mut Room) {
        let Room { weights, read, .. } = room;
        // Those of another search may be left.
        weights.clear();
        let Some(importance) = &self.importance else { return };
        let Cells { place, columns, width, .. } = *cells;
        weights.resize(place.rows * columns.count, 0.0);
        for (part, piece) in cells.parts() {
            read.resize(part.rows * piece.count, 0.0);
            // SAFETY: the caller's promise; there is room for them.
            unsafe {
                let area = importance.read(part, piece, read.as_mut_ptr());
                cells.copy((part, piece), area, None, weights);
            }
        }
        for weights in weights.chunks_mut(place.rows * width) {
            let most = weights.iter().copied().fold(0.0, f32::max);
            // Equal weights become 1, and those of blocks without any.
            for weight in weights {
                *weight = if most > 0.0 { *weight / most } else { 1.0 };
            }
        }
    }
}

/// Blocks side by side, and the number of the first one in a band.
#[derive(Clone, Copy)]
struct Cells {
    place: Place,
    columns: Columns,
    width: usize,
    first: usize,
}

impl Cells {
    /// Returns rows and columns that fit into a piece.
    fn parts(self) -> impl Iterator<Item = (Place, Columns)> {
        let place = self.place;
        self.columns
            .groups(PIECE)
            .flat_map(move |piece| place.pieces(piece.count).map(move |part| (part, piece)))
    }

    /// Copies numbers for some rows and columns to those of their blocks, times the powers of two of these, if there are any.
    ///
    /// # Safety
    /// The numbers are readable.
    unsafe fn copy<N: Real>(
        &self,
        (part, piece): (Place, Columns),
        area: Area<*const N>,
        powers: Option<&[f64]>,
        to: &mut [f32],
    ) {
        let Self { place, columns, width, first } = *self;
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
                let power = powers.map_or(1.0, |powers| powers[first + block]);
                for (index, to) in to[start..start + count].iter_mut().enumerate() {
                    // SAFETY: the area has so many columns.
                    let number = unsafe { from.add(index).read_unaligned() }.to_f64();
                    *to = if N::IS_SINGLE { number as f32 * power as f32 } else { (number * power) as f32 };
                }
                column += count;
            }
        }
    }
}

/// Returns the power of two that brings a magnitude to between 1 and 2, or close to it, so that no square underflows.
fn power(amax: f64) -> f64 {
    const MOST: i64 = 126;
    let exponent = (amax.to_bits() >> Binary64::MANTISSA) as i64 - Binary64::BIAS;
    f64::from_bits(((Binary64::BIAS - exponent.clamp(-MOST, MOST)) as u64) << Binary64::MANTISSA)
}

/// The trials of a block.
struct Trials<'a> {
    level: Level,
    search: &'a IntegerSearch,
    /// Times the power of two.
    elements: &'a [f32],
    /// None, if all are 1.
    weights: &'a [f32],
    power: f64,
    /// The weighted sum of their squares.
    energy: f64,
    /// Those that are made next.
    next: Lanes<Trial>,
    count: usize,
    /// The errors of the first trial and of the best one, and the least of those that were made last.
    own_error: f64,
    least: Point,
    last: f64,
    /// The lowest points of parabolas that are better than any trial before.
    points: &'a mut Vec<Point>,
}

impl<'a> Trials<'a> {
    fn new(
        level: Level,
        search: &'a IntegerSearch,
        (elements, weights, power): (&'a [f32], &'a [f32], f64),
        points: &'a mut Vec<Point>,
    ) -> Self {
        points.clear();
        Self {
            level,
            search,
            elements,
            weights,
            power,
            energy: level.run(Energy { elements, weights }),
            next: [Trial::default(); LANES],
            count: 0,
            own_error: f64::NAN,
            least: Point { error: f64::INFINITY, trial: Trial::default() },
            last: 0.0,
            points,
        }
    }

    /// Returns the best scale and zero point, given the recipe's own and the largest magnitude.
    fn search(&mut self, own: Trial, amax: f64) -> Trial {
        let search = self.search;
        let (low, high) = if search.has_zeros { self.extremes() } else { (-amax, amax) };
        // What is limited to the farthest codes loses least where both ends lose the same.
        let (extent, ends) = if search.has_zeros { (high - low, 2.0) } else { (amax, 1.0) };
        let (total, squares) = if self.weights.is_empty() {
            (self.elements.len() as f64, self.elements.len() as f64)
        } else {
            let total = self.weights.iter().map(|&weight| f64::from(weight)).sum();
            (total, self.level.run(Energy { elements: self.weights, weights: &[] }))
        };
        // As many elements of equal weight have the same deviation of sums of squares, which are uniform in a step: 0.9 over
        // its root.
        let root = total / squares.sqrt();
        let largest = 1.0 + 3.6 / root;
        let mut scale = (own.scale / (1.0 - 2.7 / root).max(0.25).sqrt()).min(search.most);
        self.add(own);
        let (mut last, mut least, mut lost) = (own.scale, f64::INFINITY, f64::INFINITY);
        while scale > own.scale * LOWEST {
            if self.least.error < least {
                least = self.least.error;
                lost = (ends * least).sqrt() / self.power;
            }
            // The weight of the largest magnitude is not known.
            let is_limited = self.weights.is_empty() && extent - lost > search.reach * scale;
            let is_worse = scale < own.scale && self.last > self.least.error * largest;
            if is_limited || is_worse {
                break;
            }
            let stored = search.stored.round(scale);
            // Rounded, it may be more than the scale whose largest product the dtype of the weight has.
            if stored != last && stored > 0.0 && stored <= search.most {
                self.add_scale(stored, (low, high));
                last = stored;
            }
            scale *= 1.0 - search.spacing;
        }
        // Lowest points fill the lanes that are left, once there are some.
        if self.points.is_empty() || search.points == 0 {
            self.flush();
        }
        if search.points > 0 {
            self.add_points();
            self.add_around();
            self.add_points();
        }
        let step = own.scale * self.power;
        let is_exact = self.own_error < EXACT * step * step * total;
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
            let middle = of_low.midpoint(of_high).round_ties_even();
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

    /// Makes trials of the lowest points that may be better.
    fn add_points(&mut self) {
        let mut points = std::mem::take(self.points);
        points.retain(|point| point.error < self.least.error);
        points.sort_unstable_by(|one, other| one.error.total_cmp(&other.error));
        let count = (LANES - self.count) * self.search.points / LANES;
        for point in points.drain(..count.min(points.len())) {
            self.add_near(point.trial);
        }
        // Full lanes may have found others.
        points.append(self.points);
        *self.points = points;
        self.flush();
    }

    /// Makes trials around the best one.
    fn add_around(&mut self) {
        let (search, best) = (self.search, self.least.trial);
        for side in [-search.spacing, search.spacing] {
            let mut last = best.scale.abs();
            for place in 1..=LANES / 2 {
                let magnitude = best.scale.abs() * (1.0 + side * CLOSE * place as f64);
                let stored = search.stored.round(magnitude);
                if stored != last && stored > 0.0 && stored <= search.most {
                    self.add(Trial { scale: stored.copysign(best.scale), ..best });
                }
                last = stored;
            }
        }
        self.flush();
    }

    /// Adds the stored scales next to one.
    fn add_near(&mut self, Trial { scale, zero }: Trial) {
        let search = self.search;
        let (magnitude, sign) = (scale.abs(), scale.signum());
        let nearest = search.stored.round(magnitude);
        let other = search.stored.other(magnitude, nearest);
        for magnitude in [nearest, other].into_iter().take(LANES / search.points) {
            if magnitude > 0.0 && magnitude <= search.most {
                self.add(Trial { scale: magnitude * sign, zero });
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
    #[inline(never)]
    fn flush(&mut self) {
        let Self { level, search, power, energy, elements, weights, .. } = *self;
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return;
        }
        let (mut scales, mut low, mut high) = ([1f32; LANES], [0f32; LANES], [0f32; LANES]);
        for (lane, trial) in self.next[..count].iter().enumerate() {
            scales[lane] = (trial.scale * power) as f32;
            low[lane] = (search.low - trial.zero) as f32;
            high[lane] = (search.high - trial.zero) as f32;
        }
        let outcome = if weights.is_empty() {
            level.run(Sums::<false> { elements, weights, scales, low, high, energy })
        } else {
            level.run(Sums::<true> { elements, weights, scales, low, high, energy })
        };
        if self.own_error.is_nan() {
            self.own_error = outcome.errors[0];
        }
        self.last = f64::INFINITY;
        for (lane, &trial) in self.next[..count].iter().enumerate() {
            let (error, lowest) = (outcome.errors[lane], outcome.lowest[lane]);
            self.last = if error < self.last { error } else { self.last };
            if error < self.least.error {
                self.least = Point { error, trial };
            }
            if lowest < self.least.error {
                let trial = Trial { scale: trial.scale * (1.0 + outcome.moves[lane]), ..trial };
                self.points.push(Point { error: lowest, trial });
            }
        }
    }
}

/// Adds squares, each times its weight, if there are any, to about their sum.
struct Energy<'a> {
    elements: &'a [f32],
    weights: &'a [f32],
}

impl Kernel for Energy<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Self { elements, weights } = self;
        let mut sums = [0f32; LANES];
        let (groups, rest) = elements.as_chunks::<LANES>();
        for (start, group) in groups.iter().enumerate() {
            let own = weights.get(start * LANES..).and_then(|weights| weights.first_chunk::<LANES>());
            let own = own.unwrap_or(&[1.0; LANES]);
            for lane in 0..LANES {
                sums[lane] += group[lane] * group[lane] * own[lane];
            }
        }
        let first = groups.len() * LANES;
        for (place, &element) in rest.iter().enumerate() {
            sums[place] += element * element * weights.get(first + place).copied().unwrap_or(1.0);
        }
        let mut sum = 0.0;
        for part in sums {
            sum += f64::from(part);
        }
        sum
    }
}

/// Makes trials in lanes, the elements in turn, so that no sum is in parts.
struct Sums<'a, const WEIGHTED: bool> {
    elements: &'a [f32],
    weights: &'a [f32],
    scales: Lanes<f32>,
    low: Lanes<f32>,
    high: Lanes<f32>,
    energy: f64,
}

/// What trials give: errors, those of lowest points, and how far these are, as a part of scales.
struct Outcome {
    errors: Lanes<f64>,
    lowest: Lanes<f64>,
    moves: Lanes<f64>,
}

impl<const WEIGHTED: bool> Kernel for Sums<'_, WEIGHTED> {
    type Output = Outcome;

    #[inline(always)]
    fn run(self) -> Outcome {
        let Self { elements, weights, scales, low, high, energy } = self;
        let mut inverses = [0f32; LANES];
        for lane in 0..LANES {
            inverses[lane] = 1.0 / scales[lane];
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
        let mut outcome = Outcome { errors: squares, lowest: squares, moves: slopes };
        for lane in 0..LANES {
            let step = f64::from(scales[lane]) * f64::from(scales[lane]);
            // The squares of codes, as elements are codes and what they lose.
            let codes = energy / step - (slopes[lane] + slopes[lane] + squares[lane]);
            let moves = slopes[lane] / codes;
            let moves = if codes > 1e-3 { moves } else { 0.0 };
            outcome.moves[lane] = moves;
            outcome.errors[lane] = squares[lane] * step;
            outcome.lowest[lane] = (squares[lane] - slopes[lane] * moves) * step;
        }
        outcome
    }
}
