//! Codes to 16-bit results by tables, in registers: all arithmetic is in the tables, one for each block.

use crate::cpu::{Level, RawKernel};
use crate::simd::{NibbleTables, with_vectors};

/// Nibbles that are looked up at once.
pub(super) const GROUP: usize = 32;

/// Nibbles of one table, at least.
pub(super) const HALF: usize = GROUP / 2;

/// Bytes of a table of nibbles.
pub(super) const ROW: usize = 2 * HALF;

/// Which table the nibbles of a half group take.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    /// The tables, of [`ROW`] bytes each.
    pub(super) tables: *const u8,
    /// The number of the first half group, and of the first block.
    pub(super) first: usize,
    pub(super) block: usize,
    /// Half groups of a block, as a power of two.
    pub(super) shift: u32,
    /// The table of each block, if they are not in order.
    pub(super) indices: Option<*const u8>,
    /// The first nibble of a byte is the high one.
    pub(super) high_first: bool,
}

/// Bytes whose nibbles are swapped at once.
const SWAPPED: usize = 512;

struct Swap<'a>(*const u8, &'a mut [u8]);

impl RawKernel for Swap<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for (index, byte) in self.1.iter_mut().enumerate() {
            // SAFETY: the caller of `nibbles` vouches for the bytes.
            *byte = unsafe { *self.0.add(index) }.rotate_left(4);
        }
    }
}

struct NibbleLoop<V, const INDEXED: bool> {
    choice: Choice,
    indices: *const u8,
    codes: *const u8,
    target: *mut u8,
    groups: usize,
    _vectors: V,
}

impl<V: NibbleTables, const INDEXED: bool> RawKernel for NibbleLoop<V, INDEXED> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self {
            choice: Choice { tables, first, block, shift, .. }, indices, codes, target, groups, ..
        } = self;
        for group in 0..groups {
            // SAFETY: the vectors are there; the caller of `nibbles` vouches for the groups and their tables.
            unsafe {
                let table = |half: usize| {
                    let number = ((first + 2 * group + half) >> shift) - block;
                    let row = if INDEXED { usize::from(*indices.add(number)) } else { number };
                    tables.wrapping_add(row * ROW)
                };
                let target = target.add(group * GROUP * 2);
                V::store_entries([table(0), table(1)], codes.add(group * HALF), target);
            }
        }
    }
}

/// Looks up nibbles, low ones first, in the tables of their blocks.
///
/// # Safety
/// `count` nibbles are readable and results of 2 bytes writable, and every block has its table. The level has vectors.
pub(super) unsafe fn nibbles(level: Level, choice: Choice, codes: *const u8, target: *mut u8, count: usize) {
    let (groups, rest) = (count / GROUP, count % GROUP);
    // SAFETY: the caller's promise; the rest goes through buffers of a whole group.
    unsafe {
        whole_groups(level, choice, codes, target, groups);
        if rest > 0 {
            let (mut last, mut results) = ([0u8; HALF], [0u8; 2 * GROUP]);
            last.as_mut_ptr().copy_from_nonoverlapping(codes.add(groups * HALF), rest.div_ceil(2));
            // The second half may have no table: it takes that of the first, as the zeros after it do.
            let first = choice.first + 2 * groups;
            let shift = if rest <= HALF { choice.shift.max(1) } else { choice.shift };
            let block = (first >> shift) - ((first >> choice.shift) - choice.block);
            let choice = Choice { first, block, shift, ..choice };
            whole_groups(level, choice, last.as_ptr(), results.as_mut_ptr(), 1);
            target.add(groups * GROUP * 2).copy_from_nonoverlapping(results.as_ptr(), rest * 2);
        }
    }
}

/// # Safety
/// As for [`nibbles`].
unsafe fn whole_groups(level: Level, choice: Choice, codes: *const u8, target: *mut u8, groups: usize) {
    if !choice.high_first {
        // SAFETY: the caller's promise.
        return unsafe { low_first(level, choice, codes, target, groups) };
    }
    let mut swapped = [0; SWAPPED];
    for start in (0..groups).step_by(SWAPPED / HALF) {
        let groups = (SWAPPED / HALF).min(groups - start);
        let choice = Choice { first: choice.first + 2 * start, ..choice };
        // SAFETY: the caller's promise for these groups.
        unsafe {
            level.run_raw(Swap(codes.add(start * HALF), &mut swapped[..groups * HALF]));
            low_first(level, choice, swapped.as_ptr(), target.add(start * GROUP * 2), groups);
        }
    }
}

/// # Safety
/// As for [`nibbles`].
unsafe fn low_first(level: Level, choice: Choice, codes: *const u8, target: *mut u8, groups: usize) {
    // SAFETY: the caller's promise.
    let done: Option<()> = unsafe {
        with_vectors!(level, vectors => match choice.indices {
            Some(indices) => vectors_run(vectors, NibbleLoop::<_, true> {
                choice, indices, codes, target, groups, _vectors: vectors,
            }),
            None => vectors_run(vectors, NibbleLoop::<_, false> {
                choice, indices: std::ptr::null(), codes, target, groups, _vectors: vectors,
            }),
        })
    };
    debug_assert!(done.is_some(), "the level has vectors");
}

/// # Safety
/// As for the kernel.
unsafe fn vectors_run<V: NibbleTables, const INDEXED: bool>(vectors: V, kernel: NibbleLoop<V, INDEXED>) {
    // SAFETY: the caller's promise.
    unsafe { vectors.run(kernel) }
}

/// Whether a level looks codes up.
pub(super) fn has_tables(level: Level) -> bool {
    let tables: Option<()> = with_vectors!(level, _vectors => ());
    tables.is_some()
}
