//! The loop over whole registers, and over the elements that do not fill one.

use std::any::type_name;
use std::mem::MaybeUninit;

use crate::cpu::{Level, RawKernel};
use crate::kernels::stages::stage::{Span, Stage, short_name};
use crate::simd::{MOST_BYTES, Rest, Vector, unknown_one};

/// Bytes of an element, at most.
const MOST_SIZE: usize = 8;

/// From this many elements on, aligned stores pay for an extra step.
const ALIGN_FROM: usize = 1 << 12;

/// From this many bytes read and written on, results bypass the caches, where they would not stay. (Fewer than
/// [`streaming::STREAM_FROM`], which is for results that are first written to a tile.)
///
/// [`streaming::STREAM_FROM`]: crate::layout::streaming::STREAM_FROM
const STREAM_DIRECT_FROM: usize = 1 << 24;

/// Bytes by which long sources are fetched ahead. The machine does so too, but not far enough where few results are
/// written: at 16 Mi elements bfloat16 to `float8_e4m3fn` takes 0.6 to 0.7 of the time with it.
const PREFETCH: usize = 1 << 13;

/// Bytes of a cache line.
const LINE: usize = 64;

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
        unsafe { self.vectors.run(StepLoop { step: self.step, span, vectors: self.vectors }) };
    }

    fn aligns(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        // The name of the whole type would be in the library once per level.
        name_of(type_name::<V>(), type_name::<S>(), SIZE)
    }
}

#[inline(never)]
fn name_of(vectors: &str, step: &str, size: usize) -> String {
    short_name(&format!("InSteps<{vectors}, {step}, {size}>"))
}

struct StepLoop<V, S, const SIZE: usize> {
    step: S,
    span: Span,
    /// Their features are there.
    vectors: V,
}

/// Copies bytes to as many whole registers as they fill in part, padded with zeros. One copy of it serves all loops.
struct Pad<V> {
    source: *const u8,
    bytes: usize,
    room: *mut u8,
    registers: usize,
    _vectors: V,
}

impl<V: Vector> RawKernel for Pad<V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for offset in (0..self.registers * V::BYTES).step_by(V::BYTES) {
            let bytes = self.bytes.saturating_sub(offset).min(V::BYTES);
            // SAFETY: the caller has made the source valid for the bytes, and the room for the registers.
            unsafe {
                V::store(self.room.add(offset), V::load_first(self.source.wrapping_add(offset), bytes));
            }
        }
    }
}

/// Copies the first bytes of registers in memory.
struct Unpad<V> {
    room: *const u8,
    target: *mut u8,
    bytes: usize,
    _vectors: V,
}

impl<V: Vector> RawKernel for Unpad<V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for offset in (0..self.bytes).step_by(V::BYTES) {
            let bytes = (self.bytes - offset).min(V::BYTES);
            // SAFETY: the caller has made both pointers valid for the bytes, the room for whole registers of them.
            unsafe { V::store_first(self.target.add(offset), V::load(self.room.add(offset)), bytes) };
        }
    }
}

/// Registers of the elements before and after the whole registers of a span: two steps, at most.
type Room = MaybeUninit<Rest<{ 2 * MOST_BYTES * MOST_SIZE }>>;

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize> StepLoop<V, S, SIZE> {
    /// Returns the elements before the first aligned one; 0 where alignment does not pay or is impossible.
    #[inline(always)]
    fn head(&self) -> usize {
        let bytes = self.span.target.align_offset(V::BYTES);
        if self.span.count >= ALIGN_FROM && bytes.is_multiple_of(SIZE) { bytes / SIZE } else { 0 }
    }
}

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize> RawKernel for StepLoop<V, S, SIZE> {
    type Output = ();

    /// Elements that do not fill registers pass through padded ones in memory, so that all steps are one piece of code.
    #[inline(always)]
    unsafe fn run(self) {
        const { assert!(S::FROM <= MOST_SIZE && SIZE <= MOST_SIZE, "there is room for a step") };
        let (Span { source, target, count, .. }, vectors) = (self.span, self.vectors);
        let head = self.head();
        let whole = count - (count - head) % V::BYTES;
        let first = target.wrapping_add(head * SIZE);
        let streams =
            V::STREAMS && count * (S::FROM + SIZE) >= STREAM_DIRECT_FROM && first.align_offset(V::BYTES) == 0;
        let (mut sources, mut results) = (Room::uninit(), Room::uninit());
        let (sources, results) = (sources.as_mut_ptr().cast::<u8>(), results.as_mut_ptr().cast::<u8>());
        let parts = [(0, head), (whole, count - whole)].map(|(start, count)| {
            (source.wrapping_add(start * S::FROM), target.wrapping_add(start * SIZE), count)
        });
        // SAFETY: the vectors are there, so the level's features are; the caller vouches for `count` elements at the
        // pointers. There is room for both parts, whose registers are filled before a step reads them.
        unsafe {
            let mut steps = 0;
            for (source, _, count) in parts {
                if count > 0 {
                    let room = sources.add(steps * V::BYTES * S::FROM);
                    let (bytes, registers) = (count * S::FROM, S::FROM);
                    vectors.run(Pad { source, bytes, room, registers, _vectors: vectors });
                    steps += 1;
                }
            }
            let ready = self.step.ready();
            let rounds = [
                (source.wrapping_add(head * S::FROM), first, (whole - head) / V::BYTES, streams),
                (sources.cast_const(), results, steps, false),
            ];
            // The compiler would make a loop of each round.
            for (source, target, steps, streams) in rounds.into_iter().take(2 * usize::from(unknown_one())) {
                for i in 0..steps {
                    let target = target.add(i * V::BYTES * SIZE);
                    let source = source.add(i * V::BYTES * S::FROM);
                    if streams {
                        for line in (0..V::BYTES * S::FROM).step_by(LINE) {
                            V::prefetch(source.wrapping_add(PREFETCH + line));
                        }
                    }
                    let codes = S::step(ready, source);
                    for (part, codes) in codes.into_iter().enumerate() {
                        let target = target.add(part * V::BYTES);
                        if streams { V::stream(target, codes) } else { V::store(target, codes) }
                    }
                }
            }
            if streams {
                V::fence();
            }
            let mut done = 0;
            for (_, target, count) in parts {
                if count > 0 {
                    let room = results.add(done * V::BYTES * SIZE).cast_const();
                    vectors.run(Unpad { room, target, bytes: count * SIZE, _vectors: vectors });
                    done += 1;
                }
            }
        }
    }
}
