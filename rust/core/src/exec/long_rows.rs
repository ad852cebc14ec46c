//! Converts long rows where they are, without copies to tiles.

use super::operand::Operand;
use crate::layout::Run;
use crate::layout::transfer::Gaps;
use crate::route::Route;
use crate::route::work::Work;
use crate::tuning::ROW_IN_PLACE;

/// The layout of one operand's elements in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Without gaps.
    Dense,
    /// In long rows without gaps.
    Rows,
    /// In any other way: they are copied to or from a tile of ours.
    Apart,
}

impl End {
    fn of(operand: &Operand, runs: &[Run]) -> Self {
        let is_long = |run: &Run| {
            run.count * operand.size >= ROW_IN_PLACE && run.strides[operand.number] == operand.size as isize
        };
        match operand.direct {
            true => Self::Dense,
            false if !operand.swapped && runs.iter().all(is_long) => Self::Rows,
            false => Self::Apart,
        }
    }

    /// Returns where the elements of a row are, of which so many are before it in the tile.
    fn place(self, operand: &Operand, room: *mut u8, (runs, row): (&[Run], &Run), before: usize) -> *mut u8 {
        match self {
            Self::Dense => operand.first(runs).wrapping_add(before * operand.size),
            Self::Rows => operand.pointer.wrapping_offset(row.offsets[operand.number]),
            Self::Apart => room.wrapping_add(before * operand.size),
        }
    }
}

/// Converts the elements of runs row by row, if that is worth it for the source or the target; returns whether it was.
///
/// # Safety
/// They are readable at the source and writable at the target, and each of the rooms has as many bytes.
pub(super) unsafe fn convert_rows(
    route: &Route,
    (source, target): (&Operand, &Operand),
    runs: &[Run],
    rooms: (*mut u8, *mut u8),
    work: &mut Work,
) -> bool {
    let ends @ [from, to] = [source, target].map(|operand| End::of(operand, runs));
    if !ends.contains(&End::Rows) {
        return false;
    }
    let mut done = 0;
    // SAFETY: the caller's promise.
    unsafe {
        if from == End::Apart {
            source.gather(route.level, Gaps::Read, runs, rooms.0);
        }
        for row in runs.iter().flat_map(Run::each_row) {
            let from = from.place(source, rooms.0, (runs, &row), done);
            let to = to.place(target, rooms.1, (runs, &row), done);
            route.convert((from, to), row.count, work);
            done += row.count;
        }
        if to == End::Apart {
            target.scatter(route.level, rooms.1, runs);
        }
    }
    true
}
