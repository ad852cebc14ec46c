//! Codes to formats stored in one byte, without rounding: integers and bools wrapped, to their low bits; and to bool,
//! whether any bit is set of those that tell a number from zero.

use std::marker::PhantomData;

use super::stage::{Elements, Span, SpanLoop, Stage, Storage};
use crate::codec::decode::IntegerValue;
use crate::codec::lane::Lane;
use crate::format::{Format, Kind, Specials};

/// A function from codes to bytes.
trait ToByte<S>: Copy + Send + Sync + 'static {
    fn byte(self, code: S) -> u8;
}

/// The low bits of an integer.
#[derive(Clone, Copy)]
struct Wrap<S> {
    value: IntegerValue<S>,
    code_mask: u8,
}

impl<S: Lane> ToByte<S> for Wrap<S> {
    #[inline(always)]
    fn byte(self, code: S) -> u8 {
        // Only formats stored in one byte have unused bits.
        let whole = if size_of::<S>() == 1 { self.value.of(code) } else { code };
        whole.to_u64() as u8 & self.code_mask
    }
}

/// Whether any bit is set: of the mask, or of all.
#[derive(Clone, Copy)]
struct Truth<S, const MASKED: bool>(S);

impl<S: Lane, const MASKED: bool> ToByte<S> for Truth<S, MASKED> {
    #[inline(always)]
    fn byte(self, code: S) -> u8 {
        u8::from(if MASKED { code & self.0 } else { code } != S::ZERO)
    }
}

struct Bytes<S, F> {
    function: F,
    codes: PhantomData<fn(S)>,
}

// SAFETY: the loop writes one result for each element.
unsafe impl<S: Storage, F: ToByte<S>> SpanLoop for Bytes<S, F> {
    const NAME: &'static str = "Bytes";

    #[inline(always)]
    unsafe fn run(&self, Span { source, target, count, .. }: Span) {
        let (function, source) = (self.function, source.cast::<S>());
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe { target.add(i).write(function.byte(source.add(i).read_unaligned())) };
        }
    }
}

fn boxed<S: Storage, F: ToByte<S>>(function: F) -> Box<dyn Stage> {
    Elements::boxed(Bytes { function, codes: PhantomData })
}

fn wrap<S: Lane + Storage>(source: Format, target: Format) -> Box<dyn Stage> {
    boxed(Wrap::<S> {
        value: IntegerValue::new(source.row()),
        code_mask: u8::MAX >> (u8::BITS - target.row().bits),
    })
}

/// Makes the stage for a pair of integer formats, if the target is stored in one byte.
pub(crate) fn stage(source: Format, target: Format) -> Option<Box<dyn Stage>> {
    if target.kind() == Kind::Bool {
        return truth_stage(source);
    }
    match source.item_size() {
        _ if target.item_size() > 1 => None,
        1 => Some(wrap::<u8>(source, target)),
        2 => Some(wrap::<u16>(source, target)),
        4 => Some(wrap::<u32>(source, target)),
        8 => Some(wrap::<u64>(source, target)),
        _ => None,
    }
}

/// Makes the stage to bool from an integer or bool, or from a float of 16 bits or fewer whose zeros have no bit but the
/// sign.
pub(crate) fn truth_stage(source: Format) -> Option<Box<dyn Stage>> {
    let mask = match source.kind() {
        Kind::Integer { .. } => u64::MAX >> (u64::BITS - source.row().bits),
        // Any nonzero byte of a bool is true.
        Kind::Bool => u64::MAX,
        Kind::Float(spec) if spec.specials == Specials::Ieee => spec.magnitude_mask(),
        _ => return None,
    };
    match (source.item_size(), source.float()) {
        (1, _) => Some(boxed::<u8, _>(Truth::<_, true>(mask as u8))),
        (2, Some(_)) => Some(boxed::<u16, _>(Truth::<_, true>(mask as u16))),
        (2, None) => Some(boxed::<u16, _>(Truth::<_, false>(0))),
        (4, None) => Some(boxed::<u32, _>(Truth::<_, false>(0))),
        (8, None) => Some(boxed::<u64, _>(Truth::<_, false>(0))),
        _ => None,
    }
}
