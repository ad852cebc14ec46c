//! Values that every library casts alike, raising no floating-point exception that anyone looks at.
//!
//! | source → target | not ordinary | because |
//! |---|---|---|
//! | float of 16 bits or more | NaN | hosts differ in payloads; a signalling one raises "invalid" |
//! | float → integer | beyond the integer's range, NaN | C leaves it undefined |
//! | float64 | what is no normal float32, but zero | hosts that go through float32 raise "overflow", "underflow" |
//! | float → e8m0 | subnormals of float32 | hosts differ in the lowest interval |
//! | stored in more bits than it has | the unused ones are not 0 | nothing says what they mean |

use std::marker::PhantomData;

use super::stages::stage::Storage;
use crate::codec::pivot::{Binary32, FloatPivot};
use crate::codec::reference::value_of;
use crate::cpu::{Level, RawKernel};
use crate::format::{FloatSpec, Format, Kind, Specials};

/// Tells ordinary elements of one format, for casts to another, from their codes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordinary {
    /// The bits that are looked at.
    mask: u64,
    /// The lowest ordinary code but zero.
    low: u64,
    /// The highest.
    high: u64,
    size: usize,
    components: usize,
}

impl Ordinary {
    /// For one pair of formats; `None` if every code of the source is ordinary.
    #[must_use]
    pub fn new(source: Format, target: Format) -> Option<Self> {
        let components = if source.component().is_some() { 2 } else { 1 };
        let source = source.component().unwrap_or(source);
        let target = target.component().unwrap_or(target);
        let (bits, size) = (source.row().bits, source.item_size());
        let full = u64::MAX >> (64 - 8 * size);
        let mut ordinary = Self { mask: full, low: 0, high: u64::MAX >> (64 - bits), size, components };
        if let Some(spec) = source.float() {
            ordinary.restrict(&spec, target);
        }
        (ordinary.low > 1 || ordinary.high < ordinary.mask).then_some(ordinary)
    }

    /// Takes out what is special about a float source.
    fn restrict(&mut self, spec: &FloatSpec, target: Format) {
        let finite = spec.max_code();
        // The codes of magnitudes grow with their values.
        let first_of = |limit: f64| first(finite + 1, |code| value_of(spec, code) >= limit);
        let signed_target = !matches!(target.kind(), Kind::Integer { signed: false });
        if signed_target {
            self.mask &= !spec.sign_bit();
            self.high = spec.magnitude_mask();
        }
        if self.size > 1 {
            self.high = self.high.min(spec.infinity_code().unwrap_or(finite));
        }
        if let (Kind::Integer { .. }, Some((_, largest))) = (target.kind(), target.integer_range()) {
            // One more than the largest is a power of two, and so a float.
            self.high = first_of((largest + 1) as f64).saturating_sub(1);
        }
        let normal = 2f64.powi(1 - Binary32::BIAS as i32);
        if self.size == 8 {
            self.high = first_of(2f64.powi(Binary32::BIAS as i32)).min(self.high + 1) - 1;
            self.low = first_of(normal);
        }
        if target.float().is_some_and(|target| target.specials == Specials::ExponentOnly) {
            self.low = first_of(normal);
        }
    }

    /// Whether all of `count` dense elements in native byte order are ordinary.
    ///
    /// # Safety
    /// They are readable.
    #[must_use]
    pub unsafe fn holds(&self, source: *const u8, count: usize) -> bool {
        let (level, count) = (Level::active(), count * self.components);
        // SAFETY: the caller's promise.
        unsafe {
            match (self.size, self.low > 1) {
                (1, _) => level.run_raw(Holds::<u8, false>(*self, source, count, PhantomData)),
                (2, false) => level.run_raw(Holds::<u16, false>(*self, source, count, PhantomData)),
                (2, true) => level.run_raw(Holds::<u16, true>(*self, source, count, PhantomData)),
                (4, false) => level.run_raw(Holds::<u32, false>(*self, source, count, PhantomData)),
                (4, true) => level.run_raw(Holds::<u32, true>(*self, source, count, PhantomData)),
                (_, false) => level.run_raw(Holds::<u64, false>(*self, source, count, PhantomData)),
                (_, true) => level.run_raw(Holds::<u64, true>(*self, source, count, PhantomData)),
            }
        }
    }
}

/// The first code below `end` of which something is true that stays true for those after it; else `end`.
fn first(end: u64, is_true: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_true(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Whether all codes are ordinary; with `LOW`, also none of them too small.
struct Holds<T, const LOW: bool>(Ordinary, *const u8, usize, PhantomData<T>);

macro_rules! holds {
    ($($word:ty)*) => {$(
        impl<const LOW: bool> RawKernel for Holds<$word, LOW> {
            type Output = bool;

            #[inline(always)]
            unsafe fn run(self) -> bool {
                let Self(Ordinary { mask, low, high, .. }, source, count, _) = self;
                let source = source.cast::<$word>();
                let mask = mask as $word;
                let (mut largest, mut smallest): ($word, $word) = (0, 0);
                for i in 0..count {
                    // SAFETY: `i < count`, for which `Ordinary::holds`'s caller has made the pointer valid.
                    let code = unsafe { source.add(i).read_unaligned() } & mask;
                    largest = largest.max(code);
                    if LOW {
                        // The smaller the code, the larger its negation; but zero's is zero.
                        smallest = smallest.max(code.wrapping_neg());
                    }
                }
                let negated = (low as $word).wrapping_neg().widen::<u64>();
                largest.widen::<u64>() <= high && (!LOW || smallest.widen::<u64>() <= negated)
            }
        }
    )*};
}
holds!(u8 u16 u32 u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary(source: &str, target: &str, code: u64) -> bool {
        let format = |name| Format::named(name).unwrap();
        let bytes = code.to_le_bytes();
        // SAFETY: eight bytes hold an element.
        Ordinary::new(format(source), format(target))
            .is_none_or(|all| unsafe { all.holds(bytes.as_ptr(), 1) })
    }

    #[test]
    fn nan_is_not_ordinary_and_infinity_is() {
        assert!(ordinary("float32", "bfloat16", 0x7f80_0000));
        assert!(ordinary("float32", "bfloat16", 0xff80_0000));
        assert!(!ordinary("float32", "bfloat16", 0x7f80_0001));
        assert!(!ordinary("float16", "float8_e5m2", 0xfc01));
        assert!(ordinary("float8_e5m2", "float32", 0x7f));
    }

    #[test]
    fn integers_have_a_range() {
        let cases = [(-8.0f32, false), (-7.5, true), (7.9, true), (8.0, false), (0.0, true)];
        for (value, expected) in cases {
            assert_eq!(ordinary("float32", "int4", u64::from(value.to_bits())), expected, "{value}");
        }
        assert!(ordinary("float32", "uint8", u64::from(255.9f32.to_bits())));
        assert!(!ordinary("float32", "uint8", u64::from((-0.5f32).to_bits())));
        assert!(ordinary("float64", "int64", 2f64.powi(62).to_bits()));
        assert!(!ordinary("float64", "int64", 2f64.powi(63).to_bits()));
    }

    #[test]
    fn doubles_are_normal_singles_or_zero() {
        let cases = [
            (0.0, true),
            (-0.0, true),
            (f64::from(f32::MIN_POSITIVE), true),
            (f64::from(f32::MIN_POSITIVE).next_down(), false),
            (2f64.powi(126), true),
            (f64::from(f32::MAX).next_up(), false),
            (f64::INFINITY, false),
        ];
        for (value, expected) in cases {
            assert_eq!(ordinary("float64", "bfloat16", value.to_bits()), expected, "{value:e}");
        }
    }

    #[test]
    fn unused_bits_are_zero() {
        assert!(ordinary("float4_e2m1fn", "float32", 0x0f));
        assert!(!ordinary("float4_e2m1fn", "float32", 0x1f));
        assert!(!ordinary("bool", "float16", 2));
    }
}
