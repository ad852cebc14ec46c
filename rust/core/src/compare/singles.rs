//! Tiles of short floats, compared as float32.
//!
//! Where all values of a tile are below a power of two, and multiples of 2^-[`BITS`] of it, differences are exact in
//! float32, and sums of squares in float64. Most tiles are so but for a few small values, which are left to float64.

use super::differences::TileDifferences;
use super::formats::{Codes, Common};
use super::outcome::Losses;
use crate::cpu::level::run_portable;
use crate::cpu::{InstructionSet, Kernel, Level, RawKernel};
use crate::format::{FloatSpec, Format, Specials};
use crate::kernels::stages::stage::{Span, Stage};
use crate::kernels::tile::{TILE, Tile};
use crate::report::cast_report::smallest_nonzero;
use crate::report::collector::copy_some;
use crate::report::extremes::{Extremes, Outside, Within, bits};
use crate::report::max_relative_error::{MaxRelativeError, TINY};
use crate::report::squares::{self, LANES, Values, exponent_of, power_of_two};
use crate::report::tile_statistics::reader;

/// Bits of values in units of the lowest one of a tile. Differences have one more, which is as many as float32 has.
const BITS: i32 = f32::MANTISSA_DIGITS as i32 - 1;

/// With longer mantissas too few binades are left.
const MOST_MANTISSA_BITS: u32 = 10;

/// A tile of which more than one in so many elements are left is slower so.
const MANY: usize = 4;

/// All bits of a float32 but the sign.
const MAGNITUDE: u32 = u32::MAX >> 1;

/// Compares tiles of two formats.
pub(super) struct Singles {
    readers: [Box<dyn Stage>; 2],
    /// Bits of the longer mantissa, and the exponent of the smallest value.
    mantissa: i32,
    lowest: i32,
    /// Bytes of the codes that are compared.
    size: usize,
    /// Whether these are float32, rather than what the arrays have.
    widens: bool,
}

/// The columns of a tile, and the largest relative error of those before it.
#[derive(Default)]
pub(super) struct Room {
    values: [Box<Tile<f32>>; 2],
    errors: Box<Tile<f32>>,
    codes: [Box<Tile<u32>>; 2],
    max_relative_error: MaxRelativeError,
    indices: Box<Tile<u16>>,
}

/// The tile after it was compared.
pub(super) struct Compared<'a> {
    pub(super) differences: TileDifferences,
    /// The indices of the elements that are left, which counted as equal.
    pub(super) left: &'a [u16],
    /// The largest relative error, if it exceeds the one before.
    pub(super) relative: Option<f64>,
    codes: [*const u8; 2],
    size: usize,
    sources: &'a [f32],
    errors: &'a [f32],
}

impl Room {
    /// Prepares for the first tile.
    pub(super) fn begin(&mut self) {
        self.max_relative_error = MaxRelativeError::default();
    }
}

/// Returns the layout of a signed float whose codes have all bits of their bytes, and few of them a mantissa.
fn short_float(format: Format) -> Option<FloatSpec> {
    let fills = format.row().bits as usize == 8 * format.item_size();
    format.float().filter(|spec| {
        let is_usual = spec.signed && spec.specials != Specials::ExponentOnly;
        fills && is_usual && spec.mantissa_bits <= MOST_MANTISSA_BITS
    })
}

impl Singles {
    /// Returns none for formats that only float64 compares.
    pub(super) fn new(level: Level, common: &Common) -> Option<Self> {
        let widens = match common.codes {
            Codes::Same => false,
            Codes::Single => true,
            Codes::Double => return None,
        };
        let [Some(first), Some(second)] = common.components.map(short_float) else { return None };
        let [Some(x), Some(y)] = common.components.map(|format| reader(format, level)) else { return None };
        let lowest = |spec: &FloatSpec| 1 - spec.bias - spec.mantissa_bits as i32;
        (common.parts == [1, 1]).then_some(Self {
            readers: [x, y],
            mantissa: first.mantissa_bits.max(second.mantissa_bits) as i32,
            lowest: lowest(&first).min(lowest(&second)),
            size: if widens { size_of::<f32>() } else { common.components[0].item_size() },
            widens,
        })
    }

    /// Compares a tile but for the elements that are left; returns none where those are too many. Of a tile that
    /// `is_same` only the losses are added, if they are asked for.
    ///
    /// # Safety
    /// So many codes, at most a tile, are readable at both pointers for as long as the result is in use.
    pub(super) unsafe fn compare<'a>(
        &self,
        level: Level,
        mut codes: [*const u8; 2],
        (count, is_same): (usize, bool),
        room: &'a mut Room,
        losses: Option<&mut Losses>,
    ) -> Option<Compared<'a>> {
        let Room { values: [x, y], errors, codes: copies, max_relative_error, indices } = room;
        let full = count.next_multiple_of(LANES);
        for ((reader, &source), column) in self.readers.iter().zip(&codes).zip([&mut *x, &mut *y]) {
            let target = column.0.as_mut_ptr().cast();
            // SAFETY: the caller's promise; a tile has room.
            unsafe { reader.run(level, Span { source, target, count, ..Span::EMPTY }) };
            column.0[count..full].fill(0.0);
        }
        // Below 2^126, so that differences are within float32; those of NaN are not.
        let most = (f32::MAX / 4.0).to_bits();
        let summary = |x: &Tile<f32>, y: &Tile<f32>, errors: &mut Tile<f32>| {
            // SAFETY: tiles have so many values, which do not change meanwhile.
            let [before, after] = [x, y].map(|column| unsafe { Values::new(column.0.as_ptr(), full) });
            Summary::of(level, [before, after], &mut errors.0[..full], max_relative_error.ratio(level))
        };
        let mut found = summary(x, y, errors);
        if found.before.largest > most || found.error > most {
            return None;
        }
        // No result is above it. Where it is rounded, some value is not within the range.
        let largest =
            f64::from(f32::from_bits(found.before.largest)) + f64::from(f32::from_bits(found.error));
        let grid = exponent_of(largest) + 1 - BITS;
        let mut range = Within { smallest: 0, largest: f32::MAX.to_bits(), mask: MAGNITUDE };
        if grid > self.lowest {
            range.smallest = (power_of_two(grid + self.mantissa) as f32).to_bits();
        }
        let mut outside = 0;
        if !(found.before.are_within(range) && found.after.are_within(range)) {
            // SAFETY: as above.
            let columns = [&x, &y].map(|column| unsafe { Values::new(column.0.as_ptr(), full) });
            outside = level.run(Outside { columns, range, indices });
            if outside * MANY > count {
                return None;
            }
            for &index in &indices.0[..outside] {
                x.0[usize::from(index)] = 0.0;
                y.0[usize::from(index)] = 0.0;
            }
            found = summary(x, y, errors);
        }
        let left = &indices.0[..outside];
        let mut differences = TileDifferences { equal_bits: count as u64, ..TileDifferences::default() };
        if !is_same {
            if self.widens {
                for ((copy, codes), column) in copies.iter_mut().zip(&mut codes).zip([&*x, &*y]) {
                    for (code, value) in copy.0[..count].iter_mut().zip(&column.0) {
                        *code = value.to_bits();
                    }
                    *codes = copy.0.as_ptr().cast();
                }
            } else if outside > 0 {
                for (copy, codes) in copies.iter_mut().zip(&mut codes) {
                    let target = copy.0.as_mut_ptr().cast::<u8>();
                    // SAFETY: the caller's promise; a tile has room.
                    unsafe { target.copy_from_nonoverlapping(*codes, count * self.size) };
                    for &index in left {
                        // SAFETY: the index is below the count.
                        unsafe { target.add(usize::from(index) * self.size).write_bytes(0, self.size) };
                    }
                    *codes = target.cast_const();
                }
            }
            // SAFETY: the caller's promise, or the copies.
            let [unlike, ulps] = unsafe { distances(level, codes, self.size, count) };
            differences.different = u64::from(unlike);
            differences.equal_bits -= u64::from(unlike);
            differences.ulps = (unlike > 0).then_some(u64::from(ulps));
        }
        differences.difference = (differences.different > 0).then_some(f32::from_bits(found.error).into());
        let relative = losses.and_then(|losses| {
            let counts = [full, count - outside, differences.equal_bits as usize - outside];
            found.add_losses(level, [&**x, &**y, &**errors], (counts, grid), max_relative_error, losses)
        });
        let [sources, errors] = [&x.0[..count], &errors.0[..count]];
        Some(Compared { differences, left, relative, codes, size: self.size, sources, errors })
    }
}

impl Compared<'_> {
    /// Returns how many numbers the elements at an index are apart, if they are different.
    fn distance(&self, index: usize) -> Option<u64> {
        /// # Safety
        /// The elements are readable.
        unsafe fn of<C: Code>(codes: [*const u8; 2], index: usize) -> Option<u64> {
            // SAFETY: the caller's promise.
            let [a, b] = codes.map(|codes| unsafe { codes.cast::<C>().add(index).read_unaligned() });
            (a != b).then(|| a.distance(b).into())
        }
        assert!(index < self.errors.len());
        // SAFETY: the codes are readable for as long as this is in use.
        unsafe {
            match self.size {
                1 => of::<u8>(self.codes, index),
                2 => of::<u16>(self.codes, index),
                _ => of::<u32>(self.codes, index),
            }
        }
    }

    /// Returns whether elements are different, and this is how far.
    pub(super) fn is_difference(&self, index: usize, difference: f64) -> bool {
        f64::from(self.errors[index].abs()) == difference && self.distance(index).is_some()
    }

    /// Returns whether this is the relative error of an element.
    pub(super) fn is_relative(&self, index: usize, quotient: f64) -> bool {
        let [source, error] = [self.sources[index], self.errors[index]].map(|value| f64::from(value.abs()));
        source > 0.0 && error / source == quotient
    }

    pub(super) fn is_distance(&self, index: usize, ulps: u64) -> bool {
        self.distance(index) == Some(ulps)
    }

    /// Copies the codes of an array that are left.
    ///
    /// # Safety
    /// The codes of the tile are readable.
    pub(super) unsafe fn copy_left(&self, codes: *const u8, size: usize, copies: &mut Tile<u32>) {
        // SAFETY: the caller's promise.
        unsafe {
            match size {
                1 => copy_some::<u8>(codes, self.left, copies),
                _ => copy_some::<u16>(codes, self.left, copies),
            }
        }
    }
}

/// What is found of the values of a tile before and after, and of their differences.
struct Summary {
    before: Extremes,
    /// But for the largest one.
    after: Extremes,
    /// The largest magnitude of differences, as bits.
    error: u32,
    /// Whether some relative error may exceed the largest so far.
    may_exceed: bool,
}

impl Summary {
    /// Finds it, and the differences.
    fn of(level: Level, [before, after]: [Values; 2], errors: &mut [f32], ratio: f32) -> Self {
        let mut summary = if level.set() >= InstructionSet::Neon {
            level.run(SummaryLoop::<true> { before, after, errors, ratio })
        } else {
            // SAFETY: a safe kernel has no requirements.
            unsafe { run_portable(SummaryLoop::<false> { before, after, errors, ratio }) }
        };
        // Most tiles have no zero before, and need no second pass for that.
        if summary.before.smallest == 0 {
            let range = Within { smallest: 0, largest: MAGNITUDE, mask: MAGNITUDE };
            summary.before =
                Extremes { largest: summary.before.largest, ..Extremes::zeros(level, before, range) };
        }
        summary
    }

    /// Adds what a tile lost, given its columns and how many values they have, how many of these are measured, and how many
    /// of these have equal codes. Returns the largest relative error, if it exceeds the one before.
    fn add_losses(
        &self,
        level: Level,
        [x, y, errors]: [&Tile<f32>; 3],
        ([full, measured, equal], grid): ([usize; 3], i32),
        max_relative_error: &mut MaxRelativeError,
        losses: &mut Losses,
    ) -> Option<f64> {
        let Self { before, after, error, may_exceed } = self;
        let report = &mut losses.report;
        let absent = (full - measured) as u32;
        // Where no value before is zero, equal values have equal codes.
        let [vanished, equal] = if before.zeros > absent {
            let [vanished, equal] = level.run(Coincidences([&x.0[..full], &y.0[..full]]));
            [vanished, equal - absent]
        } else {
            [after.zeros - absent, equal as u32]
        };
        let [smallest, largest, error] =
            [before.smallest, before.largest, *error].map(|x| f64::from(f32::from_bits(x)));
        losses.finite += measured as u64;
        losses.finite_equal += u64::from(equal);
        report.count += measured as u64;
        report.exact += u64::from(equal);
        report.underflowed += u64::from(vanished);
        report.zero_in += u64::from(before.zeros - absent);
        report.amax = report.amax.max(largest);
        report.amin_nonzero = smallest_nonzero(report.amin_nonzero, smallest);
        report.max_abs_error = report.max_abs_error.max(error);
        // SAFETY: the tiles have so many values, which do not change meanwhile.
        let [sources, errors] = [x, errors].map(|column| unsafe { Values::new(column.0.as_ptr(), full) });
        if largest > 0.0 {
            squares::add_f32s(&mut report.signal, level, sources, (largest, grid), true);
        }
        if error > 0.0 {
            squares::add_f32s(&mut report.noise, level, errors, (error, grid), true);
            let may_exceed = *may_exceed || smallest < f64::from(TINY);
            if may_exceed && max_relative_error.rise(level, sources, errors) {
                let quotient = max_relative_error.quotient();
                report.max_rel_error = report.max_rel_error.max(quotient);
                return Some(quotient);
            }
        }
        None
    }
}

/// Does so in one pass, but for zeros before; `FUSED` uses fused multiply-add.
struct SummaryLoop<'a, const FUSED: bool> {
    before: Values,
    after: Values,
    errors: &'a mut [f32],
    ratio: f32,
}

impl<const FUSED: bool> Kernel for SummaryLoop<'_, FUSED> {
    type Output = Summary;

    #[inline(always)]
    fn run(self) -> Summary {
        let Self { before, after, errors, ratio } = self;
        let (mut smallest, mut largest) = (u32::MAX, 0);
        let (mut below, mut zeros) = (u32::MAX, 0);
        let (mut most, mut excess) = (0, 0);
        assert!(errors.len() == before.count() && errors.len() == after.count());
        for (i, place) in errors.iter_mut().enumerate() {
            // SAFETY: `i` is below both counts. (An array's `map` may be a function of its own, without the level's features.)
            let (x, y) = unsafe { (before.get(i), after.get(i)) };
            let error = y - x;
            *place = error;
            let (from, to) = (bits(x), bits(y));
            smallest = from.min(smallest);
            largest = from.max(largest);
            // One is subtracted, so that zero wraps to the largest number.
            below = to.wrapping_sub(1).min(below);
            zeros += u32::from(to == 0);
            most = bits(error).max(most);
            let error = error.abs();
            let more = if FUSED { (-ratio).mul_add(x.abs(), error) } else { error - ratio * x.abs() };
            // As integers, the bits of floats keep their sign.
            excess = (more.to_bits() as i32).max(excess);
        }
        Summary {
            before: Extremes { smallest, largest, zeros: 0 },
            after: Extremes { smallest: below.wrapping_add(1), largest: 0, zeros },
            error: most,
            may_exceed: excess > 0,
        }
    }
}

/// Counts numbers that are not zero in the first column only, and those that are equal.
struct Coincidences<'a>([&'a [f32]; 2]);

impl Kernel for Coincidences<'_> {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let [x, y] = self.0;
        let (mut vanished, mut equal) = (0, 0);
        for (x, y) in x.iter().zip(y) {
            vanished += u32::from((*y == 0.0) & (*x != 0.0));
            equal += u32::from(x == y);
        }
        [vanished, equal]
    }
}

/// Codes of floats, with the sign in the top bit.
trait Code: Copy + Ord + Into<u64> + Into<u32> {
    const ZERO: Self;
    /// Returns how many numbers two are apart.
    fn distance(self, other: Self) -> Self;
    /// Counts one more, if another is not the same.
    fn count_unlike(self, pair: [Self; 2]) -> Self;
}

macro_rules! codes {
    ($($code:ty, $signed:ty;)*) => {$(
        impl Code for $code {
            const ZERO: Self = 0;

            #[inline(always)]
            fn distance(self, other: Self) -> Self {
                let [a, b] = [self, other].map(|code| {
                    let magnitude = (code & (<$code>::MAX >> 1)) as $signed;
                    if code as $signed >= 0 { magnitude } else { -magnitude }
                });
                (a.max(b) as $code).wrapping_sub(a.min(b) as $code)
            }

            #[inline(always)]
            fn count_unlike(self, [a, b]: [Self; 2]) -> Self {
                self + <$code>::from(a != b)
            }
        }
    )*};
}

codes! {
    u8, i8;
    u16, i16;
    u32, i32;
}

/// Counts codes that are not the same, and finds the largest distance of two, in as many lanes as a long register has.
struct Distances<C, const LANES: usize> {
    codes: [*const C; 2],
    count: usize,
}

impl<C: Code, const LANES: usize> RawKernel for Distances<C, LANES> {
    type Output = [u32; 2];

    #[inline(always)]
    unsafe fn run(self) -> [u32; 2] {
        // Sums in lanes of bytes stay below 256.
        const { assert!(TILE / LANES < 1 << u8::BITS) };
        let Self { codes: [first, second], count } = self;
        // SAFETY: the caller's promise, for places below the count.
        let at = |place| unsafe { [first.add(place).read_unaligned(), second.add(place).read_unaligned()] };
        let (mut unlike, mut most) = ([C::ZERO; LANES], [C::ZERO; LANES]);
        let whole = count / LANES * LANES;
        for start in (0..whole).step_by(LANES) {
            for lane in 0..LANES {
                let [a, b] = at(start + lane);
                unlike[lane] = unlike[lane].count_unlike([a, b]);
                most[lane] = a.distance(b).max(most[lane]);
            }
        }
        for place in whole..count {
            let [a, b] = at(place);
            unlike[place - whole] = unlike[place - whole].count_unlike([a, b]);
            most[place - whole] = a.distance(b).max(most[place - whole]);
        }
        let unlike = unlike.into_iter().map(Into::<u32>::into).sum();
        [unlike, most.into_iter().fold(C::ZERO, Ord::max).into()]
    }
}

/// # Safety
/// So many codes of a size are readable at both pointers.
unsafe fn distances(level: Level, codes: [*const u8; 2], size: usize, count: usize) -> [u32; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => level.run_raw(Distances::<u8, 64> { codes: codes.map(<*const u8>::cast), count }),
            2 => level.run_raw(Distances::<u16, 32> { codes: codes.map(<*const u8>::cast), count }),
            _ => level.run_raw(Distances::<u32, 16> { codes: codes.map(<*const u8>::cast), count }),
        }
    }
}
