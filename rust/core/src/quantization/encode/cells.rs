//! Codes of bf16 by cells of magnitudes: without products or quotients, given where the codes of a scale begin.
//!
//! Where that is, the arithmetic of the recipe says, of a few magnitudes: scales that differ by powers of two share tables.

use std::ops::Range;

use super::encoder::Encoder;
use super::places::{ByCells, Cause, Places};
use super::source::Buffers;
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::kernels::tables::cells::{
    BEYOND_ALL, E2M1_CELL, E4M3_CELL, E4m3Cells, Left, NO_CELLS, NOWHERE, Place, Sums, ToE2m1, ToE4m3,
    to_e2m1, to_e4m3,
};
use crate::quantization::arithmetic::{Area, Blocks};
use crate::quantization::nearest::MIDDLES;
use crate::quantization::real::Real;
use crate::quantization::recipe::Steps;
use crate::quantization::scaled::{Float, reciprocals};
use crate::simd::CELLS;

/// Elements of an item for which tables for all scales are made, and of a block for which its own one is.
const MANY: usize = 1 << 13;
pub(super) const LARGE_BLOCK: usize = 1 << 11;

/// Of elements that are left to quotients, this part is too much.
const FEW: usize = 8;

/// The magnitudes that are tried around a bound, the first of which is below it.
const TRIED: usize = 4;

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

    /// Returns the magnitudes from which on the codes of E2M1 are larger, under a scale without an exponent.
    fn bounds(&self, factor: f32, buffers: &mut Buffers<T>) -> Option<[u16; MIDDLES.len()]> {
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

    /// Returns whether the buffers have the places of all stored scales, which are found if the item is worth it.
    pub(super) fn has_places(&self, matrix: usize, elements: usize, buffers: &mut Buffers<T>) -> bool {
        let Some(ByCells::E2m1(_)) = self.by_cells else { return false };
        let of_all = self.of_all(matrix);
        let cause = Cause {
            steps: self.recipe.steps,
            ties: self.ties(),
            rounding: self.settings.options.rounding,
            scale: self.stored.format.name(),
            of_all: (of_all.0.to_f64(), of_all.1.to_f64()),
            level: self.level,
        };
        let is_known = buffers.places.as_ref().is_some_and(|known| known.cause == cause);
        if !is_known && elements >= MANY {
            buffers.places = Some(Box::new(self.find_places(matrix, cause, buffers)));
            return true;
        }
        is_known
    }

    fn find_places(&self, matrix: usize, cause: Cause, buffers: &mut Buffers<T>) -> Places {
        let codes: [u8; 1 << u8::BITS] = std::array::from_fn(|code| code as u8);
        buffers.scale.clear();
        buffers.scale.resize(codes.len(), T::default());
        // SAFETY: there are as many scales, of a byte each.
        unsafe { self.stored.back.run(codes.as_ptr(), buffers.scale.as_mut_ptr().cast(), codes.len()) };
        self.factors_of_scales(matrix, buffers);
        let factors = std::mem::take(&mut buffers.factors);
        // A table for every place.
        let mut found = Places { cause, of_scales: [NOWHERE; 1 << u8::BITS], tables: vec![[0; CELLS]] };
        let mut firsts: Vec<(u32, u16)> = Vec::new();
        let of_zero = if self.recipe.steps == Steps::EncodeScale { NOWHERE } else { BEYOND_ALL };
        for (code, (place, factor)) in found.of_scales.iter_mut().zip(&factors).enumerate() {
            if code == 0 && !self.has_powers() {
                *place = of_zero;
            }
            let Some((mantissa, exponent)) = parts(factor.to_f64() as f32) else { continue };
            let table = firsts.iter().position(|known| known.0 == mantissa).or_else(|| {
                let bounds = self.bounds(one_to_two(mantissa), buffers)?;
                let base = bounds[0] - (1 << E2M1_CELL);
                found.tables.push(e2m1_sums(base, &bounds));
                firsts.push((mantissa, base));
                Some(firsts.len() - 1)
            });
            let Some(table) = table else { continue };
            let moved = if self.multiplies() { -exponent } else { exponent } << MANTISSA;
            let base = i32::from(firsts[table].1) + moved;
            // All cells are of normal numbers.
            if (1 << MANTISSA..(0xff << MANTISSA) - (CELLS << E2M1_CELL) as i32).contains(&base) {
                *place = Place { base: base as u16, table: ((table + 1) * CELLS) as u16 };
            }
        }
        buffers.factors = factors;
        found
    }

    /// Whether all codes of a band of so many columns are found by the cells of scales, in all likelihood; then there are no
    /// factors yet.
    pub(super) fn needs_no_factors(&self, columns: usize, buffers: &mut Buffers<T>) -> bool {
        let whole = |step: usize| columns.is_multiple_of(step) && buffers.has_places;
        let by_scales = matches!(self.by_cells, Some(ByCells::E2m1(step)) if whole(step));
        if by_scales {
            buffers.factors.clear();
        }
        by_scales
    }

    /// Makes tables for blocks, given what their elements are multiplied with, or divided by.
    pub(super) fn find_cells(&self, elements: usize, buffers: &mut Buffers<T>) {
        let mut cells = std::mem::take(&mut buffers.cells);
        cells.clear();
        if self.by_cells == Some(ByCells::E4m3) && elements >= LARGE_BLOCK {
            let factors = std::mem::take(&mut buffers.factors);
            cells.extend(factors.iter().map(|factor| {
                let found = parts(factor.to_f64() as f32).and_then(|parts| self.e4m3_cells(parts, buffers));
                found.unwrap_or(E4m3Cells { sums: [0; CELLS], exponent: NO_CELLS })
            }));
            buffers.factors = factors;
        }
        buffers.cells = cells;
    }

    fn e4m3_cells(&self, (mantissa, exponent): (u32, i32), buffers: &mut Buffers<T>) -> Option<E4m3Cells> {
        const ONE: u16 = (1f32.to_bits() >> u16::BITS) as u16;
        let magnitudes: [u16; 1 << MANTISSA] = std::array::from_fn(|place| ONE + place as u16);
        let mut codes = [0; 1 << MANTISSA];
        self.codes_of(&magnitudes, one_to_two(mantissa), &mut codes, buffers);
        // The exponent of the first code is that of 1.
        let first = codes[0] & !7;
        let one = i32::from(ONE >> MANTISSA) - i32::from(first >> 3);
        let exponent = one + if self.multiplies() { -exponent } else { exponent };
        let mut sums = [0; CELLS];
        for (cell, codes) in codes.chunks_exact(1 << E4M3_CELL).enumerate() {
            let sum: u8 = codes.iter().map(|code| code - first).sum();
            (sums[cell], sums[cell + CELLS / 2]) = (sum, sum);
        }
        // Of the next exponent on, all codes are normal.
        let exponent = u8::try_from(exponent).ok().filter(|exponent| (1..NO_CELLS - 1).contains(exponent))?;
        Some(E4m3Cells { sums, exponent })
    }

    /// Finds the codes of a piece, a byte each without gaps, and those that are left by quotients. Returns whether it did.
    ///
    /// # Safety
    /// The elements are readable, and as many codes writable; columns begin with a block.
    pub(super) unsafe fn by_tables(
        &self,
        Elements { area, blocks, here }: Elements,
        tables: Tables<'_, T>,
        codes: &mut [u8],
    ) -> bool {
        let Tables { places, scales, cells, factors, reciprocals, left, values } = tables;
        let (Area { rows, columns, .. }, Blocks { width, begun }) = (area, blocks);
        left.clear();
        // SAFETY: the caller's promise.
        unsafe {
            match (self.by_cells, places) {
                (Some(ByCells::E2m1(step)), Some(places)) if begun == 0 => {
                    let count = columns - columns % step;
                    for row in 0..rows {
                        let what = ToE2m1 {
                            from: area.row(row),
                            to: codes.as_mut_ptr().add(row * columns),
                            count,
                            width,
                            scales: scales[here.clone()].as_ptr(),
                            places: &places.of_scales,
                            tables: &places.tables,
                        };
                        if !to_e2m1(self.level, what) {
                            return false;
                        }
                        if count < columns {
                            left.push(Left { row, start: count, count: columns - count });
                        }
                    }
                }
                (Some(ByCells::E4m3), _) if !cells.is_empty() => {
                    let what = ToE4m3 {
                        from: area.first,
                        pitch: area.pitch,
                        to: codes.as_mut_ptr(),
                        to_pitch: columns as isize,
                        rows,
                        columns,
                        first: width - begun,
                        width,
                        blocks: &cells[here.clone()],
                    };
                    if !to_e4m3(self.level, what, left) {
                        return false;
                    }
                }
                _ => return false,
            }
            if left.iter().map(|left| left.count).sum::<usize>() > rows * columns / FEW {
                return false;
            }
            for &Left { row, start, count } in left.iter() {
                let first = area.row(row).add(start * size_of::<u16>());
                let from = (Area { first, pitch: 0, rows: 1, columns: count }, Float::Bf16);
                let of = here.start + (begun + start) / width
                    ..here.start + (begun + start + count).div_ceil(width);
                let reciprocals = reciprocals.get(of.clone()).unwrap_or_default();
                let blocks = Blocks { width, begun: (begun + start) % width };
                self.quotients(from, (values.as_mut_ptr(), self.float), blocks, (&factors[of], reciprocals));
                let place = row * columns + start;
                self.round(0, (&values[..count], self.float), &mut codes[place..place + count]);
            }
        }
        true
    }
}

/// The bf16 of a piece, their blocks, and which of a band these are.
#[derive(Clone)]
pub(super) struct Elements {
    pub(super) area: Area<*const u8>,
    pub(super) blocks: Blocks,
    pub(super) here: Range<usize>,
}

/// What is known of the blocks of a band, and room for elements that are left.
pub(super) struct Tables<'a, T> {
    pub(super) places: Option<&'a Places>,
    /// As they are stored.
    pub(super) scales: &'a [u8],
    pub(super) cells: &'a [E4m3Cells],
    pub(super) factors: &'a [T],
    pub(super) reciprocals: &'a [f32],
    pub(super) left: &'a mut Vec<Left>,
    pub(super) values: &'a mut [T],
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

/// Returns the sums of cells from a magnitude on, given the bounds of codes.
fn e2m1_sums(base: u16, bounds: &[u16; MIDDLES.len()]) -> Sums {
    const CELL: u16 = 1 << E2M1_CELL;
    std::array::from_fn(|cell| {
        let end = base + (cell as u16 + 1) * CELL;
        bounds.iter().map(|&bound| end.saturating_sub(bound).min(CELL) as u8).sum()
    })
}
