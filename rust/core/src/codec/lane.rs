//! A lane: an unsigned integer that holds the bits of one value.
//!
//! Kernels are written once over [`Lane`] without branches, so that the compiler can vectorize their loops for each CPU
//! level.

use std::fmt::Debug;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use crate::plain::Plain;

/// Wrapping unsigned arithmetic of a fixed width; "signed" operations read two's complement.
pub trait Lane:
    Plain
    + Debug
    + Ord
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
{
    /// Bits of the lane.
    const WIDTH: u32;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// All bits set.
    const ONES: Self;

    /// The low bits of `value`, sign-extended if the lane is wider.
    fn from_i64(value: i64) -> Self;
    /// The low 64 bits.
    fn to_u64(self) -> u64;
    /// The high bits of a uniform 64-bit draw, at the top of the lane.
    fn from_random(draw: u64) -> Self;
    /// A draw of the lane's width, 64 bits or fewer, at the top of 64 bits.
    fn into_random(self) -> u64;
    /// Modular sum.
    fn add(self, other: Self) -> Self;
    /// Modular difference.
    fn sub(self, other: Self) -> Self;
    /// Shift left by less than `WIDTH`.
    fn shl(self, amount: Self) -> Self;
    /// Shift right by less than `WIDTH`, filling with zeros.
    fn shr(self, amount: Self) -> Self;
    /// Whether it is less than `other` as two's complement.
    fn signed_less(self, other: Self) -> bool;

    /// `a` if the condition holds, else `b`; compiles to a blend.
    #[inline(always)]
    fn select(condition: bool, a: Self, b: Self) -> Self {
        if condition { a } else { b }
    }

    /// All ones if the condition holds, else zero.
    #[inline(always)]
    fn mask(condition: bool) -> Self {
        Self::select(condition, Self::ONES, Self::ZERO)
    }

    /// The larger as two's complement.
    #[inline(always)]
    fn signed_max(self, other: Self) -> Self {
        Self::select(self.signed_less(other), other, self)
    }

    /// The smaller as two's complement.
    #[inline(always)]
    fn signed_min(self, other: Self) -> Self {
        Self::select(self.signed_less(other), self, other)
    }
}

macro_rules! lane {
    ($unsigned:ty, $signed:ty, $from_random:expr) => {
        impl Lane for $unsigned {
            const WIDTH: u32 = <$unsigned>::BITS;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const ONES: Self = <$unsigned>::MAX;

            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                value as Self
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn from_random(draw: u64) -> Self {
                $from_random(draw)
            }
            #[inline(always)]
            fn into_random(self) -> u64 {
                (self as u64) << 64u32.saturating_sub(Self::WIDTH)
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn shl(self, amount: Self) -> Self {
                self.wrapping_shl(amount as u32)
            }
            #[inline(always)]
            fn shr(self, amount: Self) -> Self {
                self.wrapping_shr(amount as u32)
            }
            #[inline(always)]
            fn signed_less(self, other: Self) -> bool {
                (self as $signed) < (other as $signed)
            }
        }
    };
}

// Lanes below 32 bits hold integers only, which no stochastic rounding uses.
lane!(u8, i8, |draw: u64| (draw >> 56) as u8);
lane!(u16, i16, |draw: u64| (draw >> 48) as u16);
lane!(u32, i32, |draw: u64| (draw >> 32) as u32);
lane!(u64, i64, |draw: u64| draw);
lane!(u128, i128, |draw: u64| u128::from(draw) << 64);
