//! Integers and bools to formats stored in one byte, wrapped: the low bits, or for bool whether any bit is set.

use super::stage::{Span, Stage, Storage};
use crate::codec::decode::IntegerValue;
use crate::codec::lane::Lane;
use crate::cpu::{Level, RawKernel};
use crate::format::{Format, Kind};

/// The constants of one pair.
struct Wrap<S, const TRUTH: bool> {
    value: IntegerValue<S>,
    code_mask: u8,
}

struct WrapLoop<S, const TRUTH: bool>(IntegerValue<S>, u8, Span);

impl<S: Lane + Storage, const TRUTH: bool> RawKernel for WrapLoop<S, TRUTH> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self(value, code_mask, Span { source, target, count, .. }) = self;
        let source = source.cast::<S>();
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe {
                let code = source.add(i).read_unaligned();
                // Only formats stored in one byte have unused bits.
                let whole = if size_of::<S>() == 1 { value.of(code) } else { code };
                let wrapped =
                    if TRUTH { u8::from(whole != S::ZERO) } else { whole.to_u64() as u8 & code_mask };
                target.add(i).write(wrapped);
            }
        }
    }
}

// SAFETY: the loop writes one result for each element.
unsafe impl<S: Lane + Storage, const TRUTH: bool> Stage for Wrap<S, TRUTH> {
    unsafe fn run(&self, level: Level, span: Span) {
        // SAFETY: the caller's promise.
        unsafe { level.run_raw(WrapLoop::<S, TRUTH>(self.value, self.code_mask, span)) };
    }
}

fn from<S: Lane + Storage>(source: Format, target: Format) -> Box<dyn Stage> {
    let value = IntegerValue::new(source.row());
    let code_mask = u8::MAX >> (u8::BITS - target.row().bits);
    match target.kind() {
        Kind::Bool => Box::new(Wrap::<S, true> { value, code_mask }),
        _ => Box::new(Wrap::<S, false> { value, code_mask }),
    }
}

/// Makes the stage for a pair of integer formats, if the target is stored in one byte.
pub(crate) fn stage(source: Format, target: Format) -> Option<Box<dyn Stage>> {
    if target.item_size() > 1 {
        return None;
    }
    match source.item_size() {
        1 => Some(from::<u8>(source, target)),
        2 => Some(from::<u16>(source, target)),
        4 => Some(from::<u32>(source, target)),
        8 => Some(from::<u64>(source, target)),
        _ => None,
    }
}
