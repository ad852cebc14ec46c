//! The value of a code, by the definition, without optimization. `finfo` and the core's own tests use it.

use crate::cpu::DefaultEnvironment;
use crate::format::{FloatSpec, Specials};

/// Returns the value of a code of a float format that fits in float64, whatever the floating-point environment.
#[must_use]
pub fn value_of(spec: &FloatSpec, code: u64) -> f64 {
    DefaultEnvironment::compute(code, |code| worth(spec, code))
}

/// Does the same in the caller's environment.
pub(crate) fn worth(spec: &FloatSpec, code: u64) -> f64 {
    let magnitude = code & spec.magnitude_mask();
    let negative = spec.signed && code & spec.sign_bit() != 0;
    let field = magnitude >> spec.mantissa_bits;
    let fraction = magnitude & ((1 << spec.mantissa_bits) - 1);
    let is_nan = match spec.specials {
        Specials::Ieee => spec.infinity_code().is_some_and(|infinity| magnitude > infinity),
        Specials::FiniteNan | Specials::ExponentOnly => magnitude == spec.magnitude_mask(),
        Specials::Fnuz => negative && magnitude == 0,
        Specials::Finite => false,
    };
    let has_subnormals = spec.specials != Specials::ExponentOnly;
    let absolute = if is_nan {
        f64::NAN
    } else if spec.infinity_code() == Some(magnitude) {
        f64::INFINITY
    } else if field == 0 && has_subnormals {
        scaled(fraction, 1 - spec.bias - spec.mantissa_bits as i32)
    } else {
        let significand = fraction | (1 << spec.mantissa_bits);
        scaled(significand, field as i32 - spec.bias - spec.mantissa_bits as i32)
    };
    if negative { -absolute } else { absolute }
}

/// `integer * 2^exponent`, in two steps because the power alone may underflow.
fn scaled(integer: u64, exponent: i32) -> f64 {
    let half = exponent / 2;
    integer as f64 * 2f64.powi(half) * 2f64.powi(exponent - half)
}
