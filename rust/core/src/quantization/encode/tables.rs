//! Tables that find the codes of bf16 without products or quotients, one for each stored scale or large block.
//!
//! Their bounds between codes are what the arithmetic of the recipe gives for a few magnitudes, under a scale between 1 and
//! 2: one with another exponent moves them by exponents only.

use super::encoder::Encoder;
use super::source::Buffers;
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::Level;
use crate::kernels::tables::e2m1_codes::{INTERVAL, Lookup, MAGNITUDE, RANGE, Table, Tables, table};
use crate::kernels::tables::e4m3_codes;
use crate::quantization::arithmetic::{Area, Blocks};
use crate::quantization::element::names::E4M3;
use crate::quantization::nearest::MIDDLES;
use crate::quantization::real::Real;
use crate::quantization::recipe::{Steps, Ties};
use crate::quantization::scaled::{Float, reciprocals};

/// Elements of an item for which tables of all scales are made, and of a block for which its own one is.
const MANY: usize = 1 << 13;
const LARGE_BLOCK: usize = 1 << 11;

/// What codes of bf16 are found by, in place of quotients that are rounded twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByTables {
    /// Tables of the stored scales, to E2M1.
    OfScales,
    /// A table for each block, to E4M3.
    OfBlocks,
    /// None: quotients of two bf16 as they are rounded to integers.
    Integers,
}

/// All that the tables of stored scales follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cause {
    steps: Steps,
    ties: Ties,
    rounding: Option<Rounding>,
    /// The name of the format of stored scales, and what zero is stored as.
    scale: &'static str,
    zero: f32,
    /// The global scale, and the recipe's factor of the whole array.
    of_all: (f64, f64),
    level: Level,
}

/// The tables of stored scales of a byte.
pub(super) struct ScaleTables {
    cause: Cause,
    pub(super) of_codes: Tables,
    /// The smallest and the largest stored scale of those that have tables.
    pub(super) known: (u8, u8),
    /// Whether the table of scale 0 is for zeros only.
    pub(super) zeros_only: bool,
    /// The largest magnitude that tables have, which scales that saturate do not bound.
    pub(super) most: u16,
    /// How stored scales of E4M3 follow from the largest magnitudes of blocks.
    pub(super) of_amaxes: Option<e4m3_codes::Lookup>,
}

impl<T: Real> Encoder<T> {
    /// Finds the codes of some bf16 as the recipe does, given what they are multiplied with, or divided by.
    fn codes_of(&self, magnitudes: &[u16], factor: f32, codes: &mut [u8], buffers: &mut Buffers<T>) {
        let Buffers { values, own_reciprocal: found, .. } = buffers;
        reciprocals(self.level, &[factor], &[1.0], found);
        let (first, columns) = (magnitudes.as_ptr().cast(), magnitudes.len());
        let from = (Area { first, pitch: 0, rows: 1, columns }, Float::Bf16);
        let (to, blocks) = ((values.0.as_mut_ptr(), self.float), Blocks { width: columns, begun: 0 });
        // SAFETY: these are the elements of the slice, and values have room for as many.
        unsafe { self.quotients(from, to, blocks, (&[T::from_f32(factor)], &found[..])) };
        self.round(0, (&values.0[..columns], self.float), codes);
    }

    /// Returns the magnitudes from which on the codes of E2M1 are larger.
    fn bounds(&self, factor: f32, buffers: &mut Buffers<T>) -> Option<[u16; MIDDLES.len()]> {
        /// Magnitudes that are tried around a bound, the first of which is below it.
        const TRIED: usize = 4;
        let guess = |index: usize| {
            let middle = MIDDLES[index / TRIED];
            let bound = if self.multiplies() { middle / factor } else { middle * factor };
            (bound.to_bits() >> u16::BITS) as u16 - 1 + (index % TRIED) as u16
        };
        let tried: [u16; TRIED * MIDDLES.len()] = std::array::from_fn(guess);
        let mut codes = [0; TRIED * MIDDLES.len()];
        self.codes_of(&tried, factor, &mut codes, buffers);
        let mut bounds = [0; MIDDLES.len()];
        for (code, bound) in bounds.iter_mut().enumerate() {
            let here = code * TRIED..(code + 1) * TRIED;
            let above = codes[here.clone()].iter().position(|&found| usize::from(found) > code);
            *bound = tried[here][above.filter(|&above| above > 0)?];
        }
        Some(bounds)
    }

    /// Returns whether the buffers have the tables of all stored scales, which are made if the item is worth it.
    pub(super) fn has_tables(&self, matrix: usize, elements: usize, buffers: &mut Buffers<T>) -> bool {
        if self.by_tables != Some(ByTables::OfScales) {
            return false;
        }
        let of_all = self.of_all(matrix);
        let cause = Cause {
            steps: self.recipe.steps,
            ties: self.ties(),
            rounding: self.settings.options.rounding,
            scale: self.stored.format.name(),
            zero: self.zero_scale(),
            of_all: (of_all.0.to_f64(), of_all.1.to_f64()),
            level: self.level,
        };
        let is_known = buffers.tables.as_ref().is_some_and(|known| known.cause == cause);
        if !is_known && elements >= MANY {
            buffers.tables = Some(Box::new(self.tables(matrix, cause, buffers)));
            return true;
        }
        is_known
    }

    /// Makes the tables of all stored scales.
    fn tables(&self, matrix: usize, cause: Cause, buffers: &mut Buffers<T>) -> ScaleTables {
        let codes: [u8; 1 << u8::BITS] = std::array::from_fn(|code| code as u8);
        buffers.scale.clear();
        buffers.scale.resize(codes.len(), T::default());
        // SAFETY: there are as many scales, of a byte each.
        unsafe { self.stored.back.run(codes.as_ptr(), buffers.scale.as_mut_ptr().cast(), codes.len()) };
        let scales: [f64; 1 << u8::BITS] = std::array::from_fn(|code| buffers.scale[code].to_f64());
        self.find_factors(self.of_all(matrix), buffers);
        let factors = std::mem::take(&mut buffers.factors);
        let mut of_codes = Tables { lookups: [Lookup::ZEROS; 1 << u8::BITS], tables: vec![Table::default()] };
        let mut is_known = [false; 1 << u8::BITS];
        // The mantissas of factors, and the first magnitudes of their tables.
        let mut found: Vec<(u32, u16)> = Vec::new();
        for (code, factor) in factors.iter().enumerate() {
            let Some((mantissa, exponent)) = parts(factor.to_f64() as f32) else { continue };
            let number = found.iter().position(|known| known.0 == mantissa).or_else(|| {
                let bounds = self.bounds(one_to_two(mantissa), buffers)?;
                let first = bounds[0] - INTERVAL;
                of_codes.tables.push(table(first, &bounds));
                found.push((mantissa, first));
                Some(found.len() - 1)
            });
            let Some(number) = number else { continue };
            let moved = if self.multiplies() { -exponent } else { exponent } << MANTISSA;
            let first = i32::from(found[number].1) + moved;
            // All are normal numbers.
            if (1 << MANTISSA..(0xff << MANTISSA) - i32::from(RANGE)).contains(&first) {
                of_codes.lookups[code] = Lookup::new(first as u16, number + 1);
                is_known[code] = true;
            }
        }
        buffers.factors = factors;
        (of_codes.lookups[0], is_known[0]) = (Lookup::ZEROS, true);
        // From the scale 1 on, down and up.
        let one = scales.iter().position(|&scale| scale == 1.0).unwrap_or_default();
        let count = |known: &mut dyn Iterator<Item = &bool>| known.take_while(|&&known| known).count();
        let (down, up) = (count(&mut is_known[..one].iter().rev()), count(&mut is_known[one..].iter()));
        let known = ((one - down) as u8, (one + up).saturating_sub(1) as u8);
        let largest = (0..codes.len()).filter(|&code| scales[code].is_finite());
        let largest = largest.max_by(|&a, &b| scales[a].total_cmp(&scales[b])).unwrap_or_default();
        ScaleTables {
            cause,
            most: if usize::from(known.1) < largest { MAGNITUDE } else { of_codes.lookups[largest].last() },
            of_codes,
            known,
            zeros_only: self.has_powers() || self.recipe.steps == Steps::EncodeScale,
            of_amaxes: self.scales_of_amaxes(matrix, buffers),
        }
    }

    /// Returns how stored scales of E4M3 follow from largest magnitudes, if these are normal numbers.
    fn scales_of_amaxes(&self, matrix: usize, buffers: &mut Buffers<T>) -> Option<e4m3_codes::Lookup> {
        /// Exponents of magnitudes for which no step of a recipe loses bits.
        const MIDRANGE: std::ops::Range<i32> = 64..192;
        if self.stored.format.name() != E4M3 {
            return None;
        }
        // The scale of the largest magnitude 1, before it is stored, tells the magnitudes with scales of about 1.
        buffers.amax.clear();
        buffers.amax.push(T::ONE);
        self.compute(self.of_all(matrix), buffers);
        let (_, exponent) = parts(buffers.scale.first()?.to_f64() as f32)?;
        let exponent = Binary32::BIAS as i32 - exponent;
        if !MIDRANGE.contains(&exponent) {
            return None;
        }
        let amax = |mantissa: u32| f32::from_bits((exponent as u32) << Binary32::MANTISSA | mantissa << 16);
        buffers.amax.clear();
        buffers.amax.extend((0..1 << MANTISSA).map(|mantissa| T::from_f32(amax(mantissa))));
        self.scales(matrix, 1.0, buffers);
        e4m3_codes::Lookup::new(exponent, buffers.bytes.first_chunk()?)
    }

    /// Makes tables for the blocks of a band, of so many elements each, given their factors.
    pub(super) fn find_block_tables(&self, elements: usize, buffers: &mut Buffers<T>) {
        let mut of_blocks = std::mem::take(&mut buffers.of_blocks);
        of_blocks.clear();
        if self.by_tables == Some(ByTables::OfBlocks) && elements >= LARGE_BLOCK {
            let factors = std::mem::take(&mut buffers.factors);
            of_blocks.extend(factors.iter().map(|factor| {
                let found = parts(factor.to_f64() as f32).and_then(|parts| self.block_table(parts, buffers));
                found.unwrap_or(e4m3_codes::Lookup::NONE)
            }));
            buffers.factors = factors;
        }
        buffers.of_blocks = of_blocks;
    }

    /// Returns the table of a block, given the mantissa and the exponent of its factor.
    fn block_table(
        &self,
        (mantissa, exponent): (u32, i32),
        buffers: &mut Buffers<T>,
    ) -> Option<e4m3_codes::Lookup> {
        const ONE: u16 = (1f32.to_bits() >> u16::BITS) as u16;
        let magnitudes: [u16; 1 << MANTISSA] = std::array::from_fn(|place| ONE + place as u16);
        let mut codes = [0; 1 << MANTISSA];
        self.codes_of(&magnitudes, one_to_two(mantissa), &mut codes, buffers);
        let exponent = if self.multiplies() { -exponent } else { exponent };
        e4m3_codes::Lookup::new(i32::from(ONE >> MANTISSA) + exponent, &codes)
    }
}

/// Returns the mantissa and the exponent of a positive normal number.
fn parts(number: f32) -> Option<(u32, i32)> {
    let bits = number.to_bits();
    let normal = number.is_normal() && number > 0.0;
    let exponent = (bits >> Binary32::MANTISSA) as i32 - Binary32::BIAS as i32;
    normal.then_some((bits & ((1 << Binary32::MANTISSA) - 1), exponent))
}

fn one_to_two(mantissa: u32) -> f32 {
    f32::from_bits(1f32.to_bits() | mantissa)
}
