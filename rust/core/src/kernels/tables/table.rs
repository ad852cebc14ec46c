//! Tables with the result of each of the 256 codes of a source of one byte.

use crate::codec::options::Rounding;
use crate::codec::scalar::Scalar;
use crate::cpu::{Level, RawKernel};
use crate::kernels::request::Request;
use crate::kernels::stages::stage::{Span, Stage};
use crate::plain::Plain;

/// Codes of a byte.
const CODES: usize = 1 << u8::BITS;

/// The results of all codes, as planes: the first bytes of all results, then the second ones, and so on.
pub(super) struct Table {
    pub(super) planes: [[u8; CODES]; size_of::<u64>()],
}

impl Table {
    /// Makes the table of a request whose source has one byte; `None` for stochastic rounding and for factors that
    /// differ.
    pub(super) fn new(request: &Request) -> Option<Self> {
        let Request { source, target, scaled, factor, .. } = *request;
        let rounding = request.rounding();
        if source.item_size() != 1 || rounding == Rounding::Stochastic || (scaled && factor.is_none()) {
            return None;
        }
        let scalar = Scalar::new((source, target), &request.options, rounding, factor.unwrap_or(1.0))?;
        // The low bytes of the result, in memory order.
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

    /// Returns whether results of this size have only their last two bytes set.
    pub(super) fn sets_last_two(&self, size: usize) -> bool {
        self.planes[..size.saturating_sub(2)].iter().flatten().all(|&byte| byte == 0)
    }

    /// Makes the stage that looks results of this size up one by one.
    pub(super) fn one_by_one(&self, size: usize) -> Box<dyn Stage> {
        match size {
            1 => Box::new(Each(self.entries::<u8>())),
            2 => Box::new(Each(self.entries::<u16>())),
            4 => Box::new(Each(self.entries::<u32>())),
            _ => Box::new(Each(self.entries::<u64>())),
        }
    }

    /// Returns the results, each of this type.
    fn entries<T: Plain>(&self) -> [T; CODES] {
        const { assert!(size_of::<T>() <= size_of::<u64>(), "there is a plane for each byte") };
        std::array::from_fn(|code| {
            let bytes = self.planes.map(|plane| plane[code]);
            // SAFETY: there are as many bytes, and all of them are valid values by `Plain`.
            unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
        })
    }
}

fn with_padding<const SIZE: usize>(bytes: [u8; SIZE]) -> [u8; size_of::<u64>()] {
    std::array::from_fn(|place| bytes.get(place).copied().unwrap_or(0))
}

/// Looks results up one by one.
struct Each<T>([T; CODES]);

struct EachLoop<'a, T>(&'a [T; CODES], Span);

impl<T: Plain> RawKernel for EachLoop<'_, T> {
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
unsafe impl<T: Plain> Stage for Each<T> {
    unsafe fn run(&self, level: Level, span: Span) {
        level.run_raw(EachLoop(&self.0, span));
    }
}
