//! Tables that find the codes of E2M1 of bf16, one for each stored scale, and scales of the largest magnitudes.
//!
//! Their bounds between codes are what the arithmetic of the recipe gives for a few magnitudes, under a scale between 1 and
//! 2: one with another exponent moves them by exponents only.

use super::trials::{Parts, Reference, Trials, find_codes, parts};
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::Level;
use crate::kernels::tables::e2m1_codes::{INTERVAL, Lookup, MAGNITUDE, RANGE, Table, Tables, table};
use crate::kernels::tables::e4m3_codes::{self, Left, ToE4m3, to_e4m3};
use crate::quantization::arithmetic::{Piece, on_level};
use crate::quantization::element::names::E4M3;
use crate::quantization::encode::codes::Codes;
use crate::quantization::encode::scales::Scales;
use crate::quantization::encode::source::of_bf16;
use crate::quantization::nearest::MIDDLES;
use crate::quantization::real::Real;
use crate::quantization::recipe::{Family, Ties};
use crate::quantization::steps::BlockScales;

/// Elements of an item for which tables of all scales are made.
const MANY: usize = 1 << 13;

/// Stored scales of a byte.
const SCALES: usize = 1 << u8::BITS;

/// All that the tables of stored scales follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TableKey {
    /// The recipe.
    family: Family,
    name: &'static str,
    ties: Ties,
    rounding: Option<Rounding>,
    /// The name of the format of stored scales, and what zero is stored as.
    stored: &'static str,
    zero: f32,
    /// The global scale, and the recipe's factor of the whole array.
    array: [f64; 2],
    level: Level,
}

/// The tables of stored scales of a byte.
#[derive(Default)]
pub(super) struct ScaleTables {
    key: Option<TableKey>,
    pub(super) of_codes: Tables,
    /// The smallest and the largest stored scale of those that have tables.
    known: (u8, u8),
    /// Whether the table of scale 0 is for zeros only.
    zeros_only: bool,
    /// The largest magnitude that tables have, which scales that saturate do not bound.
    most: u16,
    /// How stored scales of E4M3 follow from the largest magnitudes of blocks.
    pub(super) of_amaxes: Option<e4m3_codes::Lookup>,
}

impl ScaleTables {
    /// Whether tables have the codes of all blocks of a band, given the largest of their magnitudes, all of these, and their
    /// stored scales.
    pub(super) fn have_all<T: Real>(&self, level: Level, most: u16, shorts: &[u16], stored: &[u8]) -> bool {
        let (zeros_only, (low, high)) = (self.zeros_only, self.known);
        let mut all = true;
        on_level!(level, <T: Real>, shorts: &'a [u16] = shorts, stored: &'a [u8] = stored, zeros_only: bool = zeros_only,
            known: (u8, u8) = (low, high), result: &'a mut bool = &mut all; {
            let (low, high) = known;
            // That of 0 has a table, too.
            let beyond = |scale: u8| (scale < low) & (scale != 0) | (scale > high);
            let beyond = stored.iter().fold(false, |any, &scale| any | beyond(scale));
            let mut small = false;
            if zeros_only {
                let pairs = stored.iter().zip(shorts);
                small = pairs.fold(false, |small, (&scale, &amax)| small | ((scale == 0) & (amax != 0)));
            }
            *result = !beyond & !small;
        });
        all && most <= self.most
    }

    /// Makes the tables of all stored scales: those from 1 to 2, moved by the exponents of others.
    fn fill<T: Real>(
        &mut self,
        Reference { scales: of_scales, codes }: Reference<'_, T>,
        matrix: usize,
        (trials, room): (&mut Trials<T>, &mut Piece<T>),
    ) {
        /// Exponents of factors for which no step of a recipe loses bits.
        const MIDRANGE: std::ops::Range<i32> = -120..120;
        let (stored, blocks) = (&of_scales.stored, &mut trials.scales);
        let bytes: [u8; SCALES] = std::array::from_fn(|code| code as u8);
        blocks.scale.clear();
        blocks.scale.resize(SCALES, T::default());
        // SAFETY: there are as many scales, of a byte each.
        unsafe { stored.to_real.convert(bytes.as_ptr(), blocks.scale.as_mut_ptr().cast(), SCALES) };
        let scales: [f32; SCALES] = std::array::from_fn(|code| blocks.scale[code].to_f64() as f32);
        let mantissa = stored.format.float().map_or(0, |spec| spec.mantissa_bits);
        let unity = scales.iter().position(|&scale| scale == 1.0).unwrap_or_default();
        let to_two = unity..(unity + (1 << mantissa)).min(SCALES);
        blocks.scale.truncate(to_two.end);
        blocks.scale.drain(..unity);
        (of_scales.steps.factors)(&of_scales.numbers, of_scales.of_array(matrix), blocks);
        let factors: Option<Vec<_>> =
            blocks.factors.iter().map(|factor| parts(factor.to_f64() as f32)).collect();
        let factors = factors.unwrap_or_default();
        let bounds = bounds(codes, &factors, (blocks, room)).unwrap_or_default();
        let Tables { lookups, tables } = &mut self.of_codes;
        tables.clear();
        tables.push(Table::default());
        tables.extend(bounds.iter().map(|bounds| table(bounds[0] - INTERVAL, bounds)));
        let (mut is_known, mut largest) = ([false; SCALES], unity);
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
            let of_factor = factors[number as usize].exponent;
            // Products with factors are larger for smaller scales.
            let (moved, of_factor) = if codes.multiplies {
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
        let down = is_known[..unity].iter().rev().take_while(|&&known| known).count();
        let up = is_known[unity..].iter().take_while(|&&known| known).count();
        self.known = ((unity - down) as u8, (unity + up).saturating_sub(1) as u8);
        let saturates = largest <= usize::from(self.known.1);
        self.most = if saturates { lookups[largest].last() } else { MAGNITUDE };
        self.zeros_only = of_scales.numbers.has_powers || of_scales.recipe.steps.properties.outlasts_zeros;
        self.of_amaxes = scales_of_amaxes(of_scales, matrix, trials);
    }
}

/// Returns whether there are tables of all stored scales, which are made if the item has many elements.
pub(super) fn prepare<T: Real>(
    reference: Reference<'_, T>,
    matrix: usize,
    elements: usize,
    tables: &mut Option<Box<ScaleTables>>,
    buffers: (&mut Trials<T>, &mut Piece<T>),
) -> bool {
    let Reference { scales, codes } = reference;
    let array = scales.of_array(matrix);
    let key = Some(TableKey {
        family: scales.recipe.family,
        name: scales.recipe.name,
        ties: codes.ties,
        rounding: codes.settings.options.rounding,
        stored: scales.stored.format.name(),
        zero: scales.zero_scale(),
        array: [array.global.to_f64(), array.encode.to_f64()],
        level: codes.level,
    });
    if tables.as_ref().is_some_and(|tables| tables.key == key) {
        return true;
    }
    if elements < MANY {
        return false;
    }
    let tables = tables.get_or_insert_default();
    tables.fill(reference, matrix, buffers);
    tables.key = key;
    true
}

/// Returns the magnitudes from which on the codes of E2M1 are larger, for each of some factors, if all are found.
fn bounds<T: Real>(
    codes: &Codes<T>,
    factors: &[Parts],
    buffers: (&mut BlockScales<T>, &mut Piece<T>),
) -> Option<Vec<[u16; MIDDLES.len()]>> {
    /// Magnitudes that are tried around a bound, the first of which is below it.
    const TRIED: usize = 4;
    let count = TRIED * MIDDLES.len() * factors.len();
    let (mut tried, mut of_tried) = (Vec::with_capacity(count), vec![0; count]);
    if factors.is_empty() {
        return None;
    }
    let fractions: Vec<_> = factors.iter().map(|parts| parts.fraction).collect();
    for &factor in &fractions {
        for middle in MIDDLES {
            let bound = if codes.multiplies { middle / factor } else { middle * factor };
            let first = (bound.to_bits() >> u16::BITS) as u16 - 1;
            tried.extend(first..first + TRIED as u16);
        }
    }
    find_codes(codes, &tried, &fractions, &mut of_tried, buffers);
    let mut bounds = vec![[0; MIDDLES.len()]; factors.len()];
    let tries = tried.chunks_exact(TRIED).zip(of_tried.chunks_exact(TRIED));
    for (index, (bound, (tried, of_tried))) in bounds.as_flattened_mut().iter_mut().zip(tries).enumerate() {
        let below = index % MIDDLES.len();
        let above = of_tried.iter().position(|&code| usize::from(code) > below);
        *bound = tried[above.filter(|&above| above > 0)?];
    }
    Some(bounds)
}

/// Returns how stored scales of E4M3 follow from largest magnitudes, if these are normal numbers.
fn scales_of_amaxes<T: Real>(
    scales: &Scales<T>,
    matrix: usize,
    trials: &mut Trials<T>,
) -> Option<e4m3_codes::Lookup> {
    /// Exponents of magnitudes for which no step of a recipe loses bits.
    const MIDRANGE: std::ops::Range<i32> = 64..192;
    if scales.stored.format.name() != E4M3 {
        return None;
    }
    let Trials { amaxes, scales: blocks } = trials;
    // The scale of the largest magnitude 1, before it is stored, tells the magnitudes with scales of about 1.
    amaxes.amax.clear();
    amaxes.amax.push(T::ONE);
    scales.compute(scales.of_array(matrix), amaxes, blocks);
    let Parts { exponent, .. } = parts(blocks.scale.first()?.to_f64() as f32)?;
    let exponent = Binary32::BIAS as i32 - exponent;
    if !MIDRANGE.contains(&exponent) {
        return None;
    }
    let amax = |mantissa: u32| f32::from_bits((exponent as u32) << Binary32::MANTISSA | mantissa << 16);
    amaxes.amax.clear();
    amaxes.amax.extend((0..1 << MANTISSA).map(|mantissa| T::from_f32(amax(mantissa))));
    scales.find(matrix, 1.0, amaxes, blocks);
    e4m3_codes::Lookup::new(exponent, blocks.bytes.first_chunk()?)
}

/// Finds powers of two by the exponents of the largest magnitudes.
pub(super) fn find_powers<T: Real>(scales: &Scales<T>, shorts: &[u16], stored: &mut [u8]) {
    // Codes have so few bits that a mantissa of bf16 has all that their rules look at.
    let added = (scales.numbers.power_addend >> (52 - MANTISSA)) as u16;
    let (exponent, zero) = (scales.element_exponent() as u16, scales.zero_scale() as u8);
    on_level!(scales.numbers.level, <T: Real>, stored: &'a mut [u8] = stored, shorts: &'a [u16] = shorts, added: u16 = added,
        exponent: u16 = exponent, zero: u8 = zero; {
        for (byte, &amax) in stored.iter_mut().zip(shorts) {
            let power = ((amax + added) >> MANTISSA).saturating_sub(exponent);
            *byte = if amax == 0 { zero } else { power as u8 };
        }
    });
}

/// Finds scales of E4M3 by a table, and those of small blocks as the recipe does.
pub(super) fn find_e4m3<T: Real>(
    scales: &Scales<T>,
    matrix: usize,
    table: Option<e4m3_codes::Lookup>,
    shorts: &[u16],
    stored: &mut [u8],
    (left, trials): (&mut Vec<Left>, &mut Trials<T>),
) {
    let count = stored.len();
    left.clear();
    if let Some(table) = table {
        let (from, to) = (shorts.as_ptr().cast(), stored.as_mut_ptr());
        let (rows, columns) = (1, count);
        let (first, width, blocks) = (count, count, &[table][..]);
        let band = ToE4m3 { from, pitch: 0, to, to_pitch: 0, rows, columns, first, width, blocks };
        // SAFETY: these are the elements of the slices. Where there are tables, the level has vectors.
        unsafe { to_e4m3(scales.numbers.level, band, left) };
    } else {
        left.push(Left { row: 0, start: 0, count });
    }
    let ranges = || left.iter().map(|left| left.start..left.start + left.count);
    let Trials { amaxes, scales: blocks } = trials;
    amaxes.amax.clear();
    for range in ranges() {
        amaxes.amax.extend(shorts[range].iter().copied().map(of_bf16::<T>));
    }
    if amaxes.amax.is_empty() {
        return;
    }
    scales.find(matrix, 1.0, amaxes, blocks);
    let mut bytes = &blocks.bytes[..];
    for range in ranges() {
        let (these, others) = bytes.split_at(range.len());
        stored[range].copy_from_slice(these);
        bytes = others;
    }
}
