//! Gradients: unscaled and checked in place, reading each of them once.

pub(super) mod finite;
pub(super) mod fused;
pub(super) mod gradient_loop;
pub(super) mod gradient_route;
pub(super) mod half;
pub(super) mod multiply;
pub mod unscale;
