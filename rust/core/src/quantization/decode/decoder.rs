//! The pass of a decoding: items by tables, or piece by piece.

use super::block_arithmetic::{BlockArithmetic, BlockOperands, BlockRow};
use super::containers::{ContainerBuffers, Containers};
use super::operands::{Decoding, GlobalUse};
use super::results::{Bf16Products, ResultRows, Results};
use super::tables::{Parts, TableRoom, Tables};
use super::values::CodeValues;
use crate::cpu::Level;
use crate::error::Error;
use crate::quantization::arithmetic::{Blocks, Piece, with_one};
use crate::quantization::real::Real;
use crate::quantization::real::operation::DIVIDE;
use crate::quantization::rows::{Array, Rows};
use crate::quantization::work::{Columns, Extent, Item, ItemPass, Place, run_items};

/// The buffers of a thread.
#[derive(Default)]
pub(super) struct Buffers<T: Real> {
    containers: ContainerBuffers,
    tables: Box<TableRoom>,
    results: Box<Piece<u64>>,
    values: Box<Piece<T>>,
    operands: BlockOperands<T>,
}

/// A decoding with everything that is decided before an element is read.
pub(super) struct Decoder<T> {
    pub(super) extent: Extent,
    pub(super) containers: Containers,
    pub(super) values: CodeValues,
    pub(super) arithmetic: BlockArithmetic<T>,
    /// In place of values and arithmetic, where results are products of values that bf16 holds and scales.
    pub(super) products: Option<Bf16Products>,
    /// Divide the results of rows.
    pub(super) divisors: Option<Vec<T>>,
    pub(super) results: Results,
    pub(super) tables: Option<Tables<T>>,
    pub(super) global_scale: Option<(Array, GlobalUse)>,
    /// Columns of a piece, and its rows, or 1 if it may have more.
    pub(super) wide: usize,
    pub(super) tall: usize,
    pub(super) level: Level,
}

impl<T: Real> Decoder<T> {
    /// Whether it is for the active level of the CPU, and reads nothing but when it is run.
    pub(super) fn is_repeatable(&self) -> bool {
        self.level == Level::active() && self.arithmetic.groups.is_none() && self.divisors.is_none()
    }

    /// Sees other arrays of codes and of what blocks have.
    pub(super) fn place(&mut self, Decoding { data, scale, zero_point, bias, .. }: &Decoding) {
        self.containers.data.set_first(data.pointer);
        let BlockArithmetic { scale: scales, zero_point: zeros, bias: biases, .. } = &mut self.arithmetic;
        for (items, array) in [scales, zeros, biases].into_iter().zip([scale, zero_point, bias]) {
            if let (Some(items), Some(array)) = (items, array) {
                items.items.set_first(array.pointer);
            }
        }
    }

    /// # Safety
    /// As for [`decode`](super::decode).
    pub(super) unsafe fn decode(&mut self, out: *mut u8, threads: usize) -> Result<(), Error> {
        self.results.out.set_first(out);
        // SAFETY: the caller's promise.
        let global = unsafe { self.extent.per_matrix(self.global_scale.as_ref().map(|(array, _)| array))? };
        self.arithmetic.global.clear();
        self.arithmetic.global.extend(global.into_iter().map(T::from_f32));
        let (data, out) = (&self.containers.data, &self.results.out);
        let bytes = data.size() * data.width() + out.size() * self.extent.columns;
        // SAFETY: the caller's promise.
        unsafe { run_items(&*self, &self.extent, (self.wide, self.tall), bytes, threads) };
        Ok(())
    }

    /// Returns an item as one row, if each row goes on where the one before it ends in every array, and they share nothing.
    fn joined(&self, item: &Item) -> Option<Item> {
        let Extent { columns, block, .. } = self.extent;
        let Containers { data, high, packing, bits, .. } = &self.containers;
        // Rows end with whole containers.
        let unit = if self.containers.is_plain() { data.size() } else { packing.unit(*bits) };
        let per_block = [&self.arithmetic.scale, &self.arithmetic.zero_point, &self.arithmetic.bias];
        let joins = item.columns == (0..columns)
            && block.0 == 1
            && columns % block.1 == 0
            && columns % unit == 0
            && self.arithmetic.groups.is_none()
            && self.divisors.is_none()
            && [Some(data), high.as_ref()].into_iter().flatten().all(Rows::goes_on)
            && self.results.out.is_gapless(columns)
            && per_block.into_iter().flatten().all(|items| items.items.goes_on());
        let (start, columns) = (item.rows.start, 0..item.rows.len() * columns);
        joins.then(|| Item { rows: start..start + 1, columns, ..item.clone() })
    }

    /// Decodes an item piece by piece.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    unsafe fn pieces(&self, item: &Item, buffers: &mut Buffers<T>) {
        let item = &self.joined(item).unwrap_or_else(|| item.clone());
        let (tall_block, width) = self.extent.block;
        for columns in Columns::of(&item.columns).groups(self.wide) {
            let most = if self.tall > 1 { self.tall } else { self.wide / columns.count };
            let mut prepared = None;
            let mut row = item.rows.start;
            while row < item.rows.end {
                let block = self.extent.row_block(row);
                let rows = most.min(tall_block - row % tall_block).min(item.rows.end - row);
                // SAFETY: the caller's promise for these rows and columns.
                unsafe {
                    let blocks = match prepared {
                        Some((known, blocks)) if known == block => blocks,
                        _ => {
                            let row = BlockRow { matrix: item.matrix, row: Some(block), width };
                            self.arithmetic.prepare(row, columns, &mut buffers.operands)
                        }
                    };
                    prepared = Some((block, blocks));
                    self.piece(Place { matrix: item.matrix, row, rows }, columns, blocks, buffers);
                }
                row += rows;
            }
        }
    }

    /// Decodes rows of a row of blocks, for which these are prepared.
    ///
    /// # Safety
    /// As for [`decode`](super::decode).
    unsafe fn piece(&self, place: Place, columns: Columns, blocks: Blocks, buffers: &mut Buffers<T>) {
        let Buffers { containers, results: room, values, operands, .. } = buffers;
        let (Place { matrix, row, rows }, Columns { start, count }) = (place, columns);
        let out = &self.results.out;
        // SAFETY: the caller's promise; the rooms are large enough for a piece.
        unsafe {
            let codes = self.containers.codes(place, columns, containers);
            let is_direct = out.is_dense();
            let to = if is_direct {
                ResultRows { first: out.row(matrix, row).add(start * out.size()), pitch: out.pitch() }
            } else {
                ResultRows { first: room.0.as_mut_ptr().cast(), pitch: (count * out.size()) as isize }
            };
            if let Some(products) = &self.products {
                products.fill(codes, blocks, &self.results, to, operands, values);
            } else {
                let values = &mut values.0[..count];
                for place in 0..rows {
                    self.values.fill(self.level, codes.row(place), values);
                    self.arithmetic.apply(values, blocks, operands);
                    if let Some(divisors) = &self.divisors {
                        let divisor = divisors[row + place];
                        with_one::<T, DIVIDE>(self.level, values, divisor, self.arithmetic.is_odd);
                    }
                    let to = to.first.offset(place as isize * to.pitch);
                    self.results.cast.convert(values.as_ptr().cast(), to, count);
                }
            }
            if !is_direct {
                let items = (rows, start, count);
                out.write(self.level, out.row(matrix, row), items, room.0.as_ptr().cast());
            }
        }
    }
}

impl<T: Real> ItemPass for Decoder<T> {
    type Buffers = Buffers<T>;
    type Outcome = ();

    unsafe fn process_item(&self, item: &Item, buffers: &mut Buffers<T>, (): &mut ()) {
        // SAFETY: passed on.
        unsafe {
            let Some(tables) = &self.tables else { return self.pieces(item, buffers) };
            let parts = Parts {
                extent: &self.extent,
                containers: &self.containers,
                values: &self.values,
                arithmetic: &self.arithmetic,
                results: &self.results,
            };
            let Buffers { tables: room, values, operands, .. } = buffers;
            let left = tables.decode(parts, item, self.joined(item), room, (operands, values));
            for Place { row, rows, .. } in left {
                self.pieces(&Item { rows: row..row + rows, ..item.clone() }, buffers);
            }
        }
    }

    fn merge((): &mut (), (): ()) {}
}
