//! Transposes blocks of elements of any type.

use std::marker::PhantomData;

use super::shuffle::{Shuffle, deinterleaved};
use crate::cpu::{Level, RawKernel};

/// Copies elements at `from`, in `lines` of `length` adjacent ones, a line every `stride` bytes, so that the first
/// elements of all lines are adjacent at `to`, the second ones `to_stride` bytes further, and so on.
///
/// # Safety
/// All of them are readable, and writable at `to`; the two do not overlap.
pub(crate) unsafe fn transpose(
    level: Level,
    size: usize,
    (from, stride): (*const u8, isize),
    (lines, length): (usize, usize),
    (to, to_stride): (*mut u8, isize),
) {
    let block = Block { from, stride, lines, length, to, to_stride };
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => level.run_moves(Turn::<u8, 16>(block, PhantomData)),
            2 => level.run_moves(Turn::<u16, 8>(block, PhantomData)),
            4 => level.run_moves(Turn::<u32, 4>(block, PhantomData)),
            8 => level.run_moves(Turn::<u64, 2>(block, PhantomData)),
            _ => unreachable!("real formats take 1, 2, 4 or 8 bytes"),
        }
    }
}

struct Block {
    from: *const u8,
    stride: isize,
    lines: usize,
    length: usize,
    to: *mut u8,
    to_stride: isize,
}

struct Turn<T, const N: usize>(Block, PhantomData<T>);

impl<T: Shuffle<N>, const N: usize> RawKernel for Turn<T, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Block { lines, length, .. } = self.0;
        if lines < N || length < N {
            if lines < length {
                for line in 0..lines {
                    for element in 0..length {
                        // SAFETY: an element of one of the lines, for which the caller vouches.
                        unsafe { self.element(line, element) };
                    }
                }
            } else {
                for element in 0..length {
                    for line in 0..lines {
                        // SAFETY: an element of one of the lines, for which the caller vouches.
                        unsafe { self.element(line, element) };
                    }
                }
            }
            return;
        }
        // The last squares overlap the ones before.
        for line in (0..lines).step_by(N).map(|line| line.min(lines - N)) {
            for element in (0..length).step_by(N).map(|element| element.min(length - N)) {
                let (from, to) = self.places(line, element);
                // SAFETY: N lines of N elements from here on are among those of the caller, at both ends.
                unsafe { square::<T, N>((from, self.0.stride), (to, self.0.to_stride)) };
            }
        }
    }
}

impl<T: Shuffle<N>, const N: usize> Turn<T, N> {
    /// Returns where an element of a line is, and where it goes.
    #[inline(always)]
    fn places(&self, line: usize, element: usize) -> (*const u8, *mut u8) {
        let Block { from, stride, to, to_stride, .. } = self.0;
        let from = from.wrapping_offset(line as isize * stride + (element * size_of::<T>()) as isize);
        (from, to.wrapping_offset(element as isize * to_stride + (line * size_of::<T>()) as isize))
    }

    /// Moves one element.
    ///
    /// # Safety
    /// It is one of the block, at both ends.
    #[inline(always)]
    unsafe fn element(&self, line: usize, element: usize) {
        let (from, to) = self.places(line, element);
        // SAFETY: the caller's promise.
        unsafe { to.cast::<T>().write_unaligned(from.cast::<T>().read_unaligned()) };
    }
}

/// Transposes a square of elements that fills N vectors of N elements.
///
/// # Safety
/// N elements are readable at each of N lines, and writable at each of N lines of the target.
#[inline(always)]
unsafe fn square<T: Shuffle<N>, const N: usize>(
    (from, stride): (*const u8, isize),
    (to, to_stride): (*mut u8, isize),
) {
    // SAFETY: the caller's promise.
    let vectors: [T::Vector; N] =
        std::array::from_fn(|line| unsafe { T::load(from.offset(line as isize * stride).cast()) });
    for (line, &vector) in deinterleaved::<T, N, N>(vectors).iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { T::store(to.offset(line as isize * to_stride).cast(), vector) };
    }
}

#[cfg(test)]
mod tests {
    use super::transpose;
    use crate::cpu::Level;

    #[test]
    fn every_word_of_every_shape_comes_to_its_place() {
        for (level, size) in Level::available().flat_map(|level| [1, 2, 4, 8].map(|size| (level, size))) {
            for (lines, length) in [(1, 1), (16, 16), (32, 32), (17, 33), (3, 40), (40, 3), (64, 16)] {
                let (stride, to_stride) = (length * size + 5, lines * size + 3);
                let memory: Vec<u8> = (0..lines * stride).map(|i| (i * 7 + i / 251) as u8).collect();
                let mut found = vec![0u8; length * to_stride];
                // SAFETY: the vectors have these sizes.
                unsafe {
                    let (from, to) =
                        ((memory.as_ptr(), stride as isize), (found.as_mut_ptr(), to_stride as isize));
                    transpose(level, size, from, (lines, length), to);
                }
                let mut wanted = vec![0u8; length * to_stride];
                for (line, element) in
                    (0..lines).flat_map(|line| (0..length).map(move |element| (line, element)))
                {
                    let value = &memory[line * stride + element * size..][..size];
                    wanted[element * to_stride + line * size..][..size].copy_from_slice(value);
                }
                assert_eq!(found, wanted, "{level:?} {size} {lines} {length}");
            }
        }
    }
}
