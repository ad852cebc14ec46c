//! Tables that find the codes of bf16 without products or quotients, one for each stored scale or large block.
//!
//! Their bounds between codes are what the arithmetic of the recipe gives for a few magnitudes, under a scale between 1 and
//! 2: one with another exponent moves them by exponents only.

use super::encoder::Encoder;
use super::scale_tables::{ByTables, Cause, ScaleTables};
use super::source::Buffers;
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::kernels::tables::e2m1_codes::{INTERVAL, Lookup, MAGNITUDE, RANGE, Table, Tables, table};
use crate::kernels::tables::e4m3_codes;
use crate::quantization::arithmetic::{Area, Blocks};
use crate::quantization::element::names::E4M3;
use crate::quantization::nearest::MIDDLES;
use crate::quantization::real::Real;
use crate::quantization::recipe::Steps;
use crate::quantization::scaled::{Float, reciprocals};

/// Elements of an item for which tables of all scales are made, and of a block for which its own one is.
const MANY: usize = 1 << 13;
const LARGE_BLOCK: usize = 1 << 11;

/// Stored scales of a byte.
const SCALES: usize = 1 << u8::BITS;

impl<T: Real> Encoder<T> {
    /// Finds the codes of bf16 as the recipe does, of which as many belong to each number that they are multiplied with, or
    /// divided by.
    fn codes_of(&self, magnitudes: &[u16], factors: &[f32], codes: &mut [u8], buffers: &mut Buffers<T>) {
        let Buffers { values, own_reciprocals: found, constant, .. } = buffers;
        reciprocals(self.level, factors, factors, found);
        constant.clear();
        constant.extend(factors.iter().map(|&factor| T::from_f32(factor)));
        let (first, columns) = (magnitudes.as_ptr().cast(), magnitudes.len());
        let from = (Area { first, pitch: 0, rows: 1, columns }, Float::Bf16);
        let blocks = Blocks { width: columns / factors.len(), begun: 0 };
        // SAFETY: these are the elements of the slice, and values have room for a piece, which is more.
        unsafe { self.quotients(from, (values.0.as_mut_ptr(), self.float), blocks, (constant, found)) };
        self.round(0, (&values.0[..columns], self.float), codes);
    }

    /// Returns the magnitudes from which on the codes of E2M1 are larger, for each of some factors, if all are found.
    fn bounds(&self, factors: &[f32], buffers: &mut Buffers<T>) -> Option<Vec<[u16; MIDDLES.len()]>> {
        /// Magnitudes that are tried around a bound, the first of which is below it.
        const TRIED: usize = 4;
        let count = TRIED * MIDDLES.len() * factors.len();
        let (mut tried, mut codes) = (Vec::with_capacity(count), vec![0; count]);
        if factors.is_empty() {
            return None;
        }
        for &factor in factors {
            for middle in MIDDLES {
                let bound = if self.multiplies() { middle / factor } else { middle * factor };
                let first = (bound.to_bits() >> u16::BITS) as u16 - 1;
                tried.extend(first..first + TRIED as u16);
            }
        }
        self.codes_of(&tried, factors, &mut codes, buffers);
        let mut of_factors = vec![[0; MIDDLES.len()]; factors.len()];
        let tries = tried.chunks_exact(TRIED).zip(codes.chunks_exact(TRIED));
        for (index, (bound, (tried, codes))) in
            of_factors.as_flattened_mut().iter_mut().zip(tries).enumerate()
        {
            let code = index % MIDDLES.len();
            let above = codes.iter().position(|&found| usize::from(found) > code);
            *bound = tried[above.filter(|&above| above > 0)?];
        }
        Some(of_factors)
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
        if buffers.tables.as_ref().is_some_and(|known| known.cause == Some(cause)) {
            return true;
        }
        if elements < MANY {
            return false;
        }
        let mut tables = buffers.tables.take().unwrap_or_default();
        self.fill_tables(matrix, &mut tables, buffers);
        tables.cause = Some(cause);
        buffers.tables = Some(tables);
        true
    }

    /// Makes the tables of all stored scales: those from 1 to 2, moved by the exponents of others.
    fn fill_tables(&self, matrix: usize, filled: &mut ScaleTables, buffers: &mut Buffers<T>) {
        /// Exponents of factors for which no step of a recipe loses bits.
        const MIDRANGE: std::ops::Range<i32> = -120..120;
        let codes: [u8; SCALES] = std::array::from_fn(|code| code as u8);
        buffers.scale.clear();
        buffers.scale.resize(SCALES, T::default());
        // SAFETY: there are as many scales, of a byte each.
        unsafe { self.stored.back.run(codes.as_ptr(), buffers.scale.as_mut_ptr().cast(), SCALES) };
        let scales: [f32; SCALES] = std::array::from_fn(|code| buffers.scale[code].to_f64() as f32);
        let mantissa = self.stored.format.float().map_or(0, |spec| spec.mantissa_bits);
        let one = scales.iter().position(|&scale| scale == 1.0).unwrap_or_default();
        let to_two = one..(one + (1 << mantissa)).min(SCALES);
        buffers.scale.truncate(to_two.end);
        buffers.scale.drain(..one);
        self.find_factors(self.of_all(matrix), buffers);
        let found: Option<Vec<_>> =
            buffers.factors.iter().map(|factor| parts(factor.to_f64() as f32)).collect();
        let found = found.unwrap_or_default();
        let factors: Vec<_> = found.iter().map(|parts| parts.0).collect();
        let bounds = self.bounds(&factors, buffers).unwrap_or_default();
        let ScaleTables { of_codes: Tables { lookups, tables }, .. } = filled;
        tables.clear();
        tables.push(Table::default());
        tables.extend(bounds.iter().map(|bounds| table(bounds[0] - INTERVAL, bounds)));
        let (mut is_known, mut largest) = ([false; SCALES], one);
        for (code, &scale) in scales.iter().enumerate() {
            lookups[code] = Lookup::ZEROS;
            if !(scale > 0.0 && scale.is_finite()) {
                continue;
            }
            largest = if scale > scales[largest] { code } else { largest };
            let bits = scale.to_bits();
            let number = (bits & ((1 << Binary32::MANTISSA) - 1)) >> (Binary32::MANTISSA - mantissa);
            let exponent = (bits >> Binary32::MANTISSA) as i32 - Binary32::BIAS as i32;
            let Some(bounds) = bounds.get(number as usize) else { continue };
            let of_factor = found[number as usize].1;
            // Products with factors are larger for smaller scales.
            let (moved, of_factor) = if self.multiplies() {
                (exponent - of_factor, of_factor - exponent)
            } else {
                (exponent + of_factor, exponent + of_factor)
            };
            let first = i32::from(bounds[0] - INTERVAL) + (moved << MANTISSA);
            // All are normal numbers.
            let normal = (1 << MANTISSA..(0xff << MANTISSA) - i32::from(RANGE)).contains(&first);
            if normal && MIDRANGE.contains(&of_factor) {
                lookups[code] = Lookup::new(first as u16, number as usize + 1);
                is_known[code] = true;
            }
        }
        (lookups[0], is_known[0]) = (Lookup::ZEROS, true);
        // From the scale 1 on, down and up.
        let down = is_known[..one].iter().rev().take_while(|&&known| known).count();
        let up = is_known[one..].iter().take_while(|&&known| known).count();
        filled.known = ((one - down) as u8, (one + up).saturating_sub(1) as u8);
        let saturates = largest <= usize::from(filled.known.1);
        filled.most = if saturates { lookups[largest].last() } else { MAGNITUDE };
        filled.zeros_only = self.has_powers() || self.recipe.steps == Steps::EncodeScale;
        filled.of_amaxes = self.scales_of_amaxes(matrix, buffers);
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

    /// Returns the table of a block, given its factor as a number between 1 and 2 and an exponent.
    fn block_table(
        &self,
        (factor, exponent): (f32, i32),
        buffers: &mut Buffers<T>,
    ) -> Option<e4m3_codes::Lookup> {
        const ONE: u16 = (1f32.to_bits() >> u16::BITS) as u16;
        let magnitudes: [u16; 1 << MANTISSA] = std::array::from_fn(|place| ONE + place as u16);
        let mut codes = [0; 1 << MANTISSA];
        self.codes_of(&magnitudes, &[factor], &mut codes, buffers);
        let exponent = if self.multiplies() { -exponent } else { exponent };
        e4m3_codes::Lookup::new(i32::from(ONE >> MANTISSA) + exponent, &codes)
    }
}

/// Returns a positive normal number as one between 1 and 2 and an exponent.
fn parts(number: f32) -> Option<(f32, i32)> {
    let bits = number.to_bits();
    let normal = number.is_normal() && number > 0.0;
    let exponent = (bits >> Binary32::MANTISSA) as i32 - Binary32::BIAS as i32;
    let mantissa = bits & ((1 << Binary32::MANTISSA) - 1);
    normal.then_some((f32::from_bits(1f32.to_bits() | mantissa), exponent))
}
