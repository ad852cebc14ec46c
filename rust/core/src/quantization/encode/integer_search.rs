//! The stored scale of least squared error for each block of integers, with the zero point of the block, if it has one.
//!
//! For a scale, each element becomes the nearest integer that is a code. Where codes do not change, the error is a parabola
//! of the scale. A trial gives the error of a scale and the lowest point of its parabola: the error of the scale there is at
//! most that of the point. There are many such parabolas, and no bound leaves few of them, so trials are as close as codes
//! need it:
//!
//! * Coarse ones go down from a scale above that of the largest magnitude, each by the same part of a step of the largest code,
//!   or to the next stored scale, if that is farther. They end where the largest magnitude alone, limited to the farthest code,
//!   loses as much as the least error so far, or where all are worse than that by more than chance. Where errors are not
//!   weighted, elements are integers of 16 bits for them.
//! * Stored scales around the best two, or around the lowest points of their parabolas, and the recipe's own are tried by the
//!   elements themselves; where stored scales are closer than that, the lowest points of these as well.
//!
//! Beside all stored scales, tried in float64, random blocks lose less than 0.001 dB, which
//! `tests/quantization/test_integer_scales.py` compares.
//! [`LANES`] trials are made together, a lane each. Sums of integers are exact; those of floats have their elements in order,
//! and no operation is fused: all are the same at every level.

use super::amaxes::BlockAmaxes;
use super::importance::Importance;
use super::integer_sums::{
    Batch, CodeSums, LANES, Lanes, Outcome, Sums, energy, keys, lane, least, rank, shorten,
};
use super::scales::{Limits, Scales};
use super::source::{Elements, Source};
use crate::codec::pivot::{Binary64, FloatPivot};
use crate::codec::reference::worth;
use crate::cpu::level::run_portable;
use crate::cpu::{Level, RawKernel};
use crate::format::FloatSpec;
use crate::quantization::arithmetic::{Area, PIECE};
use crate::quantization::real::Real;
use crate::quantization::recipe::Signs;
use crate::quantization::steps::BlockScales;
use crate::quantization::work::{Columns, Place};

/// Between two coarse trials, the product of a scale and the farthest code changes by this part of a step; around the best
/// ones, by `CLOSE` of it.
const SPACING: f64 = 0.3;
const CLOSE: f64 = 0.15;

/// Scales that are tried around the best coarse trial, and around the second: with the recipe's own, all lanes.
const TOPS: [usize; 2] = [LANES / 2, LANES / 2 - 1];

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

    /// Returns the distance from a number to the next one.
    fn step(&self, number: f64) -> f64 {
        f64::from_bits(number.to_bits() >> Binary64::MANTISSA << Binary64::MANTISSA) * self.part
    }

    /// Returns the nearest number on the other side of a magnitude, or the same of few numbers.
    fn other(&self, magnitude: f64, nearest: f64) -> f64 {
        let step = self.step(nearest);
        self.round(if magnitude > nearest { nearest + step } else { nearest - step })
    }
}

/// A scale, and the zero point of a block.
#[derive(Clone, Copy, Default, PartialEq)]
struct Trial {
    scale: f64,
    zero: f64,
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
    /// The part of a scale between two coarse trials, and what a scale is times the one before.
    spacing: f64,
    ratio: f64,
    /// Whether coarse trials are all stored scales, whose own errors rank them.
    ranks_stored: bool,
    /// The lowest points that are tried in the end, where stored scales are closer than trials: float32 has a number next to
    /// each.
    refits: usize,
    /// An error is less than that of the recipe's own scale if it is below this part of it. A quotient near the middle of two
    /// codes may be rounded to the other one, which changes a square by less than `reach * 2^-19` of it; additions round
    /// off at most 2^-16 of a sum.
    less: f64,
}

/// The elements of blocks times powers of two, those of a block after each other; what weights their errors, and room to read
/// that; these powers; and the elements of a block as integers.
#[derive(Default)]
pub(super) struct Room {
    elements: Vec<f32>,
    weights: Vec<f32>,
    read: Vec<f32>,
    powers: Vec<f64>,
    shorts: Vec<[i16; 2]>,
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
        let ranks_stored = stored_floats.part / 2.0 >= spacing;
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
            ratio: 1.0 - if ranks_stored { stored_floats.part / 2.0 } else { spacing },
            ranks_stored,
            refits: match stored_floats.part / 2.0 {
                part if part >= spacing * 0.1 => 0,
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
        let Room { elements, weights, shorts, powers, .. } = room;
        let end = elements.len().min(start + size);
        let weights = weights.get(start..end).unwrap_or_default();
        let block = (&elements[start..end], weights, powers[block]);
        Trials::new(Level::active(), self, block, (amax, shorts)).search(own, amax)
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
                // SAFETY: the area has so many columns.
                unsafe {
                    let numbers = Multiply { from, power, to: &mut to[start..start + count] };
                    if N::IS_SINGLE {
                        Level::active().run_raw(numbers);
                    } else {
                        run_portable(numbers);
                    }
                }
                column += count;
            }
        }
    }
}

/// Multiplies as many numbers as there are results.
struct Multiply<'a, N> {
    from: *const N,
    power: f64,
    to: &'a mut [f32],
}

impl<N: Real> RawKernel for Multiply<'_, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for (index, to) in self.to.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let number = unsafe { self.from.add(index).read_unaligned() }.to_f64();
            *to = if N::IS_SINGLE { number as f32 * self.power as f32 } else { (number * self.power) as f32 };
        }
    }
}

/// Returns the power of two that brings a magnitude to between 1 and 2, or close to it, so that no square underflows.
fn power(amax: f64) -> f64 {
    const MOST: i64 = 126;
    let exponent = (amax.to_bits() >> Binary64::MANTISSA) as i64 - Binary64::BIAS;
    f64::from_bits(((Binary64::BIAS - exponent.clamp(-MOST, MOST)) as u64) << Binary64::MANTISSA)
}

/// A coarse trial, or the lowest point of its parabola.
#[derive(Clone, Copy)]
struct Top {
    key: u32,
    trial: Trial,
}

/// The trials of a block.
struct Trials<'a> {
    level: Level,
    search: &'a IntegerSearch,
    /// Times the power of two.
    elements: &'a [f32],
    /// As integers, where coarse trials are made of these.
    shorts: &'a [[i16; 2]],
    /// None, if all are 1.
    weights: &'a [f32],
    power: f64,
    /// The weighted sum of squares of elements.
    energy: f64,
    /// Those that are made next.
    next: Batch,
    zeros: Lanes<f64>,
    count: usize,
    /// The best two coarse trials, and the rank of the best of the last lanes.
    tops: [Top; TOPS.len()],
    last: f64,
}

impl<'a> Trials<'a> {
    fn new(
        level: Level,
        search: &'a IntegerSearch,
        (elements, weights, power): (&'a [f32], &'a [f32], f64),
        (amax, shorts): (f64, &'a mut Vec<[i16; 2]>),
    ) -> Self {
        // Above 2^127 no normal power brings elements below 2, which integers of 16 bits need.
        let energy = if weights.is_empty() && amax * power < 2.0 {
            shorten(level, elements, shorts)
        } else {
            shorts.clear();
            energy(elements, weights)
        };
        let none = Top { key: f32::INFINITY.to_bits(), trial: Trial::default() };
        let (low, high) = (search.low as i16, search.high as i16);
        Self {
            level,
            search,
            elements,
            shorts,
            weights,
            power,
            energy,
            next: Batch { scales: [1.0; LANES], low: [low; LANES], high: [high; LANES] },
            zeros: [0.0; LANES],
            count: 0,
            tops: [none; TOPS.len()],
            last: 0.0,
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
            (total, energy(self.weights, &[]))
        };
        // As many elements of equal weight have the same deviation of sums of squares, which are uniform in a step: 0.9 over
        // its root.
        let root = total / squares.sqrt();
        let largest = 1.0 + 3.6 / root;
        let mut scale = (own.scale / (1.0 - 2.7 / root).max(0.25).sqrt()).min(search.most);
        while scale > own.scale * LOWEST {
            let least = rank(self.tops[0].key);
            let lost = (ends * least).sqrt() / self.power;
            // The weight of the largest magnitude is not known.
            let is_limited = self.weights.is_empty() && extent - lost > search.reach * scale;
            let is_worse = scale < own.scale && self.last > least * largest;
            if is_limited || is_worse {
                break;
            }
            if search.has_zeros {
                self.add_zero_points(scale, (low, high));
                scale *= search.ratio;
            } else {
                scale = self.add_scales(scale, own.scale, amax);
                self.survey();
            }
        }
        self.survey();
        self.add(own);
        for (top, count) in self.tops.into_iter().zip(TOPS) {
            self.add_around(top, count);
        }
        let outcome = self.sums(true);
        let own_error = outcome.errors[0];
        let mut best = self.least(&outcome);
        self.count = 0;
        if search.refits > 0 {
            let zeros = self.zeros;
            self.add_refits(&outcome, &zeros, best.0);
            if self.count > 0 {
                let outcome = self.sums(true);
                let other = self.least(&outcome);
                best = if other.0 < best.0 { other } else { best };
            }
        }
        let step = own.scale * self.power;
        let is_exact = own_error < EXACT * step * step * total;
        let is_less = best.0 < own_error * search.less;
        if is_less && !is_exact { best.1 } else { own }
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

    /// Adds scales from one downwards to all lanes, those that limit the largest magnitude with both signs; returns the next
    /// one.
    fn add_scales(&mut self, mut scale: f64, own: f64, amax: f64) -> f64 {
        let (search, power) = (self.search, self.power);
        let mut lane = 0;
        while lane < LANES {
            // Rounded, it may be none, or more than the scale whose largest product the dtype of the weight has.
            let stored = search.stored.round(scale);
            let stored = if (stored > 0.0) & (stored <= search.most) { stored } else { own };
            self.next.scales[lane] = stored * power;
            lane += 1;
            if search.has_signs && stored * (search.high + 0.5) < amax {
                if lane == LANES {
                    break;
                }
                self.next.scales[lane] = -stored * power;
                lane += 1;
            }
            scale *= search.ratio;
        }
        self.count = LANES;
        scale
    }

    /// Adds the trials of a scale for elements from one to another; makes them where lanes are full.
    #[inline(never)]
    fn add_zero_points(&mut self, scale: f64, (low, high): (f64, f64)) {
        let search = self.search;
        let scale = search.stored.round(scale);
        if scale == 0.0 || scale > search.most {
            return;
        }
        // The zero points under which the least element is not limited, and the largest one.
        let (of_low, of_high) = (search.low - low / scale, search.high - high / scale);
        let middle = of_low.midpoint(of_high).round_ties_even();
        let is_limited = of_high < of_low;
        let (first, last) = if is_limited { (of_high.floor(), of_low.ceil()) } else { (middle, middle) };
        let (mut zero, last) = (first.max(search.low), last.min(search.high));
        while zero <= last {
            self.add(Trial { scale, zero });
            if self.count == LANES {
                self.survey();
            }
            zero += 1.0;
        }
    }

    /// Adds so many stored scales around one.
    #[inline(never)]
    fn add_around(&mut self, Top { key, trial: Trial { scale, zero } }: Top, count: usize) {
        let search = self.search;
        if key >= f32::INFINITY.to_bits() {
            return;
        }
        let magnitude = scale.abs();
        let nearest = search.stored.round(magnitude);
        let step = search.stored.step(nearest);
        let step = if search.refits > 0 { step.max(magnitude * search.spacing * CLOSE) } else { step };
        let side = if magnitude > nearest { step } else { -step };
        for place in 0..count {
            let steps = place.div_ceil(2) as f64;
            let magnitude = nearest + if place % 2 == 0 { -side } else { side } * steps;
            self.add_stored(Trial { scale: search.stored.round(magnitude).copysign(scale), zero });
        }
    }

    /// Adds the stored scales next to the lowest points of trials that may be better.
    #[inline(never)]
    fn add_refits(&mut self, outcome: &Outcome, zeros: &Lanes<f64>, error: f64) {
        let search = self.search;
        let mut keys = keys(&outcome.lowest);
        for _ in 0..search.refits {
            let key = least(&keys);
            if rank(key) >= error {
                break;
            }
            keys[lane(key)] = u32::MAX;
            let lane = lane(key);
            let (scale, zero) = (outcome.refits[lane] / self.power, zeros[lane]);
            let nearest = search.stored.round(scale.abs());
            let other = search.stored.other(scale.abs(), nearest);
            for magnitude in [nearest, other].into_iter().take(LANES / search.refits) {
                self.add_stored(Trial { scale: magnitude.copysign(scale), zero });
            }
        }
    }

    fn add_stored(&mut self, trial: Trial) {
        if trial.scale != 0.0 && trial.scale.abs() <= self.search.most {
            self.add(trial);
        }
    }

    fn add(&mut self, Trial { scale, zero }: Trial) {
        self.next.scales[self.count] = scale * self.power;
        if self.search.has_zeros {
            self.zeros[self.count] = zero;
            self.next.low[self.count] = (self.search.low - zero) as i16;
            self.next.high[self.count] = (self.search.high - zero) as i16;
        }
        self.count += 1;
    }

    /// Returns the trial of a lane.
    fn trial(&self, lane: usize, scale: f64) -> Trial {
        Trial { scale: scale / self.power, zero: self.zeros[lane] }
    }

    /// Makes the coarse trials that were added, and keeps the best two.
    fn survey(&mut self) {
        let Self { level, search, shorts, energy, .. } = *self;
        if self.count == 0 {
            return;
        }
        let is_stored = search.ranks_stored;
        let outcome = if shorts.is_empty() {
            self.sums(is_stored)
        } else {
            self.fill();
            // The last one may be the block's own, which is larger, where it would be stored as zero.
            let mut lowest = self.next.scales[0].abs();
            for scale in self.next.scales {
                lowest = if scale.abs() < lowest { scale.abs() } else { lowest };
            }
            CodeSums { shorts, batch: self.next, least: lowest, energy, is_stored }.run(level).rank(level)
        };
        self.count = 0;
        self.last = rank(outcome.keys[0]);
        for key in outcome.keys {
            let lane = lane(key);
            let scale = if is_stored { self.next.scales[lane] } else { outcome.refits[lane] };
            let top = Top { key, trial: self.trial(lane, scale) };
            let [first, second] = self.tops;
            if key < first.key {
                self.tops = [top, first];
            } else if key < second.key {
                self.tops = [first, top];
            }
        }
    }

    /// Fills lanes without a trial by the first one, which is not better than itself.
    fn fill(&mut self) {
        let (count, Batch { scales, low, high }) = (self.count, &mut self.next);
        for lane in count..LANES {
            (scales[lane], low[lane], high[lane]) = (scales[0], low[0], high[0]);
            self.zeros[lane] = self.zeros[0];
        }
    }

    /// Makes the trials that were added by the elements themselves.
    fn sums(&mut self, is_stored: bool) -> Outcome {
        self.fill();
        let Self { level, elements, weights, energy, next: batch, .. } = *self;
        let sought = if weights.is_empty() {
            level.run(Sums::<false> { elements, weights, batch, energy, is_stored })
        } else {
            level.run(Sums::<true> { elements, weights, batch, energy, is_stored })
        };
        sought.rank(level)
    }

    /// Returns the least error, and its trial.
    fn least(&self, outcome: &Outcome) -> (f64, Trial) {
        let lane = lane(outcome.keys[0]);
        (outcome.errors[lane], self.trial(lane, self.next.scales[lane]))
    }
}
