//! Walks two arrays that are only read: tile by tile, shared between threads.

use std::ops::Range;

use super::parallel;
use crate::cpu::{DefaultEnvironment, Level};
use crate::kernels::tile::{TILE, Tile};
use crate::layout::transfer::{Gaps, gather};
use crate::layout::{INDEX, Layout, Run, SOURCE, TARGET};

/// What is done with each tile.
pub(crate) trait Pass: Sync {
    /// What the tiles of a thread add up to.
    type Outcome: Default + Send;

    /// Adds a tile.
    ///
    /// # Safety
    /// The tile's codes are readable.
    unsafe fn add_tile(&self, tile: &Pair<'_>, outcome: &mut Self::Outcome);

    /// Adds the outcome of another range.
    fn merge(outcome: &mut Self::Outcome, more: &Self::Outcome);
}

/// The elements of a tile in both arrays, side by side and in native byte order, and their flat indices.
pub(crate) struct Pair<'a> {
    pub(crate) codes: [*const u8; 2],
    pub(crate) count: usize,
    runs: &'a [Run],
    /// Whether the flat indices of the tile's elements follow each other.
    is_in_order: bool,
}

impl Pair<'_> {
    /// Returns whether later tiles of the same range have larger indices, and later elements of this one too.
    pub(crate) fn is_in_order(&self) -> bool {
        self.is_in_order
    }

    /// Returns the smallest flat index of the elements that are chosen, by their places in the tile.
    pub(crate) fn first_index(&self, is_chosen: impl Fn(usize) -> bool) -> Option<u64> {
        let mut first = None;
        let mut place = 0;
        for row in self.runs.iter().flat_map(Run::each_row) {
            for element in 0..row.count {
                if is_chosen(place + element) {
                    let index = (row.offsets[INDEX] + row.strides[INDEX] * element as isize) as u64;
                    first = Some(first.map_or(index, |first: u64| first.min(index)));
                    if self.is_in_order {
                        return first;
                    }
                }
            }
            place += row.count;
        }
        first
    }
}

/// An array that is read; its layout is elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Readable {
    pub(crate) pointer: *const u8,
    /// Bytes of a component of an element.
    pub(crate) component: usize,
    /// 1, or 2 for complex numbers.
    pub(crate) components: usize,
    /// Whether components are in the other byte order.
    pub(crate) swapped: bool,
}

// SAFETY: the pointer is only followed inside `run`, whose caller promises that it may be, from any thread.
unsafe impl Sync for Readable {}

impl Readable {
    fn item(&self) -> usize {
        self.component * self.components
    }

    /// Returns a tile's elements, where they are or in the room.
    ///
    /// # Safety
    /// The elements of the runs of the operand are readable.
    unsafe fn tile(
        &self,
        level: Level,
        (layout, operand): (&Layout, usize),
        runs: &[Run],
        room: &mut Tile<[u64; 2]>,
    ) -> *const u8 {
        if !self.swapped && layout.is_dense(operand, self.item()) {
            return self.pointer.wrapping_offset(runs[0].offsets[operand]);
        }
        let swapped = self.swapped && self.components == 1;
        let to = room.0.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; the room has 16 bytes for each element of a tile, which is the most.
        unsafe {
            gather(level, (self.pointer, Gaps::Leave), operand, runs, (self.item(), swapped), to);
        }
        if self.swapped && !swapped {
            let bytes = runs.iter().map(Run::len).sum::<usize>() * self.item();
            // SAFETY: `gather` has just written so many bytes to the room, which nothing else refers to.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
            bytes.chunks_exact_mut(self.component).for_each(<[u8]>::reverse);
        }
        to.cast_const()
    }
}

/// What a thread needs beside its outcome.
#[derive(Default)]
struct Room {
    runs: Vec<Run>,
    tiles: [Tile<[u64; 2]>; 2],
}

/// Runs a pass over all elements, on at most this many threads.
///
/// # Safety
/// The elements of the layout are readable in both arrays: those of the first at [`SOURCE`], of the second at [`TARGET`].
pub(crate) unsafe fn run<P: Pass>(
    pass: &P,
    level: Level,
    layout: &Layout,
    arrays: &[Readable; 2],
    threads: usize,
) -> P::Outcome {
    debug_assert!(layout.tile <= TILE, "a tile has room");
    let is_in_order = layout.count <= 1 || layout.line(INDEX) == Some(1);
    let bytes = layout.count * arrays.iter().map(Readable::item).sum::<usize>();
    let work = |positions: Range<usize>| {
        let _environment = DefaultEnvironment::enter();
        let (mut outcome, mut room) = (P::Outcome::default(), Box::<Room>::default());
        for position in positions.clone().step_by(layout.tile) {
            let count = layout.tile.min(positions.end - position);
            let Room { runs, tiles: [first, second] } = &mut *room;
            layout.runs(position, count, runs);
            // SAFETY: the caller's promise, for these elements.
            unsafe {
                let codes = [
                    arrays[0].tile(level, (layout, SOURCE), runs, first),
                    arrays[1].tile(level, (layout, TARGET), runs, second),
                ];
                pass.add_tile(&Pair { codes, count, runs, is_in_order }, &mut outcome);
            }
        }
        outcome
    };
    parallel::share(threads, bytes, (layout.count, layout.tile), work, P::merge)
}
