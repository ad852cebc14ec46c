//! The operations on registers over which algorithms are written once.

use crate::cpu::{Level, Owner, RawKernel};

/// Operations of one instruction or a few.
macro_rules! operations {
    ($($(#[$doc:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        $visibility unsafe fn $name($($argument: $type),*) $(-> $result)? $body
    )*};
}
pub(super) use operations;

/// Roundings of operations, numbered as x86 numbers them in its instructions.
pub(crate) mod rounding {
    pub(crate) const NEAREST_EVEN: i32 = 0;
    pub(crate) const TOWARDS_NEGATIVE: i32 = 1;
    pub(crate) const TOWARDS_POSITIVE: i32 = 2;
    pub(crate) const TOWARDS_ZERO: i32 = 3;
}

/// The operations of a level on single registers.
///
/// Lanes are numbered as in memory. Names end with the bits of a lane. Every operation needs the features of the level,
/// which the machine has where a value of the type exists. Loads and stores need as many bytes as they move at the
/// pointer, which need not be aligned unless they say so.
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
    /// A condition per 16-bit lane.
    type Mask16: Copy;

    /// The level whose instructions these are.
    fn level(self) -> Level;

    /// Runs a kernel that is compiled for the level, and for no other.
    ///
    /// # Safety
    /// As for the kernel's [`RawKernel::run`].
    #[inline(always)]
    unsafe fn run<K: RawKernel>(self, kernel: K) -> K::Output {
        // SAFETY: the level is there, as `self` is of it; the rest is the caller's promise.
        unsafe { Self::function::<K, K>()(kernel) }
    }

    /// Returns the function of a kernel that is compiled for the level; it may be called if the level is there.
    fn function<O: Owner<K>, K: RawKernel>() -> unsafe fn(K) -> K::Output;

    unsafe fn load(source: *const u8) -> Self::Integers;
    unsafe fn store(target: *mut u8, a: Self::Integers);

    /// Loads the first bytes at a pointer, at most as many as a register has; the others are zero.
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

    unsafe fn splat8(value: u8) -> Self::Integers;
    unsafe fn splat16(value: u16) -> Self::Integers;
    unsafe fn splat32(value: u32) -> Self::Integers;

    unsafe fn and(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    unsafe fn add8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn add16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Adds unsigned bytes, with saturation.
    unsafe fn add_saturated8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Subtracts unsigned bytes, with saturation at 0.
    unsafe fn sub_saturated8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Subtracts unsigned u16, with saturation at 0.
    unsafe fn sub_saturated16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of unsigned bytes.
    unsafe fn min8(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of unsigned u16.
    unsafe fn min16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The larger of unsigned u16.
    unsafe fn max16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The larger of unsigned lanes of 32 bits.
    unsafe fn max32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The largest of unsigned u16.
    unsafe fn most16(a: Self::Integers) -> u16;
    /// The largest of unsigned lanes of 32 bits.
    unsafe fn most32(a: Self::Integers) -> u32;
    unsafe fn add32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The smaller of signed i16.
    unsafe fn min_signed16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The larger of signed i16.
    unsafe fn max_signed16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Products of signed i16 over 2^15, to nearest, ties up; not both factors are -2^15.
    unsafe fn nearest_product16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Sums of two adjacent products of signed i16, as lanes of 32 bits.
    unsafe fn pair_products32(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The low 16 bits of products.
    unsafe fn mul16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Shifts u16 right by one count below 16.
    unsafe fn shr16(a: Self::Integers, count: u32) -> Self::Integers;
    /// Shifts u16 below 256 to the left, each by its own count from 0 to 6.
    unsafe fn shl_each16(a: Self::Integers, counts: Self::Integers) -> Self::Integers;

    /// Shifts lanes of 32 bits right by one count below 32.
    unsafe fn shr32(a: Self::Integers, count: u32) -> Self::Integers;
    /// Shifts lanes of 32 bits left by 16 bits.
    unsafe fn raised(a: Self::Integers) -> Self::Integers;

    /// Returns the even and the odd u16 of two registers.
    unsafe fn unzip16(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);
    /// Loads two registers and returns their even and odd u16.
    unsafe fn load_unzipped16(source: *const u8) -> (Self::Integers, Self::Integers);
    /// Returns the even and the odd bytes of two registers, in an order of the level's own.
    unsafe fn unzip8(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);

    /// Returns unzipped bytes in memory order.
    #[inline(always)]
    unsafe fn in_order(a: Self::Integers) -> Self::Integers {
        a
    }

    /// Moves groups of four bytes to where [`Vector::interleave`] expects them.
    #[inline(always)]
    unsafe fn crosswise(a: Self::Integers) -> Self::Integers {
        a
    }
    /// Returns registers of elements of four bytes, from registers of their first to last byte, each moved by
    /// [`Vector::crosswise`].
    unsafe fn interleave(planes: [Self::Integers; 4]) -> [Self::Integers; 4];

    /// Returns lanes of 4 or 8 bytes, each followed by a lane of zeros.
    unsafe fn with_zeros<const SIZE: usize>(a: Self::Integers) -> [Self::Integers; 2];

    /// Returns the even lanes of 4 or 8 bytes of two registers.
    unsafe fn even<const SIZE: usize>(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// Compares signed u16 lanes: whether `a > b`.
    unsafe fn above16(a: Self::Integers, b: Self::Integers) -> Self::Mask16;
    /// Whether bytes have their top bit set.
    unsafe fn top8(a: Self::Integers) -> Self::Mask8;
    /// Joins the masks of two registers of u16 into one for bytes, in the order of [`Vector::unzip8`].
    unsafe fn join(low: Self::Mask16, high: Self::Mask16) -> Self::Mask8;
    unsafe fn choose8(mask: Self::Mask8, yes: Self::Integers, no: Self::Integers) -> Self::Integers;
    unsafe fn choose16(mask: Self::Mask16, yes: Self::Integers, no: Self::Integers) -> Self::Integers;

    unsafe fn bits(a: Self::F32s) -> Self::Integers;
    unsafe fn from_bits(a: Self::Integers) -> Self::F32s;
    /// Returns the lower and the upper u16 of two registers of 32-bit lanes, in an order of the level's own.
    #[inline(always)]
    unsafe fn halves(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers) {
        Self::unzip16(a, b)
    }
    /// Returns such u16 in memory order.
    #[inline(always)]
    unsafe fn halves_in_order(a: Self::Integers) -> Self::Integers {
        a
    }
    /// Returns the lower and the upper u16 of two registers of 32-bit lanes, alternating between the registers.
    unsafe fn alternate_halves(a: Self::Integers, b: Self::Integers) -> (Self::Integers, Self::Integers);
    /// Returns one number in the lower half of the 32-bit lanes, and another in the upper half.
    #[inline(always)]
    unsafe fn splat_halves32(lower: u32, upper: u32) -> Self::Integers {
        let mut lanes = [upper; MOST_BYTES / size_of::<u32>()];
        lanes[..Self::BYTES / (2 * size_of::<u32>())].fill(lower);
        // SAFETY: the trait's contract; no register is longer.
        unsafe { Self::load(lanes.as_ptr().cast()) }
    }
    /// Loads a register of integers of 1, 2, 4 or 8 bytes as float32: rounded to nearest, but for those of 8 bytes beyond
    /// 2^24 in magnitude, which become one of the two neighbors.
    unsafe fn load_integers<const SIZE: usize, const SIGNED: bool>(source: *const u8) -> Self::F32s;
    /// Loads half a register of bf16 as float32.
    unsafe fn load_bf16(source: *const u8) -> Self::F32s;
    /// Loads half a register of float16 as float32; NaN keeps its payload.
    unsafe fn load_f16(source: *const u8) -> Self::F32s;
    /// Loads two registers of float64 as float32 rounded to odd: towards zero, with the last bit set if that was
    /// inexact. For normal numbers it may be any of the last four bits. NaN keeps its sign.
    unsafe fn load_f64(source: *const u8) -> Self::F32s;
    /// Does the same; values outside float32's normal range may be rounded in another way.
    #[inline(always)]
    unsafe fn load_f64_midrange(source: *const u8) -> Self::F32s {
        Self::load_f64(source)
    }
    /// Loads two registers of float64 as float32 rounded to nearest; NaN keeps its sign.
    unsafe fn load_f64_nearest(source: *const u8) -> Self::F32s;
    /// Loads as many 64-bit integers as a register has bytes, as float32 rounded to nearest.
    #[inline(always)]
    unsafe fn nearest_of_64_bits<const SIGNED: bool>(source: *const u8) -> [Self::F32s; 4] {
        nearest_one_by_one::<Self, SIGNED>(source)
    }
    /// Converts two registers of float32 to float16, in one of the [`rounding`]s; NaN keeps the upper bits of its
    /// payload.
    unsafe fn to_f16<const ROUNDING: i32>(a: Self::F32s, b: Self::F32s) -> Self::Integers;
    /// Loads four registers of float64 as bf16 rounded once to nearest even; `one` is 1 in every u16. `None` if some
    /// are NaN or need a slower way.
    unsafe fn nearest_bf16_of_f64(source: *const u8, one: Self::Integers) -> Option<Self::Integers>;
    /// Products, rounded to nearest.
    unsafe fn product(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Quotients, rounded to nearest.
    unsafe fn quotient(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Products of the first two plus the third, rounded to nearest once.
    unsafe fn product_sum(a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s;
    /// Products rounded to odd: towards zero, with the last bit set if that was inexact. Products that underflow may
    /// become either neighbor, or zero. The second factor is finite and not zero.
    unsafe fn product_to_odd(a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Products, with a finite float64 factor whose products with float32, and their rounding errors, neither overflow nor
    /// underflow in float64: rounded to odd, or once to nearest.
    unsafe fn f64_product<const ODD: bool>(a: Self::F32s, b: f64) -> Self::F32s;
    unsafe fn any16(mask: Self::Mask16) -> bool;
    /// Returns whether any float32 of an even number of registers is NaN, which is rare.
    unsafe fn any_nan<const COUNT: usize>(a: [Self::F32s; COUNT]) -> bool;
    /// Returns whether any float32 differs between two registers, neither being NaN.
    unsafe fn any_differ(a: Self::F32s, b: Self::F32s) -> bool;
    /// Returns whether any nonzero float32 of two registers, after `added` is added to its bits, has all bits of `clear`
    /// zero.
    unsafe fn any_clear(a: [Self::F32s; 2], added: Self::Integers, clear: Self::Integers) -> bool;
    /// Returns whether any float32 is subnormal.
    unsafe fn any_subnormal(a: Self::F32s) -> bool;
    /// Adds the first integers to the bits of float32 with a clear sign, the second ones to those of the others.
    unsafe fn add_by_sign32(a: Self::F32s, added: [Self::Integers; 2]) -> Self::Integers;
    /// Limits magnitudes of float32, as bits, and replaces NaN by `nan | (NaN & mask)`.
    unsafe fn limited(a: Self::F32s, limit_nan_mask: [Self::Integers; 3]) -> Self::Integers;
}

/// Entries of a table with one for each byte.
pub(crate) const TABLE_BYTES: usize = 1 << u8::BITS;

/// Entries of a table that takes fewer instructions.
pub(crate) const SHORT_TABLE_BYTES: usize = 3 * TABLE_BYTES / 4;

/// The operations of levels that permute the bytes of several registers.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Tables: Vector {
    /// A table of so many quarters of [`TABLE_BYTES`] in registers.
    type Table<const QUARTERS: usize>: Copy;
    /// Loads a table that has so many quarters of [`TABLE_BYTES`] at this address.
    unsafe fn load_table<const QUARTERS: usize>(table: *const u8) -> Self::Table<QUARTERS>;
    /// Returns the entry of each byte, of a table with 3 quarters or 4; no byte is beyond the table.
    unsafe fn lookup<const QUARTERS: usize>(
        table: Self::Table<QUARTERS>,
        indices: Self::Integers,
    ) -> Self::Integers;
    /// Whether unsigned bytes are greater.
    unsafe fn above8(a: Self::Integers, b: Self::Integers) -> Self::Mask8;
    /// Adds one to bytes where the mask is set.
    unsafe fn increment8(mask: Self::Mask8, a: Self::Integers) -> Self::Integers;
    /// Returns registers of elements of `SIZE` bytes, whose last two bytes are given and the others zero.
    unsafe fn spread<const SIZE: usize>(low: Self::Integers, high: Self::Integers) -> [Self::Integers; SIZE];
}

/// Returns `a | (b & mask)`.
///
/// # Safety
/// The level's features.
#[inline(always)]
pub(crate) unsafe fn or_masked<V: Vector>(a: V::Integers, b: V::Integers, mask: V::Integers) -> V::Integers {
    V::or(a, V::and(b, mask))
}

/// Loads as many 64-bit integers as a register has bytes, as float32 rounded to nearest, one after the other.
///
/// # Safety
/// The level's features, and as many integers at the pointer.
#[inline(always)]
pub(super) unsafe fn nearest_one_by_one<V: Vector, const SIGNED: bool>(source: *const u8) -> [V::F32s; 4] {
    let mut numbers = [0f32; MOST_BYTES];
    // SAFETY: the caller's promise; no register is longer than a quarter of the numbers.
    unsafe {
        for (i, number) in numbers[..V::BYTES].iter_mut().enumerate() {
            let bits = source.cast::<u64>().add(i).read_unaligned();
            *number = if SIGNED { bits as i64 as f32 } else { bits as f32 };
        }
        let registers = numbers.as_ptr().cast::<u8>();
        [
            V::from_bits(V::load(registers)),
            V::from_bits(V::load(registers.add(V::BYTES))),
            V::from_bits(V::load(registers.add(2 * V::BYTES))),
            V::from_bits(V::load(registers.add(3 * V::BYTES))),
        ]
    }
}

/// Bytes of the longest register.
pub(crate) const MOST_BYTES: usize = 64;

/// Returns 1, hidden from the compiler, which would otherwise replace one instruction by several.
#[inline(always)]
pub(crate) fn unknown_one() -> u8 {
    std::hint::black_box(1)
}

/// Returns a condition that is rarely true, for which the compiler then keeps loops free of jumps where it is false.
#[inline(always)]
pub(crate) fn rarely(condition: bool) -> bool {
    // In every unit of code, or a loop would call it, and keep its registers in memory meanwhile.
    #[cold]
    #[inline]
    fn rare() {}
    if condition {
        rare();
    }
    condition
}

/// A buffer of the size of a register, for elements that do not fill one.
#[repr(align(64))]
pub(crate) struct Rest<const BYTES: usize>(pub(crate) [u8; BYTES]);

impl<const BYTES: usize> Rest<BYTES> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self([0; BYTES])
    }
}
