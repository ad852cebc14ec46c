//! What a tile lost, from its values before and after as float32, where sources lie within the target's range.
//!
//! Such sources do not overflow, and every result is a neighbor of its source. Their difference is exact in float32:
//! * both not zero: neighbors of one sign are within a factor of two of each other (Sterbenz);
//! * a result of zero: the difference is the source;
//! * a source of zero has a result of zero.
//!
//! Sources outside the range count as padding here, and are measured by flags ([`super::measure`]).

use super::cast_report::{CastReport, smallest_nonzero};
use super::extremes::{Extremes, Outside, Within};
use super::max_relative_error::{ErrorSummary, MaxRelativeError, TINY};
use super::squares::{self, LANES, Values, exponent_of};
use super::subnormal_count::SubnormalCount;
use crate::codec::decode::Decoder;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::codec::reference;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format, Kind, Specials};
use crate::kernels::request::{Request, holds_exactly, pivot_format, pivot_spec};
use crate::kernels::stages::assemble;
use crate::kernels::stages::stage::{Decode, Elements, Span, Stage};
use crate::kernels::tile::Tile;
use crate::route::Route;

/// Up to this many elements, stages that write flags are faster than separate statistics.
pub(crate) const SHORT: usize = 64;

/// The constants and stages for a pair of formats.
pub(super) struct TileStatistics {
    /// Converts sources to float32; `None` for float32 itself.
    source: Option<Box<dyn Stage>>,
    target: Option<Box<dyn Stage>>,
    /// Whether every source within the range is a value of the target.
    lossless: bool,
    /// Whether results are the sources as float32.
    widens: bool,
    /// The magnitudes that do not overflow, and whose results are their neighbors.
    range: Within,
    smallest_normal: f32,
    /// Bits of a source's significand after the leading one, and the exponent of the smallest source.
    precision: i32,
    lowest: i32,
    /// Whether sources are bytes.
    is_byte: bool,
}

/// Decodes bf16 without testing for NaN: tiles with NaN are measured by flags.
#[derive(Clone, Copy)]
struct Bf16Decoder;

impl Decoder<u32> for Bf16Decoder {
    #[inline(always)]
    fn decode(&self, code: u32) -> u32 {
        code << u16::BITS
    }
}

/// Makes the stage from a format to float32.
pub(crate) fn reader(format: Format, level: Level) -> Option<Box<dyn Stage>> {
    let single = pivot_format::<Binary32>()?;
    let upper = FloatSpec { mantissa_bits: Binary32::MANTISSA - u16::BITS, ..pivot_spec::<Binary32>() };
    if format.float() == Some(upper) {
        return Some(Elements::boxed(Decode::<u32, u16, _>::new(Bf16Decoder)));
    }
    let route = Route::new(&Request::plain(format, single), level).ok()?;
    match (route.decode, route.encode) {
        (None, encode) => encode,
        (decode, None) => decode,
        (Some(_), Some(_)) => assemble::decoder::<Binary32>(format),
    }
}

/// Copies values to a tile and pads them with zeros, which do not count.
///
/// # Safety
/// `count` values are readable, and `full` is at most [`crate::cast::TILE`].
unsafe fn filled_up(values: *const f32, count: usize, full: usize, tile: &mut Tile<f32>) -> *const f32 {
    let place = tile.0.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if values != place.cast_const() {
            // As bytes, because values of a host may not be aligned.
            values.cast::<u8>().copy_to_nonoverlapping(place.cast(), count * size_of::<f32>());
        }
        place.add(count).write_bytes(0, full - count);
    }
    place.cast_const()
}

impl TileStatistics {
    /// Returns whether tiles within the range lose nothing.
    pub(super) fn is_lossless(&self) -> bool {
        self.lossless
    }

    /// Makes the statistics for a request; `None` if float32 values do not show its losses.
    pub(super) fn new(request: &Request, level: Level) -> Option<Self> {
        let Request { source, target, scaled, .. } = *request;
        let held = holds_exactly::<Binary32>(source) && holds_exactly::<Binary32>(target);
        let (rounding, target_kind) = (request.rounding(), target.kind());
        let bits = target.row().bits;
        // The largest value, the smallest normal one and the smallest one.
        let [largest, smallest_normal, smallest] = match target_kind {
            Kind::Float(spec) if spec.signed && spec.specials != Specials::ExponentOnly => {
                let codes = [spec.max_code(), 1 << spec.mantissa_bits, 1];
                codes.map(|code| reference::value_of(&spec, code) as f32)
            }
            Kind::Integer { signed } => [((1u128 << (bits - u32::from(signed))) - 1) as f32, 1.0, 1.0],
            _ => return None,
        };
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
        let lossless = match (source.float(), target.float()) {
            (Some(narrow), Some(spec)) => narrow.fits_in(&spec),
            (None, Some(spec)) => {
                source.row().bits <= spec.mantissa_bits && 2f64.powi(precision) <= f64::from(largest)
            }
            (_, None) => false,
        };
        // Nonzero sources below the target's smallest value may become that value, however small they are.
        let rises = matches!(rounding, Rounding::TowardsPositive | Rounding::TowardsNegative);
        let is_unsigned = target_kind == Kind::Integer { signed: false };
        let mask = if is_unsigned { u32::MAX } else { u32::MAX >> 1 };
        let is_byte = source.item_size() == 1;
        let reader = |format| reader(format, level);
        let (source, target) = (reader(source), reader(target));
        Some(Self {
            widens: lossless && target.is_none() && request.keeps_specials(),
            source,
            target,
            lossless,
            range: Within {
                smallest: if rises { smallest.to_bits() } else { 0 },
                largest: largest.to_bits(),
                mask,
            },
            smallest_normal,
            precision,
            lowest,
            is_byte,
        })
    }

    /// Adds those elements of a tile to the report whose sources lie within the range. Returns the indices of the
    /// others, which are in the scratch.
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`crate::cast::TILE`].
    pub(super) unsafe fn add_tile<'a>(
        &self,
        level: Level,
        (source, target): (*const u8, *const u8),
        count: usize,
        scratch: &'a mut TileScratch,
        report: &mut CastReport,
    ) -> &'a [u16] {
        let TileScratch { source: before, target: after, max_relative_error, outside: indices } = scratch;
        let full = count.next_multiple_of(LANES);
        let read = |stage: &Option<Box<dyn Stage>>, codes: *const u8, tile: &mut Tile<f32>| match stage {
            None => codes.cast::<f32>(),
            Some(stage) => {
                let values = tile.0.as_mut_ptr();
                let span = Span { source: codes, target: values.cast(), count, ..Span::EMPTY };
                // SAFETY: the caller's promise; the tile holds that many.
                unsafe { stage.run(level, span) };
                values.cast_const()
            }
        };
        let values = if self.widens { target.cast() } else { read(&self.source, source, before) };
        // SAFETY: the caller's promise; the tiles hold that many, and are not touched while the columns are in use.
        let mut x = unsafe {
            let values = if full == count { values } else { filled_up(values, count, full, before) };
            Values::new(values, full)
        };
        let mut extremes = Extremes::of(level, x, self.range);
        let mut outside = 0;
        if !extremes.are_within(self.range) {
            outside = level.run(Outside { columns: [x], range: self.range, indices });
            // SAFETY: the tile holds as many as the column, and is not touched from here on.
            x = unsafe {
                filled_up(x.pointer(), full, full, before);
                clear(before, &indices.0[..outside]);
                Values::new(before.0.as_ptr(), full)
            };
            extremes = Extremes::of(level, x, self.range);
        }
        let outside = &indices.0[..outside];
        // SAFETY: as above.
        let (errors, summary) = unsafe {
            if self.lossless {
                (x, ErrorSummary::of_zeros(full))
            } else {
                let y = read(&self.target, target, after);
                filled_up(y, count, full, after);
                clear(after, outside);
                let errors = after.0.as_mut_ptr();
                let summary = max_relative_error.subtract(level, x, errors);
                (Values::new(errors, full), summary)
            }
        };
        let [smallest, largest] = [extremes.smallest, extremes.largest].map(f32::from_bits);
        // Those that fill up, and those outside the range, do not count.
        let measured = count - outside.len();
        let padding = (full - measured) as u64;
        report.count += measured as u64;
        report.exact += u64::from(summary.zeros) - padding;
        report.zero_in += u64::from(extremes.zeros) - padding;
        report.amax = report.amax.max(f64::from(largest));
        report.amin_nonzero = smallest_nonzero(report.amin_nonzero, f64::from(smallest));
        if largest == 0.0 {
            return outside;
        }
        let [smallest, largest] = [smallest, largest].map(f64::from);
        if smallest < f64::from(self.smallest_normal) {
            let normal = self.smallest_normal.to_bits();
            let errors = (!self.lossless).then_some(errors);
            let [below, zero_results] = level.run(SubnormalCount { sources: x, errors, normal });
            report.subnormal += u64::from(below - zero_results);
            report.underflowed += u64::from(zero_results.saturating_sub(extremes.zeros));
        }
        let grid = (exponent_of(smallest) - self.precision).max(self.lowest);
        // Few elements and bytes may be measured without this as well, with exact sums.
        let is_exact = count <= SHORT || self.is_byte;
        squares::add_f32s(&mut report.signal, level, x, (largest, grid), is_exact);
        if summary.largest == 0 {
            return outside;
        }
        let error = f64::from(f32::from_bits(summary.largest));
        squares::add_f32s(&mut report.noise, level, errors, (error, grid), is_exact);
        report.max_abs_error = report.max_abs_error.max(error);
        let may_exceed = summary.may_exceed || smallest < f64::from(TINY);
        if may_exceed && max_relative_error.rise(level, x, errors) {
            report.max_rel_error = report.max_rel_error.max(max_relative_error.quotient());
        }
        outside
    }
}

/// Clears some values of a column.
fn clear(column: &mut Tile<f32>, indices: &[u16]) {
    for &index in indices {
        column.0[usize::from(index)] = 0.0;
    }
}

/// The columns of a tile, and the largest relative error of the tiles before it.
#[derive(Default)]
pub(super) struct TileScratch {
    source: Box<Tile<f32>>,
    target: Box<Tile<f32>>,
    max_relative_error: MaxRelativeError,
    /// The indices of sources outside the range.
    outside: Box<Tile<u16>>,
}

impl TileScratch {
    /// Prepares for the first tile.
    pub(super) fn begin(&mut self) {
        self.max_relative_error = MaxRelativeError::default();
    }
}
