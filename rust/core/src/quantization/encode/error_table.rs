//! Squared errors of bf16 under stored scales, by a table.
//!
//! A magnitude of bf16 is one of 128 significands times a power of two, a stored scale of E4M3 one of 8. What
//! it loses depends on both significands and on the difference of the exponents, but for a power of four, by which every
//! operation of the search is exact. So all errors are in a table of 76 KB: rows of significands of elements; in a row,
//! octaves of elements; in an octave, scales from the largest one down. The errors of an element under [`LANES`] scales that
//! follow each other are adjacent, as a scale of the octave below is one of an element of the octave above.
//!
//! Sums have the same order and the same bits as those of the search that computes errors. That one is for the blocks that
//! are left here: with elements that are too small beside the largest one, or where further scales may be better.

use std::arch::x86_64 as arch;

use super::scale_errors::{Grid, StoredScales, inverse, square};
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::{InstructionSet, Level, RawKernel};
use crate::quantization::arithmetic::Area;

/// Scales that are tried at once, and elements whose places are found at once.
const LANES: usize = 16;

/// How often so many scales are tried.
const STEPS: usize = 2;

/// Octaves of elements.
const OCTAVES: usize = 16;

/// Bits of the significands of bf16, after the first one, and significands.
const MANTISSA: u32 = 7;
const ROWS: usize = 1 << MANTISSA;

/// The exponent of 1 in bf16 and float32.
const BIAS: i32 = 127;

/// Errors under scales between two powers of two, and what else the search needs of these.
#[derive(Default)]
pub(super) struct ErrorTable {
    /// Rows, and one of zeros.
    errors: Vec<f32>,
    /// What errors are of; none for scales that have no table.
    source: Option<(Grid, StoredScales)>,
    /// The largest codes that have to be tried for magnitudes from 1 to 2.
    highest: Vec<i32>,
    /// Codes that may be chosen for any of them.
    codes: (i32, i32),
    /// The largest codes of octaves of scales that the table is for.
    octaves_of_codes: (i32, i32),
    /// The logarithm of the scales of an octave, and octaves in a row: an odd number, so that rows do not meet in the same
    /// lines of caches.
    shift: u32,
    octaves: u16,
    /// The largest code of the table's octave of scales, and the biased exponent of elements of its first octave beside it.
    code: i32,
    lowest: i32,
    /// What brings an element to the unit of errors, and the scale after all that are tried.
    unit: i32,
    next: [f32; STEPS],
    /// Powers of four, from octave to octave of scales.
    units: [[f32; LANES]; STEPS],
}

impl ErrorTable {
    /// Computes the errors, if they are not those of the same scales already; returns whether there are such.
    pub(super) fn find(&mut self, grid: Grid, stored: StoredScales) -> bool {
        if self.source == Some((grid, stored)) {
            return true;
        }
        self.source = None;
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
        let scale = |place: usize| stored.value(code as u32 - place as u32) * power(-unit);
        // No element is above this.
        let highest = exponent(grid.limit * scale(significands - 1));
        let lowest = highest + 1 - OCTAVES as i32;
        let octaves = OCTAVES + STEPS * LANES / significands - 1;
        self.errors.clear();
        for row in 0..ROWS {
            for octave in 0..octaves {
                let element = significand(row) * power(lowest + octave as i32);
                for place in 0..significands {
                    let scale = scale(place);
                    self.errors.push(square::<true>(element, scale, inverse(scale), grid));
                }
            }
        }
        self.errors.extend([0.0; STEPS * LANES]);
        (self.shift, self.octaves) = (shift, octaves as u16);
        (self.code, self.unit, self.lowest) = (code, unit, lowest + BIAS + unit);
        for step in 0..STEPS {
            let octave = |lane: usize| ((step * LANES + lane) / significands) as i32;
            self.units[step] = std::array::from_fn(|lane| power(-2 * octave(lane)));
            self.next[step] = scale(0) * power(-octave(LANES));
        }
        // Those of an octave of magnitudes whose scales are near 1 have no limits.
        let free = stored.without_limits();
        let octave = exponent(smallest) + exponent(grid.limit);
        let below = |magnitude: f32| free.code_below(magnitude * grid.twice()) as i32;
        let free_of = |row: usize| below(significand(row) * power(octave)) - (octave << shift);
        self.highest = (0..ROWS).map(free_of).collect();
        let least = stored.halved.max(stored.codes.0) as i32;
        self.codes = (least, (free.code_below(grid.most) as i32).clamp(least, stored.codes.1 as i32));
        // Of E4M3, codes below 8 are not in octaves. All elements have exponents of normal numbers.
        let first = (LANES as i32 + significands as i32).max(LANES as i32 + stored.codes.0 as i32);
        let from_octave = |octave: i32| code + (octave << shift);
        let lowest_octave = (1 - self.lowest).max(-BIAS - unit + 1);
        let highest_octave = (254 - OCTAVES as i32 - self.lowest).min(BIAS - unit - 1);
        self.octaves_of_codes = (first.max(from_octave(lowest_octave)), from_octave(highest_octave));
        self.source = Some((grid, stored));
        true
    }
}

/// Places of elements in the table: of some blocks, so that they are in memory before they are read.
const PLACES: usize = 32 * LANES;

/// The search of whole blocks side by side, of a row, for codes of scales.
pub(super) struct TableSearch<'a> {
    pub(super) table: &'a ErrorTable,
    pub(super) grid: Grid,
    /// The elements, and the columns of a block: a multiple of [`LANES`], at most [`PLACES`].
    pub(super) area: Area<*const u16>,
    pub(super) width: usize,
    /// The largest magnitudes, and codes, which are the recipe's own before.
    pub(super) amax: &'a [f32],
    pub(super) codes: &'a mut [u8],
    /// Which blocks are left to another search.
    pub(super) is_left: &'a mut [bool],
}

/// The scales that are tried for a block, by the code of the first lane and the largest that may be chosen.
#[derive(Clone, Copy, Default)]
struct Range {
    first: i32,
    highest: i32,
    /// The bits of the smallest element that the table has.
    lowest: u16,
    is_covered: bool,
}

impl TableSearch<'_> {
    /// Whether a level has the instructions, and the table blocks of so many columns.
    pub(super) fn has(level: Level, width: usize) -> bool {
        matches!(level.set(), InstructionSet::Avx2 | InstructionSet::Avx512)
            && width.is_multiple_of(LANES)
            && width <= PLACES
    }
}

/// The level has AVX2, and the elements of the area are readable.
impl RawKernel for TableSearch<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { table, grid, area, width, amax, codes, is_left } = self;
        let mut places = [0u16; PLACES];
        let mut ranges = [Range::default(); PLACES / LANES];
        let together = PLACES / width;
        let blocks = amax.chunks(together).zip(codes.chunks_mut(together)).zip(is_left.chunks_mut(together));
        let mut from = area.first;
        for ((amax, codes), is_left) in blocks {
            for (range, &amax) in ranges.iter_mut().zip(amax) {
                *range = table.range(amax);
            }
            for (block, range) in ranges[..amax.len()].iter_mut().enumerate() {
                for start in (block * width..(block + 1) * width).step_by(LANES) {
                    // SAFETY: the caller's promise; there are as many places.
                    range.is_covered &= unsafe {
                        let elements = from.add(start).cast::<[u16; LANES]>().read_unaligned();
                        let places = places.as_mut_ptr().add(start).cast::<[u16; LANES]>();
                        table.places(elements, range.lowest, &mut *places)
                    };
                }
            }
            from = from.wrapping_add(amax.len() * width);
            for (block, range) in ranges[..amax.len()].iter().enumerate() {
                let (amax, own) = (amax[block], i32::from(codes[block]));
                is_left[block] = amax != 0.0;
                if range.is_covered {
                    let places = &places[block * width..(block + 1) * width];
                    // SAFETY: the places were found above, and the level is the caller's promise.
                    if let Some(best) = unsafe { table.best(range, places, (amax, own), grid) } {
                        (codes[block], is_left[block]) = (best as u8, false);
                    }
                }
            }
        }
    }
}

impl ErrorTable {
    /// Returns which scales are tried for a block, and whether the table has them and the largest element.
    #[inline(always)]
    fn range(&self, amax: f32) -> Range {
        let bits = amax.to_bits();
        let row = (bits >> (Binary32::MANTISSA - MANTISSA)) as usize % ROWS;
        let exponent = (bits >> Binary32::MANTISSA) as i32;
        let free = self.highest[row] + ((exponent - BIAS) << self.shift);
        let highest = free.max(self.codes.0).min(self.codes.1);
        let first = highest | ((1 << self.shift) - 1);
        let lowest = self.lowest + self.octave(first);
        let is_covered = (first >= self.octaves_of_codes.0)
            & (first <= self.octaves_of_codes.1)
            & (0..OCTAVES as i32).contains(&(exponent - lowest));
        Range { first, highest, lowest: (lowest << MANTISSA) as u16, is_covered }
    }

    /// Returns how many octaves above the table's own scales of such a code are.
    #[inline(always)]
    fn octave(&self, first: i32) -> i32 {
        (first - self.code) >> self.shift
    }

    /// Finds the places of elements; returns whether none is too small.
    #[inline(always)]
    fn places(&self, elements: [u16; LANES], lowest: u16, places: &mut [u16; LANES]) -> bool {
        let zeros = (self.octaves << MANTISSA) << self.shift;
        let mut tiny = [0u16; LANES];
        for index in 0..LANES {
            let magnitude = elements[index] & (u16::MAX >> 1);
            let above = magnitude.wrapping_sub(lowest).min((OCTAVES << MANTISSA) as u16 - 1);
            let place = ((above & (ROWS as u16 - 1)) * self.octaves + (above >> MANTISSA)) << self.shift;
            places[index] = if magnitude == 0 { zeros } else { place };
            tiny[index] = u16::from((magnitude != 0) & (magnitude < lowest));
        }
        tiny == [0; LANES]
    }

    /// Returns the code of the least sum of errors, given the largest magnitude and the recipe's own code; none where another
    /// search has to find it.
    ///
    /// # Safety
    /// The level has AVX2, and the places are those of [`places`](Self::places).
    #[inline(always)]
    unsafe fn best(&self, range: &Range, places: &[u16], (amax, own): (f32, i32), grid: Grid) -> Option<i32> {
        let (mut best, mut least, mut of_own) = (own, f32::INFINITY, None);
        let power = (BIAS - self.unit - self.octave(range.first)) as u32;
        let top = amax * f32::from_bits(power << Binary32::MANTISSA);
        let mut first = range.first;
        for step in 0..STEPS {
            // SAFETY: the caller's promise. Behind the octaves of elements, rows have as many as all scales need, and there is
            // a row of zeros.
            let (sums, least_bits, lane) = unsafe {
                let errors = self.errors.as_ptr().add(step * LANES);
                let (mut low, mut high) = (arch::_mm256_setzero_ps(), arch::_mm256_setzero_ps());
                for &place in places {
                    let errors = errors.add(usize::from(place));
                    low = arch::_mm256_add_ps(low, arch::_mm256_loadu_ps(errors));
                    high = arch::_mm256_add_ps(high, arch::_mm256_loadu_ps(errors.add(LANES / 2)));
                }
                let units = self.units[step].as_ptr();
                low = arch::_mm256_mul_ps(low, arch::_mm256_loadu_ps(units));
                high = arch::_mm256_mul_ps(high, arch::_mm256_loadu_ps(units.add(LANES / 2)));
                // Bits of sums are in the order of their values; those of scales that are not tried become the largest.
                let above = arch::_mm256_set1_epi32(first - range.highest);
                let lanes = arch::_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let others = arch::_mm256_add_epi32(lanes, arch::_mm256_set1_epi32(LANES as i32 / 2));
                let tried = |sums, lanes| {
                    let mask = arch::_mm256_srli_epi32::<1>(arch::_mm256_cmpgt_epi32(above, lanes));
                    arch::_mm256_or_si256(arch::_mm256_castps_si256(sums), mask)
                };
                let bits = (tried(low, lanes), tried(high, others));
                let less = arch::_mm256_min_epi32(bits.0, bits.1);
                let less = arch::_mm_min_epi32(
                    arch::_mm256_castsi256_si128(less),
                    arch::_mm256_extracti128_si256::<1>(less),
                );
                let less = arch::_mm_min_epi32(less, arch::_mm_shuffle_epi32::<0xee>(less));
                let less = arch::_mm_min_epi32(less, arch::_mm_shuffle_epi32::<0x55>(less));
                let everywhere = arch::_mm256_broadcastd_epi32(less);
                let mask = |bits| {
                    let is_least = arch::_mm256_cmpeq_epi32(bits, everywhere);
                    arch::_mm256_movemask_ps(arch::_mm256_castsi256_ps(is_least)) as u32
                };
                let lane = (mask(bits.0) | mask(bits.1) << (LANES / 2)).trailing_zeros() as i32;
                let mut sums = [0f32; LANES];
                arch::_mm256_storeu_ps(sums.as_mut_ptr(), low);
                arch::_mm256_storeu_ps(sums.as_mut_ptr().add(LANES / 2), high);
                (sums, arch::_mm_cvtsi128_si32(less) as u32, lane)
            };
            if f32::from_bits(least_bits) < least {
                (least, best) = (f32::from_bits(least_bits), first - lane);
            }
            of_own = sums.get((first - own) as usize).copied().or(of_own);
            let lost = top - grid.max * self.next[step];
            if (lost >= 0.0) & (lost * lost >= least) {
                return Some(if least < of_own? * grid.less { best } else { own });
            }
            first -= LANES as i32;
            if first < self.octaves_of_codes.0 {
                return None;
            }
        }
        None
    }
}
