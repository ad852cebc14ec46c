//! The largest magnitudes of blocks: of a band, of blocks of many bands, or of all blocks with that of the array.

use std::sync::Mutex;

use super::operands::refuse;
use super::source::{Elements, Source, TRANSPOSED_ROWS, bits_of, of_bf16};
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::kernels::tile::TILE;
use crate::quantization::arithmetic::{Area, Blocks, PIECE};
use crate::quantization::largest::{Extremes, raise_largest, widen};
use crate::quantization::real::{Bits, Real};
use crate::quantization::rounded::single;
use crate::quantization::rows::Array;
use crate::quantization::work::{BlockSpan, Columns, Extent, Item, ItemPass, Place, run_items};
use crate::simd::halves::INFINITY;

/// What is known of the elements of blocks side by side.
#[derive(Default)]
pub(super) struct BlockAmaxes<T> {
    /// The largest magnitudes of elements of 16 bits.
    pub(super) shorts: Vec<u16>,
    pub(super) amax: Vec<T>,
    /// Nothing, if they are not needed.
    pub(super) extremes: Vec<Extremes<T>>,
}

impl<T: Real> BlockAmaxes<T> {
    /// Forgets the blocks of the last band, and makes room for these, with extremes or without.
    fn clear(&mut self, count: usize, has_extremes: bool) {
        self.amax.clear();
        self.amax.resize(count, T::default());
        self.extremes.clear();
        self.extremes.resize(if has_extremes { count } else { 0 }, Extremes::default());
    }
}

/// The largest magnitude of a block, and its extremes.
#[derive(Clone, Copy)]
struct BlockRange<T> {
    amax: T,
    extremes: Extremes<T>,
}

/// Finds the largest magnitudes of blocks, and their extremes.
pub(super) struct Amaxes<T> {
    pub(super) source: Source<T>,
    extent: Extent,
    /// The extremes of blocks are needed.
    has_extremes: bool,
    /// In place of the largest magnitude of each block.
    given: Option<T>,
    /// Blocks with elements that are not finite are not refused.
    allows_nan: bool,
    level: Level,
    /// Those of all blocks of many elements, which are found before.
    grid: Option<Vec<BlockRange<T>>>,
    /// Those of all blocks as bf16, if they were found with that of the array.
    shorts: Option<Vec<u16>>,
}

impl<T: Real> Amaxes<T> {
    pub(super) fn new(
        source: Source<T>,
        extent: Extent,
        has_extremes: bool,
        given: Option<T>,
        allows_nan: bool,
    ) -> Self {
        let level = Level::active();
        Self { source, extent, has_extremes, given, allows_nan, level, grid: None, shorts: None }
    }

    /// Whether the largest magnitudes of all blocks are known.
    pub(super) fn has_grid(&self) -> bool {
        self.grid.is_some()
    }

    /// Finds the largest magnitudes of a band, and returns the largest of all, as bf16 if elements are; none, if it is not
    /// finite and that is refused.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn measure_band(
        &self,
        place: Place,
        columns: Columns,
        span: BlockSpan,
        elements: &mut Elements<T>,
        blocks: &mut BlockAmaxes<T>,
    ) -> Option<u16> {
        blocks.clear(span.count, self.grid.is_some() || self.has_extremes);
        if let Some(grid) = &self.grid {
            let first = self.extent.block_number(place.matrix, place.row, span.first);
            let ranges = &grid[first..first + span.count];
            for ((amax, extremes), range) in blocks.amax.iter_mut().zip(&mut blocks.extremes).zip(ranges) {
                (*amax, *extremes) = (range.amax, range.extremes);
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.measure(place, columns, span.first, elements, blocks) };
        }
        if let Some(given) = self.given {
            let is_finite = blocks.amax.iter().all(|amax| amax.to_f64().is_finite());
            blocks.amax.fill(if is_finite { given } else { T::from_f64(f64::NAN) });
        }
        let mut most = [T::default()];
        bits_of(&mut most)[0] = largest(self.level, bits_of(&mut blocks.amax));
        let is_refused = !most[0].is_finite() && !self.allows_nan;
        (!is_refused).then_some(((most[0].to_f64() as f32).to_bits() >> u16::BITS) as u16)
    }

    /// Finds those of bf16, as such; others are not kept.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn measure_shorts(
        &self,
        place: Place,
        columns: Columns,
        span: BlockSpan,
        elements: &mut Elements<T>,
        shorts: &mut Vec<u16>,
    ) -> Option<u16> {
        shorts.clear();
        if let Some(known) = &self.shorts {
            let first = self.extent.block_number(place.matrix, place.row, span.first);
            shorts.extend_from_slice(&known[first..first + span.count]);
        } else {
            shorts.resize(span.count, 0);
            // SAFETY: the caller's promise.
            unsafe { self.source.raise_shorts(place, columns, span.first, shorts, &mut elements.stored) };
        }
        let most = largest(self.level, shorts);
        (most < INFINITY).then_some(most)
    }

    /// Finds the largest magnitudes of all blocks as bf16, and returns that of the array. Items have so many rows, or a
    /// multiple, and these are as good as one row.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn find_shorts(&mut self, tile: (usize, usize), threads: usize) -> f64 {
        let mut shorts = self.shorts.take().unwrap_or_default();
        shorts.clear();
        shorts.resize(self.extent.blocks(), 0);
        let bytes = self.extent.columns * self.source.x.size();
        let pass = JoinedAmaxes { amaxes: self, shorts: Mutex::new(shorts) };
        // SAFETY: the caller's promise.
        unsafe { run_items(&pass, &self.extent, tile, bytes, threads) };
        let shorts = pass.shorts.into_inner().unwrap_or_default();
        let most = largest(self.level, &shorts);
        self.shorts = Some(shorts);
        of_bf16(most)
    }

    /// Finds the largest magnitudes and the extremes of all blocks, which bands take then.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn find_grid(&mut self, tall: usize, bytes: usize, threads: usize) {
        let nothing = BlockRange { amax: T::default(), extremes: Extremes::default() };
        let ranges = vec![nothing; self.extent.blocks()];
        let pass = Grid { amaxes: self, ranges: Mutex::new(ranges) };
        // SAFETY: the caller's promise.
        unsafe { run_items(&pass, &self.extent, (TILE, tall), bytes, threads) };
        self.grid = Some(pass.ranges.into_inner().unwrap_or_default());
    }

    /// Adds some columns of rows to what is known of their blocks, the first of which has this number.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn measure(
        &self,
        place: Place,
        columns: Columns,
        first: usize,
        elements: &mut Elements<T>,
        blocks: &mut BlockAmaxes<T>,
    ) {
        let BlockAmaxes { shorts, amax, extremes } = blocks;
        // SAFETY: the caller's promise.
        unsafe { self.source.raise(place, columns, first, (amax, shorts), elements) };
        if !self.has_extremes {
            return;
        }
        let Elements { stored, values } = elements;
        for columns in columns.groups(PIECE) {
            let (blocks, places) = columns.in_blocks(self.extent.block.1, first);
            for place in place.pieces(columns.count) {
                // SAFETY: the caller's promise.
                unsafe {
                    let area = self.source.load(place, columns, stored, values.0.as_mut_ptr());
                    widen(self.level, area, blocks, &mut extremes[places.clone()]);
                }
            }
        }
    }
}

/// Returns the largest of some magnitudes.
fn largest<B: Bits>(level: Level, magnitudes: &[B]) -> B {
    let (mut largest, columns) = ([B::default()], magnitudes.len());
    let blocks = Blocks { width: columns.max(1), begun: 0 };
    let area = Area { first: magnitudes.as_ptr(), pitch: 0, rows: 1, columns };
    // SAFETY: these are the elements of the slice.
    unsafe { raise_largest(level, area, blocks, &mut largest) };
    largest[0]
}

/// Finds the largest magnitudes of all blocks of joined rows, as bf16.
struct JoinedAmaxes<'a, T> {
    amaxes: &'a Amaxes<T>,
    shorts: Mutex<Vec<u16>>,
}

impl<T: Real> ItemPass for JoinedAmaxes<'_, T> {
    type Buffers = (Elements<T>, BlockAmaxes<T>);
    type Outcome = ();

    unsafe fn process_item(&self, item: &Item, buffers: &mut Self::Buffers, (): &mut ()) {
        let Amaxes { source, extent, .. } = self.amaxes;
        let (elements, BlockAmaxes { shorts, .. }) = buffers;
        let (place, rows) = (Place { rows: 1, ..item.place() }, item.rows.len());
        let first = extent.block_number(place.matrix, place.row, 0);
        let count = rows * extent.column_blocks();
        shorts.clear();
        shorts.resize(count, 0);
        // SAFETY: the caller's promise; joined rows are as good as one.
        unsafe {
            source.fill(item, &mut elements.stored);
            let columns = Columns { start: 0, count: rows * extent.columns };
            source.raise_shorts(place, columns, 0, shorts, &mut elements.stored);
        }
        elements.stored.release();
        if let Ok(mut all) = self.shorts.lock() {
            all[first..first + count].copy_from_slice(shorts);
        }
    }

    fn merge((): &mut (), (): ()) {}
}

/// Finds the largest magnitudes and the extremes of all blocks, which may be larger than an item.
struct Grid<'a, T> {
    amaxes: &'a Amaxes<T>,
    ranges: Mutex<Vec<BlockRange<T>>>,
}

impl<T: Real> ItemPass for Grid<'_, T> {
    type Buffers = (Elements<T>, BlockAmaxes<T>);
    type Outcome = ();

    unsafe fn process_item(&self, item: &Item, buffers: &mut Self::Buffers, (): &mut ()) {
        let Amaxes { source, extent, .. } = self.amaxes;
        let (elements, blocks) = buffers;
        let columns = Columns::of(&item.columns);
        let span = columns.blocks(extent.block.1);
        // SAFETY: the caller's promise.
        unsafe { source.fill(item, &mut elements.stored) };
        for place in item.block_rows(extent) {
            blocks.clear(span.count, true);
            // SAFETY: the caller's promise.
            unsafe { self.amaxes.measure(place, columns, span.first, elements, blocks) };
            let first = extent.block_number(place.matrix, place.row, span.first);
            let Ok(mut ranges) = self.ranges.lock() else { continue };
            let measured = blocks.amax.iter().zip(&blocks.extremes);
            for (range, (&amax, extremes)) in ranges[first..].iter_mut().zip(measured) {
                range.amax = range.amax.larger(amax);
                range.extremes.include(extremes.low);
                range.extremes.include(extremes.high);
            }
        }
        elements.stored.release();
    }

    fn merge((): &mut (), (): ()) {}
}

/// Returns the largest magnitude of an array: NaN if an element is NaN, 0 if there are none.
///
/// # Errors
/// [`Error::InvalidOption`] if the elements are not floats.
///
/// # Safety
/// The elements are readable.
pub unsafe fn block_amax(x: &Array, threads: usize) -> Result<f64, Error> {
    if x.format.float().is_none() {
        return refuse(format!("x has dtype {}; use a real float.", x.format.name()));
    }
    // Magnitudes of threads are compared here, subnormal ones too.
    let _environment = DefaultEnvironment::enter();
    // SAFETY: passed on.
    unsafe {
        if x.format.float().is_some_and(|spec| spec.fits_in(&single())) {
            largest_of::<f32>(x, threads)
        } else {
            largest_of::<f64>(x, threads)
        }
    }
}

/// # Safety
/// As for [`block_amax`].
unsafe fn largest_of<T: Real>(x: &Array, threads: usize) -> Result<f64, Error> {
    let extent = Extent::of("x", x, (0, 0))?;
    let source = Source::<T>::new(x, &extent)?;
    let tile = (TILE, if source.transposes { TRANSPOSED_ROWS } else { 1 });
    let bytes = extent.columns * x.format.item_size();
    // SAFETY: the caller's promise.
    let amax = unsafe { run_items(&ArrayAmax { source }, &extent, tile, bytes, threads) };
    Ok(DefaultEnvironment::compute(amax, T::to_f64))
}

/// Finds the largest magnitude of an array.
struct ArrayAmax<T> {
    source: Source<T>,
}

impl<T: Real> ItemPass for ArrayAmax<T> {
    type Buffers = (Elements<T>, BlockAmaxes<T>);
    type Outcome = T;

    unsafe fn process_item(&self, item: &Item, buffers: &mut Self::Buffers, amax: &mut T) {
        let (elements, BlockAmaxes { shorts, .. }) = buffers;
        let mut largest = [T::default()];
        // SAFETY: the caller's promise.
        unsafe {
            self.source.fill(item, &mut elements.stored);
            let columns = Columns::of(&item.columns);
            self.source.raise(item.place(), columns, 0, (&mut largest, shorts), elements);
        }
        elements.stored.release();
        *amax = amax.larger(largest[0]);
    }

    fn merge(amax: &mut T, next: T) {
        *amax = amax.larger(next);
    }
}
