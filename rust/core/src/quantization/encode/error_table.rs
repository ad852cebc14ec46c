//! Stored scales of least squared error for blocks of bf16, by a table of errors of 16 bits.
//!
//! A magnitude of bf16 is one of 128 significands times a power of two, a stored scale of E4M3 one of 8, a power of two one of
//! one. What a magnitude loses, in squares of its scale, depends on both significands and on the difference of the exponents.
//! So all errors are in a table: a row for each significand of elements; in a row, octaves of elements; in an octave, scales
//! from the largest one down. The errors of an element under [`LANES`] scales that follow each other are adjacent, as a scale of
//! the octave below is one of an element of the octave above. They are added to the sums of a block in one step.
//!
//! Errors are rounded to integers. So the true sum of a block is within half a unit an element of the sum that is added, and a
//! block has its scale from here where no other scale may have as small a sum. About one block in a hundred is left to the
//! search that computes errors, which has the same scales.

use std::arch::x86_64 as arch;

use super::scale_errors::{Grid, StoredScales, inverse, square};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::{InstructionSet, Kernel, Level, Owner, RawKernel};
use crate::quantization::arithmetic::Area;

/// Scales that are tried, and elements whose places are found at once.
const LANES: usize = 16;

/// A number for each scale.
type Lanes<T> = [T; LANES];

/// Octaves of elements. What smaller ones lose is below a unit, and is the same under all scales that may be the best.
const OCTAVES: usize = 16;

/// Bits of the significands of bf16, after the first one, and significands.
const MANTISSA: u32 = 7;
const ROWS: usize = 1 << MANTISSA;

/// The significands of scales, at most.
const MOST_SIGNIFICANDS: usize = 8;

/// The exponent of 1 in bf16 and float32.
const BIAS: i32 = 127;

/// What sums of errors may be.
const MOST: f32 = u16::MAX as f32;

/// Runs a kernel that is compiled for this level alone.
///
/// # Safety
/// The level in use has AVX2, and as for the kernel's [`RawKernel::run`].
unsafe fn run_avx2<K: RawKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { <K as Owner<K>>::avx2(kernel) }
}

/// Returns the nearest integer of 16 bits.
#[inline(always)]
fn nearest(value: f32) -> u16 {
    (value + 8_388_608.0).to_bits() as u16
}

/// Errors under scales between two powers of two, and what else the search needs of these.
#[derive(Default)]
pub(super) struct ErrorTable {
    /// One of zeros, and the rows.
    errors: Vec<u16>,
    /// By the distance of the first scale from the largest one of its octave.
    sums: [Sums; MOST_SIGNIFICANDS],
    /// None for scales that have no table.
    layout: Option<Layout>,
}

/// Where errors are.
#[derive(Clone, Copy)]
struct Layout {
    grid: Grid,
    stored: StoredScales,
    /// The elements of a block.
    width: usize,
    /// The logarithm of the scales of an octave, and errors in a row.
    shift: u32,
    pitch: i32,
    /// The largest code of an octave, and what the place of an element is above its exponent, which is shifted, less the code.
    code: i32,
    offset: i32,
    /// The codes of first scales for which there are errors, and the largest code that may be chosen.
    first_codes: (i32, i32),
    highest_code: i32,
    /// What makes magnitudes comparable with the numbers that codes are before the scale of the array.
    inverse_global: f32,
    /// What quotients are multiplied by to be integers: those up to `2^span` times the root of the full sum have 16 bits.
    quotient_unit: f32,
    span: u32,
    /// To what quotients are limited by the last scale at most, and what multiplies a loss so that its square is a sum.
    last_limit: f32,
    loss_unit: f32,
}

/// How sums under a first scale and those below compare.
#[derive(Default)]
struct Sums {
    /// The unit of each sum, as 65,536ths of the first one's.
    units: Lanes<u16>,
    /// How far a sum may be from the true one, in the first one's unit.
    slack: Lanes<u16>,
    /// To what quotients by the first scale are limited.
    limits: Lanes<u16>,
}

/// Computes the errors of elements under scales. A column has the power of two of elements, the scale, its inverse, and what
/// turns squares into units.
struct FillRow<'a> {
    significand: f32,
    columns: &'a [[f32; 4]],
    grid: Grid,
    to: &'a mut [u16],
}

impl Kernel for FillRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { significand, columns, grid, to } = self;
        for (to, &[power, scale, inverse, units]) in to.iter_mut().zip(columns) {
            let error = square::<true>(significand * power, scale, inverse, grid) * units;
            let error = if error < MOST { error } else { MOST };
            *to = nearest(error);
        }
    }
}

impl ErrorTable {
    /// Computes the errors, if they are not those of the same scales and blocks already; returns whether there are such.
    ///
    /// # Safety
    /// The level in use has AVX2.
    pub(super) unsafe fn find(&mut self, grid: Grid, stored: StoredScales, width: usize) -> bool {
        let is_same = |it: &Layout| it.grid == grid && it.stored == stored && it.width == width;
        if self.layout.as_ref().is_some_and(is_same) {
            return true;
        }
        self.layout = None;
        let shift = Binary32::MANTISSA - stored.shift;
        let significands = 1usize << shift;
        let one = (1.0 / stored.unit).to_bits() >> stored.shift;
        let smallest = stored.value(one);
        // All operations on such scales are exact up to a power of two.
        if !(1e-30..1e30).contains(&smallest) {
            return false;
        }
        let exponent = |value: f32| (value.to_bits() >> Binary32::MANTISSA) as i32 - BIAS;
        let power = |exponent: i32| f32::from_bits(((exponent + BIAS) as u32) << Binary32::MANTISSA);
        let significand =
            |row: usize| f32::from_bits(1f32.to_bits() | (row as u32) << (Binary32::MANTISSA - MANTISSA));
        let unit = exponent(smallest);
        let code = (one + significands as u32 - 1) as i32;
        let scale = |place: usize| {
            let octave = (place / significands) as i32;
            stored.value(code as u32 - (place % significands) as u32) * power(-unit - octave)
        };
        // No element is above this.
        let lowest = exponent(grid.limit * scale(0)) + 1 - OCTAVES as i32;
        let pitch = (OCTAVES << shift) + LANES;
        let full = grid.full_sum(width);
        let column = |place: usize| {
            let scale = scale(place % significands);
            let units = MOST / (full * scale * scale);
            [power(lowest + (place >> shift) as i32), scale, inverse(scale), units]
        };
        let columns: Vec<_> = (0..pitch).map(column).collect();
        self.errors.clear();
        self.errors.resize((ROWS + 1) * pitch, 0);
        for (row, to) in self.errors.chunks_mut(pitch).skip(1).enumerate() {
            let row = FillRow { significand: significand(row), columns: &columns, grid, to };
            // SAFETY: the caller's promise.
            unsafe { run_avx2(row) };
        }
        let span = (grid.limit / full.sqrt()).log2().ceil().max(0.0);
        let quotient_unit = 65_536.0 / (full.sqrt() * span.exp2());
        let mut last_limit = 0f32;
        // Each error is rounded by half a unit. Sums in the first one's unit lose two more, and all errors of float32 together
        // are less than one. The recipe's own scale may be worse by a part that is no difference.
        let rounded = 3.0 + ((1.0 - grid.less) * MOST).ceil();
        for (place, sums) in self.sums.iter_mut().enumerate().take(significands) {
            for lane in 0..LANES {
                let part = scale(place + lane) / scale(place);
                sums.units[lane] = (part * part * 65_536.0).min(MOST) as u16;
                sums.slack[lane] = (part * part * width as f32 / 2.0 + rounded).ceil() as u16;
                sums.limits[lane] = (part * grid.max * quotient_unit).ceil() as u16;
            }
            last_limit = last_limit.max(f32::from(sums.limits[LANES - 1]));
        }
        let offset = code - ((lowest + BIAS + unit) << shift);
        // Of E4M3, codes below 8 are not in octaves. All elements and scales have exponents of normal numbers.
        let least = LANES as i32 - 1 + (stored.codes.0 as i32).max(significands as i32);
        let of_octave = |octave: i32| code + ((octave - unit) << shift);
        let lowest_octave = 1 - BIAS + (LANES as i32 >> shift);
        let first_codes = (least.max(offset + 1).max(of_octave(lowest_octave)), of_octave(BIAS - 1));
        let highest_code = stored.code_below(grid.most) as i32;
        let inverse_global = stored.divisor / stored.factor;
        let (pitch, loss_unit, span) = (pitch as i32, span.exp2() / 256.0, span as u32);
        self.layout = Some(Layout {
            grid,
            stored,
            width,
            shift,
            pitch,
            code,
            offset,
            first_codes,
            highest_code,
            inverse_global,
            quotient_unit,
            span,
            last_limit,
            loss_unit,
        });
        true
    }
}

/// The search of whole blocks side by side, of a row, for codes of scales.
pub(super) struct TableSearch<'a> {
    pub(super) table: &'a ErrorTable,
    /// The elements, and the columns of a block, for which there is a loop.
    pub(super) area: Area<*const u16>,
    pub(super) width: usize,
    /// The largest magnitudes, and codes, which are the recipe's own before.
    pub(super) amax: &'a [f32],
    pub(super) codes: &'a mut [u8],
    /// The number of the first block, and those that are left to another search.
    pub(super) first_block: usize,
    pub(super) left_blocks: &'a mut Vec<usize>,
}

impl TableSearch<'_> {
    /// Whether a level has the instructions, and there is a loop for blocks of so many columns.
    pub(super) fn has(level: Level, width: usize) -> bool {
        matches!(level.set(), InstructionSet::Avx2 | InstructionSet::Avx512) && matches!(width, 16 | 32)
    }

    /// # Safety
    /// The level in use has the instructions, and the elements of the area are readable.
    pub(super) unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.width == LANES {
                run_avx2(OfGroups::<1>(self));
            } else {
                run_avx2(OfGroups::<2>(self));
            }
        }
    }
}

/// The search of blocks that have so many times [`LANES`] columns.
struct OfGroups<'a, const GROUPS: usize>(TableSearch<'a>);

/// The scales that are tried for blocks, a lane each.
struct Ranges {
    /// The codes of the first ones: the largest that have to be tried, or the recipe's own; 0, if there are no errors for them.
    first_code: Lanes<i32>,
    /// How far they are below the largest ones of their octaves.
    octave_place: Lanes<i32>,
    /// What the place of an element is above its exponent, which is shifted, and what is below the magnitudes in the table.
    offset: Lanes<i16>,
    lowest_magnitude: Lanes<i16>,
    /// The largest magnitudes by the first scale, and what they lose at least under scales that are not tried.
    quotient: Lanes<u16>,
    least_loss: Lanes<u16>,
}

/// Returns numbers, and the default where there are fewer.
#[inline(always)]
fn padded<T: Copy + Default>(numbers: &[T]) -> Lanes<T> {
    numbers
        .first_chunk()
        .copied()
        .unwrap_or_else(|| std::array::from_fn(|lane| numbers.get(lane).copied().unwrap_or_default()))
}

/// The level has AVX2, and the elements of the area are readable.
impl<const GROUPS: usize> RawKernel for OfGroups<'_, GROUPS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let TableSearch { table, area, amax, codes, first_block, left_blocks, .. } = self.0;
        let Some(layout) = table.layout else { return };
        let errors = table.errors.as_ptr();
        // Of some blocks, so that they are in memory before they are read.
        let mut places = [[[0u16; LANES]; GROUPS]; LANES];
        let mut elements = area.first.cast::<[Lanes<u16>; GROUPS]>();
        let numbers = (first_block..).step_by(LANES);
        for ((amax, codes), number) in amax.chunks(LANES).zip(codes.chunks_mut(LANES)).zip(numbers) {
            let magnitudes = padded(amax);
            let ranges = layout.ranges(&magnitudes, &padded(codes));
            for (lane, places) in places.iter_mut().enumerate().take(amax.len()) {
                // SAFETY: the caller's promise.
                unsafe {
                    layout.find_places(
                        elements,
                        (ranges.offset[lane], ranges.lowest_magnitude[lane]),
                        places,
                    );
                }
                elements = elements.wrapping_add(1);
            }
            for (lane, (code, places)) in codes.iter_mut().zip(&places).enumerate() {
                let first = ranges.first_code[lane];
                if first == 0 {
                    if magnitudes[lane] != 0.0 {
                        left_blocks.push(number + lane);
                    }
                    continue;
                }
                let bounds = (ranges.quotient[lane], ranges.least_loss[lane]);
                let sums = &table.sums[ranges.octave_place[lane] as usize % MOST_SIGNIFICANDS];
                // SAFETY: the places were found above, and the level is the caller's promise.
                match unsafe { layout.best((errors, sums), bounds, places) } {
                    Some(lane) => *code = (first - lane) as u8,
                    None => left_blocks.push(number + lane),
                }
            }
        }
    }
}

impl Layout {
    /// Returns which scales are tried for blocks, given the largest magnitudes and the recipe's own codes.
    #[inline(always)]
    fn ranges(&self, amax: &Lanes<f32>, own: &Lanes<u8>) -> Ranges {
        let Self { grid, stored, shift, .. } = *self;
        let mut ranges = Ranges {
            first_code: [0; LANES],
            octave_place: [0; LANES],
            offset: [0; LANES],
            lowest_magnitude: [0; LANES],
            quotient: [0; LANES],
            least_loss: [0; LANES],
        };
        for lane in 0..LANES {
            let (scaled, own) = (amax[lane] * self.inverse_global, i32::from(own[lane]));
            let highest = ((scaled * grid.twice() / stored.unit).to_bits() >> stored.shift) as i32;
            let highest = if highest < self.highest_code { highest } else { self.highest_code };
            let first = if highest > own { highest } else { own };
            let exponent = (amax[lane].to_bits() >> Binary32::MANTISSA) as i32;
            // What is above that of the smallest exponent.
            let place = (exponent << shift) + self.offset - first;
            let is_covered = (first >= self.first_codes.0)
                & (first <= self.first_codes.1)
                & (first - highest <= 1)
                & (first - own < LANES as i32)
                & (place >= 0)
                & (place < (OCTAVES as i32) << shift)
                & (exponent <= 2 * BIAS);
            // Less, for the roundings.
            let scale = f32::from_bits((first as u32) << stored.shift) * stored.unit;
            let quotient = scaled / scale * self.quotient_unit - 1.5;
            let quotient = if quotient < MOST { quotient } else { MOST };
            let lost = (quotient - self.last_limit) * self.loss_unit;
            let lost = if lost > 0.0 { lost * lost } else { 0.0 };
            let lost = if lost < MOST { lost } else { MOST };
            ranges.first_code[lane] = if is_covered { first } else { 0 };
            ranges.octave_place[lane] = (self.code - first) & ((1 << shift) - 1);
            ranges.offset[lane] = (self.offset - first + self.pitch) as i16;
            let lowest = (first - self.offset + (1 << shift) - 1) >> shift;
            ranges.lowest_magnitude[lane] = ((lowest << MANTISSA) - 1) as i16;
            ranges.quotient[lane] = nearest(quotient);
            ranges.least_loss[lane] = nearest(lost);
        }
        ranges
    }

    /// Finds the places of elements, given what a range has for them; those that are too small have errors of zero.
    ///
    /// # Safety
    /// The level has AVX2, and the elements are readable.
    #[inline(always)]
    unsafe fn find_places<const GROUPS: usize>(
        &self,
        elements: *const [Lanes<u16>; GROUPS],
        (offset, lowest): (i16, i16),
        places: &mut [Lanes<u16>; GROUPS],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            // Of a magnitude times two, the upper byte is the exponent, and the lower one twice the significand.
            let factors = arch::_mm256_set1_epi16(((self.pitch / 2) | (256 << self.shift)) as i16);
            let (offset, lowest) = (arch::_mm256_set1_epi16(offset), arch::_mm256_set1_epi16(lowest));
            // Elements that another thread has raised since the largest magnitudes were found have places, too.
            let last = arch::_mm256_set1_epi16((self.pitch * (ROWS as i32 + 1) - LANES as i32) as i16);
            for (group, places) in places.iter_mut().enumerate() {
                let element = arch::_mm256_loadu_si256(elements.cast::<Lanes<u16>>().add(group).cast());
                let magnitude = arch::_mm256_and_si256(element, arch::_mm256_set1_epi16(i16::MAX));
                let is_there = arch::_mm256_cmpgt_epi16(magnitude, lowest);
                let place = arch::_mm256_maddubs_epi16(arch::_mm256_add_epi16(element, element), factors);
                let place = arch::_mm256_min_epu16(arch::_mm256_add_epi16(place, offset), last);
                let place = arch::_mm256_and_si256(place, is_there);
                arch::_mm256_storeu_si256(places.as_mut_ptr().cast(), place);
            }
        }
    }

    /// Returns the scale of the least sum of errors, given what the largest magnitude is by the first scale, and what it loses
    /// at least under scales that are not tried; none where another search has to find it.
    ///
    /// # Safety
    /// The level has AVX2, and the places are those that a covered range has in a table of this layout.
    #[inline(always)]
    unsafe fn best<const GROUPS: usize>(
        &self,
        (errors, sums): (*const u16, &Sums),
        (quotient, least): (u16, u16),
        places: &[Lanes<u16>; GROUPS],
    ) -> Option<i32> {
        let Sums { units, slack, limits } = sums;
        // SAFETY: the caller's promise. There is a row of zeros, and behind the octaves of elements, rows have as many errors as
        // there are lanes.
        let (near, upper) = unsafe {
            let load = |numbers: *const u16| arch::_mm256_loadu_si256(numbers.cast());
            let mut sums = arch::_mm256_setzero_si256();
            for &place in places.as_flattened() {
                sums = arch::_mm256_adds_epu16(sums, load(errors.add(usize::from(place))));
            }
            let slack = load(slack.as_ptr());
            let scaled = arch::_mm256_mulhi_epu16(sums, load(units.as_ptr()));
            // What the largest element loses where it is limited.
            let lost =
                arch::_mm256_subs_epu16(arch::_mm256_set1_epi16(quotient as i16), load(limits.as_ptr()));
            let lost = arch::_mm256_min_epu16(lost, arch::_mm256_set1_epi16((u16::MAX >> self.span) as i16));
            let lost = arch::_mm256_sll_epi16(lost, arch::_mm_cvtsi32_si128(self.span as i32));
            let lost = arch::_mm256_mulhi_epu16(lost, lost);
            let scaled = arch::_mm256_max_epu16(scaled, lost);
            // Sums that are limited have no upper bound.
            let limited = arch::_mm256_cmpeq_epi16(sums, arch::_mm256_set1_epi8(-1));
            let upper = arch::_mm256_or_si256(arch::_mm256_adds_epu16(scaled, slack), limited);
            let halves = (arch::_mm256_castsi256_si128(upper), arch::_mm256_extracti128_si256::<1>(upper));
            let upper = arch::_mm_minpos_epu16(arch::_mm_min_epu16(halves.0, halves.1));
            let everywhere = arch::_mm256_broadcastw_epi16(upper);
            let lower = arch::_mm256_subs_epu16(scaled, slack);
            let near = arch::_mm256_cmpeq_epi16(arch::_mm256_min_epu16(lower, everywhere), lower);
            (arch::_mm256_movemask_epi8(near) as u32, arch::_mm_cvtsi128_si32(upper) as u16)
        };
        // There are two bits for each scale.
        let lane = near.trailing_zeros();
        (near == 3 << lane && upper < least).then_some((lane / 2) as i32)
    }
}
