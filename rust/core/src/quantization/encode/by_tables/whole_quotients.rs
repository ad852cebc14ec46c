//! Quotients of bf16, rounded to bf16 and from there to whole numbers, in one pass.
//!
//! Unsafe functions need what those of [`crate::kernels::vectors`] do: their bodies are not marked again either.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this module says"
)]

use crate::cpu::{Level, RawKernel};
use crate::kernels::tables::e2m1_codes::Form;
use crate::quantization::arithmetic::{Area, Blocks};
use crate::simd::halves::alternate_bf16;
use crate::simd::{Intervals, MOST_BYTES, Vector, with_vectors};

/// Added to a small float32, it leaves the nearest integer in the low bits, ties to even; of more than 0, if it was not
/// below -2^14.
const MAGIC: f32 = 1.5 / f32::EPSILON + (1 << 14) as f32;

/// The sum of a float32 and this many times it, less that again, is the float32 rounded to the 8 bits of bf16 (Dekker, "A
/// floating-point technique for extending the available precision", 1971).
const SPLITTER: f32 = (1 << 16) as f32;

/// Rows of blocks side by side, and where their codes go.
#[derive(Clone, Copy)]
pub(super) struct WholeQuotients<'a> {
    pub(super) area: Area<*const u8>,
    /// The first code, and the bytes from row to row. Nibbles begin with a block, and are 0 for the least integer.
    pub(super) to: (*mut u8, usize, Form),
    pub(super) blocks: Blocks,
    /// The divisors of blocks, and what [`reciprocals`](crate::quantization::scaled::reciprocals) returned for them.
    pub(super) factors: &'a [f32],
    pub(super) reciprocals: &'a [f32],
    /// The least and the most quotient, and what is added to it then.
    pub(super) limits: (i16, i16),
    pub(super) added: u8,
}

impl WholeQuotients<'_> {
    /// Returns the code of the least integer.
    fn first_code(&self) -> u8 {
        (self.limits.0 as u8).wrapping_add(self.added)
    }

    /// Whether the products with the reciprocals round to the bf16 of the quotients. Divisors that are bf16 leave 2^-17 of
    /// a quotient between it and the middle of two bf16, as numbers of 8 bits are apart from their products with an odd
    /// number of 9; an infinite one leaves 0.
    fn are_exact(&self) -> bool {
        let bf16 = |factor: &f32| factor.to_bits() << u16::BITS == 0;
        let mut blocks = self.factors.iter().zip(self.reciprocals);
        self.factors.len() == self.reciprocals.len()
            && blocks
                .all(|(factor, &reciprocal)| bf16(factor) && (reciprocal != 0.0 || *factor == f32::INFINITY))
    }
}

/// The loop of a level.
struct Loop<'a, V>(WholeQuotients<'a>, V);

/// What a loop keeps in registers.
#[derive(Clone, Copy)]
struct Ready<V: Vector> {
    one: V::F32s,
    minus_one: V::F32s,
    magic: V::F32s,
    /// The least integer, plus 2^14, and how far the greatest one is from it.
    least: V::Integers,
    range: V::Integers,
    added: V::Integers,
    weights: V::Integers,
}

/// The reciprocal of a divisor, and its negative times the splitter.
#[derive(Clone, Copy)]
struct Operand<V: Vector> {
    reciprocal: V::F32s,
    split: V::F32s,
}

impl<V: Intervals> Loop<'_, V> {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn ready(&self) -> Ready<V> {
        let WholeQuotients { limits: (low, high), to: (_, _, form), .. } = self.0;
        Ready {
            one: V::from_bits(V::splat32(1f32.to_bits())),
            minus_one: V::from_bits(V::splat32((-1f32).to_bits())),
            magic: V::from_bits(V::splat32(MAGIC.to_bits())),
            least: V::splat16(low.wrapping_add(1 << 14) as u16),
            range: V::splat16((high - low) as u16),
            added: V::splat8(self.0.first_code()),
            weights: V::splat16(form.weights()),
        }
    }

    /// Returns the nearest integers of quotients in the low u16 of lanes, plus 2^14.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn whole(values: V::F32s, operand: Operand<V>, ready: Ready<V>) -> V::Integers {
        let scaled = V::product(values, operand.split);
        let sum = V::product_sum(values, operand.reciprocal, scaled);
        let rounded = V::product_sum(scaled, ready.minus_one, sum);
        V::bits(V::product_sum(rounded, ready.one, ready.magic))
    }

    /// Returns the limited integers of a register of bf16, less the least one.
    ///
    /// # Safety
    /// The level's features, and a register at the pointer.
    #[inline(always)]
    unsafe fn limited(from: *const u8, operand: Operand<V>, ready: Ready<V>) -> V::Integers {
        let [a, b] = alternate_bf16::<V>(V::load(from));
        let (a, b) = (Self::whole(a, operand, ready), Self::whole(b, operand, ready));
        V::min16(V::sub_saturated16(V::alternate_halves(a, b).0, ready.least), ready.range)
    }

    /// Finds the codes of two registers.
    ///
    /// # Safety
    /// The level's features, two registers at the first place, and room for their codes at the second.
    #[inline(always)]
    unsafe fn step(from: *const u8, (to, form): (*mut u8, Form), operand: Operand<V>, ready: Ready<V>) {
        let first = Self::limited(from, operand, ready);
        let second = Self::limited(from.add(V::BYTES), operand, ready);
        if form == Form::Bytes {
            V::store(to, V::add8(V::in_order(V::unzip8(first, second).0), ready.added));
        } else {
            V::store_nibbles(to, first, second, ready.weights);
        }
    }

    /// Finds the codes of some elements of a block.
    ///
    /// # Safety
    /// The level's features, so many elements at the first place, and room for their codes at the second.
    #[inline(always)]
    unsafe fn block(
        mut from: *const u8,
        (mut to, form): (*mut u8, Form),
        mut count: usize,
        operand: Operand<V>,
        ready: Ready<V>,
    ) {
        // SAFETY: the caller's promise; a step has as many elements as a register has bytes.
        unsafe {
            while count >= V::BYTES {
                Self::step(from, (to, form), operand, ready);
                (from, to) = (from.add(2 * V::BYTES), to.add(form.bytes(V::BYTES)));
                count -= V::BYTES;
            }
            if count > 0 {
                let (mut elements, mut codes) = ([0u16; MOST_BYTES], [0u8; MOST_BYTES]);
                from.copy_to_nonoverlapping(elements.as_mut_ptr().cast(), 2 * count);
                Self::step(elements.as_ptr().cast(), (codes.as_mut_ptr(), form), operand, ready);
                to.copy_from_nonoverlapping(codes.as_ptr(), form.bytes(count));
            }
        }
    }
}

impl<V: Intervals> RawKernel for Loop<'_, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let WholeQuotients { area, to: (to, pitch, form), blocks: Blocks { width, begun }, .. } = self.0;
        // SAFETY: the vectors are there; the rest is the promise of the caller of `whole_quotients`.
        unsafe {
            let ready = self.ready();
            let (mut start, mut end) = (0, width - begun);
            for &reciprocal in self.0.reciprocals {
                end = end.min(area.columns);
                let operand = Operand {
                    reciprocal: V::from_bits(V::splat32((-reciprocal).to_bits())),
                    split: V::from_bits(V::splat32((reciprocal * SPLITTER).to_bits())),
                };
                for row in 0..area.rows {
                    let from = area.row(row).add(start * size_of::<u16>());
                    let to = to.add(row * pitch + form.bytes(start));
                    Self::block(from, (to, form), end - start, operand, ready);
                }
                (start, end) = (end, end + width);
            }
        }
    }
}

/// Finds the codes of rows, if that is exact and the level can. Returns whether it did.
///
/// # Safety
/// The elements are readable, and their codes writable, apart from them. Quotients are below 2^13.
pub(super) unsafe fn whole_quotients(level: Level, quotients: WholeQuotients<'_>) -> bool {
    let done: Option<()> = if quotients.are_exact() {
        with_vectors!(level, vectors => vectors.run(Loop(quotients, vectors)))
    } else {
        None
    };
    done.is_some()
}
