//! Pairs that whole registers take from source to target in one step, on levels that have the instructions.
//! `direct` says which of two floats, `native` which of what the machine converts itself (to integers and float64 too);
//! `vector_loop` is the loop of all of them.

pub(super) mod by_cells;
pub(super) mod by_chance;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "other levels have longer tables")
)]
pub(super) mod by_sums;
pub(super) mod cells;
pub(super) mod chance_codes;
pub(super) mod direct;
pub(super) mod enclosed;
pub(super) mod equal_factor;
pub(super) mod factor;
pub(super) mod half_codes;
pub(super) mod lane_draws;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "compilers know the instructions of other levels"
    )
)]
pub(super) mod low_bytes;
pub(super) mod native;
pub(super) mod shapes;
pub(super) mod steps;
pub(super) mod through_singles;
pub(super) mod to_byte;
pub(super) mod to_double;
pub(super) mod to_half;
pub(super) mod to_integer;
pub(super) mod to_single;
pub(super) mod upper_source;
pub(super) mod vector_loop;
