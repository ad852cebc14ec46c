//! Piece by piece: codes to values, an operation at a time.

use super::decoder::{Buffers, Decoder, Ends, NUMBERS};
use super::operands::{GlobalUse, Meaning, PerBlock};
use crate::cast::Prepared;
use crate::format::{Format, Kind};
use crate::kernels::vectors::shapes::Shape;
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece, apply, by_block, with_one};
use crate::quantization::nearest::look_up;
use crate::quantization::packing::{Packing, add_high_bits, unpack};
use crate::quantization::real::Real;
use crate::quantization::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::rows::Rows;
use crate::quantization::scaled::{self, Float, MOST_EXPONENT, NO_EXPONENTS, Scaling};
use crate::quantization::work::Item;

impl<T: Real> Decoder<T> {
    /// Decodes an item piece by piece.
    ///
    /// # Safety
    /// As for [`decode`].
    pub(super) unsafe fn pieces(&self, item: &Item, ends: &mut Ends, buffers: &mut Buffers<T>) {
        let item = &self.joined(item).unwrap_or_else(|| item.clone());
        let (widest, tall) = self.piece;
        let tall_block = self.extent.block.0;
        for start in item.columns.clone().step_by(widest) {
            let count = widest.min(item.columns.end - start);
            let most = if tall > 1 { tall } else { widest / count };
            let mut row = item.rows.start;
            let mut prepared = None;
            while row < item.rows.end {
                let block = self.extent.row_block(row);
                let rows = most.min(tall_block - row % tall_block).min(item.rows.end - row);
                // SAFETY: the caller's promise for these rows and columns.
                unsafe {
                    let blocks = match prepared {
                        Some((known, blocks)) if known == block => blocks,
                        _ => {
                            let columns = (start, count, self.extent.block.1);
                            self.prepare(item.matrix, Some(block), columns, buffers)
                        }
                    };
                    prepared = Some((block, blocks));
                    self.piece((item.matrix, row, rows), (start, count), blocks, (ends, buffers));
                }
                row += rows;
            }
        }
    }

    /// Decodes rows of a row of blocks, for which these are prepared.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn piece(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, columns): (usize, usize),
        blocks: Blocks,
        (ends, buffers): (&mut Ends, &mut Buffers<T>),
    ) {
        let (level, what) = (self.level, &self.what);
        // SAFETY: the caller's promise; the rooms are large enough for a piece.
        unsafe {
            let containers = |rows_of: &Rows, (packing, bits): (Packing, u32), room: *mut u8| {
                let first = packing.bytes(bits, start) / rows_of.size();
                let last = packing.bytes(bits, start + columns).div_ceil(rows_of.size());
                let items = (rows, first, last - first);
                let (first, pitch) = rows_of.read(level, rows_of.row(matrix, row), items, room);
                Area { first, pitch, rows, columns }
            };
            let room = ends.packed.0.as_mut_ptr().cast();
            let mut codes = containers(&self.data, (what.packing, what.bits), room);
            let room = ends.high.0.as_mut_ptr().cast();
            let high = self.high.as_ref().map(|high| containers(high, (Packing::Dense, 1), room));
            if what.bits < 8 || what.packing != Packing::Dense {
                let unpacked = ends.codes.0.as_mut_ptr();
                for row in 0..rows {
                    let to = unpacked.add(row * columns);
                    unpack(level, (what.packing, what.bits), codes.row(row), to, columns);
                    if let Some(high) = &high {
                        let bits = ends.bits.0.as_mut_ptr();
                        add_high_bits(level, what.bits, high.row(row), (to, bits), columns);
                    }
                }
                codes = Area { first: unpacked, pitch: columns as isize, rows, columns };
            }
            let direct = self.out.is_dense();
            let (to, pitch) = if direct {
                (self.out.row(matrix, row).add(start * self.out.size()), self.out.pitch())
            } else {
                (ends.out.0.as_mut_ptr().cast::<u8>(), (columns * self.out.size()) as isize)
            };
            if let Some(elements) = &self.bf16_elements {
                self.products(elements, codes, (to, pitch), blocks, buffers);
            } else {
                for place in 0..rows {
                    self.values(codes.row(place), columns, blocks, buffers);
                    if let Some(divisors) = &self.divisors {
                        let values = &mut buffers.values.0[..columns];
                        with_one::<T, DIVIDE>(level, values, divisors[row + place], self.odd);
                    }
                    let to = to.offset(place as isize * pitch);
                    self.results.run(buffers.values.0.as_ptr().cast(), to, columns);
                }
            }
            if !direct {
                let tile = ends.out.0.as_ptr().cast();
                self.out.write(level, self.out.row(matrix, row), (rows, start, columns), tile);
            }
        }
    }

    /// Turns the codes of a piece into results by way of bf16.
    ///
    /// # Safety
    /// The codes are readable, and as many results writable, at this many bytes from row to row.
    unsafe fn products(
        &self,
        elements: &Prepared,
        codes: Area<*const u8>,
        (to, pitch): (*mut u8, isize),
        blocks: Blocks,
        buffers: &mut Buffers<T>,
    ) {
        let Buffers { narrow, values, scale, .. } = buffers;
        let Area { rows, columns, .. } = codes;
        let Some(numbers) = T::f32s(&scale.0[..(blocks.begun + columns).div_ceil(blocks.width)]) else {
            return;
        };
        let from = narrow.0.as_mut_ptr().cast::<u8>();
        let values = values.0.as_mut_ptr().cast::<u8>();
        let there = match self.out_shape {
            Some(Shape::Bf16) => (to, Float::Bf16, pitch),
            Some(Shape::F32) => (to, Float::F32, pitch),
            _ => (values, Float::F32, (columns * size_of::<f32>()) as isize),
        };
        // SAFETY: the caller's promise; the buffers have room for a piece.
        unsafe {
            let is_int8 = |format: Format| {
                format.kind() == Kind::Integer { signed: true } && format.row().bits == u8::BITS
            };
            let from = if matches!(self.what.meaning, Meaning::Format(format) if is_int8(format)) {
                (codes, Float::Int8)
            } else {
                if codes.is_gapless(1) {
                    elements.run(codes.first, from, rows * columns);
                } else {
                    for row in 0..rows {
                        elements.run(codes.row(row), from.add(row * columns * size_of::<u16>()), columns);
                    }
                }
                let pitch = (columns * size_of::<u16>()) as isize;
                (Area { first: from.cast_const(), pitch, rows, columns }, Float::Bf16)
            };
            let exponents = match self.what.meaning {
                // Not E8M0, the one without a sign: its values have exponents of the whole range.
                Meaning::Format(format) if format.float().is_none_or(|spec| spec.signed) => {
                    (-MOST_EXPONENT, MOST_EXPONENT)
                }
                _ => NO_EXPONENTS,
            };
            let what = Scaling { from, to: there, blocks, numbers, reciprocals: &[], exponents };
            scaled::scale(self.level, what);
            if there.0 == values {
                for row in 0..rows {
                    let (from, to) = (values.offset(row as isize * there.2), to.offset(row as isize * pitch));
                    self.results.run(from, to, columns);
                }
            }
        }
    }

    /// Turns the codes of a row of a piece into values.
    ///
    /// # Safety
    /// So many codes are readable.
    unsafe fn values(&self, codes: *const u8, count: usize, blocks: Blocks, buffers: &mut Buffers<T>) {
        let values = &mut buffers.values.0[..count];
        // SAFETY: the caller's promise; the buffer has so many elements.
        unsafe {
            if let Some(map) = &self.map {
                look_up(self.level, map, codes, values);
            } else if let Some(elements) = &self.elements {
                elements.run(codes, values.as_mut_ptr().cast(), count);
            }
        }
        self.apply_blocks(count, blocks, buffers);
    }

    /// Applies to values what their blocks have.
    pub(super) fn apply_blocks(&self, count: usize, blocks: Blocks, buffers: &mut Buffers<T>) {
        let odd = self.odd;
        let Buffers { values, zero, scale, narrow, constant, .. } = buffers;
        let values = &mut values.0[..count];
        if self.zero_point.is_some() {
            self.each::<SUBTRACT>(values, blocks, zero);
        } else if self.what.offset != 0 {
            with_one::<T, SUBTRACT>(self.level, values, self.offset, odd);
        }
        let exactly_after = self.what.exact && self.global_use() != Some(GlobalUse::Multiply);
        if self.what.scale_divides {
            self.each::<DIVIDE>(values, blocks, scale);
        } else if self.scale.is_some() {
            self.each::<MULTIPLY>(values, blocks, scale);
        } else if !self.global.is_empty() && !exactly_after {
            with_one::<T, MULTIPLY>(self.level, values, scale.0[0], odd);
        }
        if !self.global.is_empty() {
            if exactly_after {
                with_one::<T, DIVIDE>(self.level, values, *constant, odd);
            } else if self.global_use() == Some(GlobalUse::After) {
                with_one::<T, MULTIPLY>(self.level, values, *constant, odd);
            }
        }
        if self.back.is_some() {
            // SAFETY: the buffer has room for so many elements.
            unsafe { self.results.run(values.as_ptr().cast(), narrow.0.as_mut_ptr().cast(), count) };
        }
        if self.bias.is_some() {
            self.add_biases(count, blocks, buffers);
        }
    }

    /// Adds to values what their blocks have: to rounded ones, if they are rounded before.
    pub(super) fn add_biases(&self, count: usize, blocks: Blocks, buffers: &mut Buffers<T>) {
        let Buffers { narrow, values, bias, .. } = buffers;
        let values = &mut values.0[..count];
        if let Some(back) = &self.back {
            // SAFETY: both buffers have room for so many elements, and are apart.
            unsafe { back.run(narrow.0.as_ptr().cast(), values.as_mut_ptr().cast(), count) };
        }
        self.each::<ADD>(values, blocks, bias);
    }

    /// Applies an operation to values and the operands of their blocks.
    fn each<const OPERATION: u8>(&self, values: &mut [T], blocks: Blocks, operands: &Piece<T>) {
        if blocks.width == 1 {
            return apply::<T, OPERATION>(self.level, values, &operands.0, self.odd);
        }
        let (to, count) = (values.as_mut_ptr(), values.len());
        let operands = &operands.0[..(blocks.begun + count).div_ceil(blocks.width)];
        // SAFETY: these are the elements of the slice.
        unsafe { by_block::<T, OPERATION>(self.level, (to, to, count), blocks, operands, self.odd) };
    }

    fn global_use(&self) -> Option<GlobalUse> {
        self.what.global_scale.as_ref().map(|(_, how)| *how)
    }

    /// Reads what the blocks of a row of blocks have for the columns of a piece, given the columns of a block. Without a
    /// row, the bytes of scales are their own numbers.
    ///
    /// # Safety
    /// As for [`decode`].
    pub(super) unsafe fn prepare(
        &self,
        matrix: usize,
        block: Option<usize>,
        columns: (usize, usize, usize),
        buffers: &mut Buffers<T>,
    ) -> Blocks {
        let level = self.level;
        let Buffers { raw, f32s, all, scale, zero, bias, constant, .. } = buffers;
        let global = self.global.get(matrix).copied().unwrap_or(T::ONE);
        let how = self.global_use();
        *constant = if how == Some(GlobalUse::After) && !self.what.exact {
            T::ONE.combine::<DIVIDE, false>(global)
        } else {
            global
        };
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(zero_point) = &self.zero_point {
                let found = self.read_blocks(zero_point, matrix, block, columns, (raw, f32s, all), zero);
                // Sums of small integers are exact.
                with_one::<T, ADD>(level, found, self.offset, false);
            }
            if let Some(items) = &self.bias {
                self.read_blocks(items, matrix, block, columns, (raw, f32s, all), bias);
            }
            let found = if let Some(items) = &self.scale {
                self.read_blocks(items, matrix, block, columns, (raw, f32s, all), scale)
            } else {
                scale.0[0] = T::ONE;
                &mut scale.0[..1]
            };
            // The exact product of two float32 is a float64; their quotient is not.
            match how {
                Some(GlobalUse::Multiply) => with_one::<T, MULTIPLY>(level, found, global, false),
                Some(GlobalUse::Divide) if !self.what.exact => {
                    with_one::<T, DIVIDE>(level, found, global, false);
                }
                _ => {}
            }
        }
        let (start, _, width) = columns;
        if self.groups.is_some() {
            Blocks { width: 1, begun: 0 }
        } else {
            Blocks { width, begun: start % width }
        }
    }

    /// Reads an item for each block of a piece, or for each column of groups.
    ///
    /// # Safety
    /// As for [`decode`].
    unsafe fn read_blocks<'b>(
        &self,
        items: &PerBlock,
        matrix: usize,
        block: Option<usize>,
        (start, count, width): (usize, usize, usize),
        (raw, f32s, all): (&mut Piece<u32>, &mut Piece<f32>, &mut Vec<f32>),
        to: &'b mut Piece<T>,
    ) -> &'b mut [T] {
        let first_row = block.map(|block| items.items.row(matrix, block).cast_const());
        // SAFETY: the caller's promise; a piece has no more blocks than columns.
        unsafe {
            let number = if let Some(groups) = &self.groups {
                let width = items.items.width();
                all.resize(width, 0.0);
                for start in (0..width).step_by(PIECE) {
                    let count = PIECE.min(width - start);
                    self.read(items, first_row, (start, count), raw, &mut all[start..start + count]);
                }
                for (place, &group) in f32s.0.iter_mut().zip(&groups[start..start + count]) {
                    *place = all[group as usize];
                }
                count
            } else {
                let (first, last) = (start / width, (start + count).div_ceil(width));
                self.read(items, first_row, (first, last - first), raw, &mut f32s.0[..last - first]);
                last - first
            };
            let to = &mut to.0[..number];
            for (place, &value) in to.iter_mut().zip(&f32s.0) {
                *place = T::from_f32(value);
            }
            to
        }
    }

    /// Reads items of a row as float32.
    ///
    /// # Safety
    /// As for [`decode`]; there are as many items.
    unsafe fn read(
        &self,
        items: &PerBlock,
        first: Option<*const u8>,
        (start, count): (usize, usize),
        raw: &mut Piece<u32>,
        to: &mut [f32],
    ) {
        // SAFETY: the caller's promise; items have up to 4 bytes.
        unsafe {
            let room = raw.0.as_mut_ptr().cast();
            let found = match first {
                Some(first) => items.items.read(self.level, first, (1, start, count), room).0,
                None => NUMBERS.as_ptr().add(start),
            };
            items.cast.run(found, to.as_mut_ptr().cast(), count);
        }
    }
}
