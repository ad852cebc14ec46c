//! Floats of one byte to codes of 16 bits, or to wider ones with these on top: a linear function and two tables of 16
//! entries, for levels whose tables are that short.
//!
//! ```text
//! magnitude            code of 16 bits
//! below 16             from a table: zero and subnormals are among them
//! up to the largest    magnitude * slope + offset: exponent and mantissa move as one number
//! special              from a table: infinity and NaN are the last 16 codes, or some of them
//! ```
//! The sign is then set. A pair of formats is eligible if this reproduces all 256 results of the general route.

use super::table::Table;
use crate::kernels::stages::stage::Stage;
use crate::kernels::vectors::vector_loop::{InSteps, Step};
use crate::simd::Nibbles;

/// Entries of a table.
const ENTRIES: usize = 16;

type Codes16 = [u16; 256];

/// The constants of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    low: [u16; ENTRIES],
    special: [u16; ENTRIES],
    /// The bits of a magnitude.
    magnitude: u16,
    slope: u16,
    offset: u16,
    /// Multiplied with a code, moves the sign bit to the top.
    sign_slope: u16,
    /// A code is special if `(code + special_add) & special_bits > special_bound`.
    special_bits: u16,
    special_add: u16,
    special_bound: u16,
}

/// The sign bit of a code of 16 bits.
const SIGN: u16 = 1 << 15;

impl Line {
    /// Fits the constants to the codes; `None` if they do not reproduce all of them.
    fn of(codes16: &Codes16) -> Option<Self> {
        // The sign bit alone is the code of negative zero or, where that does not exist, of NaN.
        let sign = [7, 5, 3]
            .map(|bit| 1usize << bit)
            .into_iter()
            .find(|sign| (1..16.min(*sign)).all(|code| codes16[code | sign] == codes16[code] | SIGN))?;
        let magnitudes = &codes16[..sign];
        let slope = (0..16).map(|shift| 1u16 << shift).find(|&slope| {
            let at = |code: u16| magnitudes.get(usize::from(code)).copied();
            let (Some(first), Some(next)) = (at(sign as u16 / 2), at(sign as u16 / 2 + 1)) else {
                return false;
            };
            next.wrapping_sub(first) == slope
        })?;
        let middle = (sign / 2) as u16;
        let offset = magnitudes[usize::from(middle)].wrapping_sub(middle.wrapping_mul(slope));
        let on_line =
            |code: usize| (code as u16).wrapping_mul(slope).wrapping_add(offset) == magnitudes[code];
        let last = (0..sign).rfind(|&code| on_line(code))?;
        let signless = codes16[sign] != SIGN;
        let (special_bits, special_add, special_bound) =
            if signless { (0xff, 0xff - sign as u16, 0xfe) } else { (sign as u16 - 1, 0, last as u16) };
        let mut special = [codes16[sign]; ENTRIES];
        if !signless {
            for code in last + 1..sign {
                special[code % ENTRIES] = magnitudes[code];
            }
        }
        let mut low = [0; ENTRIES];
        for (code, &of) in low.iter_mut().zip(magnitudes) {
            *code = of;
        }
        let found = Self {
            low,
            special,
            magnitude: sign as u16 - 1,
            slope,
            offset,
            sign_slope: SIGN / sign as u16,
            special_bits,
            special_add,
            special_bound,
        };
        (0..=u8::MAX).all(|code| found.code16(code) == codes16[usize::from(code)]).then_some(found)
    }

    /// Returns the code of 16 bits, as vectors compute it.
    fn code16(&self, code: u8) -> u16 {
        let code = u16::from(code);
        let magnitude = code & self.magnitude;
        let mut result = magnitude.wrapping_mul(self.slope).wrapping_add(self.offset);
        if magnitude < ENTRIES as u16 {
            result = self.low[usize::from(magnitude)];
        }
        if code.wrapping_add(self.special_add) & self.special_bits > self.special_bound {
            result = self.special[usize::from(magnitude) % ENTRIES];
        }
        result | code.wrapping_mul(self.sign_slope) & SIGN
    }
}

/// The constants in registers.
#[derive(Clone, Copy)]
struct Ready<V: Nibbles> {
    line: Line,
    /// The lower and the upper bytes of each table.
    low: [V::Integers; 2],
    special: [V::Integers; 2],
}

/// The constants, with the tables split into lower and upper bytes.
#[derive(Clone, Copy)]
struct Planes {
    line: Line,
    low: [[u8; ENTRIES]; 2],
    special: [[u8; ENTRIES]; 2],
}

impl Planes {
    fn of(line: Line) -> Self {
        let planes =
            |codes16: [u16; ENTRIES]| [0, 1].map(|place| codes16.map(|code| code.to_le_bytes()[place]));
        Self { line, low: planes(line.low), special: planes(line.special) }
    }
}

impl<V: Nibbles> Ready<V> {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn of(Planes { line, low, special }: &Planes) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                line: *line,
                low: [V::load_nibbles(&low[0]), V::load_nibbles(&low[1])],
                special: [V::load_nibbles(&special[0]), V::load_nibbles(&special[1])],
            }
        }
    }

    /// Converts half a register of codes.
    ///
    /// # Safety
    /// The level's features, and as many codes at the pointer.
    #[inline(always)]
    unsafe fn codes16(&self, source: *const u8) -> V::Integers {
        let line = &self.line;
        // SAFETY: the caller's promise.
        unsafe {
            let codes = V::load_u8_as_u16(source);
            let magnitude = V::and(codes, V::splat16(line.magnitude));
            let on_line = V::add16(V::mul16(magnitude, V::splat16(line.slope)), V::splat16(line.offset));
            // The top bit of the index makes lookups for upper bytes give 0.
            let index = V::or(magnitude, V::splat16(0x8000));
            let is_low = V::above16(V::splat16(ENTRIES as u16), magnitude);
            let mut code = V::choose16(is_low, Self::entries(self.low, index), on_line);
            let tested = V::add16(codes, V::splat16(line.special_add));
            let is_special =
                V::above16(V::and(tested, V::splat16(line.special_bits)), V::splat16(line.special_bound));
            if V::any16(is_special) {
                let nibble = V::and(index, V::splat16(0x8000 | (ENTRIES as u16 - 1)));
                code = V::choose16(is_special, Self::entries(self.special, nibble), code);
            }
            V::or_masked(code, V::mul16(codes, V::splat16(line.sign_slope)), V::splat16(SIGN))
        }
    }

    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn entries([low, high]: [V::Integers; 2], index: V::Integers) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            V::or(V::lookup_nibbles(low, index), V::mul16(V::lookup_nibbles(high, index), V::splat16(1 << 8)))
        }
    }
}

/// To codes of 16 bits.
#[derive(Clone, Copy)]
struct ToU16(Planes);

/// To codes of 32 bits: those of 16 bits on top of 16 zeros.
#[derive(Clone, Copy)]
struct ToF32(Planes);

impl<V: Nibbles> Step<V, 2> for ToU16 {
    const FROM: usize = 1;
    type Ready = Ready<V>;

    #[inline(always)]
    unsafe fn ready(&self) -> Ready<V> {
        // SAFETY: the trait's contract.
        unsafe { Ready::of(&self.0) }
    }

    #[inline(always)]
    unsafe fn step(ready: Ready<V>, source: *const u8) -> [V::Integers; 2] {
        // SAFETY: the trait's contract; half of the codes lie in the second half.
        unsafe { [ready.codes16(source), ready.codes16(source.add(V::BYTES / 2))] }
    }
}

impl<V: Nibbles> Step<V, 4> for ToF32 {
    const FROM: usize = 1;
    type Ready = Ready<V>;

    #[inline(always)]
    unsafe fn ready(&self) -> Ready<V> {
        // SAFETY: the trait's contract.
        unsafe { Ready::of(&self.0) }
    }

    #[inline(always)]
    unsafe fn step(ready: Ready<V>, source: *const u8) -> [V::Integers; 4] {
        // SAFETY: the trait's contract; half of the codes lie in the second half.
        unsafe {
            let [a, b] = V::u16_to_upper_u32(ready.codes16(source));
            let [c, d] = V::u16_to_upper_u32(ready.codes16(source.add(V::BYTES / 2)));
            [a, b, c, d]
        }
    }
}

/// Makes the stage for results of this size from a table, if the constants reproduce it.
pub(super) fn stage<V: Nibbles>(vectors: V, table: &Table, size: usize) -> Option<Box<dyn Stage>> {
    let planes = &table.planes;
    let code = |place: usize| -> Codes16 {
        std::array::from_fn(|code| u16::from_le_bytes([planes[place][code], planes[place + 1][code]]))
    };
    match size {
        2 => Some(InSteps::<V, _, 2>::boxed(vectors, ToU16(Planes::of(Line::of(&code(0))?)))),
        4 if code(0).iter().all(|&low| low == 0) => {
            Some(InSteps::<V, _, 4>::boxed(vectors, ToF32(Planes::of(Line::of(&code(2))?))))
        }
        _ => None,
    }
}
