//! The loop over whole registers, and what converts the elements that do not fill one.

use std::any::type_name;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::cpu::{Level, RawKernel};
use crate::kernels::stages::stage::{Opaque, Span, Stage, short_name};
use crate::simd::{MOST_BYTES, Rest, Vector, fence, prefetch, rarely};
use crate::tuning::{ALIGNED_STORES, CACHE_LINE, PREFETCH, STREAM_RESULTS};

/// Bytes of an element, at most.
const MOST_SIZE: usize = 8;

/// Returns where the four quarters of a register's elements begin, each of `size` bytes. No `map`: the instructions of
/// a level are not inlined into closures.
#[inline(always)]
pub(super) fn quarters<V: Vector>(source: *const u8, size: usize) -> [*const u8; 4] {
    let quarter = V::BYTES / 4 * size;
    [source, source.wrapping_add(quarter), source.wrapping_add(2 * quarter), source.wrapping_add(3 * quarter)]
}

/// Converts as many elements as a register has bytes; results take `SIZE` bytes each. Every operation needs the level's
/// features, and a step that many elements at the source.
///
/// # Safety
/// A step reads no other memory than elements of [`Step::FROM`] bytes, as many as a register has bytes.
pub(crate) unsafe trait Step<V: Vector, const SIZE: usize>:
    Copy + Send + Sync + 'static
{
    /// The name of its type without parameters.
    const NAME: &'static str;
    /// Bytes of a source element.
    const FROM: usize;
    /// Whether there is a loop with a zero after each result, for complex targets.
    const ZEROS: bool = false;
    /// What the loop keeps in registers.
    type Ready: Copy;
    unsafe fn ready(&self) -> Self::Ready;
    /// Returns the results in memory order.
    unsafe fn step(ready: Self::Ready, source: *const u8) -> [V::Integers; SIZE];
}

/// Makes the loop of a step on one level.
pub(crate) fn in_steps<V: Vector, S: Step<V, SIZE>, const SIZE: usize>(
    vectors: V,
    step: S,
) -> Box<dyn Stage> {
    const { assert!(S::FROM <= MOST_SIZE && SIZE <= MOST_SIZE, "there is room for a step") };
    let with_zeros = if S::ZEROS { Some(StepLoop::<V, S, SIZE, true>::function()) } else { None };
    let plain = StepLoop::<V, S, SIZE, false>::function();
    InRounds::boxed(Box::new(step), (plain, with_zeros), S::NAME, [S::FROM, SIZE], vectors)
}

/// Elements that fill registers.
struct Round {
    /// Of the type that the loop is for.
    step: *const (),
    source: *const u8,
    target: *mut u8,
    steps: usize,
    /// Whether results go past the caches; the target is aligned then.
    streams: bool,
}

/// A loop over whole registers, which the compiler makes for each step and level.
///
/// # Safety
/// The level is there, the step is of the loop's type, and the elements of all steps are readable, and their results
/// writable, as [`Stage::run`] has it.
type Loop = unsafe fn(&Round);

/// With `ZEROS`, a zero follows each result.
#[repr(transparent)]
struct StepLoop<'a, V, S, const SIZE: usize, const ZEROS: bool>(&'a Round, PhantomData<(V, S)>);

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize, const ZEROS: bool> StepLoop<'_, V, S, SIZE, ZEROS> {
    fn function() -> Loop {
        // SAFETY: a loop has the layout, and is passed like, the reference that it is made of.
        unsafe { std::mem::transmute::<unsafe fn(Self), Loop>(V::function::<S, Self>()) }
    }
}

impl<V: Vector, S: Step<V, SIZE>, const SIZE: usize, const ZEROS: bool> RawKernel
    for StepLoop<'_, V, S, SIZE, ZEROS>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let &Round { step, source, target, steps, streams } = self.0;
        // SAFETY: the level is there, so its features are; the caller vouches for the step, and the elements of all steps.
        unsafe {
            let ready = (*step.cast::<S>()).ready();
            for i in 0..steps {
                let target = target.add(i * V::BYTES * SIZE * if ZEROS { 2 } else { 1 });
                let source = source.add(i * V::BYTES * S::FROM);
                // By reference below: an array by value is dropped, by a function that an incremental build does not inline.
                let codes = S::step(ready, source);
                if ZEROS {
                    for (part, &codes) in codes.iter().enumerate() {
                        let [low, high] = V::with_zeros::<SIZE>(codes);
                        let target = target.add(2 * part * V::BYTES);
                        if rarely(streams) {
                            V::stream(target, low);
                            V::stream(target.add(V::BYTES), high);
                        } else {
                            V::store(target, low);
                            V::store(target.add(V::BYTES), high);
                        }
                    }
                    continue;
                }
                // One test for both: to fetch ahead after the step is as good.
                if rarely(streams) {
                    for line in (0..V::BYTES * S::FROM).step_by(CACHE_LINE) {
                        prefetch(source.wrapping_add(PREFETCH + line));
                    }
                    for (part, &codes) in codes.iter().enumerate() {
                        V::stream(target.add(part * V::BYTES), codes);
                    }
                } else {
                    for (part, &codes) in codes.iter().enumerate() {
                        V::store(target.add(part * V::BYTES), codes);
                    }
                }
            }
            if streams {
                fence();
            }
        }
    }
}

/// Copies bytes to as many whole registers as they fill in part, padded with zeros.
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

/// What the loops of all steps of a level share: elements that do not fill registers, and the choice of stores.
struct InRounds<V> {
    step: Box<dyn Opaque>,
    /// The loop of the step.
    plain: Loop,
    /// The one with a zero after each result, if there is one.
    with_zeros: Option<Loop>,
    /// Of the step.
    name: &'static str,
    /// Bytes of a source element and of a result.
    from: usize,
    to: usize,
    vectors: V,
}

/// Returns whether results go past the caches, if so many bytes are read and written. (Results in place overwrite what the
/// caches hold already.)
fn streams<V: Vector>(source: *const u8, target: *const u8, bytes: usize) -> bool {
    let aligned = target.align_offset(V::BYTES) == 0;
    V::STREAMS && bytes >= STREAM_RESULTS && aligned && source != target
}

/// Room for two steps: registers of the elements before and after the whole ones of a span.
type Room = MaybeUninit<Rest<{ 2 * MOST_BYTES * MOST_SIZE }>>;

impl<V: Vector> InRounds<V> {
    /// One function a level: `in_steps`, of which there are hundreds, has none of this code.
    #[inline(never)]
    fn boxed(
        step: Box<dyn Opaque>,
        (plain, with_zeros): (Loop, Option<Loop>),
        name: &'static str,
        [from, to]: [usize; 2],
        vectors: V,
    ) -> Box<dyn Stage> {
        Box::new(Self { step, plain, with_zeros, name, from, to, vectors })
    }

    /// Runs one of the loops of the step.
    ///
    /// # Safety
    /// The loop is one of these. The elements of all steps are readable, and their results writable, as [`Stage::run`] has it.
    unsafe fn run_loop(
        &self,
        function: Loop,
        source: *const u8,
        target: *mut u8,
        steps: usize,
        streams: bool,
    ) {
        let step = std::ptr::from_ref(&*self.step).cast::<()>();
        // SAFETY: the vectors are those of the level that the stage was made for, whichever level is in use now, and the
        // loops are made for the step; the rest is the caller's promise.
        unsafe { function(&Round { step, source, target, steps, streams }) };
    }

    /// Returns the elements before the first aligned one; 0 where alignment does not pay or is impossible.
    fn head(&self, target: *const u8, count: usize) -> usize {
        if count < ALIGNED_STORES {
            return 0;
        }
        let bytes = target.align_offset(V::BYTES);
        if bytes.is_multiple_of(self.to) { bytes / self.to } else { 0 }
    }
}

// SAFETY: whole registers and the parts before and after them are all elements.
unsafe impl<V: Vector> Stage for InRounds<V> {
    /// Elements that do not fill registers pass through padded ones in memory, so that all steps are one piece of code.
    /// They are read before other results are written, because the target may be the source.
    unsafe fn run(&self, _level: Level, Span { source, target, count, .. }: Span) {
        let Self { from, to, vectors, .. } = *self;
        let head = self.head(target, count);
        let whole = count - (count - head) % V::BYTES;
        let part = |start: usize| (source.wrapping_add(start * from), target.wrapping_add(start * to));
        let (first, aligned) = part(head);
        let streams = streams::<V>(first, aligned, count * (from + to));
        let (mut elements, mut results) = (Room::uninit(), Room::uninit());
        let (elements, results) = (elements.as_mut_ptr().cast::<u8>(), results.as_mut_ptr().cast::<u8>());
        let parts = [(0, head), (whole, count - whole)];
        let mut padded = 0;
        // SAFETY: the vectors are there; the caller vouches for `count` elements at the pointers. There is room for both
        // parts, whose registers are filled before a step reads them.
        unsafe {
            for (start, count) in parts.into_iter().filter(|part| part.1 > 0) {
                let room = elements.add(padded * V::BYTES * from);
                let (source, bytes) = (part(start).0, count * from);
                vectors.run(Pad { source, bytes, room, registers: from, _vectors: vectors });
                padded += 1;
            }
            if whole > head {
                let steps = (whole - head) / V::BYTES;
                self.run_loop(self.plain, first, aligned, steps, streams);
            }
            if padded == 0 {
                return;
            }
            self.run_loop(self.plain, elements, results, padded, false);
            padded = 0;
            for (start, count) in parts.into_iter().filter(|part| part.1 > 0) {
                let room = results.add(padded * V::BYTES * to).cast_const();
                vectors.run(Unpad { room, target: part(start).1, bytes: count * to, _vectors: vectors });
                padded += 1;
            }
        }
    }

    unsafe fn run_with_zeros(&self, _level: Level, Span { source, target, count, .. }: Span) -> usize {
        let Some(with_zeros) = self.with_zeros else { return 0 };
        let steps = count / V::BYTES;
        if steps > 0 {
            let streams = streams::<V>(source, target, count * (self.from + 2 * self.to));
            // SAFETY: the caller's promise, for whole registers.
            unsafe { self.run_loop(with_zeros, source, target, steps, streams) };
        }
        steps * V::BYTES
    }

    fn aligns(&self, _count: usize) -> bool {
        true
    }

    fn name(&self) -> String {
        short_name(&format!("InSteps<{}, {}, {}>", type_name::<V>(), self.name, self.to))
    }
}
