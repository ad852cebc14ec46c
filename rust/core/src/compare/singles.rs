//! Tiles of floats that float32 holds, compared as float32.
//!
//! Of short floats: where all values of a tile are below a power of two, and multiples of 2^-[`BITS`] of it, differences are
//! exact in float32, and sums of squares in float64. Most tiles are so but for a few small values, which are left to float64.
//!
//! Where one format is float32: the difference of two values is exact in float32 if it is above neither of them (Sterbenz),
//! or if one of them is zero. Other values are left to float64. Squares are rounded to the precision of float32, there too.

use super::differences::TileDifferences;
use super::formats::{Codes, Common};
use super::outcome::Losses;
use crate::codec::pivot::Binary32;
use crate::cpu::level::run_portable;
use crate::cpu::{InstructionSet, Kernel, Level, RawKernel};
use crate::format::{FloatSpec, Format, Specials};
use crate::kernels::request::holds_exactly;
use crate::kernels::stages::stage::{Span, Stage};
use crate::kernels::tile::{TILE, Tile};
use crate::report::SquareSum;
use crate::report::cast_report::smallest_nonzero;
use crate::report::collector::copy_some;
use crate::report::extremes::{Extremes, Outside, Within, bits, find_indices};
use crate::report::max_relative_error::{MaxRelativeError, TINY};
use crate::report::squares::{self, LANES, Values, exponent_of, power_of_two};
use crate::report::tile_statistics::reader;

/// Bits of values in units of the lowest one of a tile. Differences have one more, which is as many as float32 has.
const BITS: i32 = f32::MANTISSA_DIGITS as i32 - 1;

/// Short floats have no more bits of a mantissa: with longer ones too few binades are left.
const MOST_MANTISSA_BITS: u32 = 10;

/// A tile of which more than one in so many elements are left is slower so.
const MANY: usize = 4;

/// A tile beside float32 of which more than one in so many differences are rounded is slower so.
const MANY_INEXACT: usize = 16;

/// After such a tile, so many are left to float64 without a look at their differences.
const UNSEEN_TILES: u32 = 15;

/// All bits of a float32 but the sign.
const MAGNITUDE: u32 = u32::MAX >> 1;

/// Compares tiles of two formats.
pub(super) struct Singles {
    /// Converts codes to float32; none for float32 itself.
    readers: [Option<Box<dyn Stage>>; 2],
    /// Whether one of the formats is float32.
    is_wide: bool,
    /// The first format, if it is short.
    short_source: Option<FloatSpec>,
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
    /// Roots of squares that are added later than others.
    low: Box<Tile<f32>>,
    /// How many of the next tiles are left to float64. No result depends on it.
    unseen_tiles: u32,
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
    sources: Values,
    errors: &'a [f32],
}

impl Room {
    /// Prepares for the first tile.
    pub(super) fn begin(&mut self) {
        self.max_relative_error = MaxRelativeError::default();
    }
}

/// Returns the layout of a signed float that float32 holds, and whose codes have all bits of their bytes.
fn single_float(format: Format) -> Option<FloatSpec> {
    let fills = format.row().bits as usize == 8 * format.item_size();
    format.float().filter(|spec| {
        let is_usual = spec.signed && spec.specials != Specials::ExponentOnly;
        fills && is_usual && holds_exactly::<Binary32>(format)
    })
}

/// Returns the exponent of the smallest value.
fn lowest_exponent(spec: &FloatSpec) -> i32 {
    1 - spec.bias - spec.mantissa_bits as i32
}

impl Singles {
    /// Returns none for formats that only float64 compares.
    pub(super) fn new(level: Level, common: &Common) -> Option<Self> {
        let widens = match common.codes {
            Codes::Same => false,
            Codes::Single => true,
            Codes::Double => return None,
        };
        let [Some(first), Some(second)] = common.components.map(single_float) else { return None };
        let is_short = |spec: &FloatSpec| spec.mantissa_bits <= MOST_MANTISSA_BITS;
        (common.parts == [1, 1]).then_some(Self {
            readers: common.components.map(|format| reader(format, level)),
            is_wide: !(is_short(&first) && is_short(&second)),
            mantissa: first.mantissa_bits.max(second.mantissa_bits) as i32,
            short_source: Some(first).filter(is_short),
            lowest: lowest_exponent(&first).min(lowest_exponent(&second)),
            size: if widens { size_of::<f32>() } else { common.components[0].item_size() },
            widens,
        })
    }

    /// Returns whether one of the formats is float32: equal values are counted, and squares rounded to float32.
    pub(super) fn is_wide(&self) -> bool {
        self.is_wide
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
        let Room { values: [x, y], errors, codes: copies, max_relative_error, indices, low, unseen_tiles } =
            room;
        if self.is_wide && *unseen_tiles > 0 {
            *unseen_tiles -= 1;
            return None;
        }
        let full = count.next_multiple_of(LANES);
        let mut pointers = codes.map(<*const u8>::cast::<f32>);
        for ((reader, pointer), column) in self.readers.iter().zip(&mut pointers).zip([&mut *x, &mut *y]) {
            let (source, target) = (pointer.cast::<u8>(), column.0.as_mut_ptr().cast::<u8>());
            // SAFETY: the caller's promise; a tile has room.
            unsafe {
                match reader {
                    Some(stage) => stage.run(level, Span { source, target, count, ..Span::EMPTY }),
                    // Float32 in memory is a column, if it needs no padding.
                    None if full == count => continue,
                    None => target.copy_from_nonoverlapping(source, count * size_of::<f32>()),
                }
            }
            column.0[count..full].fill(0.0);
            *pointer = column.0.as_ptr();
        }
        // SAFETY: so many are readable, which do not change while the columns are in use.
        let mut columns = pointers.map(|pointer| unsafe { Values::new(pointer, full) });
        // Below 2^126, so that differences are within float32; those of NaN are not.
        let most = (f32::MAX / 4.0).to_bits();
        let summary = |columns, errors: &mut Tile<f32>| {
            let (errors, ratio) = (&mut errors.0[..full], max_relative_error.ratio(level));
            Summary::of(level, self.is_wide, columns, errors, ratio)
        };
        let mut found = summary(columns, errors);
        if found.before.largest > most || found.error > most {
            return None;
        }
        if found.inexact as usize * MANY_INEXACT > count {
            *unseen_tiles = UNSEEN_TILES;
            return None;
        }
        // No result is above it. Where it is rounded, some value is not within the range.
        let largest =
            f64::from(f32::from_bits(found.before.largest)) + f64::from(f32::from_bits(found.error));
        let grid = exponent_of(largest) + 1 - BITS;
        let mut range = Within { smallest: 0, largest: f32::MAX.to_bits(), mask: MAGNITUDE };
        if grid > self.lowest && !self.is_wide {
            range.smallest = (power_of_two(grid + self.mantissa) as f32).to_bits();
        }
        let mut outside = 0;
        if found.inexact > 0 || !(found.before.are_within(range) && found.after.are_within(range)) {
            outside = if self.is_wide {
                level.run(Inexact { columns, indices })
            } else {
                level.run(Outside { columns, range, indices })
            };
            if outside * MANY > count {
                return None;
            }
            for (values, column) in columns.iter_mut().zip([&mut *x, &mut *y]) {
                let tile = column.0.as_mut_ptr();
                // SAFETY: a tile has room for a column, which is there already or outside it, and the indices are below the
                // count.
                unsafe {
                    if values.pointer() != tile.cast_const() {
                        let source = values.pointer().cast::<u8>();
                        source.copy_to_nonoverlapping(tile.cast(), full * size_of::<f32>());
                    }
                    for &index in &indices.0[..outside] {
                        tile.add(usize::from(index)).write(0.0);
                    }
                    *values = Values::new(tile, full);
                }
            }
            found = summary(columns, errors);
        }
        let left = &indices.0[..outside];
        let mut differences = TileDifferences { equal_bits: count as u64, ..TileDifferences::default() };
        if !is_same {
            if self.widens {
                codes = columns.map(|values| values.pointer().cast());
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
            let short_source = self.short_source;
            let squares =
                if self.is_wide { Squares::Rounded { low, short_source } } else { Squares::Exact { grid } };
            if !self.is_wide {
                found.equal = differences.equal_bits as u32 + (full - count) as u32;
            }
            let counts = [full, count - outside];
            found.add_losses(level, columns, &errors.0, (counts, squares), max_relative_error, losses)
        });
        let (sources, errors) = (columns[0], &errors.0[..count]);
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
        let error = self.errors[index];
        // SAFETY: the index is below the count of errors, which are not more than the sources.
        let source = unsafe { self.sources.get(index) };
        let [source, error] = [source, error].map(|value| f64::from(value.abs()));
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
                2 => copy_some::<u16>(codes, self.left, copies),
                _ => copy_some::<u32>(codes, self.left, copies),
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
    /// How many values have equal codes, or differences of zero.
    equal: u32,
    /// Whether some relative error may exceed the largest so far.
    may_exceed: bool,
    /// How many differences may be rounded, of wide formats.
    inexact: u32,
}

/// How squares are added.
enum Squares<'a> {
    /// Exactly, as values and differences are multiples of two to this power.
    Exact { grid: i32 },
    /// Rounded to the precision of float32, with room for some roots. Squares of short floats are exact, and added so where
    /// float64 holds their sum.
    Rounded { low: &'a mut Tile<f32>, short_source: Option<FloatSpec> },
}

impl Summary {
    /// Finds it, and the differences.
    fn of(level: Level, is_wide: bool, [before, after]: [Values; 2], errors: &mut [f32], ratio: f32) -> Self {
        let is_fused = level.set() >= InstructionSet::Neon;
        let mut summary = match (is_fused, is_wide) {
            (true, false) => level.run(SummaryLoop::<true, false> { before, after, errors, ratio }),
            (true, true) => level.run(SummaryLoop::<true, true> { before, after, errors, ratio }),
            // SAFETY: a safe kernel has no requirements.
            (false, _) => unsafe {
                run_portable(SummaryLoop::<false, true> { before, after, errors, ratio })
            },
        };
        summary.inexact *= u32::from(is_wide);
        // Most tiles have no zero before, and need no second pass for that.
        if summary.before.smallest == 0 {
            let range = Within { smallest: 0, largest: MAGNITUDE, mask: MAGNITUDE };
            summary.before =
                Extremes { largest: summary.before.largest, ..Extremes::zeros(level, before, range) };
        }
        summary
    }

    /// Adds what a tile lost, given its columns and how many values they have, and how many of these are measured. Returns
    /// the largest relative error, if it exceeds the one before.
    fn add_losses(
        &self,
        level: Level,
        columns: [Values; 2],
        errors: &[f32],
        ([full, measured], mut squares): ([usize; 2], Squares<'_>),
        max_relative_error: &mut MaxRelativeError,
        losses: &mut Losses,
    ) -> Option<f64> {
        let Self { before, after, error, equal, may_exceed, .. } = self;
        let report = &mut losses.report;
        let absent = (full - measured) as u32;
        // Where no value before is zero, equal values have equal codes.
        let [vanished, equal] = if before.zeros > absent {
            level.run(Coincidences(columns))
        } else {
            [after.zeros - absent, *equal]
        };
        let equal = equal - absent;
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
        // SAFETY: so many were written, which do not change meanwhile.
        let (sources, errors) = (columns[0], unsafe { Values::new(errors.as_ptr(), full) });
        let source_grid = match &squares {
            Squares::Exact { grid } => Some(*grid),
            Squares::Rounded { short_source, .. } => short_source.and_then(|spec| {
                let grid = exponent_of(smallest) - spec.mantissa_bits as i32;
                Some(grid.max(lowest_exponent(&spec))).filter(|&grid| squares::has_bits(largest, grid))
            }),
        };
        let mut add_squares = |sum: &mut SquareSum, column, largest, grid| match (&mut squares, grid) {
            (_, Some(grid)) | (&mut Squares::Exact { grid }, None) => {
                squares::add_f32s(sum, level, column, (largest, grid), true);
            }
            (Squares::Rounded { low, .. }, None) => {
                squares::add_rounded_f32s(sum, level, column, largest, low);
            }
        };
        if largest > 0.0 {
            add_squares(&mut report.signal, sources, largest, source_grid);
        }
        if error > 0.0 {
            add_squares(&mut report.noise, errors, error, None);
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

/// Does so in one pass, but for zeros before; `FUSED` uses fused multiply-add, and `WIDE` finds whether differences are exact.
struct SummaryLoop<'a, const FUSED: bool, const WIDE: bool> {
    before: Values,
    after: Values,
    errors: &'a mut [f32],
    ratio: f32,
}

impl<const FUSED: bool, const WIDE: bool> Kernel for SummaryLoop<'_, FUSED, WIDE> {
    type Output = Summary;

    #[inline(always)]
    fn run(self) -> Summary {
        let Self { before, after, errors, ratio } = self;
        let (mut smallest, mut largest) = (u32::MAX, 0);
        let (mut below, mut zeros) = (u32::MAX, 0);
        let (mut most, mut equal, mut excess, mut inexact) = (0, 0, 0, 0);
        let count = before.count();
        assert!(errors.len() == count && after.count() == count);
        #[expect(
            clippy::needless_range_loop,
            reason = "of a slice a compiler does not see that no remainder is left"
        )]
        for i in 0..count {
            // SAFETY: `i` is below both counts. (An array's `map` may be a function of its own, without the level's features.)
            let (x, y) = unsafe { (before.get(i), after.get(i)) };
            let error = y - x;
            errors[i] = error;
            let (from, to) = (bits(x), bits(y));
            smallest = from.min(smallest);
            largest = from.max(largest);
            // One is subtracted, so that zero wraps to the largest number.
            below = to.wrapping_sub(1).min(below);
            zeros += u32::from(to == 0);
            most = bits(error).max(most);
            if WIDE {
                equal += u32::from(bits(error) == 0);
                inexact += u32::from(excess_of_difference(from, to, bits(error)) > 0);
            }
            let error = error.abs();
            let more = if FUSED { (-ratio).mul_add(x.abs(), error) } else { error - ratio * x.abs() };
            // As integers, the bits of floats keep their sign.
            excess = (more.to_bits() as i32).max(excess);
        }
        Summary {
            before: Extremes { smallest, largest, zeros: 0 },
            after: Extremes { smallest: below.wrapping_add(1), largest: 0, zeros },
            error: most,
            equal,
            may_exceed: excess > 0,
            inexact,
        }
    }
}

/// Returns a positive number if a difference is above one of two magnitudes that are not zero. (All as bits.) One is
/// subtracted of both, so that zero wraps to the largest number.
#[inline(always)]
fn excess_of_difference(from: u32, to: u32, difference: u32) -> i32 {
    let least = from.wrapping_sub(1).min(to.wrapping_sub(1));
    difference.wrapping_sub(least).wrapping_sub(1) as i32
}

/// Finds the indices of values whose difference may be rounded. Returns how many there are.
struct Inexact<'a> {
    columns: [Values; 2],
    indices: &'a mut Tile<u16>,
}

impl Kernel for Inexact<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Self { columns: [before, after], indices } = self;
        assert!(before.count() == after.count());
        let is_inexact = |index| {
            // SAFETY: the index is below both counts.
            let (x, y) = unsafe { (before.get(index), after.get(index)) };
            excess_of_difference(bits(x), bits(y), bits(y - x)) > 0
        };
        find_indices(before.count(), is_inexact, indices)
    }
}

/// Counts numbers that are not zero in the first column only, and those that are equal.
struct Coincidences([Values; 2]);

impl Kernel for Coincidences {
    type Output = [u32; 2];

    #[inline(always)]
    fn run(self) -> [u32; 2] {
        let [x, y] = self.0;
        let (mut vanished, mut equal) = (0, 0);
        assert!(x.count() == y.count());
        for i in 0..x.count() {
            // SAFETY: `i` is below both counts.
            let (x, y) = unsafe { (x.get(i), y.get(i)) };
            vanished += u32::from((y == 0.0) & (x != 0.0));
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
