//! Scales that differ along the first axes only: one cast for each scale, because casts with one factor are faster.

use std::ops::Range;

use crate::codec::options::{NanRule, Overflow, Rounding};
use crate::error::Error;
use crate::exec::pass::{self, Pass, Positions};
use crate::plan::operands::{Scales, Settings, Source, Target, dense_count};
use crate::report::CastReport;
use crate::tuning::FACTOR_CAST;

/// The cast of a row.
type Cast = unsafe fn(
    &[usize],
    Source<'_>,
    Target<'_>,
    Option<Scales<'_>>,
    &Settings,
) -> Result<Option<CastReport>, Error>;

/// Casts row by row, if that pays. Returns whether it did.
///
/// # Errors
/// As for the cast of a row.
///
/// # Safety
/// As for the cast of a row, for all elements.
pub(crate) unsafe fn cast_rows(
    shape: &[usize],
    (source, target, scales): (&Source<'_>, &Target<'_>, &Scales<'_>),
    settings: &Settings,
    cast: Cast,
) -> Result<bool, Error> {
    let options = &settings.options;
    // Reports, errors and draws depend on the place in the whole array.
    let by_place = settings.report
        || options.overflow == Overflow::Raise
        || options.nan == NanRule::Raise
        || options.rounding == Some(Rounding::Stochastic);
    let varying = shape.iter().zip(scales.strides).rposition(|(&length, &stride)| length > 1 && stride != 0);
    let Some(last) = varying else { return Ok(false) };
    let (outer, inner) = shape.split_at(last + 1);
    let rows: usize = outer.iter().product();
    let length: usize = inner.iter().product();
    let split = |strides| <[isize]>::split_at(strides, last + 1);
    let ((far_source, near_source), (far_target, near_target)) =
        (split(source.strides), split(target.strides));
    let (far_scales, near_scales) = split(scales.strides);
    let first = (Source { strides: near_source, ..*source }, Target { strides: near_target, ..*target });
    let dense = dense_count(inner, &first.0, &first.1).is_some();
    if by_place || length < FACTOR_CAST || rows < 2 || !dense {
        return Ok(false);
    }
    let bytes = rows * length * (source.format.item_size() + target.format.item_size());
    // Few rows are each cast by all threads.
    let (threads, few) = (settings.threads, rows < settings.threads);
    let settings = Settings { threads: if few { settings.threads } else { 1 }, ..*settings };
    let pass = RowCasts {
        operands: (*source, *target, *scales),
        outer,
        inner,
        strides: [(far_source, near_source), (far_target, near_target), (far_scales, near_scales)],
        settings,
        cast,
    };
    let positions = Positions { count: rows, grain: 1, bytes, turn: None };
    // SAFETY: the caller's promise.
    let failed = unsafe { pass::run_pass(&pass, positions, if few { 1 } else { threads }) };
    failed.map_or(Ok(true), Err)
}

/// A pass over rows: the axes along which scales differ are the outer ones.
struct RowCasts<'a> {
    operands: (Source<'a>, Target<'a>, Scales<'a>),
    outer: &'a [usize],
    inner: &'a [usize],
    /// Of the outer and the inner axes of each operand.
    strides: [(&'a [isize], &'a [isize]); 3],
    /// Of the cast of a row.
    settings: Settings,
    cast: Cast,
}

// SAFETY: the pointers are only followed in `Pass::process`, whose caller promises that they may be, from any thread.
unsafe impl Sync for RowCasts<'_> {}

impl Pass for RowCasts<'_> {
    type Buffers = ();
    type Outcome = Option<Error>;

    unsafe fn process(&self, rows: Range<usize>, (): &mut (), failed: &mut Option<Error>) {
        let (source, target, scales) = self.operands;
        let [(far_source, near_source), (far_target, near_target), (far_scales, near_scales)] = self.strides;
        for row in rows {
            let place = |strides| offset(row, self.outer, strides);
            let pointer = source.pointer.wrapping_offset(place(far_source));
            let source = Source { pointer, strides: near_source, ..source };
            let pointer = target.pointer.wrapping_offset(place(far_target));
            let target = Target { pointer, strides: near_target, ..target };
            let pointer = scales.pointer.wrapping_offset(place(far_scales));
            let scales = Scales { pointer, strides: near_scales };
            // SAFETY: the caller's promise, for the elements of one row and their factor.
            let outcome = unsafe { (self.cast)(self.inner, source, target, Some(scales), &self.settings) };
            if let Err(error) = outcome {
                *failed = Some(error);
                return;
            }
        }
    }

    fn merge(failed: &mut Option<Error>, next: Option<Error>) {
        *failed = failed.take().or(next);
    }
}

/// Returns the bytes from the first row to a row, counted in C order.
fn offset(row: usize, shape: &[usize], strides: &[isize]) -> isize {
    let mut rest = row;
    let axes = shape.iter().zip(strides).rev();
    axes.map(|(&length, &stride)| {
        let place = rest % length;
        rest /= length;
        place as isize * stride
    })
    .sum()
}
