//! Watching a cast beside it: results come from the same stages as without a report, and are looked at tile by tile
//! while they are near.

use super::glance::{Glance, GlanceScratch};
use super::histogram::{CODES, COUNT_FROM, Histogram};
use crate::cast::plan::Plan;
use crate::cast::request::Request;
use crate::cast::run::Work;
use crate::cast::tile::Tile;
use crate::codec::options::{NanRule, Overflow, Rounding};
use crate::cpu::{InstructionSet, Level};
use crate::error::Error;
use crate::report::CastReport;

/// Up to this many elements it takes longer to make ready for watching than to have flags written.
const SHORT: usize = 64;

/// What is found out beside a cast, and how.
pub(in crate::cast) struct Watch {
    /// Sources are bytes, which are counted where there are many.
    counts: bool,
    /// Tells what ordinary tiles lost.
    glance: Option<Glance>,
    /// The plan that tells what any tile lost.
    close: Box<Plan>,
}

impl Watch {
    /// For a request that results need no flags for.
    ///
    /// # Errors
    /// As for [`Plan::new`].
    pub(in crate::cast) fn new(request: &Request, level: Level) -> Result<Option<Self>, Error> {
        let options = request.options;
        let raises = options.overflow == Overflow::Raise || options.nan == NanRule::Raise;
        let is_short = request.count <= SHORT && request.source.item_size() > 1;
        if !request.report
            || is_short
            || request.scaled
            || raises
            || request.rounding() == Rounding::Stochastic
        {
            return Ok(None);
        }
        let glance = Glance::new(request, level);
        // The widest vectors are quicker than counting where there is nothing but sources to look at.
        let simple =
            level.set() == InstructionSet::Avx512 && glance.as_ref().is_some_and(Glance::is_lossless);
        let counts = request.source.item_size() == 1 && !simple;
        if !counts && glance.is_none() {
            return Ok(None);
        }
        Ok(Some(Self { counts, glance, close: Box::new(Plan::with_flags(request, level)?) }))
    }

    /// Adds the account of a tile, at once or in the [end](Self::end).
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`crate::cast::TILE`].
    pub(in crate::cast) unsafe fn look(
        &self,
        level: Level,
        (source, target): (*const u8, *const u8),
        count: usize,
        work: &mut Work,
        scratch: &mut WatchScratch,
        report: &mut CastReport,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if scratch.counts {
                return scratch.histogram.count(source, count);
            }
            if let Some(glance) = &self.glance
                && glance.look(level, (source, target), count, &mut scratch.glance, report)
            {
                return;
            }
            self.look_closely(level, source, count, work, &mut scratch.results, report);
        }
    }

    /// Casts a tile again, with flags.
    ///
    /// # Safety
    /// `count` elements are readable at the source, at most [`crate::cast::TILE`].
    unsafe fn look_closely(
        &self,
        level: Level,
        source: *const u8,
        count: usize,
        work: &mut Work,
        results: &mut Tile<u64>,
        report: &mut CastReport,
    ) {
        let Some(meter) = &self.close.meter else { return };
        let target = results.0.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; the tile has room for as many results.
        unsafe {
            self.close.convert(level, (source, target), count, work);
            let Work { flags, meter: columns, .. } = work;
            let ends = (source, target.cast_const());
            meter.measure(level, ends, None, &flags.0[..count], columns, report);
        }
    }

    /// Adds the account of what was counted.
    pub(in crate::cast) fn end(
        &self,
        level: Level,
        work: &mut Work,
        scratch: &mut WatchScratch,
        report: &mut CastReport,
    ) {
        let (Some(meter), true) = (&self.close.meter, scratch.counts) else { return };
        let mut codes = [0; CODES];
        for (code, place) in (0..=u8::MAX).zip(&mut codes) {
            *place = code;
        }
        let target = scratch.results.0.as_mut_ptr().cast::<u8>();
        // SAFETY: all codes are there to be read, and the tile has room for their results, which are then read.
        unsafe {
            self.close.convert(level, (codes.as_ptr(), target), CODES, work);
            let Work { flags, meter: columns, .. } = work;
            let results = (target.cast_const(), self.close.target_size);
            scratch.histogram.tell(meter, level, results, &flags.0[..CODES], columns, report);
        }
    }
}

/// What is kept between the tiles of a cast.
#[derive(Default)]
pub(in crate::cast) struct WatchScratch {
    counts: bool,
    histogram: Histogram,
    glance: GlanceScratch,
    results: Tile<u64>,
}

impl WatchScratch {
    /// Before the first of so many elements.
    pub(in crate::cast) fn begin(&mut self, watch: &Watch, count: usize) {
        self.counts = watch.counts && count >= COUNT_FROM;
        if self.counts {
            self.histogram = Histogram::default();
        }
        self.glance.begin();
    }
}
