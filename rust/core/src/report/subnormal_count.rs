//! Counts results below the normal range of a target, by their codes.

use num_traits::{AsPrimitive, PrimInt};

use crate::cpu::{Level, RawKernel};
use crate::format::Format;
use crate::kernels::tile::TILE;

/// The codes of results below the normal range.
pub(super) struct SubnormalCount {
    /// The bits of a magnitude, whose order is that of numbers.
    mask: u32,
    /// The code of the smallest normal number.
    normal: u32,
    /// Bytes of a code.
    size: usize,
}

impl SubnormalCount {
    /// Makes it for signed floats, and for integers, which are normal but for zero.
    pub(super) fn new(target: Format) -> Self {
        let float = target.float();
        Self {
            mask: float.map_or(u32::MAX, |spec| spec.magnitude_mask() as u32),
            normal: float.map_or(1, |spec| 1 << spec.mantissa_bits),
            size: target.item_size(),
        }
    }

    /// Counts results below the normal range, and those of zero, but for those at some indices.
    ///
    /// # Safety
    /// `count` codes, at most a tile, are readable, and the indices are below the count.
    pub(super) unsafe fn count(
        &self,
        level: Level,
        codes: *const u8,
        count: usize,
        outside: &[u16],
    ) -> [u32; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            match self.size {
                1 => self.count_codes::<u8, 64>(level, codes, count, outside),
                2 => self.count_codes::<u16, 32>(level, codes.cast(), count, outside),
                _ => self.count_codes::<u32, 16>(level, codes.cast(), count, outside),
            }
        }
    }

    /// # Safety
    /// As for [`SubnormalCount::count`].
    unsafe fn count_codes<C: Code, const LANES: usize>(
        &self,
        level: Level,
        codes: *const C,
        count: usize,
        outside: &[u16],
    ) -> [u32; 2]
    where
        u32: AsPrimitive<C>,
    {
        let (mask, normal) = (self.mask.as_(), self.normal.as_());
        // With vectors of 256 bits, as this is a small part of what a tile takes.
        // SAFETY: the caller's promise.
        let mut counts = unsafe { level.run_moves(CodeCount::<C, LANES> { codes, count, mask, normal }) };
        for &index in outside {
            // SAFETY: the caller's promise.
            let code = unsafe { codes.add(index.into()).read_unaligned() } & mask;
            counts[0] -= u32::from(code < normal);
            counts[1] -= u32::from(code == C::zero());
        }
        counts
    }
}

/// Codes of results.
trait Code: PrimInt + From<bool> + Into<u32> + 'static {}

impl Code for u8 {}
impl Code for u16 {}
impl Code for u32 {}

/// Counts in as many lanes as two registers have.
struct CodeCount<C, const LANES: usize> {
    codes: *const C,
    count: usize,
    mask: C,
    normal: C,
}

impl<C: Code, const LANES: usize> RawKernel for CodeCount<C, LANES> {
    type Output = [u32; 2];

    #[inline(always)]
    unsafe fn run(self) -> [u32; 2] {
        // Sums in lanes of bytes stay below 256.
        const { assert!(TILE / LANES < 1 << u8::BITS) };
        let Self { codes, count, mask, normal } = self;
        let (mut below, mut zeros) = ([C::zero(); LANES], [C::zero(); LANES]);
        let mut add = |place: usize, lane: usize| {
            // SAFETY: the caller's promise: the place is below the count.
            let code = unsafe { codes.add(place).read_unaligned() } & mask;
            below[lane] = below[lane] + <C as From<bool>>::from(code < normal);
            zeros[lane] = zeros[lane] + <C as From<bool>>::from(code == C::zero());
        };
        let whole = count / LANES * LANES;
        for start in (0..whole).step_by(LANES) {
            for lane in 0..LANES {
                add(start + lane, lane);
            }
        }
        for place in whole..count {
            add(place, place - whole);
        }
        [below, zeros].map(|lanes| lanes.into_iter().map(Into::<u32>::into).sum())
    }
}
