//! The loops over elements. Each is one stage of a route: from source bytes to pivot lanes, or from pivot lanes to
//! target bytes.
//!
//! Elements are read and written through raw pointers: the memory belongs to a host whose other threads may write
//! to it meanwhile, so no reference to it may exist. A racing write can change which value is cast, nothing else.

use std::marker::PhantomData;

use crate::codec::decode::Decoder;
use crate::codec::encode::Encoder;
use crate::codec::lane::Lane;
use crate::codec::pivot::{Binary64, Pivot};
use crate::codec::product::{Factor, Product, odd_product};
use crate::cpu::{Kernel, Level};

/// What one call of a stage reads and writes: `count` elements at each pointer that the stage uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    pub(crate) count: usize,
    /// One factor per element, for stages that scale.
    pub(crate) scales: *const f64,
    /// One draw per element as wide as a lane, for stochastic rounding.
    pub(crate) draws: *const u8,
    /// One byte per element, for stages that tell what happened.
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
pub(crate) trait Stage: Send + Sync {
    /// Runs it.
    ///
    /// # Safety
    /// Every pointer of the span that the stage uses is valid for `count` elements of its type; the target may be
    /// the source itself, but they do not overlap otherwise.
    unsafe fn run(&self, level: Level, span: Span);

    /// Whether it looks itself after how results reach memory: that stores to long targets are aligned.
    fn aligns(&self) -> bool {
        false
    }
}

/// How a code lies in memory.
pub(crate) trait Storage: Copy + Send + Sync + 'static {
    fn widen<L: Lane>(self) -> L;
    fn narrow<L: Lane>(lane: L) -> Self;
}

macro_rules! storage {
    ($($word:ty),*) => {$(
        impl Storage for $word {
            #[inline(always)]
            fn widen<L: Lane>(self) -> L {
                L::from_i64(self as i64)
            }
            #[inline(always)]
            fn narrow<L: Lane>(lane: L) -> Self {
                lane.to_u64() as Self
            }
        }
    )*};
}
storage!(u8, u16, u32, u64);

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

struct DecodeLoop<L, S, D> {
    decoder: D,
    span: Span,
    types: PhantomData<fn(S) -> L>,
}

impl<L: Lane, S: Storage, D: Decoder<L>> Kernel for DecodeLoop<L, S, D> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (source, target) = (self.span.source.cast::<S>(), self.span.target.cast::<L>());
        for i in 0..self.span.count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe {
                let code = source.add(i).read_unaligned().widen();
                target.add(i).write_unaligned(self.decoder.decode(code));
            }
        }
    }
}

impl<L: Lane, S: Storage, D: Decoder<L>> Stage for Decode<L, S, D> {
    unsafe fn run(&self, level: Level, span: Span) {
        level.run(DecodeLoop { decoder: self.decoder, span, types: PhantomData::<fn(S) -> L> });
    }
}

/// Pivot lanes to target bytes; with `FLAGS`, also what happened.
pub(crate) struct Encode<P, T, E, const FLAGS: bool> {
    encoder: E,
    types: PhantomData<fn(P) -> T>,
}

impl<P, T, E, const FLAGS: bool> Encode<P, T, E, FLAGS> {
    pub(crate) fn new(encoder: E) -> Self {
        Self { encoder, types: PhantomData }
    }
}

struct EncodeLoop<P, T, E, const FLAGS: bool> {
    encoder: E,
    span: Span,
    types: PhantomData<fn(P) -> T>,
}

impl<P: Pivot, T: Storage, E: Encoder<P>, const FLAGS: bool> Kernel for EncodeLoop<P, T, E, FLAGS> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Span { source, target, count, draws, flags, .. } = self.span;
        let (source, target) = (source.cast::<P::Bits>(), target.cast::<T>());
        let draws = draws.cast::<P::Lane>();
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made the pointers valid.
            unsafe {
                let draw = if E::STOCHASTIC { draws.add(i).read().into_random() } else { 0 };
                let encoded = self.encoder.encode(source.add(i).read_unaligned(), draw);
                target.add(i).write_unaligned(T::narrow(encoded.code));
                if FLAGS {
                    flags.add(i).write(encoded.flags);
                }
            }
        }
    }
}

impl<P: Pivot, T: Storage, E: Encoder<P>, const FLAGS: bool> Stage for Encode<P, T, E, FLAGS> {
    unsafe fn run(&self, level: Level, span: Span) {
        level.run(EncodeLoop::<P, T, E, FLAGS> { encoder: self.encoder, span, types: PhantomData });
    }
}

/// Float64 lanes times their scales, in place, rounded to odd.
pub(crate) struct Scale;

struct ScaleLoop(Span);

impl Kernel for ScaleLoop {
    type Output = ();

    #[inline(always)]
    fn run(self) {
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

impl Stage for Scale {
    unsafe fn run(&self, level: Level, span: Span) {
        level.run(ScaleLoop(span));
    }
}

/// Pivot lanes and their scales to target bytes, through the exact product. There is nothing in 128-bit arithmetic
/// for vectors, so it is compiled once.
pub(crate) struct EncodeProduct<P, T, E> {
    encoder: E,
    types: PhantomData<fn(P) -> T>,
}

impl<P, T, E> EncodeProduct<P, T, E> {
    pub(crate) fn new(encoder: E) -> Self {
        Self { encoder, types: PhantomData }
    }
}

impl<P, T, E> Stage for EncodeProduct<P, T, E>
where
    P: Pivot<Bits = u64, Lane = u64>,
    T: Storage,
    E: Encoder<Product>,
{
    unsafe fn run(&self, _level: Level, span: Span) {
        let (source, target) = (span.source.cast::<u64>(), span.target.cast::<T>());
        for i in 0..span.count {
            // SAFETY: `i < count`, for which the caller has made the pointers valid.
            unsafe {
                let draw = if E::STOCHASTIC { span.draws.cast::<u64>().add(i).read() } else { 0 };
                let x = Factor::of::<P>(source.add(i).read_unaligned());
                let scale = Factor::of::<Binary64>(span.scales.add(i).read().to_bits());
                let encoded = self.encoder.encode((x, scale), draw);
                target.add(i).write_unaligned(T::narrow(encoded.code));
                span.flags.add(i).write(encoded.flags);
            }
        }
    }
}
