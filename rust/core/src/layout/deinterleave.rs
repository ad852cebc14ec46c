//! Deinterleaves rows: copies every second element to adjacent places, whole registers at a time.

use super::row_places::Rows;
use crate::cpu::{Level, RawKernel};
use crate::simd::{Vector, with_vectors};

/// Copies the first elements of each row, and returns how many: as many as fill registers, 0 on levels without vectors.
///
/// # Safety
/// Rows of `count` elements of `size` bytes, 8 at most, and what lies between them are readable at the first place, two
/// sizes apart, and writable at the second, adjacent; the two do not overlap.
pub(super) unsafe fn copy(
    level: Level,
    size: usize,
    from: Rows<*const u8>,
    to: Rows<*mut u8>,
    (rows, count): (usize, usize),
) -> usize {
    let copied = with_vectors!(level, vectors: V => {
        // Registers extend to the place after the last element taken, so another element must follow.
        let whole = count.saturating_sub(1) / (V::BYTES / size) * (V::BYTES / size);
        if whole > 0 {
            let work = Work { from, to, rows, whole };
            // SAFETY: the caller's promise.
            unsafe {
                match size {
                    1 => vectors.run(Registers::<V, 1>(work, vectors)),
                    2 => vectors.run(Registers::<V, 2>(work, vectors)),
                    4 => vectors.run(Registers::<V, 4>(work, vectors)),
                    8 => vectors.run(Registers::<V, 8>(work, vectors)),
                    _ => unreachable!("words take 1, 2, 4 or 8 bytes"),
                }
            }
            whole
        } else {
            0
        }
    });
    copied.unwrap_or(0)
}

struct Work {
    from: Rows<*const u8>,
    to: Rows<*mut u8>,
    rows: usize,
    /// Elements of each row that fill registers.
    whole: usize,
}

struct Registers<V, const SIZE: usize>(Work, V);

impl<V: Vector, const SIZE: usize> RawKernel for Registers<V, SIZE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Work { from, to, rows, whole } = self.0;
        for row in 0..rows as isize {
            // SAFETY: the caller vouches for the elements of the row, of which another follows these; the vectors are there.
            unsafe {
                let from = from.first.offset(row * from.row_stride);
                let to = to.first.offset(row * to.row_stride);
                for start in (0..whole * SIZE).step_by(V::BYTES) {
                    let pair = from.add(2 * start);
                    let (first, second) = (V::load(pair), V::load(pair.add(V::BYTES)));
                    let even = match SIZE {
                        1 => V::in_order(V::unzip8(first, second).0),
                        2 => V::unzip16(first, second).0,
                        4 => V::even::<4>(first, second),
                        _ => V::even::<8>(first, second),
                    };
                    V::store(to.add(start), even);
                }
            }
        }
    }
}
