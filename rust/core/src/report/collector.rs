//! Collects what a cast lost: results come from the same stages as without a report, and each tile is measured while it
//! is in the cache.

use super::cast_report::CastReport;
use super::histogram::{CODES, COUNT_FROM, Histogram};
use super::measure::{Meter, MeterScratch};
pub(crate) use super::tile_statistics::SHORT;
use super::tile_statistics::{TileScratch, TileStatistics};
use crate::codec::options::{Overflow, Rounding};
use crate::cpu::Level;
use crate::error::Error;
use crate::kernels::request::Request;
use crate::kernels::tile::{TILE, Tile};
use crate::route::Route;
use crate::route::work::Work;

/// How the losses of a cast are collected.
pub(crate) struct Collector {
    /// Measures sources and results by the flags of an encoder.
    pub(crate) meter: Meter,
    /// Measures them without flags, where that is possible.
    pub(crate) flag_free: Option<FlagFree>,
}

/// Measures tiles without flags, where possible.
pub(crate) struct FlagFree {
    /// Whether sources are bytes, whose codes are counted where there are many.
    counts: bool,
    /// Measures sources within the target's range.
    tile_statistics: Option<TileStatistics>,
    /// The route with flags, for all others.
    pub(crate) close: Route,
}

impl Collector {
    /// Makes the collector for a request.
    ///
    /// # Errors
    /// As for [`Route::new`].
    pub(crate) fn new(request: &Request, level: Level) -> Result<Self, Error> {
        let Request { source, target, scaled, options, .. } = *request;
        let wraps = request.integer_ends() && !scaled && options.overflow != Overflow::Saturate;
        let meter = Meter::new(source, target, wraps);
        if scaled || request.rounding() == Rounding::Stochastic {
            return Ok(Self { meter, flag_free: None });
        }
        let tile_statistics = TileStatistics::new(request, level);
        // Counting codes is slower where only the range of sources is needed.
        let simple = tile_statistics.as_ref().is_some_and(TileStatistics::is_lossless);
        let counts = source.item_size() == 1 && !simple;
        if !counts && tile_statistics.is_none() {
            return Ok(Self { meter, flag_free: None });
        }
        let close = Route::new(&Request { tells: true, ..*request }, level)?;
        Ok(Self { meter, flag_free: Some(FlagFree { counts, tile_statistics, close }) })
    }

    /// Describes how losses are measured; `verbose` adds the types of loops.
    pub(crate) fn describe(&self, verbose: bool) -> String {
        let Some(FlagFree { counts, tile_statistics, close }) = &self.flag_free else {
            return "flags of the route, and float64".to_owned();
        };
        let ways = [(*counts, "counts of codes"), (tile_statistics.is_some(), "float32 within the range")];
        let ways = ways.into_iter().filter(|way| way.0).map(|way| way.1);
        let flags = format!("a flag for each element: {}", close.describe(verbose));
        ways.chain([flags.as_str()]).collect::<Vec<_>>().join("; else ")
    }

    /// Returns whether the cast's own route must write flags.
    pub(crate) fn needs_flags(&self) -> bool {
        self.flag_free.is_none()
    }
}

impl FlagFree {
    /// Adds a tile to the report, at once or at the [end](Self::end).
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`crate::cast::TILE`].
    pub(crate) unsafe fn add_tile(
        &self,
        meter: &Meter,
        (source, target): (*const u8, *const u8),
        count: usize,
        work: &mut Work,
        scratch: &mut CollectorScratch,
        report: &mut CastReport,
    ) {
        let (level, size) = (self.close.level, self.close.source_size);
        let CollectorScratch { counts, meter: meter_scratch, histogram, tile_statistics, codes, results } =
            scratch;
        // SAFETY: the caller's promise; a tile has room for the codes of 4 bytes or fewer that float32 holds.
        unsafe {
            if *counts {
                return histogram.count(source, count);
            }
            let (mut rest, mut rests) = (source, count);
            if let Some(statistics) = &self.tile_statistics {
                let ends = (source, target);
                let outside = statistics.add_tile(level, ends, count, tile_statistics, report);
                match size {
                    1 => copy_some::<u8>(source, outside, codes),
                    2 => copy_some::<u16>(source, outside, codes),
                    _ => copy_some::<u32>(source, outside, codes),
                }
                (rest, rests) = (codes.0.as_ptr().cast(), outside.len());
            }
            if rests > 0 {
                // Cast again, with flags, and measured by these.
                let target = results.0.as_mut_ptr().cast::<u8>();
                self.close.convert((rest, target), rests, work);
                let (ends, flags) = ((rest, target.cast_const()), &work.flags.0[..rests]);
                meter.measure(level, ends, None, flags, meter_scratch, report);
            }
        }
    }

    /// Adds the counted codes to the report.
    pub(crate) fn end(
        &self,
        meter: &Meter,
        work: &mut Work,
        scratch: &mut CollectorScratch,
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

/// Copies the elements at some indices.
///
/// # Safety
/// They are readable.
pub(crate) unsafe fn copy_some<T>(source: *const u8, indices: &[u16], codes: &mut Tile<u32>) {
    const { assert!(size_of::<T>() <= size_of::<u32>(), "a tile has room") };
    let (source, codes) = (source.cast::<T>(), codes.0.as_mut_ptr().cast::<T>());
    assert!(indices.len() <= TILE);
    for (place, &index) in indices.iter().enumerate() {
        // SAFETY: the caller's promise; the place is within the tile.
        unsafe { codes.add(place).write(source.add(usize::from(index)).read_unaligned()) };
    }
}

/// The buffers of a collector, kept between tiles.
#[derive(Default)]
pub(crate) struct CollectorScratch {
    counts: bool,
    pub(crate) meter: MeterScratch,
    histogram: Box<Histogram>,
    tile_statistics: TileScratch,
    codes: Box<Tile<u32>>,
    results: Box<Tile<u64>>,
}

impl CollectorScratch {
    /// Prepares for a cast of so many elements.
    pub(crate) fn begin(&mut self, flag_free: &FlagFree, count: usize) {
        self.counts = flag_free.counts && count >= COUNT_FROM;
        if self.counts {
            *self.histogram = Histogram::default();
        }
        self.tile_statistics.begin();
    }
}
