//! The loop over whole registers, and over the elements that do not fill one.

use std::mem::MaybeUninit;

use crate::cpu::{Level, RawKernel};
use crate::kernels::stages::stage::{Span, Stage};
use crate::simd::{MOST_BYTES, Rest, Vector};

/// Bytes of an element, at most.
const MOST_SIZE: usize = 8;

/// From this many elements on, aligned stores pay for an extra step.
const ALIGN_FROM: usize = 1 << 12;

/// From this many bytes read and written on, results bypass the caches, where they would not stay. (Fewer than
/// [`streaming::STREAM_FROM`], which is for results that are first written to a tile.)
///
/// [`streaming::STREAM_FROM`]: crate::layout::streaming::STREAM_FROM
const STREAM_DIRECT_FROM: usize = 1 << 24;

/// Returns where the four quarters of a register's elements begin, each of `size` bytes. No `map`: the instructions of
/// a level are not inlined into closures.
#[inline(always)]
pub(super) fn quarters<V: Vector>(source: *const u8, size: usize) -> [*const u8; 4] {
    let quarter = V::BYTES / 4 * size;
    [source, source.wrapping_add(quarter), source.wrapping_add(2 * quarter), source.wrapping_add(3 * quarter)]
}

/// Converts as many elements as a register has bytes; results take `SIZE` bytes each.
///
/// # Safety
/// Every operation needs the level's features, and a step that many elements at the source.
pub(crate) trait Step<V: Vector, const SIZE: usize>: Copy + Send + Sync + 'static {
    /// Bytes of a source element.
    const FROM: usize;
    /// What the loop keeps in registers.
    type Ready: Copy;
    unsafe fn ready(&self) -> Self::Ready;
    /// Returns the results in memory order.
    unsafe fn step(ready: Self::Ready, source: *const u8) -> [V::Integers; SIZE];
}

/// The loop of a step on one level.
pub(crate) struct InSteps<V, S, const SIZE: usize> {
    step: S,
    vectors: V,
}

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize> InSteps<V, S, SIZE> {
    pub(crate) fn boxed(vectors: V, step: S) -> Box<dyn Stage> {
        Box::new(Self { step, vectors })
    }
}

// SAFETY: whole registers and the parts before and after them are all elements.
unsafe impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize> Stage for InSteps<V, S, SIZE> {
    unsafe fn run(&self, _level: Level, span: Span) {
        // The vectors are those of the level that the stage was made for, whichever level is in use now.
        // SAFETY: the caller's promise.
        unsafe { self.vectors.run(StepLoop { step: self.step, span, _vectors: self.vectors }) };
    }

    fn aligns(&self) -> bool {
        true
    }
}

struct StepLoop<V, S, const SIZE: usize> {
    step: S,
    span: Span,
    /// Their features are there.
    _vectors: V,
}

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize> StepLoop<V, S, SIZE> {
    /// Returns the elements before the first aligned one; 0 where alignment does not pay or is impossible.
    #[inline(always)]
    fn head(&self) -> usize {
        let bytes = self.span.target.align_offset(V::BYTES);
        if self.span.count >= ALIGN_FROM && bytes.is_multiple_of(SIZE) { bytes / SIZE } else { 0 }
    }

    /// Converts elements that fill registers.
    ///
    /// # Safety
    /// The level's features, and elements from `start` to `end` at the pointers; with `STREAM`, the target's first is
    /// aligned.
    #[inline(always)]
    unsafe fn whole<const STREAM: bool>(&self, ready: S::Ready, start: usize, end: usize) {
        for i in (start..end).step_by(V::BYTES) {
            // SAFETY: the caller's promise.
            unsafe {
                let target = self.span.target.add(i * SIZE);
                let source = self.span.source.add(i * S::FROM);
                let results = S::step(ready, source);
                for (part, result) in results.into_iter().enumerate() {
                    let target = target.add(part * V::BYTES);
                    if STREAM { V::stream(target, result) } else { V::store(target, result) }
                }
            }
        }
    }

    /// Converts fewer elements than fill a register, by way of padded buffers.
    ///
    /// # Safety
    /// The level's features, and `count` elements from `start` at the pointers.
    #[inline(always)]
    unsafe fn part(&self, ready: S::Ready, start: usize, count: usize) {
        const { assert!(S::FROM <= MOST_SIZE, "there is room for its sources") };
        let mut room = MaybeUninit::<Rest<{ MOST_BYTES * MOST_SIZE }>>::uninit();
        let room = room.as_mut_ptr().cast::<u8>();
        let source = self.span.source.wrapping_add(start * S::FROM);
        let target = self.span.target.wrapping_add(start * SIZE);
        // Bytes of one register, of so many in all.
        let bytes = |register: usize, all: usize| all.saturating_sub(register * V::BYTES).min(V::BYTES);
        // SAFETY: the caller's promise; there is room for the registers that a step reads, and they are filled.
        unsafe {
            for register in 0..S::FROM {
                let (offset, bytes) = (register * V::BYTES, bytes(register, count * S::FROM));
                V::store(room.add(offset), V::load_first(source.wrapping_add(offset), bytes));
            }
            for (register, result) in S::step(ready, room).into_iter().enumerate() {
                let (offset, bytes) = (register * V::BYTES, bytes(register, count * SIZE));
                V::store_first(target.wrapping_add(offset), result, bytes);
            }
        }
    }
}

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize> RawKernel for StepLoop<V, S, SIZE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Span { target, count, .. } = self.span;
        let head = self.head();
        let whole = count - (count - head) % V::BYTES;
        let streams = V::STREAMS
            && count * (S::FROM + SIZE) >= STREAM_DIRECT_FROM
            && target.wrapping_add(head * SIZE).align_offset(V::BYTES) == 0;
        // SAFETY: the vectors are there, so the level's features are; the caller vouches for `count` elements at the pointers.
        unsafe {
            let ready = self.step.ready();
            if streams {
                self.whole::<true>(ready, head, whole);
                V::fence();
            } else {
                self.whole::<false>(ready, head, whole);
            }
            for (start, end) in [(0, head), (whole, count)] {
                if start < end {
                    self.part(ready, start, end - start);
                }
            }
        }
    }
}
