//! Compares two arrays tile by tile.

use std::ops::Range;

use super::differences::{self, Columns, Complex, Real, SPECIAL, TileDifferences};
use super::formats::{Codes, Common};
use super::losses::{self, LossTile};
use super::outcome::{Comparison, first_of, raise};
use super::singles::{self, Singles};
use crate::cpu::{Level, RawKernel};
use crate::exec::operand::Operand;
use crate::exec::pass::{Pass, Positions};
use crate::format::Format;
use crate::kernels::tile::{TILE, Tile};
use crate::layout::transfer::Gaps;
use crate::layout::{INDEX, Layout, Run, SOURCE, TARGET};
use crate::plan::operands::Source;
use crate::report::values::Values;

/// Compares the tiles of two arrays.
pub(super) struct Comparing {
    level: Level,
    common: Common,
    values: [Values; 2],
    /// Whether float64 does not hold all values.
    has_rests: bool,
    singles: Option<Singles>,
    asked: Asked,
}

/// What is asked of two arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Whether all bits are the same, and no other count.
    SameBits,
    Differences,
    /// Differences, and losses too.
    Losses,
    /// Of the losses the report; differences and indices may be left out.
    Report,
    /// Of the losses what the ratio of signal to noise needs; other losses and differences may be left out.
    Ratio,
}

impl Asked {
    /// Returns differences, and losses too where these are measured.
    pub(crate) fn of(measures: bool) -> Self {
        if measures { Self::Losses } else { Self::Differences }
    }

    pub(super) fn measures(self) -> bool {
        matches!(self, Self::Losses | Self::Report | Self::Ratio)
    }

    fn finds_differences(self) -> bool {
        matches!(self, Self::Differences | Self::Losses)
    }
}

/// The elements of a tile in both arrays, side by side and in native byte order, and their flat indices.
struct Pair<'a> {
    codes: [*const u8; 2],
    count: usize,
    /// Their places in the tile, upwards, if it has others.
    places: Option<&'a [u16]>,
    runs: &'a [Run],
    /// The flat index of the array's first element.
    start: u64,
    /// Whether the flat indices of the tile's elements follow each other.
    is_in_order: bool,
}

impl Pair<'_> {
    /// Returns the smallest flat index of the elements that are chosen, by their numbers in the pair.
    fn first_index(&self, is_chosen: impl Fn(usize) -> bool) -> Option<u64> {
        let mut first = None;
        let (mut place, mut end) = (0, 0);
        for row in self.runs.iter().flat_map(Run::each_row) {
            let begin = end;
            end = match self.places {
                None => place + row.count,
                Some(places) => places.partition_point(|&other| usize::from(other) < place + row.count),
            };
            for number in (begin..end).filter(|&number| is_chosen(number)) {
                let element = self.places.map_or(number, |places| places[number].into()) - place;
                let offset = row.offsets[INDEX] + row.strides[INDEX] * element as isize;
                let index = self.start + offset as u64;
                first = Some(first.map_or(index, |first: u64| first.min(index)));
                if self.is_in_order {
                    return first;
                }
            }
            place += row.count;
        }
        first
    }

    /// Adds what differs. The functions say of a place whether elements are different and finite with this difference,
    /// or so many numbers apart, or different and not finite.
    fn add<D, U, S>(
        &self,
        differing: &TileDifferences,
        (is_difference, is_distance, is_special): (D, U, S),
        outcome: &mut Comparison,
    ) where
        D: Fn(usize, f64) -> bool,
        U: Fn(usize, u64) -> bool,
        S: Fn(usize) -> bool,
    {
        outcome.equal_bits += differing.equal_bits;
        outcome.different += differing.different;
        // Of equal ones the first, which in order is the one that is known.
        let in_order = self.is_in_order;
        let known = outcome.largest_difference.map_or(-1.0, |known| known.0);
        if let Some(most) = differing.difference.filter(|&most| most > known || (most == known && !in_order))
        {
            let first = self.first_index(|place| is_difference(place, most));
            raise(&mut outcome.largest_difference, first.map(|first| (most, first)));
        }
        let known = outcome.largest_ulps.map(|known| known.0);
        if let Some(most) =
            differing.ulps.filter(|&most| Some(most) > known || (Some(most) == known && !in_order))
        {
            let first = self.first_index(|place| is_distance(place, most));
            raise(&mut outcome.largest_ulps, first.map(|first| (most, first)));
        }
        if differing.is_special && !(in_order && outcome.first_special.is_some()) {
            outcome.first_special = first_of(outcome.first_special, self.first_index(is_special));
        }
    }
}

/// An array that is read.
#[derive(Clone, Copy)]
struct Side {
    operand: Operand,
    /// Bytes of a component, whose order is reversed after elements are copied to a room; or 0.
    reversed: usize,
}

impl Side {
    fn new(array: &Source<'_>, layout: &Layout, number: usize) -> Self {
        let (component, size) = (array.format.component(), array.format.item_size());
        let is_reversed = array.swapped && component.is_some();
        let kind = (size, array.swapped && !is_reversed);
        let operand = Operand::new(array.pointer.cast_mut(), (layout, number), kind);
        let reversed = component.filter(|_| is_reversed).map_or(0, Format::item_size);
        Self { operand: Operand { direct: operand.direct && !is_reversed, ..operand }, reversed }
    }

    /// Returns the elements of a tile, where they are or in the room.
    ///
    /// # Safety
    /// The elements of the runs are readable.
    unsafe fn read(&self, level: Level, runs: &[Run], room: &mut Tile<[u64; 2]>) -> *const u8 {
        let to = room.0.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; the room has 16 bytes for each element of a tile, which is the most.
        let codes = unsafe { self.operand.read(level, Gaps::Leave, runs, to) };
        if self.reversed > 0 {
            let bytes = runs.iter().map(Run::len).sum::<usize>() * self.operand.size;
            // SAFETY: `read` has just copied so many bytes to the room, which nothing else refers to.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
            bytes.chunks_exact_mut(self.reversed).for_each(<[u8]>::reverse);
        }
        codes
    }
}

/// A comparison of the elements of a layout, which are readable in both arrays.
pub(super) struct ComparedArrays<'a> {
    comparing: &'a Comparing,
    layout: &'a Layout,
    /// The flat index of the first element.
    start: u64,
    sides: [Side; 2],
}

impl<'a> ComparedArrays<'a> {
    pub(super) fn new(
        comparing: &'a Comparing,
        layout: &'a Layout,
        start: u64,
        arrays: &[Source<'_>; 2],
    ) -> Self {
        debug_assert!(layout.tile <= TILE, "a tile has room");
        let sides = [(0, SOURCE), (1, TARGET)].map(|(side, number)| Side::new(&arrays[side], layout, number));
        Self { comparing, layout, start, sides }
    }

    pub(super) fn positions(&self) -> Positions {
        let Layout { count, tile, .. } = *self.layout;
        let bytes = count * self.sides.iter().map(|side| side.operand.size).sum::<usize>();
        Positions { count, grain: tile, bytes, turn: None }
    }
}

impl Pass for ComparedArrays<'_> {
    type Buffers = Buffers;
    type Outcome = Comparison;

    unsafe fn process(&self, positions: Range<usize>, buffers: &mut Buffers, outcome: &mut Comparison) {
        buffers.begin();
        // SAFETY: passed on.
        unsafe { self.add(positions, buffers, outcome) };
    }

    fn merge(outcome: &mut Comparison, next: Comparison) {
        outcome.merge(&next);
    }
}

impl ComparedArrays<'_> {
    /// Adds a range of positions to an outcome of others, with the buffers that are those of it from [`Buffers::begin`] on.
    ///
    /// # Safety
    /// As for [`Pass::process`].
    pub(super) unsafe fn add(
        &self,
        positions: Range<usize>,
        buffers: &mut Buffers,
        outcome: &mut Comparison,
    ) {
        let Self { comparing, layout, start, sides } = self;
        let is_in_order = layout.count <= 1 || layout.line(INDEX) == Some(1);
        let Buffers { runs, elements: [first, second], columns, short } = buffers;
        // Elements that are not copied need no room.
        let is_whole = comparing.asked == Asked::SameBits && sides.iter().all(|side| side.operand.direct);
        let tile = if is_whole { positions.len().max(1) } else { layout.tile };
        for position in positions.clone().step_by(tile) {
            if comparing.asked == Asked::SameBits && outcome.different > 0 {
                return;
            }
            let count = tile.min(positions.end - position);
            layout.runs(position, count, runs);
            // SAFETY: the caller's promise, for these elements.
            unsafe {
                let level = comparing.level;
                let codes = [sides[0].read(level, runs, first), sides[1].read(level, runs, second)];
                comparing.add_tile(
                    &Pair { codes, count, places: None, runs, start: *start, is_in_order },
                    (columns, short),
                    outcome,
                );
            }
        }
    }
}

/// The buffers of a thread.
#[derive(Default)]
pub(crate) struct Buffers {
    runs: Vec<Run>,
    elements: [Box<Tile<[u64; 2]>>; 2],
    columns: Room,
    short: ShortRoom,
}

impl Buffers {
    /// Prepares for the first tile of an outcome.
    pub(super) fn begin(&mut self) {
        self.short.columns.begin();
    }
}

/// The columns of a tile.
#[derive(Default)]
struct Room {
    codes: [Box<Tile<u64>>; 2],
    values: [Box<Tile<f64>>; 2],
    /// What float64 does not hold of integers; zeros for other formats.
    rests: [Box<Tile<f64>>; 2],
    differences: Box<Tile<f64>>,
    ulps: Box<Tile<u64>>,
    losses: losses::Room,
}

/// The columns of a tile of short floats, and the codes of elements that are left.
#[derive(Default)]
struct ShortRoom {
    columns: singles::Room,
    left: [Box<Tile<u32>>; 2],
}

impl Comparing {
    pub(super) fn new(level: Level, common: Common, asked: Asked) -> Self {
        let values = common.components.map(Values::new);
        let has_rests = !values.iter().all(Values::is_exact);
        // Of short floats their tables take longer than to compare the bits of a small array.
        let singles = if asked == Asked::SameBits { None } else { Singles::new(level, &common) };
        Self { level, common, values, has_rests, singles, asked }
    }

    /// Returns whether all bits of elements of one format are the same.
    ///
    /// # Safety
    /// So many elements are readable at both pointers.
    unsafe fn is_same(&self, codes: [*const u8; 2], count: usize) -> bool {
        if self.common.codes != Codes::Same || self.common.parts[0] != self.common.parts[1] {
            return false;
        }
        let bytes = count * self.common.parts[0] * self.common.components[0].item_size();
        // SAFETY: the caller's promise.
        unsafe { self.level.run_raw(Same { codes, bytes }) }
    }

    /// Reads the components of `count` elements: their values, and the codes that are compared.
    ///
    /// # Safety
    /// They are readable at both pointers; `count` times the components is at most a tile.
    unsafe fn read(&self, codes: [*const u8; 2], count: usize, room: &mut Room) {
        let Common { components, parts, codes: kind, .. } = &self.common;
        let most = if self.common.is_complex() { 2 * count } else { count };
        for side in 0..2 {
            let values = &mut room.values[side].0[..most];
            let rests = &mut room.rests[side].0[..most];
            if self.has_rests || self.common.is_complex() {
                rests.fill(0.0);
            }
            let length = count * parts[side];
            // SAFETY: the caller's promise.
            unsafe {
                self.values[side].read(self.level, codes[side], &mut values[..length], &mut rests[..length]);
            }
            let words = &mut room.codes[side].0[..most];
            if *kind == Codes::Same && self.asked.finds_differences() {
                // SAFETY: the caller's promise; there are so many codes of this size.
                unsafe { widen(codes[side], components[side].item_size(), &mut words[..length]) };
            }
            if length < most {
                // Real numbers beside complex ones, from the last on.
                for place in (0..length).rev() {
                    (values[2 * place], values[2 * place + 1]) = (values[place], 0.0);
                    (rests[2 * place], rests[2 * place + 1]) = (rests[place], 0.0);
                    (words[2 * place], words[2 * place + 1]) = (words[place], 0);
                }
            }
            match kind {
                _ if !self.asked.finds_differences() => {}
                Codes::Same => {}
                Codes::Single => {
                    for (word, &value) in words.iter_mut().zip(&*values) {
                        *word = u64::from((value as f32).to_bits());
                    }
                }
                Codes::Double => {
                    for (word, &value) in words.iter_mut().zip(&*values) {
                        *word = value.to_bits();
                    }
                }
            }
        }
    }

    /// Compares what was read; `start` is the place of the first element in the tile.
    fn add_differences(
        &self,
        tile: &Pair<'_>,
        (start, count): (usize, usize),
        room: &mut Room,
        outcome: &mut Comparison,
    ) {
        let Room { codes: [a, b], values: [x, y], rests: [before, after], differences, ulps, .. } = room;
        let most = if self.common.is_complex() { 2 * count } else { count };
        let columns = Columns {
            codes: [&a.0[..most], &b.0[..most]],
            values: [&x.0[..most], &y.0[..most]],
            rests: [&before.0[..most], &after.0[..most]],
        };
        let (differences, ulps) = (&mut differences.0[..count], &mut ulps.0[..count]);
        let differing = if self.common.is_complex() {
            self.level.run(Complex { columns, differences: &mut *differences })
        } else {
            let magnitude = self.common.float.map(|float| float.magnitude_mask());
            let (differences, ulps) = (&mut *differences, &mut *ulps);
            if self.has_rests {
                self.level.run(Real::<true> { columns, magnitude, differences, ulps })
            } else {
                self.level.run(Real::<false> { columns, magnitude, differences, ulps })
            }
        };
        let within = |place: usize| place.checked_sub(start).filter(|&place| place < count);
        let is_difference = |place, most| within(place).is_some_and(|place| differences[place] == most);
        let is_distance = |place, most| within(place).is_some_and(|place| ulps[place] == most + 1);
        let is_special = |place| within(place).is_some_and(|place| differences[place] == SPECIAL);
        tile.add(&differing, (is_difference, is_distance, is_special), outcome);
    }

    /// Adds a tile.
    ///
    /// # Safety
    /// The tile's codes are readable.
    unsafe fn add_tile(
        &self,
        tile: &Pair<'_>,
        (room, short): (&mut Room, &mut ShortRoom),
        outcome: &mut Comparison,
    ) {
        outcome.count += tile.count as u64;
        // SAFETY: the caller's promise.
        let is_same = unsafe { self.is_same(tile.codes, tile.count) };
        if is_same {
            outcome.equal_bits += tile.count as u64;
        }
        match self.asked {
            Asked::SameBits => {
                outcome.different += u64::from(!is_same);
                return;
            }
            Asked::Differences if is_same => return,
            Asked::Differences | Asked::Losses | Asked::Report | Asked::Ratio => {}
        }
        let Some(singles) = &self.singles else {
            // SAFETY: the caller's promise.
            return unsafe { self.add_values(tile, is_same, room, outcome) };
        };
        let ShortRoom { columns, left } = short;
        if !tile.is_in_order {
            // Of equal relative errors that with the smallest index is looked for, in each tile.
            columns.begin();
        }
        let losses = self.asked.measures().then(|| &mut **outcome.losses.get_or_insert_default());
        // SAFETY: the caller's promise.
        unsafe {
            // Wide tiles count equal values themselves.
            let counts_codes = self.asked.finds_differences() || !singles.is_wide();
            let size = (tile.count, is_same || !counts_codes);
            let Some(compared) = singles.compare(self.level, tile.codes, size, columns, losses) else {
                return self.add_values(tile, is_same, room, outcome);
            };
            if !is_same && self.asked.finds_differences() {
                let is_difference = |place, most| compared.is_difference(place, most);
                let is_distance = |place, most| compared.is_distance(place, most);
                tile.add(&compared.differences, (is_difference, is_distance, |_| false), outcome);
                outcome.equal_bits -= compared.left.len() as u64;
            }
            let relative = compared.relative.filter(|_| self.asked == Asked::Losses);
            if let (Some(most), Some(losses)) = (relative, &mut outcome.losses) {
                let first = tile.first_index(|place| compared.is_relative(place, most));
                raise(&mut losses.largest_relative, first.map(|first| (most, first)));
            }
            if compared.left.is_empty() {
                return;
            }
            for ((format, &codes), copies) in self.common.components.iter().zip(&tile.codes).zip(&mut *left) {
                compared.copy_left(codes, format.item_size(), copies);
            }
            let codes = [0, 1].map(|side| left[side].0.as_ptr().cast());
            // Not in order: they stand between those that were compared.
            let (count, places) = (compared.left.len(), Some(compared.left));
            let rest = Pair { codes, count, places, is_in_order: false, ..*tile };
            self.add_values(&rest, is_same, room, outcome);
        }
    }

    /// Adds a tile of any formats, by its values as float64.
    ///
    /// # Safety
    /// The tile's codes are readable.
    unsafe fn add_values(&self, tile: &Pair<'_>, is_same: bool, room: &mut Room, outcome: &mut Comparison) {
        // Room for pairs of components.
        let step = if self.common.is_complex() { TILE / 2 } else { TILE };
        let sizes = [0, 1].map(|side| self.common.components[side].item_size() * self.common.parts[side]);
        for start in (0..tile.count).step_by(step) {
            let count = step.min(tile.count - start);
            let codes = [0, 1].map(|side| tile.codes[side].wrapping_add(start * sizes[side]));
            // SAFETY: the caller's promise, for these elements.
            unsafe { self.read(codes, count, room) };
            if !is_same && self.asked.finds_differences() {
                self.add_differences(tile, (start, count), room, outcome);
            }
            if self.common.is_complex() && self.asked == Asked::Losses && !is_same {
                let [x, y] = [0, 1].map(|side| room.values[side].0[..2 * count].as_chunks().0);
                let relative = |place: usize| differences::relative_complex(x[place], y[place]);
                let most = (0..count).map(relative).fold(0.0, f64::max);
                let losses = outcome.losses.get_or_insert_default();
                let known = losses.largest_relative.map_or(0.0, |known| known.0);
                if most > known || (most == known && most > 0.0 && !tile.is_in_order) {
                    let first = tile.first_index(|place| {
                        let place = place.checked_sub(start).filter(|&place| place < count);
                        place.is_some_and(|place| relative(place) == most)
                    });
                    raise(&mut losses.largest_relative, first.map(|first| (most, first)));
                }
            }
            if self.asked.measures() {
                let losses = outcome.losses.get_or_insert_default();
                let parts = if self.common.is_complex() { 2 } else { 1 };
                let Room { values, rests, losses: columns, .. } = &mut *room;
                let [before, after] = [0, 1].map(|side| &values[side].0[..count * parts]);
                let rests = self.has_rests.then(|| [0, 1].map(|side| &rests[side].0[..count * parts]));
                let most = match losses.largest_relative {
                    _ if self.asked == Asked::Ratio => f64::MAX,
                    _ if parts == 2 || self.asked == Asked::Report => losses.report.max_rel_error,
                    known => known.map_or(0.0, |known| known.0),
                };
                // Of equal ones the first, which in order is the one that is known.
                let known = if tile.is_in_order { most } else { most.next_down().max(0.0) };
                let (counts, has_indices) = (self.asked != Asked::Ratio, self.asked == Asked::Losses);
                let rounds = self.singles.as_ref().is_some_and(Singles::is_wide);
                let loss_tile = LossTile { before, after, rests, known, counts, rounds };
                let (is_lost, relative) = losses::add(self.level, &loss_tile, columns, losses);
                if let Some(most) = relative.filter(|_| parts == 1 && has_indices) {
                    let first = tile.first_index(|place| {
                        place
                            .checked_sub(start)
                            .is_some_and(|place| place < count && columns.quotients.0[place] == most)
                    });
                    raise(&mut losses.largest_relative, first.map(|first| (most, first)));
                }
                if is_lost && has_indices && !(tile.is_in_order && losses.first_lost.is_some()) {
                    let is_lost = |part: usize| before[part].is_finite() && !after[part].is_finite();
                    let first = tile.first_index(|place| {
                        place.checked_sub(start).is_some_and(|place| {
                            place < count && (0..parts).any(|part| is_lost(parts * place + part))
                        })
                    });
                    losses.first_lost = first_of(losses.first_lost, first);
                }
            }
        }
    }
}

/// Whether so many bytes are the same at both pointers. (Without references: the memory may be a host's.)
struct Same {
    codes: [*const u8; 2],
    bytes: usize,
}

impl RawKernel for Same {
    type Output = bool;

    #[inline(always)]
    unsafe fn run(self) -> bool {
        /// Words after which is seen whether some are not the same: most tiles that differ do so from the start.
        const WORDS: usize = 32;
        let Self { codes: [first, second], bytes } = self;
        let whole = bytes / size_of::<[u64; WORDS]>();
        let mut unlike = 0;
        for block in 0..whole {
            for word in 0..WORDS {
                // SAFETY: the caller of `is_same` vouches for the bytes, of which these are some.
                let [a, b] = [first, second]
                    .map(|codes| unsafe { codes.cast::<u64>().add(block * WORDS + word).read_unaligned() });
                unlike |= a ^ b;
            }
            if unlike != 0 {
                return false;
            }
        }
        for byte in whole * size_of::<[u64; WORDS]>()..bytes {
            // SAFETY: as above.
            let [a, b] = [first, second].map(|codes| unsafe { codes.add(byte).read() });
            unlike |= u64::from(a ^ b);
        }
        unlike == 0
    }
}

/// Reads codes of 1, 2, 4 or 8 bytes as u64.
///
/// # Safety
/// As many as there are words are readable.
unsafe fn widen(codes: *const u8, size: usize, words: &mut [u64]) {
    for (place, word) in words.iter_mut().enumerate() {
        let code = codes.wrapping_add(place * size);
        // SAFETY: the caller's promise.
        *word = unsafe {
            match size {
                1 => u64::from(code.read()),
                2 => u64::from(code.cast::<u16>().read_unaligned()),
                4 => u64::from(code.cast::<u32>().read_unaligned()),
                _ => code.cast::<u64>().read_unaligned(),
            }
        };
    }
}
