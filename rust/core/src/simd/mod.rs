//! Vectors for the loops that the compiler does not find by itself: bytes and words taken apart and put together,
//! the machine's own half floats, table lookups.
//!
//! One trait, one implementation per level. An algorithm is written once over the trait, as a
//! [`Kernel`](crate::cpu::Kernel) that runs on [`Vector::LEVEL`]; levels without an implementation take the loops
//! over single elements.

/// Operations of one instruction or a few, each with the trait's contract.
macro_rules! operations {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {$(
        #[inline(always)]
        unsafe fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the trait's contract.
            unsafe { $body }
        }
    )*};
}
use operations;

mod avx2;
mod avx512;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;

use crate::cpu::Level;

/// What a level does with one register.
///
/// Lanes are numbered as they lie in memory. "Words" are lanes of 16 bits, "singles" float32.
///
/// # Safety
/// Every operation needs the features of [`Vector::LEVEL`]. Loads and stores need as many bytes as they move at the
/// pointer, which need not be aligned unless they say so.
pub(crate) trait Vector: Copy + Send + Sync + 'static {
    /// The level whose instructions these are.
    const LEVEL: Level;
    /// Bytes of a register.
    const BYTES: usize;
    /// A register of integers, of lanes of any width.
    type Integers: Copy;
    /// A register of float32.
    type Singles: Copy;
    /// A condition per byte.
    type Mask8: Copy;
    /// A condition per word.
    type Mask16: Copy;

    unsafe fn load(source: *const u8) -> Self::Integers;
    unsafe fn store(target: *mut u8, a: Self::Integers);
    /// Stores past the caches, to an address that is a multiple of [`Vector::BYTES`].
    unsafe fn stream(target: *mut u8, a: Self::Integers);
    /// Makes what was streamed visible before whatever is stored later.
    unsafe fn fence();

    unsafe fn splat8(value: u8) -> Self::Integers;
    unsafe fn splat16(value: u16) -> Self::Integers;
    unsafe fn splat32(value: u32) -> Self::Integers;

    unsafe fn and(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Bits of `a`, and those of `b` that the mask has.
    unsafe fn or_masked(a: Self::Integers, b: Self::Integers, mask: Self::Integers) -> Self::Integers;

    unsafe fn add8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn add16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The sum of unsigned bytes, or the largest.
    unsafe fn add_saturated8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The difference of unsigned bytes, or 0.
    unsafe fn sub_saturated8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The difference of unsigned words, or 0.
    unsafe fn sub_saturated16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of unsigned bytes.
    unsafe fn min8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of unsigned words.
    unsafe fn min16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The larger of unsigned words.
    unsafe fn max16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The lower halves of products.
    unsafe fn mul16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn shr16<const COUNT: u32>(a: Self::Integers) -> Self::Integers;
    /// Words of up to 8 bits to the left, each by its own count from 0 to 7.
    unsafe fn shl_each16(a: Self::Integers, counts: Self::Integers) -> Self::Integers;

    /// The even and the odd words of two registers.
    unsafe fn unzip16(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);
    /// The even and the odd bytes of two registers.
    unsafe fn unzip8(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);

    /// Whether words are greater, in two's complement.
    unsafe fn above16(a: Self::Integers, b: Self::Integers) -> Self::Mask16;
    /// Whether bytes have their top bit set.
    unsafe fn top8(a: Self::Integers) -> Self::Mask8;
    /// The masks of two registers of words as that of one register of bytes.
    unsafe fn join(low: Self::Mask16, high: Self::Mask16) -> Self::Mask8;
    unsafe fn choose8(mask: Self::Mask8, yes: Self::Integers, no: Self::Integers) -> Self::Integers;
    unsafe fn choose16(mask: Self::Mask16, yes: Self::Integers, no: Self::Integers) -> Self::Integers;

    unsafe fn bits(a: Self::Singles) -> Self::Integers;
    unsafe fn singles(a: Self::Integers) -> Self::Singles;
    /// Singles whose upper halves are the words at the pointer, half a register of them.
    unsafe fn load_upper(source: *const u8) -> Self::Singles;
    /// The values of the IEEE halves at the pointer, half a register of them; NaN keeps what it has of its payload.
    unsafe fn load_halves(source: *const u8) -> Self::Singles;
    /// Singles of two registers as IEEE halves, rounded as the machine's instructions have it; NaN keeps what it has of
    /// its payload.
    unsafe fn halves<const ROUNDING: i32>(a: Self::Singles, b: Self::Singles) -> Self::Integers;
    /// Products, rounded to nearest.
    unsafe fn product(a: Self::Singles, b: Self::Singles) -> Self::Singles;
    /// Products rounded to odd: towards zero, and the last bit set if that was not exact. What underflows may be on
    /// either side of a number next to it, or zero. The second factor is finite and not zero.
    unsafe fn product_to_odd(a: Self::Singles, b: Self::Singles) -> Self::Singles;
    /// Products rounded to odd, with a finite factor whose products with float32 neither overflow nor underflow in
    /// float64, nor does their last bit.
    unsafe fn double_product_to_odd(a: Self::Singles, b: f64) -> Self::Singles;
    /// Products rounded to nearest, once, with such a factor.
    unsafe fn double_product(a: Self::Singles, b: f64) -> Self::Singles;
    unsafe fn any16(mask: Self::Mask16) -> bool;
    /// Whether any of the singles but zeros has these bits clear, after a number has been added to it as integers.
    unsafe fn any_clear(a: Self::Singles, added: Self::Integers, clear: Self::Integers) -> bool;
    /// Whether any of the singles is subnormal.
    unsafe fn any_subnormal(a: Self::Singles) -> bool;
    /// Singles with their last bit set, but for infinities and NaN.
    unsafe fn with_last_bit(a: Self::Singles) -> Self::Singles;
    /// Singles whose magnitudes are brought down to a limit, as bits, with another number in place of NaN: its bits, and
    /// those of NaN that a mask has.
    unsafe fn limited(a: Self::Singles, limit_nan_mask: [Self::Integers; 3]) -> Self::Integers;
    /// Singles with another in place of NaN: its sign, and these bits.
    unsafe fn canonical(a: Self::Singles, nan: Self::Integers) -> Self::Integers;
}

/// Entries of a table with one for each byte.
pub(crate) const TABLE_BYTES: usize = 1 << u8::BITS;

/// What only a level that permutes the bytes of several registers does.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Tables: Vector {
    /// A table in registers.
    type Table: Copy;
    unsafe fn load_table(table: &[u8; TABLE_BYTES]) -> Self::Table;
    /// The entry of each byte.
    unsafe fn lookup(table: Self::Table, indices: Self::Integers) -> Self::Integers;
    /// Bytes in groups of four, moved to where [`Tables::interleave`] wants them.
    unsafe fn crosswise(a: Self::Integers) -> Self::Integers;
    /// Registers of elements of four bytes, from registers of their first to last byte, crosswise.
    unsafe fn interleave(planes: [Self::Integers; 4]) -> [Self::Integers; 4];
    /// Registers of elements of `SIZE` bytes, the last two of which are given, and the others zero.
    unsafe fn spread<const SIZE: usize>(low: Self::Integers, high: Self::Integers) -> [Self::Integers; SIZE];
}

/// A number that the compiler does not know, and so does not make more instructions of. It is 1.
#[inline(always)]
pub(crate) fn unknown_one() -> u8 {
    std::hint::black_box(1)
}

/// Elements that do not fill a register, in room that does.
#[repr(align(64))]
pub(crate) struct Rest<const BYTES: usize>(pub(crate) [u8; BYTES]);

impl<const BYTES: usize> Rest<BYTES> {
    pub(crate) fn new() -> Self {
        Self([0; BYTES])
    }
}
