//! Stages: loops over elements, from source bytes to pivot lanes or from pivot lanes to target bytes.
//!
//! Elements are read and written through raw pointers: the memory belongs to a host, which has pointers to it of its own,
//! so no reference to it may exist. While another thread of the host writes there, no call is sound: that is a data race, for
//! which Rust defines no result. It is the host's to prevent, as for its own functions.

use std::any::type_name;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use num_traits::{AsPrimitive, Unsigned};

use crate::codec::decode::Decoder;
use crate::codec::encode::Encoder;
use crate::codec::lane::Lane;
use crate::codec::pivot::{Binary64, Pivot};
use crate::codec::product::{Factor, Product, odd_product};
use crate::cpu::{InstructionSet, Level, Owner, RawKernel};
use crate::plain::Plain;

/// The memory of one call of a stage: `count` elements at each pointer that the stage uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    pub(crate) count: usize,
    /// One factor per element, for stages that scale.
    pub(crate) scales: *const f64,
    /// One draw per element as wide as a lane, for stochastic rounding.
    pub(crate) draws: *const u8,
    /// One byte per element, for stages that write flags.
    pub(crate) flags: *mut u8,
}

impl Span {
    /// No elements, nowhere.
    pub(crate) const EMPTY: Self = Self {
        source: std::ptr::null(),
        target: std::ptr::null_mut(),
        count: 0,
        scales: std::ptr::null(),
        draws: std::ptr::null(),
        flags: std::ptr::null_mut(),
    };
}

/// A loop that maps each element of a span.
///
/// # Safety
/// It writes all results and reads none: targets may be uninitialized.
pub(crate) unsafe trait Stage: Send + Sync {
    /// Runs it. Loops over single elements are compiled for `level`; those of vectors have theirs in their type.
    ///
    /// # Safety
    /// Every pointer of the span that the stage uses is valid for `count` elements of its type; the target may be
    /// the source itself, but they do not overlap otherwise.
    unsafe fn run(&self, level: Level, span: Span);

    /// Runs it for the first elements, with a zero as wide as a result after each; returns how many it has written.
    ///
    /// # Safety
    /// As for [`Stage::run`], with results of twice the size.
    unsafe fn run_with_zeros(&self, _level: Level, _span: Span) -> usize {
        0
    }

    /// Returns whether it aligns its stores to long targets of so many elements by itself.
    fn aligns(&self, _count: usize) -> bool {
        false
    }

    /// Returns the name of its type.
    fn name(&self) -> String {
        short_name(type_name::<Self>())
    }
}

/// A loop over the single elements of a span.
///
/// # Safety
/// As for [`Stage`].
pub(crate) unsafe trait SpanLoop: Send + Sync + 'static {
    /// The name of its type without parameters, whose names would be 45 KB.
    const NAME: &'static str;
    /// Whether it is compiled for one level only: rare ones, and those that the others have vectors for.
    const PORTABLE: bool = false;

    /// Runs it; always inlined. It may write over the elements, but not over itself.
    ///
    /// # Safety
    /// As for [`Stage::run`].
    unsafe fn run(&self, span: Span);
}

/// Any loop or step, whose type only its functions know.
pub(crate) trait Opaque: Send + Sync {}

impl<T: Send + Sync> Opaque for T {}

/// What the functions of loops take.
struct Call<'a> {
    /// Of the type that the function is for.
    constants: *const (),
    /// By reference: a copy would wait for the parts that its caller has just written.
    span: &'a Span,
}

/// A loop on a level.
#[repr(transparent)]
struct OnLevel<'a, L>(&'a Call<'a>, PhantomData<L>);

impl<L: SpanLoop> RawKernel for OnLevel<'_, L> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let &Call { constants, span } = self.0;
        // SAFETY: `Elements::run` calls the function of the loop's own type; the rest is the caller's promise.
        unsafe { (*constants.cast::<L>()).run(*span) };
    }
}

/// The stage of a loop over single elements. One type for all of them, of which there are hundreds.
pub(crate) struct Elements {
    /// The loop.
    constants: Box<dyn Opaque>,
    functions: [unsafe fn(&Call<'_>); InstructionSet::COUNT],
    /// Of the loop.
    name: &'static str,
}

impl Elements {
    pub(crate) fn new<L: SpanLoop>(elements: L) -> Self {
        let functions = if L::PORTABLE {
            let portable: unsafe fn(_) = <L as Owner<OnLevel<'_, L>>>::portable;
            [portable; InstructionSet::COUNT]
        } else {
            Level::functions::<L, OnLevel<'_, L>>()
        };
        // SAFETY: a loop on a level has the layout, and is passed like, the reference that it is made of.
        let functions = functions
            .map(|function| unsafe { std::mem::transmute::<unsafe fn(_), unsafe fn(&Call<'_>)>(function) });
        Self { constants: Box::new(elements), functions, name: L::NAME }
    }

    pub(crate) fn boxed<L: SpanLoop>(elements: L) -> Box<dyn Stage> {
        Self::new(elements).into_stage()
    }

    #[inline(never)]
    fn into_stage(self) -> Box<dyn Stage> {
        Box::new(self)
    }
}

// SAFETY: loops write one result for each element.
unsafe impl Stage for Elements {
    unsafe fn run(&self, level: Level, span: Span) {
        let constants = std::ptr::from_ref(&*self.constants).cast::<()>();
        // SAFETY: the level is there, and the function is for the type of the loop; the rest is the caller's promise.
        unsafe { self.functions[level.set() as usize](&Call { constants, span: &span }) };
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}

/// Returns a type's name without the paths of its modules.
pub(crate) fn short_name(name: &str) -> String {
    let mut short = String::new();
    let mut word = 0;
    for letter in name.chars() {
        if letter == ':' {
            short.truncate(word);
        } else {
            short.push(letter);
            if !letter.is_alphanumeric() && letter != '_' {
                word = short.len();
            }
        }
    }
    short
}

/// A type that codes have in memory.
pub(crate) trait Storage: Plain {
    fn widen<L: Lane>(self) -> L;
    fn narrow<L: Lane>(lane: L) -> Self;
}

impl<T: Plain + Unsigned + AsPrimitive<i64>> Storage for T
where
    u64: AsPrimitive<T>,
{
    #[inline(always)]
    fn widen<L: Lane>(self) -> L {
        L::from_i64(self.as_())
    }
    #[inline(always)]
    fn narrow<L: Lane>(lane: L) -> Self {
        lane.to_u64().as_()
    }
}

/// Source bytes to pivot lanes.
pub(crate) struct Decode<L, S, D> {
    decoder: D,
    types: PhantomData<fn(S) -> L>,
}

impl<L, S, D> Decode<L, S, D> {
    pub(crate) fn new(decoder: D) -> Self {
        Self { decoder, types: PhantomData }
    }
}

// SAFETY: the loop writes one result for each element.
unsafe impl<L: Lane + 'static, S: Storage, D: Decoder<L> + 'static> SpanLoop for Decode<L, S, D> {
    const NAME: &'static str = "Decode";

    #[inline(always)]
    unsafe fn run(&self, span: Span) {
        let (decoder, source, target) = (self.decoder, span.source.cast::<S>(), span.target.cast::<L>());
        for i in 0..span.count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe {
                let code = source.add(i).read_unaligned().widen();
                target.add(i).write_unaligned(decoder.decode(code));
            }
        }
    }
}

/// Elements per block: their codes pass through a buffer of lanes.
const BLOCK: usize = 512;

/// Pivot lanes to codes as wide, with flags if the encoder gives them.
struct Encode<P, E> {
    encoder: E,
    pivot: PhantomData<P>,
}

// SAFETY: the loop writes one result for each element.
unsafe impl<P: Pivot<Bits: Plain> + 'static, E: Encoder<P> + 'static> SpanLoop for Encode<P, E> {
    const NAME: &'static str = "Encode";
    // Rare encoders, and those that vectors do not help.
    const PORTABLE: bool = !P::IN_VECTORS || (E::STOCHASTIC && E::TELLS);

    #[inline(always)]
    unsafe fn run(&self, span: Span) {
        let Span { source, target, count, draws, flags, .. } = span;
        let (encoder, source, target) = (self.encoder, source.cast::<P::Bits>(), target.cast::<P::Lane>());
        let draws = draws.cast::<P::Lane>();
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made the pointers valid.
            unsafe {
                let draw = if E::STOCHASTIC { draws.add(i).read().into_random() } else { 0 };
                let encoded = encoder.encode(source.add(i).read_unaligned(), draw);
                target.add(i).write_unaligned(encoded.code);
                if E::TELLS {
                    flags.add(i).write(encoded.flags);
                }
            }
        }
    }
}

/// The low bytes of lanes.
struct NarrowLoop<L, T>(Span, PhantomData<fn(L) -> T>);

impl<L: Lane, T: Storage> RawKernel for NarrowLoop<L, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Span { source, target, count, .. } = self.0;
        let (source, target) = (source.cast::<L>(), target.cast::<T>());
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made the pointers valid.
            unsafe { target.add(i).write_unaligned(T::narrow(source.add(i).read())) };
        }
    }
}

/// Pivot lanes to target bytes, block by block.
pub(crate) struct InBlocks {
    encode: Elements,
    /// Bytes of an element, and of a code: as a lane, and in memory.
    from: usize,
    lane: usize,
    to: usize,
}

impl InBlocks {
    pub(crate) fn boxed<P: Pivot<Bits: Plain> + 'static, E: Encoder<P> + 'static>(
        encoder: E,
        to: usize,
    ) -> Box<dyn Stage> {
        let encode = Elements::new(Encode::<P, E> { encoder, pivot: PhantomData });
        Self { encode, from: size_of::<P::Bits>(), lane: size_of::<P::Lane>(), to }.into_stage()
    }

    #[inline(never)]
    fn into_stage(self) -> Box<dyn Stage> {
        Box::new(self)
    }
}

// SAFETY: the loops write one result for each element, block by block.
unsafe impl Stage for InBlocks {
    unsafe fn run(&self, level: Level, span: Span) {
        let Self { encode, from, lane, to } = self;
        let mut codes = MaybeUninit::<[u64; BLOCK]>::uninit();
        let mut no_flags = MaybeUninit::<[u8; BLOCK]>::uninit();
        for start in (0..span.count).step_by(BLOCK) {
            let count = BLOCK.min(span.count - start);
            let flags = if span.flags.is_null() {
                no_flags.as_mut_ptr().cast()
            } else {
                span.flags.wrapping_add(start)
            };
            let source = span.source.wrapping_add(start * from);
            let target = span.target.wrapping_add(start * to);
            let draws = span.draws.wrapping_add(start * lane);
            let span = Span { source, target, count, draws, flags, scales: std::ptr::null() };
            // One pointer for both: it stays valid while the other is in use.
            let codes = codes.as_mut_ptr().cast::<u8>();
            let narrow = Span { source: codes.cast_const(), ..span };
            let wide = Span { target: codes, ..span };
            // SAFETY: the caller's promise, for some of the elements; the buffers have room for as many.
            unsafe {
                if to == lane {
                    encode.run(level, span);
                    continue;
                }
                encode.run(level, wide);
                match (lane, to) {
                    (4, 1) => level.run_raw(NarrowLoop::<u32, u8>(narrow, PhantomData)),
                    (4, _) => level.run_raw(NarrowLoop::<u32, u16>(narrow, PhantomData)),
                    (_, 1) => level.run_raw(NarrowLoop::<u64, u8>(narrow, PhantomData)),
                    (_, 2) => level.run_raw(NarrowLoop::<u64, u16>(narrow, PhantomData)),
                    _ => level.run_raw(NarrowLoop::<u64, u32>(narrow, PhantomData)),
                }
            }
        }
    }

    fn name(&self) -> String {
        self.encode.name()
    }
}

/// Float64 lanes times their scales, in place, rounded to odd.
pub(crate) struct Scale;

struct ScaleLoop(Span);

impl RawKernel for ScaleLoop {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let lanes = self.0.target.cast::<f64>();
        for i in 0..self.0.count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made the pointers valid.
            unsafe {
                let scaled = odd_product(lanes.add(i).read(), self.0.scales.add(i).read());
                lanes.add(i).write(scaled);
            }
        }
    }
}

// SAFETY: the loop writes one result for each element.
unsafe impl Stage for Scale {
    unsafe fn run(&self, level: Level, span: Span) {
        // SAFETY: the caller's promise.
        unsafe { level.run_raw(ScaleLoop(span)) };
    }
}

/// Lanes of 64 bits times scales to target bytes, through the exact product. Vectors have no 128-bit arithmetic, so it
/// is compiled for one level only.
pub(crate) struct EncodeProduct<E> {
    pub(crate) encoder: E,
    /// Takes a lane apart.
    pub(crate) factor: fn(u64) -> Factor,
    /// Bytes of a code in memory.
    pub(crate) size: usize,
}

// SAFETY: the loop writes one result for each element.
unsafe impl<E: Encoder<Product>> Stage for EncodeProduct<E> {
    unsafe fn run(&self, _level: Level, span: Span) {
        let source = span.source.cast::<u64>();
        for i in 0..span.count {
            // SAFETY: `i < count`, for which the caller has made the pointers valid.
            unsafe {
                let draw = if E::STOCHASTIC { span.draws.cast::<u64>().add(i).read() } else { 0 };
                let x = (self.factor)(source.add(i).read_unaligned());
                let scale = Factor::of::<Binary64>(span.scales.add(i).read().to_bits());
                let encoded = self.encoder.encode((x, scale), draw);
                let target = span.target.add(i * self.size);
                match self.size {
                    1 => target.write(encoded.code as u8),
                    2 => target.cast::<u16>().write_unaligned(encoded.code as u16),
                    4 => target.cast::<u32>().write_unaligned(encoded.code as u32),
                    _ => target.cast::<u64>().write_unaligned(encoded.code as u64),
                }
                span.flags.add(i).write(encoded.flags);
            }
        }
    }

    fn name(&self) -> String {
        "EncodeProduct".to_owned()
    }
}
