//! Values that every library casts alike, without floating-point exceptions that hosts check.
//!
//! | source → target | values that differ | because |
//! |---|---|---|
//! | float of 16 bits or more | NaN | hosts differ in payloads; a signalling one raises "invalid" |
//! | float → integer | beyond the integer's range, NaN | C leaves it undefined |
//! | float64 | nonzero values that are not normal in float32 | hosts that go through float32 raise "overflow", "underflow" |
//! | float → e8m0 | subnormals of float32 | hosts differ in the lowest interval |
//! | stored in more bits than it has | codes whose unused bits are not 0 | their meaning is not defined |

use crate::codec::pivot::{Binary32, FloatPivot};
use crate::codec::reference::value_of;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format, Kind, Specials};
use crate::kernels::code_bounds::{CodeBounds, first_in};

/// Finds elements of one format on which hosts agree in casts to another, by their codes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAgreement {
    codes: CodeBounds,
    components: usize,
}

impl HostAgreement {
    /// Makes the bounds for a pair of formats; `None` if hosts agree on every code of the source.
    #[must_use]
    pub fn new(source: Format, target: Format) -> Option<Self> {
        let components = if source.component().is_some() { 2 } else { 1 };
        let source = source.component().unwrap_or(source);
        let target = target.component().unwrap_or(target);
        let (bits, size) = (source.row().bits, source.item_size());
        let full = u64::MAX >> (64 - 8 * size);
        let high = u64::MAX >> (64 - bits);
        let mut codes = CodeBounds { mask: full, flip: 0, base: 0, low: 0, high, size };
        if let Some(spec) = source.float() {
            restrict(&mut codes, &spec, target);
        }
        (codes.low > 1 || codes.high < codes.mask).then_some(Self { codes, components })
    }

    /// Returns whether hosts agree on all of `count` dense elements in native byte order.
    ///
    /// # Safety
    /// They are readable.
    #[must_use]
    pub unsafe fn holds(&self, source: *const u8, count: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.codes.holds(Level::active(), source, count * self.components) }
    }
}

/// Excludes the special values of a float source.
fn restrict(codes: &mut CodeBounds, spec: &FloatSpec, target: Format) {
    let finite = spec.max_code();
    // The codes of magnitudes grow with their values.
    let first_of = |limit: f64| first_in(0, finite + 1, |code| value_of(spec, code) >= limit);
    let signed_target = !matches!(target.kind(), Kind::Integer { signed: false });
    if signed_target {
        codes.mask &= !spec.sign_bit();
        codes.high = spec.magnitude_mask();
    }
    if codes.size > 1 {
        codes.high = codes.high.min(spec.infinity_code().unwrap_or(finite));
    }
    if let (Kind::Integer { .. }, Some((_, largest))) = (target.kind(), target.integer_range()) {
        // `largest + 1` is a power of two, so exact in float64.
        codes.high = first_of((largest + 1) as f64).saturating_sub(1);
    }
    let normal = 2f64.powi(1 - Binary32::BIAS as i32);
    if codes.size == 8 {
        codes.high = first_of(2f64.powi(Binary32::BIAS as i32)).min(codes.high + 1) - 1;
        codes.low = first_of(normal);
    }
    if target.float().is_some_and(|target| target.specials == Specials::ExponentOnly) {
        codes.low = first_of(normal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees(source: &str, target: &str, code: u64) -> bool {
        let format = |name| Format::named(name).unwrap();
        let bytes = code.to_le_bytes();
        // SAFETY: eight bytes hold an element.
        HostAgreement::new(format(source), format(target))
            .is_none_or(|all| unsafe { all.holds(bytes.as_ptr(), 1) })
    }

    #[test]
    fn hosts_agree_on_infinity_and_not_on_nan() {
        assert!(agrees("float32", "bfloat16", 0x7f80_0000));
        assert!(agrees("float32", "bfloat16", 0xff80_0000));
        assert!(!agrees("float32", "bfloat16", 0x7f80_0001));
        assert!(!agrees("float16", "float8_e5m2", 0xfc01));
        assert!(agrees("float8_e5m2", "float32", 0x7f));
    }

    #[test]
    fn integers_have_a_range() {
        let cases = [(-8.0f32, false), (-7.5, true), (7.9, true), (8.0, false), (0.0, true)];
        for (value, expected) in cases {
            assert_eq!(agrees("float32", "int4", u64::from(value.to_bits())), expected, "{value}");
        }
        assert!(agrees("float32", "uint8", u64::from(255.9f32.to_bits())));
        assert!(!agrees("float32", "uint8", u64::from((-0.5f32).to_bits())));
        assert!(agrees("float64", "int64", 2f64.powi(62).to_bits()));
        assert!(!agrees("float64", "int64", 2f64.powi(63).to_bits()));
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
            assert_eq!(agrees("float64", "bfloat16", value.to_bits()), expected, "{value:e}");
        }
    }

    #[test]
    fn unused_bits_are_zero() {
        assert!(agrees("float4_e2m1fn", "float32", 0x0f));
        assert!(!agrees("float4_e2m1fn", "float32", 0x1f));
        assert!(!agrees("bool", "float16", 2));
    }
}
