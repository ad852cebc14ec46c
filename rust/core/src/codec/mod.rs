//! What encoding and decoding mean.
//!
//! * [`options`]: rounding, overflow, NaN.
//! * [`pivot`], [`product`]: the representations every value passes through, taken apart into sign, exponent and
//!   significand.
//! * [`rounding`]: shifting bits out, in every direction.
//! * [`encode`]: parts to the code of any float format, integer or bool; [`nearest`] is its fast path.
//! * [`stochastic`]: a fast path of the rounding by chance.
//! * `odd_bf16`: the same to 8 bits or fewer, in words of 16 bits.
//! * [`decode`]: any code to a pivot.
//! * `scalar`: one code at a time, for tables.
//! * [`reference`]: what a code is worth, slowly and obviously; tests and `finfo` use it.
//!
//! A loop over these functions is all a kernel is; nothing here branches on data or knows a particular format.

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
