//! Sources of a byte: what becomes of each of the 256, found by the plan for any source.

use super::lookup;
use crate::cast::layout::Layout;
use crate::cast::plan::Plan;
use crate::cast::request::Request;
use crate::cast::run::{Job, Memory, Search};
use crate::cast::stages::stage::{Span, Stage};
use crate::codec::options::Rounding;
use crate::cpu::{Level, RawKernel};

/// Codes of a byte.
const CODES: usize = 1 << u8::BITS;

/// From this many elements on, it pays to make a table for one call.
const PAYS_FROM: usize = 1 << 12;

/// What becomes of each code, byte by byte: the planes of the results' first to last byte.
pub(super) struct Table {
    pub(super) planes: [[u8; CODES]; size_of::<u64>()],
}

impl Table {
    /// Runs the plan, which draws nothing, on every code; `factor` is what it multiplies them by, if it does.
    pub(super) fn new(plan: &Plan, factor: f64) -> Self {
        let codes: [u8; CODES] = std::array::from_fn(|code| code as u8);
        let mut results = [0u64; CODES];
        let layout = Layout::dense(CODES, 1, plan.target_size);
        let memory = Memory {
            source: codes.as_ptr(),
            target: results.as_mut_ptr().cast(),
            scale: (&raw const factor).cast(),
            source_swapped: false,
            target_swapped: false,
            real_to_complex: false,
        };
        let job =
            Job { plan, layout: &layout, memory, level: plan.level, search: Search::default(), dry: false };
        // SAFETY: there are as many codes, room for results of up to 8 bytes, and one factor, which the layout's
        // stride of 0 gives to all.
        unsafe { job.run(0, CODES) };
        let mut planes = [[0; CODES]; size_of::<u64>()];
        let bytes = results.map(u64::to_ne_bytes);
        for (code, result) in bytes.as_flattened().chunks_exact(plan.target_size).take(CODES).enumerate() {
            for (plane, &byte) in planes.iter_mut().zip(result) {
                plane[code] = byte;
            }
        }
        Self { planes }
    }

    /// The results, of as many bytes as a word of this type.
    fn words<T: Word>(&self) -> [T; CODES] {
        std::array::from_fn(|code| T::of(self.planes.map(|plane| plane[code])))
    }
}

/// The stage for a request with one factor that a plan has been found for, where there are so many elements that a table
/// of their own pays.
pub(in crate::cast) fn stage(request: &Request, plan: &Plan) -> Option<Box<dyn Stage>> {
    let Request { source, scaled, factor, count, .. } = *request;
    let draws = request.rounding() == Rounding::Stochastic;
    if !scaled || draws || request.watched() || source.item_size() != 1 || count < PAYS_FROM {
        return None;
    }
    let table = Table::new(plan, factor?);
    if let Some(stage) = lookup::once(&table, plan.target_size, plan.level) {
        return Some(stage);
    }
    Some(match plan.target_size {
        1 => Box::new(Each(table.words::<u8>())),
        2 => Box::new(Each(table.words::<u16>())),
        4 => Box::new(Each(table.words::<u32>())),
        _ => Box::new(Each(table.words::<u64>())),
    })
}

/// A result.
trait Word: Copy + Send + Sync + 'static {
    /// From its bytes in memory, and others.
    fn of(bytes: [u8; size_of::<u64>()]) -> Self;
}

macro_rules! word {
    ($($word:ty)*) => {$(
        impl Word for $word {
            fn of(bytes: [u8; size_of::<u64>()]) -> Self {
                Self::from_ne_bytes(std::array::from_fn(|place| bytes[place]))
            }
        }
    )*};
}
word!(u8 u16 u32 u64);

/// One by one.
struct Each<T>([T; CODES]);

struct EachLoop<'a, T>(&'a [T; CODES], Span);

impl<T: Word> RawKernel for EachLoop<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self(table, Span { source, target, count, .. }) = self;
        let target = target.cast::<T>();
        for i in 0..count {
            // SAFETY: `i < count`, for which `Stage::run`'s caller has made both pointers valid.
            unsafe { target.add(i).write_unaligned(table[usize::from(source.add(i).read())]) };
        }
    }
}

// SAFETY: the loop writes one result for each element.
unsafe impl<T: Word> Stage for Each<T> {
    unsafe fn run(&self, level: Level, span: Span) {
        // SAFETY: the caller's promise.
        unsafe { level.run_raw(EachLoop(&self.0, span)) };
    }
}
