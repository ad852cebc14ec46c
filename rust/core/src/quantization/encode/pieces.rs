//! Pieces of rows: quotients, codes, packing.

use super::by_tables::Elements;
use super::encoder::{Encoder, Limits};
use super::operands::FourOverSix;
use super::rounded::single;
use super::source::Buffers;
use crate::cast::{PlannedCast, cast_piece};
use crate::codec::options::Rounding;
use crate::codec::reference::worth;
use crate::format::{Format, Kind};
use crate::kernels::tables::e2m1_codes::Form;
use crate::quantization::arithmetic::{Area, Blocks, PIECE, Piece, by_block, limit};
use crate::quantization::nearest::{e2m1_towards_zero, limit_codes, nearest, whole};
use crate::quantization::packing::{Packing, pack};
use crate::quantization::real::Real;
use crate::quantization::real::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use crate::quantization::recipe::{Steps, Ties};
use crate::quantization::scaled::{Float, MOST_EXPONENT, NO_EXPONENTS, Scaling, scale};

impl<T: Real> Encoder<T> {
    /// Finds two scales for each block of a band, with which its largest magnitude becomes 6 or 4, and takes the one with the
    /// smaller error, of two alike that of 6.
    ///
    /// # Safety
    /// As for [`encode`].
    pub(super) unsafe fn better_scales(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, end): (usize, usize),
        first: usize,
        error: FourOverSix,
        buffers: &mut Buffers<T>,
    ) {
        let width = self.extent.block.1;
        let mut room = Piece::<T>::default();
        let divides = self.recipe.steps == Steps::DividedGlobal;
        let global = self.global.get(matrix).map_or(1.0, |global| global.to_f64());
        let spec = self.element.float().unwrap_or_else(single);
        let elements: [f64; 16] = std::array::from_fn(|code| worth(&spec, code as u64));
        let mut found = [6.0, 4.0].map(|_| (Vec::new(), Vec::new(), Vec::new(), Vec::new()));
        for (stretch, found) in [1.0, 1.5].into_iter().zip(&mut found) {
            self.scales(matrix, stretch, buffers);
            self.factors(matrix, buffers);
            let mut errors = vec![0f64; buffers.scale.len()];
            for row in row..row + rows {
                for begin in (start..end).step_by(PIECE) {
                    let count = PIECE.min(end - begin);
                    let Buffers { raw, values, codes, factors, reciprocals, scale, .. } = &mut *buffers;
                    let here = begin / width - first..(begin + count).div_ceil(width) - first;
                    let blocks = Blocks { width, begun: begin % width };
                    let to = values.0.as_mut_ptr();
                    // SAFETY: the caller's promise; both buffers have room for a piece.
                    let from = unsafe {
                        let room = (raw, room.0.as_mut_ptr());
                        let from = self.source.load((matrix, row, 1), (begin, count), room);
                        let reciprocals = reciprocals.get(here.clone()).unwrap_or_default();
                        let ends = ((from.cast(), Float::F32), (to, Float::F32));
                        self.quotients(ends.0, ends.1, blocks, (&factors[here], reciprocals));
                        from.first
                    };
                    self.round(0, (&values.0, Float::F32), &mut codes.0[..count]);
                    for index in 0..count {
                        let block = (begin + index) / width - first;
                        let scale = scale[block].to_f64();
                        let scale = if divides { scale / global } else { scale * global };
                        // SAFETY: as above.
                        let value = unsafe { from.add(index).read_unaligned() }.to_f64();
                        let off = (value - elements[usize::from(codes.0[index] & 15)] * scale).abs();
                        errors[block] = match error {
                            FourOverSix::Squares => errors[block] + off * off,
                            FourOverSix::Magnitudes => errors[block] + off,
                            FourOverSix::Largest => errors[block].max(off),
                        };
                    }
                }
            }
            let Buffers { scale, factors, reciprocals, .. } = &mut *buffers;
            *found = (errors, scale.clone(), factors.clone(), reciprocals.clone());
        }
        let [to_six, to_four] = found;
        let Buffers { scale, factors, reciprocals, bytes, .. } = buffers;
        for block in 0..scale.len() {
            let taken = if to_four.0[block] < to_six.0[block] { &to_four } else { &to_six };
            (scale[block], factors[block]) = (taken.1[block], taken.2[block]);
            if let (Some(place), Some(&taken)) = (reciprocals.get_mut(block), taken.3.get(block)) {
                *place = taken;
            }
        }
        self.stored.round(scale, bytes);
    }

    /// Multiplies the elements of rows by the factors of their blocks, or divides them. Results have no gaps.
    ///
    /// # Safety
    /// As for [`scale`].
    pub(super) unsafe fn quotients(
        &self,
        from: (Area<*const u8>, Float),
        (to, float): (*mut T, Float),
        blocks: Blocks,
        (factors, reciprocals): (&[T], &[f32]),
    ) {
        let Area { rows, columns, .. } = from.0;
        // SAFETY: passed on.
        unsafe {
            if let Some(numbers) = T::f32s(factors) {
                let reciprocals = if self.multiplies() { &[] } else { reciprocals };
                let to = (to.cast(), float, (columns * float.size()) as isize);
                // Powers of two leave the largest magnitude near the largest element, and directions tell from zero what is
                // too small.
                let by_powers = self.recipe.steps == Steps::Power && self.multiplies() && self.is_usual();
                let exponents = if by_powers { (0, MOST_EXPONENT) } else { NO_EXPONENTS };
                return scale(self.level, Scaling { from, to, blocks, numbers, reciprocals, exponents });
            }
            for row in 0..rows {
                let ends = (from.0.row(row).cast(), to.add(row * columns), columns);
                if self.multiplies() {
                    by_block::<T, MULTIPLY>(self.level, ends, blocks, factors, self.odd);
                } else {
                    by_block::<T, DIVIDE>(self.level, ends, blocks, factors, self.odd);
                }
            }
        }
    }

    /// Turns the values of some columns of rows, which fit into a piece, into packed codes.
    ///
    /// # Safety
    /// As for [`encode`].
    pub(super) unsafe fn piece(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, columns): (usize, usize),
        first: usize,
        buffers: &mut Buffers<T>,
    ) {
        let (level, width) = (self.level, self.extent.block.1);
        let Buffers { raw, values, .. } = &mut *buffers;
        let blocks = Blocks { width, begun: start % width };
        let here = start / width - first..(start + columns).div_ceil(width) - first;
        let (to, places) = (values.0.as_mut_ptr(), ((matrix, row, rows), (start, columns)));
        let is_bf16 = self.source.is_bf16() && self.bias.is_none();
        // SAFETY: the caller's promise, and the buffers have room for a piece.
        let found = unsafe {
            if is_bf16 {
                self.source.read(places.0, places.1, raw)
            } else {
                self.source.load(places.0, places.1, (raw, to)).cast()
            }
        };
        if self.by_tables.is_some() {
            let elements = Elements { area: found, blocks, here: here.clone() };
            // SAFETY: as above.
            if unsafe { self.write_codes(places.0, places.1, Some(elements), buffers) } {
                return;
            }
        }
        let Buffers { values, factors, shifts, rounded, reciprocals, .. } = &mut *buffers;
        let factors = &factors[here.clone()];
        let shifts = shifts.get(here.clone()).unwrap_or_default();
        // SAFETY: as above.
        unsafe {
            let mut from = (found, if is_bf16 { Float::Bf16 } else { Float::F32 });
            if self.bias.is_some() {
                for row in 0..rows {
                    let ends = (from.0.row(row).cast(), to.add(row * columns), columns);
                    by_block::<T, SUBTRACT>(level, ends, blocks, shifts, self.odd);
                }
                let pitch = (columns * size_of::<T>()) as isize;
                from = (Area { first: to.cast_const().cast(), pitch, rows, columns }, Float::F32);
            }
            // Products take no reciprocals.
            let reciprocals = reciprocals.get(here).unwrap_or_default();
            self.quotients(from, (to, self.float), blocks, (factors, reciprocals));
        }
        let values = &mut values.0[..rows * columns];
        if let (Some(quotient), Float::F32) = (&self.quotient, self.float) {
            quotient.round(values, rounded);
        }
        if self.zero_point.is_some() {
            for values in values.chunks_exact_mut(columns) {
                let to = values.as_mut_ptr();
                // SAFETY: these are the elements of the slice.
                unsafe { by_block::<T, ADD>(level, (to, to, columns), blocks, shifts, self.odd) };
            }
            if let Some(weight) = &self.weight {
                weight.round(values, rounded);
            }
        }
        // Codes saturate, and are limited after they are rounded; but NaN takes the lower limit.
        if let (Some(limits), true) = (self.limits, self.what.nan_scales) {
            limit(level, values, limits.low, limits.high);
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_codes((matrix, row, rows), (start, columns), None, buffers) };
    }

    /// Rounds the values of a piece, or finds the codes of its elements by tables, and packs the codes. Returns whether it
    /// did.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn write_codes(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, columns): (usize, usize),
        by_tables: Option<Elements>,
        buffers: &mut Buffers<T>,
    ) -> bool {
        let data = buffers.turned.of(&self.data);
        let index = ((matrix * self.extent.rows + row) * self.extent.columns + start) as u64;
        let (packing, bits, size) = (self.what.packing, self.what.scheme.bits, self.data.size());
        let count = rows * columns;
        let (from, to) = (self.bytes(start), self.bytes(start + columns));
        let items = to.div_ceil(size) - from / size;
        let is_plain = self.is_plain();
        let unit = if is_plain { 1 } else { packing.unit(bits) };
        // Rows that fill their containers and follow each other are as good as one.
        let joined = columns == self.extent.columns && columns % unit == 0 && data.is_gapless(items);
        let direct = data.is_dense() && items * size == to - from && (rows == 1 || joined);
        let there = data.row(matrix, row).wrapping_add(from);
        // SAFETY: the caller's promise; there is room for the containers of a piece, at most 4 bytes for each code.
        unsafe {
            let is_last = direct && is_plain;
            if let Some(elements) = by_tables {
                let nibbles = match packing {
                    Packing::Dense if bits == 4 => Some(Form::LowFirst),
                    Packing::HighFirst => Some(Form::HighFirst),
                    _ => None,
                };
                let nibbles = nibbles.filter(|&form| direct && self.has_form(form, &elements));
                if let Some(form) = nibbles {
                    return self.find_codes(elements, (Some(there), form), buffers);
                }
                if !self.find_codes(elements, (is_last.then_some(there), Form::Bytes), buffers) {
                    return false;
                }
            } else {
                let Buffers { values, codes, .. } = &mut *buffers;
                let last = is_last.then(|| std::slice::from_raw_parts_mut(there, count));
                let codes = last.unwrap_or(&mut codes.0[..count]);
                self.round(index, (&values.0[..count], self.float), codes);
            }
            let Buffers { codes, packed, turned, .. } = buffers;
            let (codes, data) = (&codes.0[..count], turned.of(&self.data));
            if direct {
                if !is_plain {
                    pack(self.level, (packing, bits), codes.as_ptr(), there, count);
                }
                return true;
            }
            let room = packed.0.as_mut_ptr().cast::<u8>();
            room.write_bytes(0, rows * items * size);
            for (row, codes) in codes.chunks_exact(columns).enumerate() {
                pack(self.level, (packing, bits), codes.as_ptr(), room.add(row * items * size), columns);
            }
            data.write(self.level, data.row(matrix, row), (rows, from / size, items), room);
        }
        true
    }

    /// Casts values, or the bf16 that their memory begins with, to codes; returns whether it did.
    ///
    /// # Safety
    /// So many codes are writable, apart from the values.
    unsafe fn cast(&self, (values, float): (&[T], Float), codes: *mut u8, count: usize) -> bool {
        let (plan, _) = self.plan(float);
        // SAFETY: the caller's promise; there are as many values.
        !self.draws() && unsafe { plan.run(values.as_ptr().cast(), codes, count) }
    }

    /// Returns the cast to codes, and the format that it is from.
    fn plan(&self, float: Float) -> (&PlannedCast, Format) {
        match (&self.bf16_codes, float) {
            (Some((plan, bf16)), Float::Bf16 | Float::OddBf16) => (plan, *bf16),
            _ => (&self.codes, self.real),
        }
    }

    /// Rounds values, or the bf16 that their memory begins with, to codes, the first of which has this flat index, and adds the
    /// offset.
    pub(super) fn round(&self, index: u64, (values, float): (&[T], Float), codes: &mut [u8]) {
        if let (Float::Bf16, Some(Limits { low, high }), true) = (float, self.limits, self.rounds_to_even()) {
            // SAFETY: the memory begins with as many bf16.
            let values = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), codes.len()) };
            let limits = (low.to_f64() as f32, high.to_f64() as f32);
            return whole(self.level, values, limits, self.what.offset as u8, codes);
        }
        if let Some(bounds) = &self.map {
            nearest(self.level, values, bounds, codes);
        } else {
            self.round_to_element(index, (values, float), codes);
        }
        if self.code_limits.is_some() || self.what.offset != 0 {
            let signed = self.element.kind() == (Kind::Integer { signed: true });
            let limits =
                self.code_limits.unwrap_or(if signed { (1 << 7, i8::MAX as u8) } else { (0, u8::MAX) });
            limit_codes(self.level, codes, limits, signed, self.what.offset as u8);
        }
    }

    pub(super) fn rounds_to_even(&self) -> bool {
        self.settings.options.rounding == Some(Rounding::NearestEven)
    }

    /// Rounds to codes of the element's format.
    fn round_to_element(&self, index: u64, (values, float): (&[T], Float), codes: &mut [u8]) {
        let ties = self.ties();
        if ties != Ties::Even {
            e2m1_towards_zero(self.level, &values[..codes.len()], codes);
            let negative_zeros = ties == Ties::TowardsZeroNegative;
            for (code, value) in codes.iter_mut().zip(values) {
                if (*code).trailing_zeros() >= 3 {
                    let is_zero = value.to_f64() == 0.0;
                    *code = if negative_zeros && (is_zero || *code == 8) { 8 } else { 0 };
                }
            }
            return;
        }
        // SAFETY: there are as many codes as values, of one byte each, apart from them.
        unsafe {
            if !self.cast((values, float), codes.as_mut_ptr(), codes.len()) {
                let format = self.plan(float).1;
                let values =
                    std::slice::from_raw_parts(values.as_ptr().cast(), codes.len() * format.item_size());
                let (source, target) = ((values, format, false), (codes, self.element, false));
                // Nothing is refused with these options.
                let _ = cast_piece(index, source, target, &self.settings);
            }
        }
    }
}
