//! Watching a cast at a glance: what ordinary tiles lost, from their values before and after as float32.
//!
//! A tile is ordinary if all its sources lie within the target's range: then nothing overflows, and every result is a
//! neighbour of its source. In float32 their difference is exact:
//! * both not zero: neighbours of one sign are within a factor of two of each other (Sterbenz);
//! * a result of zero: the difference is the source;
//! * a source of zero has a result of zero.
//!
//! What other tiles lost, flags tell ([`super::measure`]).

use super::assemble;
use super::plan::Plan;
use super::request::{Request, holds_exactly, pivot_spec};
use super::squares::{self, Bounds, Difference, Values, exponent_of};
use super::stage::{Span, Stage};
use super::tile::Tile;
use crate::codec::options::{NanRule, Options, Overflow, Rounding};
use crate::codec::pivot::Binary32;
use crate::codec::reference;
use crate::cpu::{Kernel, Level};
use crate::format::{Format, Kind, Specials};
use crate::report::{CastReport, smallest_nonzero};

/// Below this, products of relative errors and sources may lose bits.
const TINY: f32 = f32::from_bits((127 - 70) << 23);

/// What a pair of formats makes of ordinary tiles.
pub(super) struct Glance {
    /// To float32; none for float32 itself.
    source: Option<Box<dyn Stage>>,
    target: Option<Box<dyn Stage>>,
    /// Every source within the range is a value of the target.
    lossless: bool,
    /// Of the target.
    largest: f32,
    smallest_normal: f32,
    smallest: f32,
    /// Sources between zero and the smallest of the target may become that, however small they are.
    rises: bool,
    /// Bits of a source's significand after the first, and the exponent of the smallest source.
    precision: i32,
    lowest: i32,
}

/// The stage from a format to float32.
fn reader(format: Format, level: Level) -> Option<Box<dyn Stage>> {
    let single = Format::all().find(|format| format.float() == Some(pivot_spec::<Binary32>()))?;
    let request = Request {
        source: format,
        target: single,
        options: Options::default(),
        scaled: false,
        factor: None,
        report: false,
    };
    let plan = Plan::new(&request, level).ok()?;
    match (plan.decode, plan.encode) {
        (None, encode) => encode,
        (decode, None) => decode,
        (Some(_), Some(_)) => assemble::decoder::<Binary32>(format),
    }
}

impl Glance {
    /// For requests of which a glance at ordinary tiles tells everything.
    pub(super) fn new(request: &Request, level: Level) -> Option<Self> {
        let Request { source, target, options, scaled, .. } = *request;
        let raises = options.overflow == Overflow::Raise || options.nan == NanRule::Raise;
        let held = holds_exactly::<Binary32>(source) && holds_exactly::<Binary32>(target);
        let spec = target.float().filter(|spec| spec.signed && spec.specials != Specials::ExponentOnly)?;
        let rounding = request.rounding();
        if scaled || raises || !held || rounding == Rounding::Stochastic {
            return None;
        }
        let (precision, lowest) = match source.kind() {
            Kind::Float(spec) if spec.specials != Specials::ExponentOnly => {
                (spec.mantissa_bits as i32, 1 - spec.bias - spec.mantissa_bits as i32)
            }
            Kind::Integer { .. } | Kind::Bool => (source.row().bits as i32, 0),
            _ => return None,
        };
        let value = |code| reference::value_of(&spec, code) as f32;
        let largest = value(spec.max_code());
        let lossless = match source.float() {
            Some(narrow) => narrow.fits_in(&spec),
            None => source.row().bits <= spec.mantissa_bits && 2f64.powi(precision) <= f64::from(largest),
        };
        Some(Self {
            source: reader(source, level),
            target: reader(target, level),
            lossless,
            largest,
            smallest_normal: value(1 << spec.mantissa_bits),
            smallest: value(1),
            rises: matches!(rounding, Rounding::TowardsPositive | Rounding::TowardsNegative),
            precision,
            lowest,
        })
    }

    /// Adds the account of a tile, if it is an ordinary one. Returns whether it is.
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`super::TILE`].
    pub(super) unsafe fn look(
        &self,
        level: Level,
        (source, target): (*const u8, *const u8),
        count: usize,
        scratch: &mut GlanceScratch,
        report: &mut CastReport,
    ) -> bool {
        let GlanceScratch { source: before, target: after, steepest } = scratch;
        // SAFETY: the caller's promise; the tiles hold that many, and are not touched while the columns are in use.
        let (x, y) = unsafe {
            let read = |stage: &Option<Box<dyn Stage>>, codes: *const u8, tile: &mut Tile<f32>| match stage {
                None => codes.cast::<f32>(),
                Some(stage) => {
                    let values = tile.0.as_mut_ptr();
                    stage.run(level, Span { source: codes, target: values.cast(), count, ..Span::EMPTY });
                    values.cast_const()
                }
            };
            let y = if self.lossless && self.target.is_some() {
                None
            } else {
                Some(read(&self.target, target, after))
            };
            let x = match y {
                Some(y) if self.lossless => y,
                _ => read(&self.source, source, before),
            };
            (Values::new(x, count), Values::new(y.unwrap_or(x), count))
        };
        let seen = if self.lossless { level.run(Extremes(x)) } else { steepest.look(level, x, y) };
        let largest = f32::from_bits(seen.largest);
        let smallest = f32::from_bits(seen.below.wrapping_add(1));
        let is_within = |limit: f32| smallest == 0.0 || smallest >= limit;
        if seen.largest > self.largest.to_bits() || (self.rises && !is_within(self.smallest)) {
            return false;
        }
        report.count += count as u64;
        report.exact += count as u64 - u64::from(seen.inexact);
        report.amax = report.amax.max(f64::from(largest));
        report.amin_nonzero = smallest_nonzero(report.amin_nonzero, f64::from(smallest));
        if !is_within(self.smallest_normal) {
            let low = Low { x, y, normal: self.smallest_normal.to_bits() };
            let [subnormal, underflowed] = level.run(low);
            report.subnormal += u64::from(subnormal);
            report.underflowed += u64::from(underflowed);
        }
        if seen.largest != 0 {
            let grid = (exponent_of(f64::from(smallest)) - self.precision).max(self.lowest);
            let bounds = Bounds::new(f64::from(smallest), f64::from(largest), grid);
            squares::add_singles(&mut report.signal, level, x, bounds);
            if seen.error != 0 {
                let error = f64::from(f32::from_bits(seen.error));
                report.max_abs_error = report.max_abs_error.max(error);
                let steep = seen.steep || smallest < TINY;
                if steep && steepest.rise(level, x, y) {
                    report.max_rel_error = report.max_rel_error.max(steepest.quotient());
                }
                let bounds = Bounds::new(0.0, error, grid);
                squares::add_singles(&mut report.noise, level, Difference(y, x), bounds);
            }
        }
        true
    }
}

/// Columns of a tile, and what the tiles before it led to.
#[derive(Default)]
pub(super) struct GlanceScratch {
    source: Tile<f32>,
    target: Tile<f32>,
    steepest: Steepest,
}

impl GlanceScratch {
    /// Before the first tile.
    pub(super) fn begin(&mut self) {
        self.steepest = Steepest::default();
    }
}

/// What a first look at a tile tells. Magnitudes are bits of float32, whose order is the same.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    largest: u32,
    /// One less than the smallest but zero, which is thus the largest of all.
    below: u32,
    error: u32,
    inexact: u32,
    /// Some relative error may be larger than all before.
    steep: bool,
}

#[inline(always)]
fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

/// The range of sources that lose nothing.
struct Extremes(Values);

impl Kernel for Extremes {
    type Output = Seen;

    #[inline(always)]
    fn run(self) -> Seen {
        let (mut largest, mut below) = (0, u32::MAX);
        for i in 0..self.0.count() {
            let magnitude = bits(self.0.get(i));
            largest = magnitude.max(largest);
            below = magnitude.wrapping_sub(1).min(below);
        }
        Seen { largest, below, ..Seen::default() }
    }
}

/// The first look; with `FUSED`, multiplication and addition are one instruction.
struct Look<const FUSED: bool> {
    x: Values,
    y: Values,
    ratio: f32,
}

impl<const FUSED: bool> Kernel for Look<FUSED> {
    type Output = Seen;

    #[inline(always)]
    fn run(self) -> Seen {
        let Self { x, y, ratio } = self;
        let (mut largest, mut below, mut most, mut inexact, mut above) = (0, u32::MAX, 0, 0, 0);
        for i in 0..x.count() {
            let (x, y) = (x.get(i), y.get(i));
            let error = (y - x).abs();
            largest = bits(x).max(largest);
            below = bits(x).wrapping_sub(1).min(below);
            most = bits(error).max(most);
            inexact += u32::from(error != 0.0);
            let more = if FUSED { (-ratio).mul_add(x.abs(), error) } else { error - ratio * x.abs() };
            // Positive numbers are positive integers, and negative ones negative.
            above = (more.to_bits() as i32).max(above);
        }
        Seen { largest, below, error: most, inexact, steep: above > 0 }
    }
}

/// The largest relative error, as the error and the source that it belongs to.
#[derive(Clone, Copy, Debug)]
struct Steepest {
    error: f32,
    source: f32,
}

impl Default for Steepest {
    fn default() -> Self {
        Self { error: 0.0, source: 1.0 }
    }
}

impl Steepest {
    fn quotient(self) -> f64 {
        f64::from(self.error) / f64::from(self.source)
    }

    /// A float32 that is not above the quotient, by some units of its last bit.
    fn ratio(self, units: u32) -> f32 {
        let quotient = self.quotient();
        let near = quotient as f32;
        let excess = u32::from(f64::from(near) > quotient);
        if near < TINY { 0.0 } else { f32::from_bits(near.to_bits() - excess - units) }
    }

    fn look(self, level: Level, x: Values, y: Values) -> Seen {
        if level >= Level::Neon {
            level.run(Look::<true> { x, y, ratio: self.ratio(0) })
        } else {
            // The product may be rounded up.
            level.run(Look::<false> { x, y, ratio: self.ratio(8) })
        }
    }

    /// Takes the largest relative error of a tile, if it is larger. Returns whether it is.
    fn rise(&mut self, level: Level, x: Values, y: Values) -> bool {
        // Arrays of one value come here with each tile: no division, and nothing but a look.
        let rises = level.run(Rises { x, y, steepest: *self });
        if rises {
            for i in 0..x.count() {
                let (error, source) = ((y.get(i) - x.get(i)).abs(), x.get(i).abs());
                if self.is_below(error, source) {
                    *self = Self { error, source };
                }
            }
        }
        rises
    }

    /// Whether the quotient is below another. Products of float32 are exact in float64.
    #[inline(always)]
    fn is_below(self, error: f32, source: f32) -> bool {
        f64::from(self.error) * f64::from(source) < f64::from(error) * f64::from(self.source)
    }
}

/// Whether some relative error is larger.
struct Rises {
    x: Values,
    y: Values,
    steepest: Steepest,
}

impl Kernel for Rises {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { x, y, steepest } = self;
        let mut found = 0;
        for i in 0..x.count() {
            let error = (y.get(i) - x.get(i)).abs();
            found += u64::from(steepest.is_below(error, x.get(i).abs()));
        }
        found > 0
    }
}

/// How many results are subnormal, and how many are zero though the source is not.
struct Low {
    x: Values,
    y: Values,
    normal: u32,
}

impl Kernel for Low {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let Self { x, y, normal } = self;
        let (mut subnormal, mut vanished) = (0, 0);
        for i in 0..x.count() {
            let (before, after) = (bits(x.get(i)), bits(y.get(i)));
            subnormal += u32::from(after.wrapping_sub(1) < normal - 1);
            vanished += u32::from((after == 0) & (before != 0));
        }
        [subnormal, vanished]
    }
}
