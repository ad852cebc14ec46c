//! Watching a cast at a glance: what ordinary tiles lost, from their values before and after as float32.
//!
//! A tile is ordinary if all its sources lie within the target's range: then nothing overflows, and every result is a
//! neighbour of its source. In float32 their difference is exact:
//! * both not zero: neighbours of one sign are within a factor of two of each other (Sterbenz);
//! * a result of zero: the difference is the source;
//! * a source of zero has a result of zero.
//!
//! What other tiles lost, flags tell ([`super::measure`]).

use super::cast_report::{CastReport, smallest_nonzero};
use super::extremes::Extremes;
use super::max_relative_error::{MaxRelativeError, TINY};
use super::squares::{self, Bounds, Errors, LANES, Values, exponent_of};
use super::subnormal_count::{BLOCK, ByteSubnormalCount, Bytes, SubnormalCount};
use crate::codec::decode::Decoder;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::codec::reference;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format, Kind, Specials};
use crate::kernels::request::{Request, holds_exactly, pivot_format, pivot_spec};
use crate::kernels::stages::assemble;
use crate::kernels::stages::stage::{Decode, Span, Stage};
use crate::kernels::tile::Tile;
use crate::route::Route;

/// What a pair of formats makes of ordinary tiles.
pub(super) struct TileStatistics {
    /// To float32; none for float32 itself.
    source: Option<Box<dyn Stage>>,
    target: Option<Box<dyn Stage>>,
    /// Every source within the range is a value of the target.
    lossless: bool,
    /// Results are the sources as float32, whatever they are.
    widens: bool,
    /// Of the target.
    largest: f32,
    smallest_normal: f32,
    smallest: f32,
    /// Sources between zero and the smallest of the target may become that, however small they are.
    rises: bool,
    /// Bits of a source's significand after the first, and the exponent of the smallest source.
    precision: i32,
    lowest: i32,
    /// Of targets of a byte.
    bytes: Option<Bytes>,
}

/// The upper half of a float32 as that: without the look for NaN that decoders have, whose tiles are not ordinary.
#[derive(Clone, Copy)]
struct Bf16Decoder;

impl Decoder<u32> for Bf16Decoder {
    #[inline(always)]
    fn decode(&self, code: u32) -> u32 {
        code << u16::BITS
    }
}

/// The stage from a format to float32.
fn reader(format: Format, level: Level) -> Option<Box<dyn Stage>> {
    let single = pivot_format::<Binary32>()?;
    let upper = FloatSpec { mantissa_bits: Binary32::MANTISSA - u16::BITS, ..pivot_spec::<Binary32>() };
    if format.float() == Some(upper) {
        return Some(Box::new(Decode::<u32, u16, _>::new(Bf16Decoder)));
    }
    let route = Route::new(&Request::plain(format, single), level).ok()?;
    match (route.decode, route.encode) {
        (None, encode) => encode,
        (decode, None) => decode,
        (Some(_), Some(_)) => assemble::decoder::<Binary32>(format),
    }
}

/// The same values in a tile, and zeros after them, which nothing is told of.
///
/// # Safety
/// `count` values are readable, and `full` is at most [`crate::cast::TILE`].
unsafe fn filled_up(values: *const f32, count: usize, full: usize, tile: &mut Tile<f32>) -> *const f32 {
    let place = tile.0.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if values != place.cast_const() {
            values.copy_to_nonoverlapping(place, count);
        }
        place.add(count).write_bytes(0, full - count);
    }
    place.cast_const()
}

impl TileStatistics {
    /// Whether ordinary tiles lose nothing.
    pub(super) fn is_lossless(&self) -> bool {
        self.lossless
    }

    /// For requests of which a glance at ordinary tiles tells everything.
    pub(super) fn new(request: &Request, level: Level) -> Option<Self> {
        let Request { source, target, scaled, .. } = *request;
        let held = holds_exactly::<Binary32>(source) && holds_exactly::<Binary32>(target);
        let spec = target.float().filter(|spec| spec.signed && spec.specials != Specials::ExponentOnly)?;
        let rounding = request.rounding();
        if scaled || !held || rounding == Rounding::Stochastic {
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
        let reader = |format| reader(format, level);
        let (source, target) = (reader(source), reader(target));
        Some(Self {
            widens: lossless && target.is_none() && request.keeps_specials(),
            source,
            target,
            lossless,
            largest,
            smallest_normal: value(1 << spec.mantissa_bits),
            smallest: value(1),
            rises: matches!(rounding, Rounding::TowardsPositive | Rounding::TowardsNegative),
            precision,
            lowest,
            bytes: (request.target.item_size() == 1)
                .then(|| Bytes { magnitude: spec.magnitude_mask() as u8, normal: 1 << spec.mantissa_bits }),
        })
    }

    /// Adds the account of a tile, if it is an ordinary one. Returns whether it is.
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`crate::cast::TILE`].
    pub(super) unsafe fn add_tile(
        &self,
        level: Level,
        (source, target): (*const u8, *const u8),
        count: usize,
        scratch: &mut TileScratch,
        report: &mut CastReport,
    ) -> bool {
        let TileScratch { source: before, target: after, max_relative_error } = scratch;
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
            let x = if self.widens { target.cast() } else { read(&self.source, source, before) };
            let y = if self.lossless { x } else { read(&self.target, target, after) };
            let full = count.next_multiple_of(LANES);
            let y = if full == count || self.lossless { y } else { filled_up(y, count, full, after) };
            let x = if full == count { x } else { filled_up(x, count, full, before) };
            (Values::new(x, full), Values::new(if self.lossless { x } else { y }, full))
        };
        let ends = Errors::new(x, y);
        let first_pass =
            if self.lossless { level.run(Extremes(x)) } else { max_relative_error.first_pass(level, ends) };
        let largest = f32::from_bits(first_pass.largest);
        let smallest = f32::from_bits(first_pass.below.wrapping_add(1));
        let is_within = |limit: f32| smallest == 0.0 || smallest >= limit;
        if first_pass.largest > self.largest.to_bits() || (self.rises && !is_within(self.smallest)) {
            return false;
        }
        report.count += count as u64;
        report.exact += count as u64 - u64::from(first_pass.inexact);
        report.amax = report.amax.max(f64::from(largest));
        report.amin_nonzero = smallest_nonzero(report.amin_nonzero, f64::from(smallest));
        if !is_within(self.smallest_normal) {
            let [subnormal, underflowed] = match self.bytes {
                Some(bytes) if count.is_multiple_of(BLOCK) => {
                    let count =
                        ByteSubnormalCount { x, codes: target, bytes, zeros: !is_within(self.smallest) };
                    // SAFETY: the caller's promise for the target; without zeros to fill up, there are as many sources.
                    unsafe { level.run_raw(count) }
                }
                _ => level.run(SubnormalCount { ends, normal: self.smallest_normal.to_bits() }),
            };
            report.subnormal += u64::from(subnormal);
            report.underflowed += u64::from(underflowed);
        }
        if first_pass.largest == 0 {
            return true;
        }
        let exponent = exponent_of(f64::from(smallest));
        let grid = (exponent - self.precision).max(self.lowest);
        let bounds = Bounds::new(f64::from(smallest), f64::from(largest), grid);
        squares::add_f32s(&mut report.signal, level, x, bounds);
        if first_pass.error == 0 {
            return true;
        }
        let error = f64::from(f32::from_bits(first_pass.error));
        squares::add_f32s(&mut report.noise, level, ends, Bounds::new(0.0, error, grid));
        report.max_abs_error = report.max_abs_error.max(error);
        let may_exceed = first_pass.may_exceed || smallest < TINY;
        if may_exceed && max_relative_error.rise(level, ends) {
            report.max_rel_error = report.max_rel_error.max(max_relative_error.quotient());
        }
        true
    }
}

/// Columns of a tile, and what the tiles before it led to.
#[derive(Default)]
pub(super) struct TileScratch {
    source: Tile<f32>,
    target: Tile<f32>,
    max_relative_error: MaxRelativeError,
}

impl TileScratch {
    /// Before the first tile.
    pub(super) fn begin(&mut self) {
        self.max_relative_error = MaxRelativeError::default();
    }
}
