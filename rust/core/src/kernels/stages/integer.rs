//! Integers and bools to integers and bools: no rounding, so no pivot; wrapped or clamped in lanes as wide as the
//! wider end.

use std::marker::PhantomData;

use super::stage::{Elements, Span, SpanLoop, Stage, Storage};
use crate::codec::decode::IntegerValue;
use crate::codec::encode::{INEXACT, OVERFLOW};
use crate::codec::lane::Lane;
use crate::codec::options::Overflow;
use crate::format::{Format, Kind};

/// The constants of one pair.
#[derive(Clone, Copy)]
struct Rule<L> {
    value: IntegerValue<L>,
    /// Combined with values by exclusive or, makes unsigned comparison order them: the sign bit, for signed sources.
    flip: L,
    /// The target's range within the source's, in that order.
    low: L,
    high: L,
    code_mask: L,
    /// All ones if values beyond the range become the nearest limit, rather than their low bits.
    clamps: L,
}

impl<L: Lane> Rule<L> {
    fn new(source: Format, target: Format, overflow: Overflow) -> Option<Self> {
        let (low, high) = target.integer_range()?;
        let signed = source.kind() == Kind::Integer { signed: true };
        let top = L::from_i64(i64::from(L::WIDTH) - 1);
        let flip = if signed { L::ONE.shl(top) } else { L::ZERO };
        let span = 1i128 << L::WIDTH;
        let (least, most) = if signed { (-span / 2, span / 2 - 1) } else { (0, span - 1) };
        let key = |limit: i128| L::from_i64(limit.clamp(least, most) as i64) ^ flip;
        Some(Self {
            value: IntegerValue::new(source.row()),
            flip,
            low: key(low),
            high: key(high),
            code_mask: L::from_i64((u64::MAX >> (64 - target.row().bits)) as i64),
            clamps: L::mask(overflow == Overflow::Saturate),
        })
    }

    /// Returns the code of a value, and flags; with `TRUTH`, whether the value is not zero.
    #[inline(always)]
    fn apply<const TRUTH: bool>(&self, code: L) -> (L, u8) {
        let value = self.value.of(code);
        if TRUTH {
            let truth = L::select(value == L::ZERO, L::ZERO, L::ONE);
            return (truth, INEXACT * u8::from(truth != value));
        }
        let key = value ^ self.flip;
        let clamped = key.max(self.low).min(self.high);
        let kept = value ^ ((key ^ clamped) & self.clamps);
        (kept & self.code_mask, (INEXACT | OVERFLOW) * u8::from(clamped != key))
    }
}

struct Remap<L, S, T, const TRUTH: bool>(Rule<L>, PhantomData<fn(S) -> T>);

// SAFETY: the loop writes one result for each element.
unsafe impl<L: Lane + 'static, S: Storage, T: Storage, const TRUTH: bool> SpanLoop for Remap<L, S, T, TRUTH> {
    const NAME: &'static str = "Remap";

    #[inline(always)]
    unsafe fn run(&self, Span { source, target, count, flags, .. }: Span) {
        let (rule, source, target) = (self.0, source.cast::<S>(), target.cast::<T>());
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made the pointers valid.
            unsafe {
                let (code, flag) = rule.apply::<TRUTH>(source.add(i).read_unaligned().widen());
                target.add(i).write_unaligned(T::narrow(code));
                flags.add(i).write(flag);
            }
        }
    }
}

/// A request for a stage.
#[derive(Clone, Copy)]
struct Pair {
    source: Format,
    target: Format,
    overflow: Overflow,
}

impl Pair {
    fn from<S: Storage + Lane>(self) -> Option<Box<dyn Stage>> {
        if self.target.kind() == Kind::Bool {
            return self.by::<S, S, u8, true>();
        }
        match self.target.item_size() {
            1 => self.to::<S, u8>(),
            2 => self.to::<S, u16>(),
            4 => self.to::<S, u32>(),
            8 => self.to::<S, u64>(),
            _ => None,
        }
    }

    fn to<S: Storage + Lane, T: Storage + Lane>(self) -> Option<Box<dyn Stage>> {
        if const { size_of::<S>() < size_of::<T>() } {
            self.by::<T, S, T, false>()
        } else {
            self.by::<S, S, T, false>()
        }
    }

    fn by<L: Lane + 'static, S: Storage, T: Storage, const TRUTH: bool>(self) -> Option<Box<dyn Stage>> {
        let rule = Rule::<L>::new(self.source, self.target, self.overflow)?;
        Some(Elements::boxed(Remap::<L, S, T, TRUTH>(rule, PhantomData)))
    }
}

/// Makes the stage for a pair of integer formats; it flags values beyond the range.
pub(crate) fn stage(source: Format, target: Format, overflow: Overflow) -> Option<Box<dyn Stage>> {
    let pair = Pair { source, target, overflow };
    match source.item_size() {
        1 => pair.from::<u8>(),
        2 => pair.from::<u16>(),
        4 => pair.from::<u32>(),
        8 => pair.from::<u64>(),
        _ => None,
    }
}
