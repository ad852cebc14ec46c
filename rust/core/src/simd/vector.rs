//! What a level does with registers: the operations over which an algorithm is written once.

use crate::cpu::{Level, RawKernel};

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
pub(super) use operations;

/// Roundings of [`Vector::to_f16`], numbered as x86 numbers them in its instructions.
pub(crate) mod rounding {
    pub(crate) const NEAREST_EVEN: i32 = 0;
    pub(crate) const TOWARDS_NEGATIVE: i32 = 1;
    pub(crate) const TOWARDS_POSITIVE: i32 = 2;
    pub(crate) const TOWARDS_ZERO: i32 = 3;
}

/// What a level does with one register.
///
/// Lanes are numbered as they lie in memory. "Words" are lanes of 16 bits, "singles" float32. Every operation needs the
/// features of the level, which the machine has where a value of the type exists. Loads and stores need as many bytes as
/// they move at the pointer, which need not be aligned unless they say so.
///
/// # Safety
/// A register has [`Vector::BYTES`], at most [`MOST_BYTES`], and loads and stores move no others. A value of the type
/// exists only where the features do.
pub(crate) unsafe trait Vector: Copy + Send + Sync + 'static {
    /// Bytes of a register.
    const BYTES: usize;
    /// Whether stores can go past the caches.
    const STREAMS: bool;
    /// A register of integers, of lanes of any width.
    type Integers: Copy;
    /// A register of float32.
    type F32s: Copy;
    /// A condition per byte.
    type Mask8: Copy;
    /// A condition per word.
    type Mask16: Copy;

    /// The level whose instructions these are.
    fn level(self) -> Level;

    /// Runs a kernel that is compiled for the level, and for no other.
    ///
    /// # Safety
    /// As for the kernel's [`RawKernel::run`].
    unsafe fn run<K: RawKernel>(self, kernel: K) -> K::Output;

    unsafe fn load(source: *const u8) -> Self::Integers;
    unsafe fn store(target: *mut u8, a: Self::Integers);

    /// The first bytes at a pointer, at most as many as a register has; the others are zero.
    #[inline(always)]
    unsafe fn load_first(source: *const u8, count: usize) -> Self::Integers {
        let mut room = Rest::<MOST_BYTES>::new();
        // SAFETY: the trait's contract; no register is longer than the room.
        unsafe {
            source.copy_to_nonoverlapping(room.0.as_mut_ptr(), count);
            Self::load(room.0.as_ptr())
        }
    }

    /// Stores the first bytes, at most as many as a register has.
    #[inline(always)]
    unsafe fn store_first(target: *mut u8, a: Self::Integers, count: usize) {
        let mut room = Rest::<MOST_BYTES>::new();
        // SAFETY: as for loads.
        unsafe {
            Self::store(room.0.as_mut_ptr(), a);
            room.0.as_ptr().copy_to_nonoverlapping(target, count);
        }
    }

    /// Stores past the caches if the level can, to an address that is a multiple of [`Vector::BYTES`].
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
    /// The larger of unsigned lanes of 32 bits.
    unsafe fn max32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The lower halves of products.
    unsafe fn mul16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn shr16<const COUNT: u32>(a: Self::Integers) -> Self::Integers;
    /// Words of up to 8 bits to the left, each by its own count from 0 to 6.
    unsafe fn shl_each16(a: Self::Integers, counts: Self::Integers) -> Self::Integers;

    /// The even and the odd words of two registers.
    unsafe fn unzip16(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);
    /// The even and the odd words of two registers at a pointer.
    unsafe fn load_unzipped16(source: *const u8) -> (Self::Integers, Self::Integers);
    /// The even and the odd bytes of two registers, in an order of the level's own.
    unsafe fn unzip8(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);

    /// What was unzipped, in the order of memory.
    #[inline(always)]
    unsafe fn in_order(a: Self::Integers) -> Self::Integers {
        a
    }

    /// The even lanes of 32 bits of two registers.
    unsafe fn even32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The even lanes of 64 bits of two registers.
    unsafe fn even64(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// Whether words are greater, in two's complement.
    unsafe fn above16(a: Self::Integers, b: Self::Integers) -> Self::Mask16;
    /// Whether bytes have their top bit set.
    unsafe fn top8(a: Self::Integers) -> Self::Mask8;
    /// The masks of two registers of words as that of one register of bytes, in the order of [`Vector::unzip8`].
    unsafe fn join(low: Self::Mask16, high: Self::Mask16) -> Self::Mask8;
    unsafe fn choose8(mask: Self::Mask8, yes: Self::Integers, no: Self::Integers) -> Self::Integers;
    unsafe fn choose16(mask: Self::Mask16, yes: Self::Integers, no: Self::Integers) -> Self::Integers;

    unsafe fn bits(a: Self::F32s) -> Self::Integers;
    unsafe fn from_bits(a: Self::Integers) -> Self::F32s;
    /// F32s whose upper halves are the words at the pointer, half a register of them.
    unsafe fn load_bf16(source: *const u8) -> Self::F32s;
    /// The values of the IEEE halves at the pointer, half a register of them; NaN keeps what it has of its payload.
    unsafe fn load_f16(source: *const u8) -> Self::F32s;
    /// The doubles at the pointer, two registers of them, rounded to odd: towards zero, and the last bit set if that was
    /// not exact. The last bit of normal numbers may be any of the last four. NaN keeps its sign.
    unsafe fn load_f64(source: *const u8) -> Self::F32s;
    /// The same, but what is not among the normal float32 may be rounded in another way.
    #[inline(always)]
    unsafe fn load_f64_midrange(source: *const u8) -> Self::F32s {
        // SAFETY: the trait's contract.
        unsafe { Self::load_f64(source) }
    }
    /// F32s of two registers as IEEE halves, in one of the [`rounding`]s; NaN keeps what it has of its payload.
    unsafe fn to_f16<const ROUNDING: i32>(a: Self::F32s, b: Self::F32s) -> Self::Integers;
    /// The upper halves of the singles of two registers, rounded to nearest even; none is NaN, and `one` is 1 in every
    /// word.
    #[inline(always)]
    unsafe fn nearest_bf16(a: Self::F32s, b: Self::F32s, one: Self::Integers) -> Self::Integers {
        // SAFETY: the trait's contract.
        unsafe {
            let (low, high) = Self::unzip16(Self::bits(a), Self::bits(b));
            up_above_middle::<Self>(low, high, one)
        }
    }
    /// The doubles at the pointer, four registers of them, as upper halves of singles, rounded once to nearest even; `one`
    /// is 1 in every word. None where some are NaN, or need another look.
    #[inline(always)]
    unsafe fn nearest_bf16_of_f64(source: *const u8, one: Self::Integers) -> Option<Self::Integers> {
        // SAFETY: the trait's contract.
        unsafe {
            let a = Self::load_f64(source);
            let b = Self::load_f64(source.add(2 * Self::BYTES));
            if Self::any_nan(a, b) { None } else { Some(Self::nearest_bf16(a, b, one)) }
        }
    }
    /// Products, rounded to nearest.
    unsafe fn product(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Products of the first two plus the third, rounded to nearest once.
    unsafe fn product_sum(a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s;
    /// Products rounded to odd: towards zero, and the last bit set if that was not exact. What underflows may be on
    /// either side of a number next to it, or zero. The second factor is finite and not zero.
    unsafe fn product_to_odd(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Products rounded to odd, with a finite factor whose products with float32 neither overflow nor underflow in
    /// float64, nor does their last bit.
    unsafe fn f64_product_to_odd(a: Self::F32s, b: f64) -> Self::F32s;
    /// Products rounded to nearest, once, with such a factor.
    unsafe fn f64_product(a: Self::F32s, b: f64) -> Self::F32s;
    unsafe fn any16(mask: Self::Mask16) -> bool;
    /// Whether any of the singles of two registers is NaN.
    unsafe fn any_nan(a: Self::F32s, b: Self::F32s) -> bool;
    /// Whether any of the singles differs from the other's, neither being NaN.
    unsafe fn any_differ(a: Self::F32s, b: Self::F32s) -> bool;
    /// Whether any of the singles but zeros has these bits clear, after a number has been added to it as integers.
    unsafe fn any_clear(a: Self::F32s, added: Self::Integers, clear: Self::Integers) -> bool;
    /// Whether any of the singles is subnormal.
    unsafe fn any_subnormal(a: Self::F32s) -> bool;
    /// F32s with their last bit set, but for infinities and NaN.
    unsafe fn with_last_bit(a: Self::F32s) -> Self::F32s;
    /// F32s whose magnitudes are brought down to a limit, as bits, with another number in place of NaN: its bits, and
    /// those of NaN that a mask has.
    unsafe fn limited(a: Self::F32s, limit_nan_mask: [Self::Integers; 3]) -> Self::Integers;
    /// F32s with another in place of NaN: its sign, and these bits.
    unsafe fn canonical(a: Self::F32s, nan: Self::Integers) -> Self::Integers;
}

/// Entries of a table with one for each byte.
pub(crate) const TABLE_BYTES: usize = 1 << u8::BITS;

/// Entries of a table that takes fewer instructions.
pub(crate) const SHORT_TABLE_BYTES: usize = 3 * TABLE_BYTES / 4;

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
    /// A short table in registers.
    type ShortTable: Copy;
    unsafe fn load_short_table(table: &[u8; SHORT_TABLE_BYTES]) -> Self::ShortTable;
    /// The entry of each byte, of which none is beyond the table.
    unsafe fn lookup_short(table: Self::ShortTable, indices: Self::Integers) -> Self::Integers;
    /// Whether unsigned bytes are greater.
    unsafe fn above8(a: Self::Integers, b: Self::Integers) -> Self::Mask8;
    /// Bytes, plus one where the mask is set.
    unsafe fn increment8(mask: Self::Mask8, a: Self::Integers) -> Self::Integers;
    /// Bytes in groups of four, moved to where [`Tables::interleave`] wants them.
    unsafe fn crosswise(a: Self::Integers) -> Self::Integers;
    /// Registers of elements of four bytes, from registers of their first to last byte, crosswise.
    unsafe fn interleave(planes: [Self::Integers; 4]) -> [Self::Integers; 4];
    /// Registers of elements of `SIZE` bytes, the last two of which are given, and the others zero.
    unsafe fn spread<const SIZE: usize>(low: Self::Integers, high: Self::Integers) -> [Self::Integers; SIZE];
}

/// What a level with tables of 16 entries does with bytes of which nothing is known but that.
///
/// # Safety
/// As for [`Vector`].
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other levels have longer tables"))]
pub(crate) trait Nibbles: Vector {
    /// The bytes at the pointer as words, half a register of them.
    unsafe fn load_u8_as_u16(source: *const u8) -> Self::Integers;
    unsafe fn load_nibbles(table: &[u8; 16]) -> Self::Integers;
    /// The entry of the lower four bits of each byte; 0 where its top bit is set.
    unsafe fn lookup_nibbles(table: Self::Integers, indices: Self::Integers) -> Self::Integers;
    /// Words as the upper halves of 32 bits, in the order of memory.
    unsafe fn u16_to_upper_u32(words: Self::Integers) -> [Self::Integers; 2];
}

/// One more than the upper halves, where the lower ones are above the middle, or on it below an odd upper one.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn up_above_middle<V: Vector>(
    low: V::Integers,
    high: V::Integers,
    one: V::Integers,
) -> V::Integers {
    // SAFETY: the caller's promise.
    unsafe {
        let above = V::sub_saturated16(V::or_masked(low, high, one), V::splat16(1 << 15));
        V::add16(high, V::min16(above, one))
    }
}

/// Bytes of the longest register.
pub(crate) const MOST_BYTES: usize = 64;

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
