//! Thresholds: the inputs of 16 bits, or their products with a factor, at which the code of 8 bits increases.
//!
//! A positive factor keeps inputs in their order, so codes increase along them, each at the first input whose product
//! reaches the lower bound of that code. For each bound, a quotient gives an input near that place, and the search
//! around it is exact, because the sign of a fused multiply-subtract is.

#![deny(unsafe_code)]

use crate::codec::pivot::{Binary64, FloatPivot};
use crate::cpu::Kernel;
use crate::format::FloatSpec;

/// Intervals of a table.
pub(crate) const INTERVALS: usize = 192;

/// The sign bit of an input.
pub(super) const SIGN: u16 = 1 << 15;

/// An input whose code differs from that of the input before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    pub(super) input: u16,
    pub(super) code: u8,
}

/// Finds the first input of each code.
pub(super) struct Thresholds<'a> {
    pub(super) factor: f64,
    pub(super) source: &'a FloatSpec,
    pub(super) target: FloatSpec,
    /// The last code.
    pub(super) last: u16,
    /// Codes increase halfway between values of the target (rounding to nearest), rather than at values.
    pub(super) nearest: bool,
    /// A tie goes to the upper code, also below odd codes.
    pub(super) ties_go_up: bool,
    /// Room for as many as there are codes of a sign.
    pub(super) found: &'a mut [Threshold],
}

impl Kernel for Thresholds<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Self { factor, source, target, last, nearest, ties_go_up, found } = self;
        let (inverse, infinity) = (1.0 / factor, (u32::from(SIGN) - (1 << source.mantissa_bits)) as u16);
        // Between two codes is a code of a format with one more bit.
        let ties = FloatSpec { mantissa_bits: target.mantissa_bits + 1, ..target };
        let bound = |code: u16| number(&ties, 2 * code - u16::from(nearest));
        let input_below = |code: u16| below(source, bound(code) * inverse).min(infinity);
        // Intervals are at least this large: smaller ones would be too many.
        let size =
            (input_below(last).saturating_sub(input_below(1)) / INTERVALS as u16 + 1).next_power_of_two();
        let (binade, normal) = (1 << target.mantissa_bits, 1 << source.mantissa_bits);
        for code in 1..=last {
            // One binade up, bound and input are both doubled, as long as both are normal.
            let half = if code > 2 * binade { found[usize::from(code - binade - 1)].input } else { 0 };
            let input = if half > normal {
                infinity.min(half + normal)
            } else {
                let tie = bound(code);
                let reaches = |input: u16| {
                    let beyond = number(source, input).mul_add(factor, -tie);
                    beyond > 0.0 || (beyond == 0.0 && (ties_go_up || code.is_multiple_of(2)))
                };
                let mut input = input_below(code);
                while input > 0 && reaches(input - 1) {
                    input -= 1;
                }
                while input < infinity && !reaches(input) {
                    input += 1;
                }
                input
            };
            if input == infinity {
                return usize::from(code - 1);
            }
            // Of five thresholds in two intervals, three are in one, which is too many.
            if code > 4 && input - found[usize::from(code - 5)].input < size {
                return 0;
            }
            found[usize::from(code - 1)] = Threshold { input, code: code as u8 };
        }
        usize::from(last)
    }
}

/// Returns the value of a code below infinity, in a format whose codes increase with magnitude.
#[inline(always)]
fn number(spec: &FloatSpec, code: u16) -> f64 {
    let (field, fraction) = (code >> spec.mantissa_bits, code & ((1 << spec.mantissa_bits) - 1));
    let significand = if field > 0 { fraction | 1 << spec.mantissa_bits } else { fraction };
    let exponent = i32::from(field.max(1)) - spec.bias - spec.mantissa_bits as i32;
    f64::from(significand) * f64::from_bits(((exponent + Binary64::BIAS as i32) as u64) << Binary64::MANTISSA)
}

/// Returns the code of the largest value that is not above this number; infinity's code or more for numbers beyond the
/// range.
#[inline(always)]
fn below(spec: &FloatSpec, number: f64) -> u16 {
    let bits = number.to_bits();
    let field = (bits >> Binary64::MANTISSA) as i32 - Binary64::BIAS as i32 + spec.bias;
    let kept = Binary64::MANTISSA - spec.mantissa_bits;
    if field >= 1 << spec.exponent_bits {
        return u16::MAX;
    }
    if field > 0 {
        let fraction = bits & ((1 << Binary64::MANTISSA) - 1);
        return (field as u16) << spec.mantissa_bits | (fraction >> kept) as u16;
    }
    let unit = spec.bias + spec.mantissa_bits as i32 - 1;
    (number * f64::from_bits(((unit + Binary64::BIAS as i32) as u64) << Binary64::MANTISSA)) as u16
}

#[cfg(test)]
mod tests {
    use super::super::piecewise::Piecewise;
    use super::super::shapes::{bf16_spec, f16_spec};
    use crate::codec::options::{Named, NanRule, Options, Overflow, Rounding};
    use crate::codec::scalar::Scalar;
    use crate::cpu::Level;
    use crate::format::Format;
    use crate::kernels::request::Request;

    const FACTORS: [f64; 14] = [
        0.1,
        1.0 / 3.0,
        1.0,
        1.5,
        1.5 + f64::EPSILON,
        0.75 - f64::EPSILON,
        2.0,
        0.125,
        448.0 / 5.3,
        90.3,
        1e-3,
        57344.0 / 3.1,
        3e7,
        1e-6,
    ];

    const OPTIONS: [(Overflow, NanRule); 4] = [
        (Overflow::Ieee, NanRule::Keep),
        (Overflow::Saturate, NanRule::Keep),
        (Overflow::Ieee, NanRule::Zero),
        (Overflow::Saturate, NanRule::Zero),
    ];

    fn roundings() -> impl Iterator<Item = Rounding> {
        Rounding::NAMES.iter().map(|named| named.1).filter(|&rounding| rounding != Rounding::Stochastic)
    }

    fn bytes() -> impl Iterator<Item = Format> {
        Format::all().filter(|format| format.item_size() == 1 && format.float().is_some())
    }

    /// Compares a request's table, if it has one, with the scalar code of every input; returns whether it has one.
    fn has_right_piecewise(request: &Request) -> bool {
        let source = request.source.float().unwrap();
        let Some(piecewise) = Piecewise::of(&source, request, Level::PORTABLE) else { return false };
        let Request { source, target, options, factor, .. } = *request;
        let pair = (source, target);
        let scalar = Scalar::new(pair, &options, request.rounding(), factor.unwrap_or(1.0)).unwrap();
        for input in 0..=u16::MAX {
            let (code, wanted) = (piecewise.code(input), scalar.convert(u64::from(input)).code as u8);
            assert_eq!(code, wanted, "{input:#x} {request:?}");
        }
        true
    }

    #[test]
    fn tables_are_right_for_every_code() {
        let mut found = 0;
        for spec in [bf16_spec(), f16_spec()] {
            let source = Format::all().find(|format| format.float() == Some(spec)).unwrap();
            for (target, rounding) in bytes().flat_map(|to| roundings().map(move |rounding| (to, rounding))) {
                for (overflow, nan) in OPTIONS {
                    let options = Options { rounding: Some(rounding), overflow, nan, seed: 0 };
                    let request = Request { options, ..Request::plain(source, target) };
                    found += usize::from(has_right_piecewise(&request));
                }
            }
        }
        assert!(found > 360, "only {found} requests have tables");
    }

    #[test]
    fn tables_are_right_for_products() {
        let mut found = 0;
        for (spec, factor) in
            [bf16_spec(), f16_spec()].into_iter().flat_map(|spec| FACTORS.map(|by| (spec, by)))
        {
            let source = Format::all().find(|format| format.float() == Some(spec)).unwrap();
            for (target, (overflow, nan)) in bytes().zip(OPTIONS.into_iter().cycle()) {
                for rounding in roundings() {
                    let options = Options { rounding: Some(rounding), overflow, nan, seed: 0 };
                    let plain = Request::plain(source, target);
                    let request = Request { options, scaled: true, factor: Some(factor), ..plain };
                    found += usize::from(has_right_piecewise(&request));
                }
            }
        }
        assert!(found > 400, "only {found} requests have tables");
    }

    #[test]
    fn every_signed_format_of_a_byte_has_a_table() {
        for target in
            bytes().filter(|target| target.row().bits == 8 && target.float().is_some_and(|to| to.signed))
        {
            let request = Request::plain(target, target);
            assert!(Piecewise::of(&bf16_spec(), &request, Level::PORTABLE).is_some(), "{target:?}");
        }
    }

    #[test]
    fn what_has_no_table_is_left_to_others() {
        let named = |name| Format::named(name).unwrap();
        let of = |target: &'static str, factor: f64| {
            let plain = Request::plain(named("bfloat16"), named(target));
            let request = Request { scaled: true, factor: Some(factor), ..plain };
            Piecewise::of(&bf16_spec(), &request, Level::PORTABLE).is_some()
        };
        assert!(of("float8_e4m3fn", 0.1));
        for factor in [-0.1, 0.0, f64::INFINITY, f64::NAN, 1e-60] {
            assert!(!of("float8_e4m3fn", factor), "{factor}");
        }
        assert!(!of("float8_e8m0fnu", 0.1));
    }
}
