//! Scales and codes of bf16 by tables, where these have all that a band needs.

use std::ops::Range;

use super::encoder::{Encoder, Limits};
use super::scale_tables::{ByTables, ScaleTables};
use super::source::{Buffers, of_bf16};
use crate::codec::odd_bf16::MANTISSA;
use crate::kernels::tables::e2m1_codes::{Form, ToE2m1, to_e2m1};
use crate::kernels::tables::e4m3_codes::{Left, ToE4m3, to_e4m3};
use crate::quantization::arithmetic::{Area, Blocks, on_level};
use crate::quantization::real::Real;
use crate::quantization::recipe::{Steps, Ties};
use crate::quantization::scaled::Float;
use crate::quantization::whole_quotients::{WholeQuotients, whole_quotients};

/// Of elements that are left to quotients, this part is too much.
const FEW: usize = 8;

impl<T: Real> Encoder<T> {
    /// Finds the stored scales of a band of the largest magnitudes of its blocks, as bf16. What else is known of blocks is
    /// forgotten.
    pub(super) fn scales_of_shorts(&self, matrix: usize, buffers: &mut Buffers<T>) {
        let mut bytes = std::mem::take(&mut buffers.bytes);
        bytes.clear();
        bytes.resize(buffers.shorts.len(), 0);
        if self.recipe.steps == Steps::Power {
            self.powers_of_shorts(&buffers.shorts, &mut bytes);
        } else {
            self.e4m3_of_shorts(matrix, &mut bytes, buffers);
        }
        buffers.bytes = bytes;
        buffers.amax.clear();
        buffers.factors.clear();
    }

    /// Finds powers of two by the exponents of magnitudes.
    fn powers_of_shorts(&self, shorts: &[u16], bytes: &mut [u8]) {
        let (added, exponent) = self.power_steps();
        // Codes have so few bits that a mantissa of bf16 has all that their rules look at.
        let (added, exponent, zero) =
            ((added >> (52 - MANTISSA)) as u16, exponent as u16, self.zero_scale() as u8);
        on_level::<T>(self.level, || {
            for (byte, &amax) in bytes.iter_mut().zip(shorts) {
                let power = ((amax + added) >> MANTISSA).saturating_sub(exponent);
                *byte = if amax == 0 { zero } else { power as u8 };
            }
        });
    }

    /// Finds scales of E4M3 by a table, and those of small blocks as the recipe does.
    fn e4m3_of_shorts(&self, matrix: usize, bytes: &mut [u8], buffers: &mut Buffers<T>) {
        let (count, table) = (bytes.len(), buffers.tables.as_ref().and_then(|tables| tables.of_amaxes));
        let mut left = std::mem::take(&mut buffers.left);
        left.clear();
        if let Some(table) = table {
            let (from, to) = (buffers.shorts.as_ptr().cast(), bytes.as_mut_ptr());
            let (rows, columns) = (1, count);
            let (first, width, blocks) = (count, count, &[table][..]);
            let what = ToE4m3 { from, pitch: 0, to, to_pitch: 0, rows, columns, first, width, blocks };
            // SAFETY: these are the elements of the slices. Where there are tables, the level has vectors.
            unsafe { to_e4m3(self.level, what, &mut left) };
        } else {
            left.push(Left { row: 0, start: 0, count });
        }
        let ranges = || left.iter().map(|left| left.start..left.start + left.count);
        let small: usize = ranges().map(|range| range.len()).sum();
        if small > 0 {
            let Buffers { amax, shorts, .. } = &mut *buffers;
            amax.clear();
            for range in ranges() {
                amax.extend(shorts[range].iter().copied().map(of_bf16::<T>));
            }
            self.scales(matrix, 1.0, buffers);
            let mut found = &buffers.bytes[..];
            for range in ranges() {
                let (these, others) = found.split_at(range.len());
                bytes[range].copy_from_slice(these);
                found = others;
            }
        }
        buffers.left = left;
    }

    /// Whether tables have the codes of all blocks of a band, given their largest magnitudes and stored scales.
    pub(super) fn have_all(&self, most: u16, buffers: &Buffers<T>) -> bool {
        let Buffers { tables: Some(tables), shorts, bytes, .. } = buffers else { return false };
        let ScaleTables { known: (low, high), zeros_only, .. } = **tables;
        let mut all = true;
        let found = &mut all;
        on_level::<T>(self.level, move || {
            // That of 0 has a table, too.
            let beyond = |scale: u8| (scale < low) & (scale != 0) | (scale > high);
            let beyond = bytes.iter().fold(false, |found, &scale| found | beyond(scale));
            let mut small = false;
            if zeros_only {
                let pairs = bytes.iter().zip(shorts);
                small = pairs.fold(false, |small, (&scale, &amax)| small | ((scale == 0) & (amax != 0)));
            }
            *found = !beyond & !small;
        });
        all && most <= tables.most
    }

    /// Finds what quotients need of the blocks of a band, if only their largest magnitudes are known.
    pub(super) fn complete(&self, matrix: usize, buffers: &mut Buffers<T>) {
        if buffers.amax.is_empty() {
            let Buffers { amax, shorts, .. } = &mut *buffers;
            amax.extend(shorts.iter().copied().map(of_bf16::<T>));
            self.scales(matrix, 1.0, buffers);
        }
        if buffers.factors.is_empty() {
            self.factors(matrix, buffers);
        }
    }

    /// How the codes of a piece may be stored at once.
    pub(super) fn has_form(&self, form: Form, elements: &Elements) -> bool {
        let Blocks { width, begun } = elements.blocks;
        // The code of a zero, which would fill up an odd row, may be another nibble than 0.
        let of_pairs = || [width, begun, elements.area.columns].iter().all(|count| count.is_multiple_of(2));
        let first = |limits: &Limits<T>| limits.low.to_f64() as i32 + self.what.offset;
        match self.by_tables {
            Some(ByTables::OfScales) => true,
            // The least integer is nibble 0.
            Some(ByTables::Integers) if form != Form::Bytes => {
                of_pairs() && self.limits.as_ref().is_some_and(|limits| first(limits) % 16 == 0)
            }
            _ => form == Form::Bytes,
        }
    }

    /// Finds the codes of a piece, without gaps from row to row, somewhere or in the buffer of codes. Returns whether it did.
    ///
    /// # Safety
    /// The elements are readable, and their codes writable in the form, which [`has_form`](Self::has_form) allows.
    pub(super) unsafe fn find_codes(
        &self,
        Elements { area, blocks, here }: Elements,
        (there, form): (Option<*mut u8>, Form),
        buffers: &mut Buffers<T>,
    ) -> bool {
        let Buffers { tables, by_scale, bytes, of_blocks, factors, reciprocals, codes, .. } = &mut *buffers;
        let to = there.unwrap_or(codes.0.as_mut_ptr());
        let (Area { rows, columns, .. }, Blocks { width, .. }) = (area, blocks);
        let pitch = form.bytes(columns);
        // SAFETY: the caller's promise.
        unsafe {
            match (self.by_tables, tables) {
                (Some(ByTables::OfScales), Some(tables)) if *by_scale => {
                    for row in 0..rows {
                        let (from, to) = (area.row(row), to.add(row * pitch));
                        let (scales, tables) = (bytes[here.clone()].as_ptr(), &tables.of_codes);
                        let what = ToE2m1 { from, to, count: columns, width, scales, tables, form };
                        to_e2m1(self.level, what, self.ties() == Ties::Even);
                    }
                    true
                }
                (Some(ByTables::OfBlocks), _) if !of_blocks.is_empty() => {
                    self.by_block_tables(Elements { area, blocks, here }, there, buffers)
                }
                (Some(ByTables::Integers), _) => {
                    let (Some(limits), Some(factors)) = (self.limits, T::f32s(&factors[here.clone()])) else {
                        return false;
                    };
                    let limits = (limits.low.to_f64() as i16, limits.high.to_f64() as i16);
                    let (reciprocals, added) = (&reciprocals[here], self.what.offset as u8);
                    let to = (to, pitch, form);
                    let what = WholeQuotients { area, to, blocks, factors, reciprocals, limits, added };
                    whole_quotients(self.level, what)
                }
                _ => false,
            }
        }
    }

    /// Finds the codes of a piece by the tables of its blocks, and those that are left by quotients. Returns whether it did.
    ///
    /// # Safety
    /// As for [`find_codes`](Self::find_codes).
    unsafe fn by_block_tables(
        &self,
        Elements { area, blocks: Blocks { width, begun }, here }: Elements,
        there: Option<*mut u8>,
        buffers: &mut Buffers<T>,
    ) -> bool {
        let Buffers { of_blocks, factors, reciprocals, left, values, codes, .. } = buffers;
        let to = there.unwrap_or(codes.0.as_mut_ptr());
        let Area { first: from, pitch, rows, columns } = area;
        let blocks = &of_blocks[here.clone()];
        let (to_pitch, first) = (columns as isize, width - begun);
        left.clear();
        // SAFETY: the caller's promise; there is room for the values of a piece.
        unsafe {
            let what = ToE4m3 { from, pitch, to, to_pitch, rows, columns, first, width, blocks };
            let done = to_e4m3(self.level, what, left);
            if !done || left.iter().map(|left| left.count).sum::<usize>() > rows * columns / FEW {
                return false;
            }
            for &Left { row, start, count } in left.iter() {
                let first = area.row(row).add(start * size_of::<u16>());
                let from = (Area { first, pitch: 0, rows: 1, columns: count }, Float::Bf16);
                let (begin, end) = (begun + start, begun + start + count);
                let of = here.start + begin / width..here.start + end.div_ceil(width);
                let reciprocals = reciprocals.get(of.clone()).unwrap_or_default();
                let blocks = Blocks { width, begun: begin % width };
                let room = (values.0.as_mut_ptr(), self.float);
                self.quotients(from, room, blocks, (&factors[of], reciprocals));
                let codes = std::slice::from_raw_parts_mut(to.add(row * columns + start), count);
                self.round(0, (&values.0[..count], self.float), codes);
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
