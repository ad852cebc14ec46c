//! Reports: what a cast lost, watched tile by tile beside its plain stages (`watch`), or from flags (`measure`).

#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "other levels take the general way")
)]
pub(super) mod codes;
pub(super) mod extremes;
pub(super) mod glance;
pub(super) mod histogram;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "other levels take the general way")
)]
pub(super) mod low;
pub(super) mod measure;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "other levels take the general way")
)]
pub(super) mod squares;
pub(super) mod squares_of_both;
pub(super) mod steepest;
pub(super) mod tally;
pub(super) mod watch;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "other levels take the general way")
)]
pub(super) mod whole_squares;
