//! A cast that is planned once and run many times, over dense elements in native byte order, on one thread.
//!
//! It may go by way of another format and round twice, as libraries do that compute in one format only.

use std::mem::MaybeUninit;

use crate::error::Error;
use crate::exec::small::SmallCast;
use crate::format::Format;
use crate::kernels::tile::TILE;
use crate::plan::Plan;

/// A plain cast, or two by way of another format.
#[allow(missing_debug_implementations, reason = "stages are loops: there is nothing to show")]
pub struct Prepared {
    first: &'static Plan,
    second: Option<&'static Plan>,
}

/// Elements of the format between two steps, of up to 16 bytes.
type Between = [MaybeUninit<[u64; 2]>; TILE];

impl Prepared {
    /// Plans the cast, by way of another format if one is named.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex to real.
    #[inline]
    pub fn new(source: Format, through: Option<Format>, target: Format) -> Result<Self, Error> {
        let (first, second) = match through {
            None => (Plan::plain(source, target)?, None),
            Some(middle) => (Plan::plain(source, middle)?, Some(Plan::plain(middle, target)?)),
        };
        Ok(Self { first, second })
    }

    /// Casts `count` dense elements.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    #[inline]
    pub unsafe fn convert(&self, source: *const u8, target: *mut u8, count: usize) {
        // SAFETY: passed on.
        unsafe {
            match self.second {
                None => SmallCast(self.first).convert(source, target, count),
                Some(second) => self.run_both(second, source, target, count),
            }
        }
    }

    /// Casts by way of the other format. A function of its own, so that single casts do not pay for its stack.
    ///
    /// # Safety
    /// As for [`Prepared::convert`].
    #[inline(never)]
    unsafe fn run_both(&self, second: &Plan, source: *const u8, target: *mut u8, count: usize) {
        let mut between: Between = [const { MaybeUninit::uninit() }; TILE];
        let middle = between.as_mut_ptr().cast::<u8>();
        for start in (0..count).step_by(TILE) {
            let count = TILE.min(count - start);
            // SAFETY: the caller's promise at both ends; the first step fills what the second reads, and a tile has
            // room for it.
            unsafe {
                SmallCast(self.first).convert(source.add(start * self.first.source_size()), middle, count);
                SmallCast(second).convert(middle, target.add(start * second.target_size()), count);
            }
        }
    }
}
