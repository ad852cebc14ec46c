//! Sources of a byte: what becomes of each of the 256 codes, in tables.

use crate::codec::options::Rounding;
use crate::codec::scalar::Scalar;
use crate::cpu::{Level, RawKernel};
use crate::kernels::request::Request;
use crate::kernels::stages::stage::{Span, Stage};

/// Codes of a byte.
const CODES: usize = 1 << u8::BITS;

/// What becomes of each code, byte by byte: the planes of the results' first to last byte.
pub(super) struct Table {
    pub(super) planes: [[u8; CODES]; size_of::<u64>()],
}

impl Table {
    /// The table of a request whose sources are bytes; `None` for one that draws, or whose factors differ.
    pub(super) fn new(request: &Request) -> Option<Self> {
        let Request { source, target, scaled, factor, .. } = *request;
        let rounding = request.rounding();
        if source.item_size() != 1 || rounding == Rounding::Stochastic || (scaled && factor.is_none()) {
            return None;
        }
        let scalar = Scalar::new((source, target), &request.options, rounding, factor.unwrap_or(1.0))?;
        // In the memory's order of bytes, the low ones of the result.
        let bytes = |code: u64| match target.item_size() {
            1 => u64::from(code as u8).to_le_bytes(),
            2 => with_padding((code as u16).to_ne_bytes()),
            4 => with_padding((code as u32).to_ne_bytes()),
            _ => code.to_ne_bytes(),
        };
        let mut planes = [[0; CODES]; size_of::<u64>()];
        for code in 0..CODES {
            for (plane, byte) in planes.iter_mut().zip(bytes(scalar.convert(code as u64).code)) {
                plane[code] = byte;
            }
        }
        Some(Self { planes })
    }

    /// The stage that takes results of this size one by one.
    pub(super) fn one_by_one(&self, size: usize) -> Box<dyn Stage> {
        match size {
            1 => Box::new(Each(self.entries::<u8>())),
            2 => Box::new(Each(self.entries::<u16>())),
            4 => Box::new(Each(self.entries::<u32>())),
            _ => Box::new(Each(self.entries::<u64>())),
        }
    }

    /// The results, of as many bytes as a word of this type.
    fn entries<T: Entry>(&self) -> [T; CODES] {
        std::array::from_fn(|code| T::of(self.planes.map(|plane| plane[code])))
    }
}

fn with_padding<const SIZE: usize>(bytes: [u8; SIZE]) -> [u8; size_of::<u64>()] {
    std::array::from_fn(|place| bytes.get(place).copied().unwrap_or(0))
}

/// A result.
trait Entry: Copy + Send + Sync + 'static {
    /// From its bytes in memory, and others.
    fn of(bytes: [u8; size_of::<u64>()]) -> Self;
}

macro_rules! entry {
    ($($type:ty)*) => {$(
        impl Entry for $type {
            fn of(bytes: [u8; size_of::<u64>()]) -> Self {
                Self::from_ne_bytes(std::array::from_fn(|place| bytes[place]))
            }
        }
    )*};
}
entry!(u8 u16 u32 u64);

/// One by one.
struct Each<T>([T; CODES]);

struct EachLoop<'a, T>(&'a [T; CODES], Span);

impl<T: Entry> RawKernel for EachLoop<'_, T> {
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
unsafe impl<T: Entry> Stage for Each<T> {
    unsafe fn run(&self, level: Level, span: Span) {
        // SAFETY: the caller's promise.
        unsafe { level.run_raw(EachLoop(&self.0, span)) };
    }
}
