//! The stored scale of least squared error for each block of integers, with the zero point of the block, if it has one.
//!
//! For a scale, each element becomes the nearest integer that is a code. Where codes do not change, the error is a parabola
//! of the scale. A trial gives the error of a scale and the lowest point of its parabola: the error of the scale there is at
//! most that of the point. There are many such parabolas, and no bound leaves few of them, so trials are as close as codes
//! need it:
//!
//! * Coarse ones go down from a scale above that of the largest magnitude, each by the same part of a step of the largest code,
//!   or to the next stored scale, if that is farther. They end where the largest magnitude alone, limited to the farthest code,
//!   loses as much as the least error so far, or where all are worse than that by more than chance.
//! * Stored scales around the best two, or around the lowest points of their parabolas, are tried next.
//! * The best two of these, the recipe's own scale, and where stored scales are closer than trials, those next to the lowest
//!   points, are tried by the elements themselves. Before, elements and weights are integers of 16 bits, where sums have room
//!   for the products: with weights, those of codes up to 16.
//!
//! Beside all stored scales, tried in float64, random blocks lose less than 0.001 dB, which
//! `tests/quantization/test_integer_scales.py` compares.
//! Trials of integers are made together, a lane each, and their sums are exact. Sums of floats have the elements of each of
//! [`LANES`] in order, and no operation is fused: all are the same at every level.

use super::amaxes::BlockAmaxes;
use super::importance::Importance;
use super::integer_sums::{
    Batch, CodeSums, LANES, Lanes, Outcome, Rank, Shorts, ShortsRoom, Sums, energy, lane, rank,
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

/// Around the best coarse trials, scales are at least this part of the distance of two coarse ones apart.
const CLOSE: f64 = 0.15;

/// Scales that are tried around the best coarse trial, and around the second.
const TOPS: [usize; 2] = [LANES / 2; 2];

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
    /// The stored scales next to each of the lowest points that are tried in the end, where stored scales are closer than
    /// trials: float32 has one that is close enough.
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
    shorts: ShortsRoom,
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
        // Between two coarse trials, the product of a scale and the farthest code changes by this part of a step.
        let spacing = match (has_zeros, reach) {
            (false, ..8.0) => 0.3,
            (false, _) => 0.4,
            (true, ..15.0) => 0.45,
            (true, _) => 0.7,
        } / reach;
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
                part if part >= spacing * 0.07 => 0,
                part if part > spacing / 1024.0 => 2,
                _ => 1,
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
    const LEAST: i64 = -126;
    // Its power is a subnormal float32, which is exact, and so are products of numbers as large as that with it.
    const MOST: i64 = 127;
    let exponent = (amax.to_bits() >> Binary64::MANTISSA) as i64 - Binary64::BIAS;
    f64::from_bits(((Binary64::BIAS - exponent.clamp(LEAST, MOST)) as u64) << Binary64::MANTISSA)
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
    /// None, if all are 1.
    weights: &'a [f32],
    shorts: Shorts<'a>,
    /// Whether trials are made of integers but for the last ones.
    is_short: bool,
    power: f64,
    /// The weighted sum of squares of elements.
    energy: f64,
    /// Those that are made next.
    next: Batch,
    zeros: Lanes<f64>,
    /// The best two coarse trials, and the rank of the best of the last lanes.
    tops: [Top; TOPS.len()],
    last: f64,
}

impl<'a> Trials<'a> {
    fn new(
        level: Level,
        search: &'a IntegerSearch,
        (elements, weights, power): (&'a [f32], &'a [f32], f64),
        (amax, shorts): (f64, &'a mut ShortsRoom),
    ) -> Self {
        let most = if weights.is_empty() { CodeSums::<false>::MOST } else { CodeSums::<true>::MOST };
        // Integers of 16 bits have room for elements below 2, and few bits of those of the smallest numbers.
        let is_short = (1.0..2.0).contains(&(amax * power)) && search.reach <= most;
        let energy =
            if is_short { shorts.fill(level, elements, weights) } else { self::energy(elements, weights) };
        let none = Top { key: f32::INFINITY.to_bits(), trial: Trial::default() };
        let (low, high) = (search.low as i16, search.high as i16);
        Self {
            level,
            search,
            elements,
            weights,
            shorts: shorts.shorts(),
            is_short,
            power,
            energy,
            next: Batch { count: 0, scales: [1.0; LANES], low: [low; LANES], high: [high; LANES] },
            zeros: [0.0; LANES],
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
        let largest = 1.0 + 2.0 / root;
        let mut scale = (own.scale / (1.0 - 2.7 / root).max(0.25).sqrt()).min(search.most);
        let mut lanes = LANES;
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
                scale = self.add_scales(scale, own.scale, (amax, lanes));
                lanes = LANES / 2;
                self.survey();
            }
        }
        self.survey();
        for (top, count) in self.tops.into_iter().zip(TOPS) {
            self.add_around(top, count);
        }
        self.add_finals(own);
        let outcome = self.sums();
        let lane = lane(self.level.run(Rank(&outcome.errors))[0]);
        let (own_error, step) = (outcome.errors[0], own.scale * self.power);
        let is_exact = own_error < EXACT * step * step * total;
        let is_less = outcome.errors[lane] < own_error * search.less;
        if is_less && !is_exact { self.trial(lane, self.next.scales[lane]) } else { own }
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

    /// Adds scales from one downwards to so many lanes, those that limit the largest magnitude with both signs; returns the
    /// next one.
    fn add_scales(&mut self, mut scale: f64, own: f64, (amax, lanes): (f64, usize)) -> f64 {
        let (search, power) = (self.search, self.power);
        let mut lane = 0;
        while lane < lanes {
            // Rounded, it may be none, or more than the scale whose largest product the dtype of the weight has.
            let stored = if search.ranks_stored { search.stored.round(scale) } else { scale };
            let stored = if (stored > 0.0) & (stored <= search.most) { stored } else { own };
            self.next.scales[lane] = stored * power;
            lane += 1;
            if search.has_signs && stored * (search.high + 0.5) < amax {
                if lane == lanes {
                    break;
                }
                self.next.scales[lane] = -stored * power;
                lane += 1;
            }
            scale *= search.ratio;
        }
        self.next.count = lanes;
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
        // One end may be limited more than the other, but without weights not much more.
        let (of_high, of_low) = if self.weights.is_empty() {
            (of_high.midpoint(middle) + 0.25, of_low.midpoint(middle) - 0.25)
        } else {
            (of_high, of_low)
        };
        let (first, last) = if is_limited { (of_high.floor(), of_low.ceil()) } else { (middle, middle) };
        let (mut zero, last) = (first.max(search.low), last.min(search.high));
        while zero <= last {
            self.add(Trial { scale, zero });
            if self.next.count == LANES {
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

    /// Makes the trials that were added around the best ones, and replaces them by the recipe's own, the best of them, and the
    /// stored scales next to the lowest points of their parabolas.
    #[inline(never)]
    fn add_finals(&mut self, own: Trial) {
        let search = self.search;
        let (batch, zeros) = (self.next, self.zeros);
        let outcome = (batch.count > 0).then(|| self.trials());
        self.next.count = 0;
        self.add(own);
        let Some(outcome) = outcome else { return };
        let stored = |lane: usize| Trial { scale: batch.scales[lane] / self.power, zero: zeros[lane] };
        let finals = self.level.run(Rank(&outcome.errors)).map(lane).map(stored);
        for trial in finals {
            self.add_stored(trial);
        }
        if search.refits == 0 {
            return;
        }
        for lane in self.level.run(Rank(&outcome.lowest)).map(lane) {
            let (scale, zero) = (outcome.refits[lane] / self.power, zeros[lane]);
            let nearest = search.stored.round(scale.abs());
            let other = search.stored.other(scale.abs(), nearest);
            for magnitude in [nearest, other].into_iter().take(search.refits) {
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
        let lane = self.next.count;
        self.next.scales[lane] = scale * self.power;
        if self.search.has_zeros {
            self.zeros[lane] = zero;
            self.next.low[lane] = (self.search.low - zero) as i16;
            self.next.high[lane] = (self.search.high - zero) as i16;
        }
        self.next.count += 1;
    }

    /// Returns the trial of a lane.
    fn trial(&self, lane: usize, scale: f64) -> Trial {
        Trial { scale: scale / self.power, zero: self.zeros[lane] }
    }

    /// Makes the coarse trials that were added, and keeps the best two.
    fn survey(&mut self) {
        if self.next.count == 0 {
            return;
        }
        let is_stored = self.search.ranks_stored;
        let outcome = self.trials();
        self.next.count = 0;
        let keys = self.level.run(Rank(if is_stored { &outcome.errors } else { &outcome.lowest }));
        self.last = rank(keys[0]);
        for key in keys {
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

    /// Makes the trials that were added, of integers or by the elements themselves.
    fn trials(&self) -> Outcome {
        let Self { level, shorts, weights, energy, next: ref batch, .. } = *self;
        if !self.is_short {
            self.sums()
        } else if weights.is_empty() {
            CodeSums::<false> { shorts, batch, energy }.run(level)
        } else {
            CodeSums::<true> { shorts, batch, energy }.run(level)
        }
    }

    /// Makes the trials that were added by the elements themselves.
    fn sums(&self) -> Outcome {
        let Self { elements, weights, energy, next: ref batch, .. } = *self;
        self.level.run(Sums { elements, weights, batch, energy })
    }
}
