//! The range of the sources of a tile.

use super::squares::{LANES, Values};
use crate::cpu::{Kernel, Level};
use crate::kernels::tile::Tile;

/// The smallest nonzero and the largest magnitude of sources, as bits of float32, whose order is the same; 0 if there is
/// none. Where signs count, they are the top bits of magnitudes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extremes {
    pub(crate) smallest: u32,
    pub(crate) largest: u32,
    /// How many sources are zero.
    pub(crate) zeros: u32,
}

#[inline(always)]
pub(crate) fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

impl Extremes {
    pub(crate) fn of(level: Level, sources: Values, range: Within) -> Self {
        let both = level.run(Both { sources, range });
        // Most tiles have no zero, and need no second pass for that.
        if both.smallest > 0 {
            return both;
        }
        Self { largest: both.largest, ..Self::zeros(level, sources, range) }
    }

    /// Finds the smallest one, and how many are zero.
    pub(crate) fn zeros(level: Level, sources: Values, range: Within) -> Self {
        level.run(Zeros { sources, range })
    }

    /// Returns whether all sources are zero or within a range.
    pub(crate) fn are_within(&self, range: Within) -> bool {
        self.largest <= range.largest && (self.smallest == 0 || self.smallest >= range.smallest)
    }
}

/// A range of nonzero magnitudes, as bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within {
    pub(crate) smallest: u32,
    pub(crate) largest: u32,
    /// The bits of a magnitude. With the sign among them, negative numbers are outside the range.
    pub(crate) mask: u32,
}

/// Finds both.
struct Both {
    sources: Values,
    range: Within,
}

impl Kernel for Both {
    type Output = Extremes;

    #[inline(always)]
    fn run(self) -> Extremes {
        let (mut smallest, mut largest) = (u32::MAX, 0);
        for i in 0..self.sources.count() {
            // SAFETY: `i` is below the count.
            let magnitude = unsafe { self.sources.get(i) }.to_bits() & self.range.mask;
            smallest = magnitude.min(smallest);
            largest = magnitude.max(largest);
        }
        Extremes { smallest, largest, zeros: 0 }
    }
}

/// Finds the smallest nonzero magnitude, and how many sources are zero.
struct Zeros {
    sources: Values,
    range: Within,
}

impl Kernel for Zeros {
    type Output = Extremes;

    #[inline(always)]
    fn run(self) -> Extremes {
        let (mut below, mut zeros) = (u32::MAX, 0);
        for i in 0..self.sources.count() {
            // SAFETY: `i` is below the count.
            let magnitude = unsafe { self.sources.get(i) }.to_bits() & self.range.mask;
            // One is subtracted, so that zero wraps to the largest number.
            below = magnitude.wrapping_sub(1).min(below);
            zeros += u32::from(magnitude == 0);
        }
        Extremes { smallest: below.wrapping_add(1), largest: 0, zeros }
    }
}

/// Finds the indices where a number of some columns is neither zero nor within a range. Returns how many there are.
pub(crate) struct Outside<'a, const COLUMNS: usize> {
    /// All as long.
    pub(crate) columns: [Values; COLUMNS],
    pub(crate) range: Within,
    pub(crate) indices: &'a mut Tile<u16>,
}

impl<const COLUMNS: usize> Kernel for Outside<'_, COLUMNS> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Self { columns, range: Within { smallest, largest, mask }, indices } = self;
        let count = columns[0].count();
        assert!(columns.iter().all(|column| column.count() == count));
        let is_outside = |index| {
            let mut any = false;
            for column in &columns {
                // SAFETY: the index is below the count, which is that of each column.
                let magnitude = (unsafe { column.get(index) }.to_bits() & mask) as i32;
                // As integers with a sign, which compilers compare in one instruction: negative ones are below.
                any |= (magnitude > largest as i32) | ((magnitude < smallest as i32) & (magnitude != 0));
            }
            any
        };
        find_indices(count, is_outside, indices)
    }
}

/// Writes the indices below a count, a multiple of [`LANES`], for which a condition holds. Returns how many there are.
#[inline(always)]
pub(crate) fn find_indices(
    count: usize,
    condition: impl Fn(usize) -> bool,
    indices: &mut Tile<u16>,
) -> usize {
    let mut length = 0;
    for start in (0..count).step_by(LANES) {
        // Loops, as `fold` may be a function of its own, which has not the features of the level.
        let mut any = 0;
        for lane in 0..LANES {
            any |= u32::from(condition(start + lane));
        }
        if any == 0 {
            continue;
        }
        for lane in 0..LANES {
            indices.0[length] = (start + lane) as u16;
            length += usize::from(condition(start + lane));
        }
    }
    length
}
