//! Reports of casts from formats of one byte, by counting how often each code occurs.

use super::cast_report::CastReport;
use super::measure::{Meter, MeterScratch};
use crate::cpu::Level;

/// Codes of a byte.
pub(super) const CODES: usize = 1 << u8::BITS;

/// From this many elements on, counting codes is faster than comparing values.
pub(super) const COUNT_FROM: usize = 1 << 14;

/// Adjacent elements are counted in different columns, so that equal codes in a row do not wait for each other.
const TURNS: usize = 4;

/// How often each code occurred.
pub(super) struct Histogram([[u64; CODES]; TURNS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([[0; CODES]; TURNS])
    }
}

impl Histogram {
    /// Counts codes.
    ///
    /// # Safety
    /// `count` of them are readable.
    pub(super) unsafe fn count(&mut self, codes: *const u8, count: usize) {
        let Self([first, second, third, fourth]) = self;
        let words = count / 8;
        for i in 0..words {
            // SAFETY: the caller's promise.
            let word = unsafe { codes.add(8 * i).cast::<u64>().read_unaligned() };
            let code = |place: u32| usize::from((word >> (8 * place)) as u8);
            for half in [0, 4] {
                first[code(half)] += 1;
                second[code(half + 1)] += 1;
                third[code(half + 2)] += 1;
                fourth[code(half + 3)] += 1;
            }
        }
        for i in 8 * words..count {
            // SAFETY: the caller's promise.
            first[usize::from(unsafe { codes.add(i).read() })] += 1;
        }
    }

    /// Adds the counted elements to a report: each code, with its result and flags, as often as it occurred.
    ///
    /// # Safety
    /// The results of all codes, of so many bytes, are readable at the pointer.
    pub(super) unsafe fn tell(
        &self,
        meter: &Meter,
        level: Level,
        (results, size): (*const u8, usize),
        flags: &[u8],
        scratch: &mut MeterScratch,
        report: &mut CastReport,
    ) {
        for (code, flag) in flags.iter().enumerate().take(CODES) {
            let times = self.0.iter().map(|counts| counts[code]).sum();
            if times == 0 {
                continue;
            }
            let (source, mut one) = (code as u8, CastReport::default());
            // SAFETY: one element on either side: the code, and its result among those of all codes.
            unsafe {
                let ends = (&raw const source, results.add(code * size));
                meter.measure(level, ends, None, std::slice::from_ref(flag), scratch, &mut one);
            }
            report.add_times(&one, times);
        }
    }
}
