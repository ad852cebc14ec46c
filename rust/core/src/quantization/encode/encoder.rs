//! The pass of an encoding: bands of blocks side by side, each measured, scaled and written before the next one.

use super::amaxes::{Amaxes, BlockAmaxes, block_amax};
use super::by_tables::{ByTables, Reference, TableBuffers};
use super::codes::{Codes, Operands, Shift, Values};
use super::integer_search::{IntegerSearch, Room as IntegerRoom};
use super::operands::MOST_INTEGERS;
use super::packed::{PackBuffers, Packed};
use super::scale_search::{Room, ScaleSearch};
use super::scales::Scales;
use super::source::{Elements, of_bf16};
use super::zeros::Zeros;
use crate::cpu::Level;
use crate::error::Error;
use crate::exec::buffers::with_buffers;
use crate::kernels::tables::e2m1_codes::Form;
use crate::quantization::arithmetic::PIECE;
use crate::quantization::real::Real;
use crate::quantization::recipe::{PositiveZeros, global_scale};
use crate::quantization::rounded::Rounded;
use crate::quantization::rows::{Array, Rows};
use crate::quantization::scaled::Float;
use crate::quantization::steps::BlockScales;
use crate::quantization::work::{BlockSpan, Columns, Extent, ITEM, Item, ItemPass, Place, run_items};

/// Elements of a band of joined rows, or of one row, at most: they stay in the second cache.
pub(super) const JOINED: usize = 1 << 15;

/// Several threads find the largest magnitude of a block of more elements than this.
const LARGE: usize = MOST_INTEGERS;

/// Whether the largest magnitudes of blocks are found before, by all threads.
pub(super) fn is_large(extent: &Extent) -> bool {
    extent.block.0 * extent.block.1 > LARGE
}

/// What is written for each block.
pub(super) struct BlockArrays {
    pub(super) scale: Rows,
    pub(super) zero_point: Option<Rows>,
    pub(super) bias: Option<(Rows, Rounded)>,
}

impl BlockArrays {
    /// Whether rows go on where the ones before them end.
    fn go_on(&self) -> bool {
        let arrays = [Some(&self.scale), self.zero_point.as_ref(), self.bias.as_ref().map(|bias| &bias.0)];
        arrays.into_iter().flatten().all(Rows::goes_on)
    }

    /// Writes the scales, zero points and biases of blocks.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn write<T: Real>(
        &self,
        level: Level,
        matrix: usize,
        row_block: usize,
        span: BlockSpan,
        blocks: &mut BlockScales<T>,
    ) {
        let items = (1, span.first, span.count);
        let BlockScales { bytes, shifts, operands, .. } = blocks;
        // SAFETY: the caller's promise; the vectors have an entry for each block.
        unsafe {
            self.scale.write(level, self.scale.row(matrix, row_block), items, bytes.as_ptr());
            if let Some(zero_point) = &self.zero_point {
                bytes.clear();
                bytes.extend(shifts.iter().map(|shift| shift.to_f64() as i8 as u8));
                zero_point.write(level, zero_point.row(matrix, row_block), items, bytes.as_ptr());
            }
            if let Some((bias, to)) = &self.bias {
                operands.clear();
                operands.extend_from_slice(shifts);
                to.round(operands, bytes);
                bias.write(level, bias.row(matrix, row_block), items, bytes.as_ptr());
            }
        }
    }
}

/// The buffers of a thread.
#[derive(Default)]
pub(super) struct Buffers<T: Real> {
    elements: Elements<T>,
    amaxes: BlockAmaxes<T>,
    scales: BlockScales<T>,
    searched: Room,
    integers: IntegerRoom,
    codes: PackBuffers,
    tables: TableBuffers<T>,
}

/// An encoding with everything that is decided before an element is read.
pub(super) struct Encoder<T> {
    pub(super) amaxes: Amaxes<T>,
    pub(super) scales: Scales<T>,
    pub(super) codes: Codes<T>,
    /// In place of these, where elements are bf16.
    pub(super) by_tables: Option<ByTables>,
    pub(super) packed: Packed,
    pub(super) arrays: BlockArrays,
    pub(super) extent: Extent,
    /// In place of the scales of the largest magnitudes.
    pub(super) search: Option<ScaleSearch>,
    /// The same, of integers.
    pub(super) integer_search: Option<IntegerSearch>,
    /// Columns of a band: whole blocks, and units of the packing.
    pub(super) wide: usize,
    /// Rows of an item are multiples of it.
    pub(super) tall: usize,
    /// The weight, and the largest scale of blocks under a global one.
    pub(super) x: Array,
    pub(super) global_max: Option<f32>,
    pub(super) level: Level,
}

impl<T: Real> Encoder<T> {
    /// Whether other arrays of this kind can be encoded by it.
    pub(super) fn is_repeatable(&self) -> bool {
        let others = self.arrays.zero_point.is_some() || self.arrays.bias.is_some();
        let is_measured = self.scales.array_amax.is_none() || !self.scales.global.is_empty();
        self.level == Level::active() && !others && !self.is_weighted() && is_measured
    }

    /// Whether errors of a search are weighted.
    fn is_weighted(&self) -> bool {
        self.search.as_ref().is_some_and(ScaleSearch::is_weighted)
            || self.integer_search.as_ref().is_some_and(IntegerSearch::is_weighted)
    }

    /// Sees other arrays, and finds their global scale.
    ///
    /// # Safety
    /// As for [`BlockEncoder::repeat`](super::BlockEncoder::repeat).
    pub(super) unsafe fn place(
        &mut self,
        [x, data, scale]: [*mut u8; 3],
        global: Option<*mut f32>,
        threads: usize,
    ) -> Result<(), Error> {
        self.amaxes.source.x.set_first(x);
        self.packed.rows.set_first(data);
        self.arrays.scale.set_first(scale);
        let Some(global) = global else { return Ok(()) };
        self.x.pointer = x;
        // Bands need no other magnitudes than those of bf16, which are kept.
        let is_kept =
            self.by_tables.is_some_and(ByTables::is_of_scales) && self.search.is_none() && self.joins();
        // SAFETY: the caller's promise.
        let amax = unsafe {
            if T::IS_SINGLE && is_kept {
                self.amaxes.find_shorts((self.wide, self.tall), threads)
            } else {
                block_amax(&self.x, threads)?
            }
        };
        // The element that is not finite is found later.
        let amax = if amax.is_finite() { amax } else { 1.0 };
        let scale = global_scale(amax, self.scales.recipe.name, self.x.format, self.global_max)?;
        self.scales.array_amax = Some(amax);
        self.scales.global.fill(T::from_f32(scale));
        // SAFETY: the caller's promise.
        unsafe { global.write_unaligned(scale) };
        Ok(())
    }

    /// # Safety
    /// As for [`encode`](super::encode).
    pub(super) unsafe fn encode(&mut self, threads: usize) -> Result<(), Error> {
        let Packed { rows: data, .. } = &self.packed;
        let bytes = self.amaxes.source.x.size() * self.extent.columns + data.size() * data.width();
        // SAFETY: the caller's promise.
        unsafe {
            if is_large(&self.extent) {
                self.amaxes.find_grid(self.tall, bytes, threads);
            }
            let pass = Bands { joins: self.joins(), encoder: self };
            let is_refused = run_items(&pass, &self.extent, (self.wide, self.tall), bytes, threads);
            if is_refused { self.first_not_finite() } else { Ok(()) }
        }
    }

    /// Whether each row of an item goes on where the one before it ends in every array, and they share no blocks: they are
    /// as good as one row.
    fn joins(&self) -> bool {
        let Extent { columns, block, .. } = self.extent;
        let (source, packed) = (&self.amaxes.source, &self.packed);
        block.0 == 1
            && !self.amaxes.has_grid()
            && !self.is_weighted()
            && columns <= JOINED.min(ITEM / self.tall)
            && columns % block.1 == 0
            && columns % packed.unit() == 0
            && (source.transposes || source.x.is_gapless(columns))
            && (packed.transposes || packed.rows.goes_on())
            && self.arrays.go_on()
    }

    fn reference(&self) -> Reference<'_, T> {
        Reference { scales: &self.scales, codes: &self.codes }
    }

    /// Encodes an item of work, whose rows are joined to one or not; returns whether no element is refused.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn item(&self, item: &Item, joins: bool, buffers: &mut Buffers<T>) -> bool {
        let mut is_finite = true;
        let (place, columns, width) = (item.place(), Columns::of(&item.columns), self.extent.columns);
        if T::IS_SINGLE
            && let Some(by_tables) = self.by_tables
        {
            let elements = place.rows * columns.count;
            let Buffers { tables, elements: Elements { values, .. }, .. } = buffers;
            by_tables.begin_item(self.reference(), place.matrix, elements, tables, values);
        }
        let containers = self.packed.containers(columns);
        let rows = &self.packed.rows;
        let moved = self.packed.transposes.then(|| buffers.codes.item.make(rows, place, containers));
        if joins {
            let all = Columns { start: 0, count: place.rows * width };
            for columns in all.groups((JOINED / width).max(1) * width) {
                // SAFETY: the caller's promise for these rows.
                is_finite &= unsafe { self.band(Place { rows: 1, ..place }, columns, buffers) };
            }
        } else {
            for place in item.block_rows(&self.extent) {
                for columns in columns.groups(self.wide) {
                    // SAFETY: the caller's promise for these rows and columns.
                    is_finite &= unsafe { self.band(place, columns, buffers) };
                }
            }
        }
        if let Some(moved) = moved {
            let to = rows.row(place.matrix, place.row);
            // SAFETY: the caller's promise; the memory has the containers of the item.
            unsafe { rows.write(self.level, to, (place.rows, containers.start, containers.count), moved) };
            buffers.codes.item.release();
        }
        is_finite
    }

    /// Encodes blocks side by side, or some of their rows; returns whether no element is refused.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn band(&self, place: Place, columns: Columns, buffers: &mut Buffers<T>) -> bool {
        let (tall, width) = self.extent.block;
        let (matrix, span) = (place.matrix, columns.blocks(width));
        // SAFETY: the caller's promise.
        unsafe {
            if !self.find_scales(place, columns, span, buffers) {
                return false;
            }
            if T::IS_SINGLE
                && let Some(by_tables) = self.by_tables
            {
                let Buffers { elements: Elements { values, .. }, scales, tables, .. } = buffers;
                let elements = place.rows * width.min(columns.count);
                by_tables.find_block_tables(self.reference(), elements, &scales.factors, tables, values);
            }
            if place.row.is_multiple_of(tall) {
                let row_block = self.extent.row_block(place.row);
                self.arrays.write(self.level, matrix, row_block, span, &mut buffers.scales);
            }
            let unit = self.packed.packing.unit(self.packed.bits);
            for columns in columns.groups(PIECE / unit * unit) {
                // Draws are for elements in a row, and containers end with it.
                let elements = if self.codes.draws() { PIECE } else { columns.count.next_multiple_of(unit) };
                for place in place.pieces(elements) {
                    self.piece(place, columns, span.first, buffers);
                }
            }
        }
        true
    }

    /// Finds the scales of a band, and what its codes are found by; returns whether no element is refused.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn find_scales(
        &self,
        place: Place,
        columns: Columns,
        span: BlockSpan,
        buffers: &mut Buffers<T>,
    ) -> bool {
        let Buffers { elements, amaxes, scales, searched, integers, tables, .. } = buffers;
        let (matrix, width) = (place.matrix, self.extent.block.1);
        let has_tables = self.by_tables.is_some() && tables.has_item() && !self.amaxes.has_grid();
        // Stored scales follow from the largest magnitudes as bf16, and codes from scales.
        if T::IS_SINGLE && has_tables && self.search.is_none() {
            let BlockAmaxes { shorts, .. } = amaxes;
            // SAFETY: the caller's promise.
            let most = unsafe { self.amaxes.measure_shorts(place, columns, span, elements, shorts) };
            let Some(most) = most else { return false };
            tables.find_scales(self.reference(), matrix, shorts, &mut scales.bytes);
            if !tables.find_band(self.level, Some((most, shorts)), &scales.bytes) {
                amaxes.amax.clear();
                amaxes.amax.extend(amaxes.shorts.iter().copied().map(of_bf16::<T>));
                self.scales.find(matrix, 1.0, amaxes, scales);
                self.scales.find_factors(matrix, amaxes, scales);
            }
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let most = self.amaxes.measure_band(place, columns, span, elements, amaxes);
            let Some(most) = most else { return false };
            self.scales.find(matrix, 1.0, amaxes, scales);
            if let Some(search) = &self.search {
                let by = (&self.amaxes.source, &self.scales);
                search.improve((place, columns, width), by, (elements, searched), amaxes, scales);
            }
            if let Some(search) = &self.integer_search {
                let by = (&self.amaxes.source, &self.scales);
                search.improve((place, columns, width), by, (elements, integers), amaxes, scales);
            }
            self.scales.find_factors(matrix, amaxes, scales);
            if T::IS_SINGLE {
                let known = has_tables.then_some((most, &amaxes.shorts[..]));
                tables.find_band(self.level, known, &scales.bytes);
            }
        }
        true
    }

    /// Turns the elements of some columns of rows, which fit into a piece, into packed codes, given the first block of their
    /// band.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn piece(&self, place: Place, columns: Columns, first: usize, buffers: &mut Buffers<T>) {
        let Buffers { elements, scales, codes, tables, .. } = buffers;
        let source = &self.amaxes.source;
        let (blocks, places) = columns.in_blocks(self.extent.block.1, first);
        let target = self.packed.target(place, columns, &codes.item);
        let room = elements.values.0.as_mut_ptr();
        // SAFETY: the caller's promise, and the buffers have room for a piece.
        let operands = unsafe {
            let (area, float) = if T::IS_SINGLE && source.is_bf16() && self.codes.shift != Some(Shift::Bias) {
                (source.read(place, columns, &mut elements.stored), Float::Bf16)
            } else {
                (source.load(place, columns, &mut elements.stored, room).cast(), Float::F32)
            };
            let operands = Operands { area, float, blocks, places };
            let recipe = self.scales.recipe;
            if recipe.positive_zeros == PositiveZeros::None {
                operands
            } else {
                let has_bytes = self.scales.stored.format.item_size() == 1;
                let zeros = Zeros { recipe, has_bytes, level: self.level };
                zeros.make_positive::<T>(operands, &scales.bytes, elements.stored.room())
            }
        };
        let to = target.bytes().unwrap_or(codes.codes.0.as_mut_ptr());
        // SAFETY: as above.
        unsafe {
            if T::IS_SINGLE
                && let Some(by_tables) = self.by_tables
            {
                let reference = self.reference();
                let nibbles = target.nibbles.filter(|&form| by_tables.has_form(reference, form, &operands));
                let to = nibbles.map_or((to, Form::Bytes), |form| (target.first, form));
                if by_tables.find_codes(reference, &operands, to, scales, tables, room) {
                    if nibbles.is_none() {
                        self.packed.write(&target, codes);
                    }
                    return;
                }
            }
            self.codes.values(operands, room, &self.scales, scales);
            let row = place.matrix * self.extent.rows + place.row;
            let index = (row * self.extent.columns + columns.start) as u64;
            let values = Values { first: room.cast_const(), float: self.codes.float };
            self.codes.round(index, values, (to, place.rows * columns.count));
            self.packed.write(&target, codes);
        }
    }

    /// Returns the error for the first element in C order that is not finite.
    ///
    /// # Safety
    /// As for [`encode`](super::encode).
    unsafe fn first_not_finite(&self) -> Result<(), Error> {
        let Extent { rows, columns, .. } = self.extent;
        let mut first = None;
        with_buffers(|Buffers { elements: Elements { stored, values }, .. }: &mut Buffers<T>| {
            for row in 0..self.extent.matrices() * rows {
                for columns in (Columns { start: 0, count: columns }).groups(PIECE) {
                    let place = Place { matrix: row / rows, row: row % rows, rows: 1 };
                    // SAFETY: the caller's promise.
                    unsafe {
                        let area = self.amaxes.source.load(place, columns, stored, values.0.as_mut_ptr());
                        let value = |place: usize| area.first.add(place).read_unaligned();
                        if let Some(place) = (0..columns.count).find(|&place| !value(place).is_finite()) {
                            first = Some((row, columns.start + place, value(place).to_f64()));
                            return;
                        }
                    }
                }
            }
        });
        let Some((row, column, value)) = first else { return Ok(()) };
        let (mut rest, mut index) = (row / rows, vec![row % rows, column]);
        for &length in self.extent.stack.iter().rev() {
            index.insert(0, rest % length);
            rest /= length;
        }
        Err(Error::Unfit {
            message: format!(
                "x has {value} at index {index:?}, for which no scale is right; set nonfinite=\"nan\" to give its block \
                 a scale of NaN."
            ),
        })
    }
}

/// Encodes items. The outcome is whether an element is refused.
struct Bands<'a, T> {
    encoder: &'a Encoder<T>,
    joins: bool,
}

impl<T: Real> ItemPass for Bands<'_, T> {
    type Buffers = Buffers<T>;
    type Outcome = bool;

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers<T>, is_refused: &mut bool) {
        let source = &self.encoder.amaxes.source;
        // SAFETY: passed on.
        unsafe {
            source.fill(item, &mut buffers.elements.stored);
            *is_refused |= !self.encoder.item(item, self.joins, buffers);
        }
        buffers.elements.stored.release();
    }

    fn merge(is_refused: &mut bool, next: bool) {
        *is_refused |= next;
    }
}
