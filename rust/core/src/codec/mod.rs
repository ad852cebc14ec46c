//! What encoding and decoding mean.
//!
//! * [`options`]: rounding, overflow, NaN.
//! * [`pivot`], [`product`]: the representations every value passes through, taken apart into sign, exponent and
//!   significand.
//! * [`rounding`]: shifting bits out, in every direction.
//! * [`encode`]: parts to the code of any float format, integer or bool; [`nearest`] is its fast path.
//! * [`stochastic`]: the fast path of stochastic rounding.
//! * `odd_bf16`: constants for rounding bf16 to 8 bits or fewer.
//! * [`decode`]: any code to a pivot.
//! * `scalar`: one code at a time, for tables.
//! * [`mod@reference`]: the value of a code, by the definition; tests and `finfo` use it.
//!
//! Kernels are loops over these functions, none of which branches on data or knows a particular format.

pub mod decode;
pub mod encode;
pub mod lane;
pub mod nearest;
pub(crate) mod odd_bf16;
pub mod options;
pub mod pivot;
pub mod product;
pub mod random;
pub mod reference;
pub mod rounding;
pub(crate) mod scalar;
pub mod stochastic;
