//! Gradients: unscaled and checked in place, reading each of them once.

mod fused;
mod gradient_route;
mod gradients;
mod multiply;

pub use gradient_route::Reciprocal;
pub use gradients::{Gradient, Unscaled, quantize, unscale};
