//! Elements times numbers of their blocks, or divided by them, from bf16, float32 or int8 to bf16 or float32 in one pass.
//!
//! Unsafe functions need what those of [`crate::kernels::vectors`] do: their bodies are not marked again either.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this module says"
)]

use std::marker::PhantomData;

use super::arithmetic::{Area, Blocks, PIECE};
use super::ends::{Odd, Source, Target};
use crate::codec::odd_bf16::MANTISSA as BF16_MANTISSA;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::cpu::level::run_portable;
use crate::cpu::{Kernel, Level, RawKernel};
use crate::simd::halves::{INFINITY, SIGN, alternate_bf16};
use crate::simd::{MOST_BYTES, Vector, unknown_one, with_vectors};

/// A number as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    /// The upper 16 bits of a float32.
    Bf16,
    /// The same, rounded to odd: roundings to two bits fewer give the same results from there.
    OddBf16,
    F32,
    /// No float, but one that bf16 holds.
    Int8,
}

impl Float {
    /// Bytes of an element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::OddBf16 => size_of::<u16>(),
            Self::F32 => size_of::<f32>(),
            Self::Int8 => size_of::<i8>(),
        }
    }
}

/// Elements to scale, and the numbers of their blocks, which are those of every row.
#[derive(Clone, Copy)]
pub(super) struct Scaling<'a> {
    pub(super) from: (Area<*const u8>, Float),
    /// Where the results go, and the bytes from row to row.
    pub(super) to: (*mut u8, Float, isize),
    pub(super) blocks: Blocks,
    pub(super) numbers: &'a [f32],
    /// What [`reciprocals`] returned, to divide; else it is empty.
    pub(super) reciprocals: &'a [f32],
    /// The least and the most exponent of powers of two that may be added to the exponents of bf16: results of normal
    /// elements are normal, and those of subnormal ones may be other numbers as small. Elements and results are apart then.
    pub(super) exponents: (i32, i32),
}

/// Elements of the longest register of bf16, and the most blocks of a scaling by exponents.
const SHIFTED: usize = MOST_BYTES / size_of::<u16>();
const MOST_SHIFTS: usize = PIECE / SHIFTED;

/// The exponents of a scaling that adds none.
pub(super) const NO_EXPONENTS: (i32, i32) = (1, 0);

/// The most that the exponents of normal elements of a byte, and of those of blocks that become these, are moved by.
pub(super) const MOST_EXPONENT: i32 = 100;

impl Scaling<'_> {
    #[inline(always)]
    fn divides(&self) -> bool {
        !self.reciprocals.is_empty()
    }

    /// Whether elements, numbers and results are bf16.
    #[inline(always)]
    fn are_halves(&self) -> bool {
        let upper = |number: &f32| number.to_bits() << u16::BITS == 0;
        self.from.1 != Float::F32 && self.to.1 == Float::Bf16 && self.numbers.iter().all(upper)
    }

    /// Returns what products with the numbers add to the bits of bf16, if that is all and blocks are whole registers.
    fn shifts(&self) -> Option<[u16; MOST_SHIFTS]> {
        let (Blocks { width, begun }, (least, most)) = (self.blocks, self.exponents);
        let halves = self.from.1.size() == size_of::<u16>() && self.to.1 != Float::F32;
        let whole = begun == 0 && width % SHIFTED == 0 && self.from.0.columns.is_multiple_of(width);
        if !halves || !whole || least > most || self.numbers.len() > MOST_SHIFTS {
            return None;
        }
        let mut shifts = [0; MOST_SHIFTS];
        let mut all = true;
        for (shift, number) in shifts.iter_mut().zip(self.numbers) {
            let bits = number.to_bits();
            let exponent = (bits >> Binary32::MANTISSA) as i32 - Binary32::BIAS as i32;
            let is_power = bits & ((1 << Binary32::MANTISSA) - 1) == 0;
            all &= is_power & (least <= exponent) & (exponent <= most);
            *shift = (exponent << BF16_MANTISSA) as u16;
        }
        all.then_some(shifts)
    }
}

/// The elements of a row.
struct Scaled<'a, A, Z> {
    from: *const A,
    to: *mut Z,
    count: usize,
    what: Scaling<'a>,
}

impl<A: Source, Z: Target> Scaled<'_, A, Z> {
    /// Scales all blocks, one element after the other.
    ///
    /// # Safety
    /// As for [`scale`].
    #[inline(always)]
    unsafe fn one_by_one(&self) {
        let (Blocks { width, begun }, divides) = (self.what.blocks, self.what.divides());
        let (mut start, mut end) = (0, width - begun);
        for &number in self.what.numbers {
            end = end.min(self.count);
            for place in start..end {
                let value = self.from.add(place).read_unaligned().f32();
                let result = if divides { value / number } else { value * number };
                let result = if !divides && result.is_nan() { f32::NAN } else { result };
                self.to.add(place).write_unaligned(Z::rounded(result));
            }
            (start, end) = (end, end + width);
        }
    }

    /// Scales two registers by the numbers of their blocks. From one half of float32 to another, elements at even and at
    /// odd places are apart, which takes fewer instructions.
    ///
    /// # Safety
    /// The level's features, and as many elements at both pointers.
    #[inline(always)]
    unsafe fn step<V: Vector>(from: *const A, to: *mut Z, [first, second]: [Operand<V>; 2], ready: Ready<V>) {
        // No `map`: the instructions of a level are not inlined into closures.
        let [a, b] =
            if A::HALF && Z::HALF { alternate_bf16::<V>(V::load(from.cast())) } else { A::load::<V>(from) };
        if Z::HALF && first.has_reciprocal {
            let a = first.negative_quotient::<A>(a, ready.corrects);
            let halves = Self::halves::<V>(a, second.negative_quotient::<A>(b, ready.corrects));
            return Self::store_halves::<V, true>(to, halves, ready);
        }
        let (mut a, mut b) = if ready.divides {
            (V::quotient(a, first.number), V::quotient(b, second.number))
        } else {
            (V::product(a, first.number), V::product(b, second.number))
        };
        if !ready.divides && V::any_nan([a, b]) {
            (a, b) = (V::from_bits(V::limited(a, ready.nan)), V::from_bits(V::limited(b, ready.nan)));
        }
        if Z::HALF {
            return Self::store_halves::<V, false>(to, Self::halves::<V>(a, b), ready);
        }
        V::store(to.cast(), V::bits(a));
        V::store(to.cast::<u8>().add(V::BYTES), V::bits(b));
    }

    /// Returns the lower and the upper halves of results.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn halves<V: Vector>(a: V::F32s, b: V::F32s) -> (V::Integers, V::Integers) {
        if A::HALF { V::alternate_halves(V::bits(a), V::bits(b)) } else { V::halves(V::bits(a), V::bits(b)) }
    }

    /// Rounds and stores them, or their negatives.
    ///
    /// # Safety
    /// The level's features, and room for a register.
    #[inline(always)]
    unsafe fn store_halves<V: Vector, const NEGATIVE: bool>(
        to: *mut Z,
        (low, high): (V::Integers, V::Integers),
        ready: Ready<V>,
    ) {
        let mut rounded = Z::round::<V>(low, high, ready.one);
        if NEGATIVE {
            rounded = V::add16(rounded, V::splat16(SIGN));
        }
        V::store(to.cast(), if A::HALF { rounded } else { V::halves_in_order(rounded) });
    }

    /// Does the same for fewer elements of one block.
    ///
    /// # Safety
    /// The level's features, and so many elements at both places.
    #[inline(always)]
    unsafe fn part<V: Vector>(&self, start: usize, count: usize, number: Operand<V>, ready: Ready<V>) {
        let mut rooms = [[0u32; MOST_BYTES / 2]; 2];
        let [from, to] = rooms.each_mut().map(|room| room.as_mut_ptr().cast::<u8>());
        // SAFETY: the caller's promise; rooms have registers for a step.
        unsafe {
            let (source, target) = (self.from.add(start).cast::<u8>(), self.to.add(start).cast::<u8>());
            let (bytes, results) = (count * size_of::<A>(), count * size_of::<Z>());
            for offset in (0..bytes).step_by(V::BYTES) {
                V::store(from.add(offset), V::load_first(source.add(offset), (bytes - offset).min(V::BYTES)));
            }
            Self::step::<V>(from.cast(), to.cast(), [number, number], ready);
            for offset in (0..results).step_by(V::BYTES) {
                let register = V::load(to.add(offset));
                V::store_first(target.add(offset), register, (results - offset).min(V::BYTES));
            }
        }
    }

    /// Scales all blocks, two registers at a time.
    ///
    /// # Safety
    /// The vectors are there, and as for [`scale`].
    #[inline(always)]
    unsafe fn in_registers<V: Vector>(&self, ready: Ready<V>) {
        let Scaling { blocks: Blocks { width, begun }, numbers, reciprocals, .. } = self.what;
        let lanes = V::BYTES / size_of::<f32>();
        // A product needs none.
        let reciprocal = |index: usize| if ready.divides { reciprocals[index] } else { 0.0 };
        let (mut start, mut first) = (0, 0);
        if V::BYTES == MOST_BYTES && width == lanes && begun == 0 {
            while start + 2 * lanes <= self.count {
                let pair = [numbers[first], numbers[first + 1]];
                let reciprocals = [reciprocal(first), reciprocal(first + 1)];
                let pair = Operand::<V>::of_two(pair, reciprocals, A::HALF && Z::HALF);
                Self::step::<V>(self.from.add(start), self.to.add(start), pair, ready);
                (start, first) = (start + 2 * lanes, first + 2);
            }
        }
        let mut end = start + width - begun;
        for (index, &number) in numbers.iter().enumerate().skip(first) {
            end = end.min(self.count);
            let [number, _] = Operand::<V>::of_two([number; 2], [reciprocal(index); 2], false);
            while start + 2 * lanes <= end {
                Self::step::<V>(self.from.add(start), self.to.add(start), [number, number], ready);
                start += 2 * lanes;
            }
            if start < end {
                self.part::<V>(start, end - start, number, ready);
            }
            (start, end) = (end, end + width);
        }
    }
}

/// What a loop keeps in registers.
#[derive(Clone, Copy)]
struct Ready<V: Vector> {
    divides: bool,
    /// Whether quotients are corrected.
    corrects: bool,
    /// 1 in every u16.
    one: V::Integers,
    /// For [`Vector::limited`]: the positive NaN for every NaN.
    nan: [V::Integers; 3],
}

impl<V: Vector> Ready<V> {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn new(divides: bool, corrects: bool) -> Self {
        Self {
            divides,
            corrects,
            one: V::splat16(u16::from(unknown_one())),
            nan: [V::splat32(u32::MAX >> 1), V::splat32(f32::NAN.to_bits()), V::splat32(0)],
        }
    }
}

/// The number of a block in the lanes of a register, and its negative reciprocal.
#[derive(Clone, Copy)]
struct Operand<V: Vector> {
    number: V::F32s,
    reciprocal: V::F32s,
    has_reciprocal: bool,
}

impl<V: Vector> Operand<V> {
    /// Returns the negatives of quotients, rounded to nearest: the product with the reciprocal is within two units in the
    /// last place, and after a correction within one. Its remainder is exact then, and the next correction gives the
    /// rounded quotient (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990). Of
    /// the 128 mantissas of bf16, the first correction does so for all of the 2^23 of divisors, as was tried for each. Of
    /// two bf16, the product rounds to the bf16 of the quotient: that is 2^-17 from the middle of two bf16, as numbers of 8
    /// bits are from their products with an odd number of 9. Of negatives, because zeros keep their signs so.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn negative_quotient<A: Source>(&self, a: V::F32s, corrects: bool) -> V::F32s {
        let mut result = V::product(a, self.reciprocal);
        for _ in 0..if !corrects {
            0
        } else if A::HALF {
            1
        } else {
            2
        } {
            let remainder = V::product_sum(result, self.number, a);
            result = V::product_sum(remainder, self.reciprocal, result);
        }
        result
    }

    /// Returns the numbers of two blocks, with their reciprocals or 0: of each a register, or a half of both registers.
    ///
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn of_two(numbers: [f32; 2], reciprocals: [f32; 2], by_halves: bool) -> [Self; 2] {
        let has_reciprocal = reciprocals[0] != 0.0 && reciprocals[1] != 0.0;
        let (number, reciprocal) = (Self::lanes(numbers, by_halves), Self::lanes(reciprocals, by_halves));
        [
            Self { number: number[0], reciprocal: reciprocal[0], has_reciprocal },
            Self { number: number[1], reciprocal: reciprocal[1], has_reciprocal },
        ]
    }

    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn lanes([first, second]: [f32; 2], by_halves: bool) -> [V::F32s; 2] {
        if by_halves {
            [V::from_bits(V::splat_halves32(first.to_bits(), second.to_bits())); 2]
        } else {
            [V::from_bits(V::splat32(first.to_bits())), V::from_bits(V::splat32(second.to_bits()))]
        }
    }
}

/// The rows of a scaling.
struct EachRow<'a, A, Z>(Scaling<'a>, PhantomData<(A, Z)>);

/// The same in registers.
struct InRegisters<'a, A, Z, V>(EachRow<'a, A, Z>, V);

impl<'a, A, Z> EachRow<'a, A, Z> {
    #[inline(always)]
    fn row(&self, row: usize) -> Scaled<'a, A, Z> {
        let Scaling { from: (area, _), to: (to, _, pitch), .. } = self.0;
        let to = to.wrapping_offset(row as isize * pitch).cast();
        Scaled { from: area.row(row).cast(), to, count: area.columns, what: self.0 }
    }
}

impl<A: Source, Z: Target> RawKernel for EachRow<'_, A, Z> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        for row in 0..self.0.from.0.rows {
            // SAFETY: the caller of `scale` vouches for the elements.
            unsafe { self.row(row).one_by_one() };
        }
    }
}

impl<A: Source, Z: Target, V: Vector> RawKernel for InRegisters<'_, A, Z, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the vectors are there; the caller of `scale` vouches for the elements.
        unsafe {
            let ready = Ready::<V>::new(self.0.0.divides(), !self.0.0.are_halves());
            for row in 0..self.0.0.from.0.rows {
                self.0.row(row).in_registers::<V>(ready);
            }
        }
    }
}

/// Products of bf16 and powers of two, by addition to exponents; whether there were neither infinities nor NaN, whose
/// products are wrong.
struct Shifted<'a, V>(Scaling<'a>, &'a [u16], V);

impl<V: Vector> RawKernel for Shifted<'_, V> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run(self) -> bool {
        let Scaling { from: (area, _), to: (to, _, pitch), blocks: Blocks { width, .. }, .. } = self.0;
        // SAFETY: the vectors are there; the caller of `scale` vouches for the elements, and blocks are whole registers.
        unsafe {
            let (mut most, one) = (V::splat16(0), V::splat16(1));
            for row in 0..area.rows {
                let (mut from, mut to) = (area.row(row), to.wrapping_offset(row as isize * pitch));
                for &shift in self.1 {
                    let shift = V::splat16(shift);
                    for _ in 0..width / (V::BYTES / size_of::<u16>()) {
                        let bits = V::load(from);
                        let magnitudes = V::and(bits, V::splat16(!SIGN));
                        most = V::max16(most, magnitudes);
                        let is_zero = V::above16(one, magnitudes);
                        V::store(to, V::choose16(is_zero, bits, V::add16(bits, shift)));
                        (from, to) = (from.add(V::BYTES), to.add(V::BYTES));
                    }
                }
            }
            !V::any16(V::above16(most, V::splat16(INFINITY - 1)))
        }
    }
}

/// Multiplies each element by the number of its block, or divides it, in float32.
///
/// # Safety
/// The elements are readable at the first place, and results writable at the second. These are the same, if both are
/// without gaps and no result is larger than an element, or do not overlap. Quotients that are rounded to bf16 are not NaN.
pub(super) unsafe fn scale(level: Level, what: Scaling<'_>) {
    /// # Safety
    /// As for `scale`.
    unsafe fn scale_rows<A: Source, Z: Target>(level: Level, what: Scaling<'_>) {
        let rows = || EachRow::<A, Z>(what, PhantomData);
        let done: Option<()> = with_vectors!(level, vectors => vectors.run(InRegisters(rows(), vectors)));
        if done.is_none() {
            run_portable(rows());
        }
    }
    if let Some(shifts) = what.shifts() {
        let shifts = &shifts[..what.numbers.len()];
        if with_vectors!(level, vectors => vectors.run(Shifted(what, shifts, vectors))) == Some(true) {
            return;
        }
    }
    match (what.from.1, what.to.1) {
        (Float::F32, Float::OddBf16) => scale_rows::<f32, Odd>(level, what),
        (Float::F32, Float::Bf16) => scale_rows::<f32, u16>(level, what),
        (Float::F32, _) => scale_rows::<f32, f32>(level, what),
        (Float::Int8, Float::Bf16) => scale_rows::<i8, u16>(level, what),
        (Float::Int8, _) => scale_rows::<i8, f32>(level, what),
        (_, Float::Bf16) => scale_rows::<u16, u16>(level, what),
        (_, Float::OddBf16) => scale_rows::<u16, Odd>(level, what),
        _ => scale_rows::<u16, f32>(level, what),
    }
}

/// Returns the negative reciprocals of divisors of magnitudes up to these, if quotients follow from products; else 0.
pub(super) fn reciprocals(level: Level, divisors: &[f32], largest: &[f32], to: &mut Vec<f32>) {
    to.clear();
    to.resize(divisors.len(), 0.0);
    if level != Level::PORTABLE {
        level.run(Reciprocals { divisors, largest, to });
    }
}

struct Reciprocals<'a> {
    divisors: &'a [f32],
    largest: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Reciprocals<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // Neither they nor their products overflow or lose bits; where remainders underflow, quotients are below 2^-40, and
        // their last bits do not matter.
        const FAR: f32 = f32::from_bits((127 + 60) << 23);
        for (to, (&divisor, &largest)) in self.to.iter_mut().zip(self.divisors.iter().zip(self.largest)) {
            let reciprocal = 1.0 / divisor;
            let size = divisor.abs();
            let is_safe = (size > 1.0 / FAR) & (size < FAR) & (largest * reciprocal.abs() < FAR);
            *to = if is_safe { -reciprocal } else { 0.0 };
        }
    }
}
