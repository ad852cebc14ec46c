//! Pairs that whole registers take from source to target in one step, on levels that have the instructions.
//! `direct` says which of two floats, `native` which of what the machine converts itself (to integers and float64 too);
//! `vector_loop` is the loop of all of them.

pub(crate) mod direct;
pub(crate) mod equal_factor;
pub(crate) mod error_free_product;
pub(crate) mod factor;
pub(crate) mod float_source;
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
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "other levels have longer tables")
)]
pub(crate) mod magic_addition;
pub(crate) mod native;
pub(crate) mod piecewise;
pub(crate) mod piecewise_stage;
pub(crate) mod shapes;
pub(crate) mod stochastic_codes;
pub(crate) mod stochastic_stage;
pub(crate) mod thresholds;
pub(crate) mod through_f32;
pub(crate) mod to_byte;
pub(crate) mod to_f32;
pub(crate) mod to_f64;
pub(crate) mod to_integer;
pub(crate) mod to_u16;
pub(crate) mod u16_codes;
pub(crate) mod vector_loop;
