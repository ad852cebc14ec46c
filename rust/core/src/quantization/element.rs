//! What codes stand for.

#![deny(unsafe_code)]

/// The formats of codes and scales, as the table of formats names them.
pub(super) mod names {
    pub(crate) const E4M3: &str = "float8_e4m3fn";
    pub(crate) const E5M2: &str = "float8_e5m2";
    pub(crate) const E2M3: &str = "float6_e2m3fn";
    pub(crate) const E3M2: &str = "float6_e3m2fn";
    pub(crate) const E2M1: &str = "float4_e2m1fn";
    pub(crate) const E8M0: &str = "float8_e8m0fnu";
    pub(crate) const INT8: &str = "int8";
    pub(crate) const UINT8: &str = "uint8";
}

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A value of the format of this name.
    Format(&'static str),
    /// An index into these float32, as bits.
    Map(&'static [u32; 16]),
}
