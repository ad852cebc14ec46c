//! Conversions of a register of elements at a time, on levels with vectors. `direct` chooses those between two floats,
//! `native` those that the machine has instructions for (to integers and float64 too); `vector_loop` is the loop that
//! all of them share.
//!
//! An unsafe function of this room needs the features of the level `V`, and at its pointers as many elements as it takes. Its
//! body is made of operations of [`Vector`](crate::simd::Vector) and of functions with the same needs, on these elements or
//! parts of them; so the body is not marked again. `vector_loop` is where a level and its elements are known: a block of its
//! own there, and wherever more is needed, says why that is so.

#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "bodies need what their functions do, as the head of this room says"
)]

pub(crate) mod direct;
pub(crate) mod equal_factor;
pub(crate) mod error_free_product;
pub(crate) mod factor;
pub(crate) mod float_source;
pub(crate) mod integer_source;
#[cfg(target_arch = "x86_64")]
pub(crate) mod intervals;
pub(crate) mod lane_draws;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "compilers know the instructions of other levels"
    )
)]
pub(crate) mod low_bytes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod magic_addition;
pub(crate) mod native;
pub(crate) mod past_caches;
pub(crate) mod piecewise;
pub(crate) mod piecewise_stage;
#[cfg(target_arch = "x86_64")]
pub(crate) mod rounded_down;
pub(crate) mod shapes;
pub(crate) mod stochastic_codes;
pub(crate) mod stochastic_stage;
pub(crate) mod then_elements;
pub(crate) mod thresholds;
pub(crate) mod through_f32;
pub(crate) mod to_byte;
pub(crate) mod to_f32;
pub(crate) mod to_f64;
pub(crate) mod to_integer;
pub(crate) mod to_u16;
pub(crate) mod u16_codes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod upper_bytes;
pub(crate) mod vector_loop;
