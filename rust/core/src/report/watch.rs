//! Watching a cast beside it: results come from the same stages as without a report, and are looked at tile by tile
//! while they are near.

use super::cast_report::CastReport;
use super::glance::{Glance, GlanceScratch};
use super::histogram::{CODES, COUNT_FROM, Histogram};
use super::measure::{Meter, MeterScratch};
use crate::codec::options::{Overflow, Rounding};
use crate::cpu::{InstructionSet, Level};
use crate::error::Error;
use crate::kernels::request::Request;
use crate::kernels::tile::Tile;
use crate::route::Route;
use crate::route::work::Work;

/// Up to this many elements it takes longer to make ready for watching than to have flags written.
pub(crate) const SHORT: usize = 64;

/// What is found out about a cast, and how.
pub(crate) struct Watch {
    /// Compares sources and results, by the flags of an encoder.
    pub(crate) meter: Meter,
    /// Compares them without flags.
    pub(crate) beside: Option<Beside>,
}

/// What is found out beside a cast.
pub(crate) struct Beside {
    /// Sources are bytes, which are counted where there are many.
    counts: bool,
    /// Tells what ordinary tiles lost.
    glance: Option<Glance>,
    /// The route that tells what any tile lost.
    pub(crate) close: Route,
}

impl Watch {
    /// For a request.
    ///
    /// # Errors
    /// As for [`Route::new`].
    pub(crate) fn new(request: &Request, level: Level) -> Result<Self, Error> {
        let Request { source, target, scaled, options, .. } = *request;
        let wraps = request.integer_ends() && !scaled && options.overflow != Overflow::Saturate;
        let meter = Meter::new(source, target, wraps);
        if scaled || request.rounding() == Rounding::Stochastic {
            return Ok(Self { meter, beside: None });
        }
        let glance = Glance::new(request, level);
        // The widest vectors are quicker than counting where there is nothing but sources to look at.
        let simple =
            level.set() == InstructionSet::Avx512 && glance.as_ref().is_some_and(Glance::is_lossless);
        let counts = source.item_size() == 1 && !simple;
        if !counts && glance.is_none() {
            return Ok(Self { meter, beside: None });
        }
        let close = Route::new(&Request { tells: true, ..*request }, level)?;
        Ok(Self { meter, beside: Some(Beside { counts, glance, close }) })
    }

    /// Says how losses are found out.
    pub(crate) fn describe(&self) -> String {
        let Some(Beside { counts, glance, close }) = &self.beside else {
            return "flags of the route, and float64".to_owned();
        };
        let ways = [(*counts, "counts of codes"), (glance.is_some(), "float32 of tiles within the range")];
        let ways = ways.into_iter().filter(|way| way.0).map(|way| way.1);
        ways.chain([close.describe().as_str()]).collect::<Vec<_>>().join("; else ")
    }

    /// Whether results come with flags.
    pub(crate) fn needs_flags(&self) -> bool {
        self.beside.is_none()
    }
}

impl Beside {
    /// Adds the account of a tile, at once or in the [end](Self::end).
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`crate::cast::TILE`].
    pub(crate) unsafe fn look(
        &self,
        meter: &Meter,
        (source, target): (*const u8, *const u8),
        count: usize,
        work: &mut Work,
        scratch: &mut WatchScratch,
        report: &mut CastReport,
    ) {
        let level = self.close.level;
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
            self.look_closely(meter, source, count, work, scratch, report);
        }
    }

    /// Casts a tile again, with flags.
    ///
    /// # Safety
    /// `count` elements are readable at the source, at most [`crate::cast::TILE`].
    unsafe fn look_closely(
        &self,
        meter: &Meter,
        source: *const u8,
        count: usize,
        work: &mut Work,
        scratch: &mut WatchScratch,
        report: &mut CastReport,
    ) {
        let target = scratch.results.0.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; the tile has room for as many results.
        unsafe {
            self.close.convert((source, target), count, work);
            let ends = (source, target.cast_const());
            let flags = &work.flags.0[..count];
            meter.measure(self.close.level, ends, None, flags, &mut scratch.meter, report);
        }
    }

    /// Adds the account of what was counted.
    pub(crate) fn end(
        &self,
        meter: &Meter,
        work: &mut Work,
        scratch: &mut WatchScratch,
        report: &mut CastReport,
    ) {
        if !scratch.counts {
            return;
        }
        let mut codes = [0; CODES];
        for (code, place) in (0..=u8::MAX).zip(&mut codes) {
            *place = code;
        }
        let target = scratch.results.0.as_mut_ptr().cast::<u8>();
        // SAFETY: all codes are there to be read, and the tile has room for their results, which are then read.
        unsafe {
            self.close.convert((codes.as_ptr(), target), CODES, work);
            let (level, flags) = (self.close.level, &work.flags.0[..CODES]);
            let results = (target.cast_const(), self.close.target_size);
            scratch.histogram.tell(meter, level, results, flags, &mut scratch.meter, report);
        }
    }
}

/// What is kept between the tiles of a cast.
#[derive(Default)]
pub(crate) struct WatchScratch {
    counts: bool,
    pub(crate) meter: MeterScratch,
    histogram: Histogram,
    glance: GlanceScratch,
    results: Tile<u64>,
}

impl WatchScratch {
    /// Before the first of so many elements.
    pub(crate) fn begin(&mut self, beside: &Beside, count: usize) {
        self.counts = beside.counts && count >= COUNT_FROM;
        if self.counts {
            self.histogram = Histogram::default();
        }
        self.glance.begin();
    }
}
