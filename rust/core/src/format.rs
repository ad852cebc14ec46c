//! THE table of formats: one row per dtype, and what follows from a row alone.
//!
//! Everything else in the project that depends on a format — the parser, the conversion kernels, `finfo`, the
//! Python list of dtypes, the README's table, the parameters of the tests — derives from these rows. Adding a
//! format of a known kind is adding its row.
//!
//! Sources: IEEE 754-2019 (binary16/32/64), OCP OFP8 1.0 (e4m3fn as "E4M3", e5m2), OCP MX 1.0 (e8m0, e2m3, e3m2,
//! e2m1), the `StableHLO` FNUZ RFC, and `ml_dtypes` for the names.

use std::fmt;

/// What the top codes of a float format mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Specials {
    /// IEEE 754: an exponent of all ones is infinity or NaN.
    Ieee,
    /// `…fn`: no infinity; the magnitude of all ones is NaN.
    FiniteNan,
    /// `…fnuz`: no infinity, no negative zero; the code of negative zero is the one NaN.
    Fnuz,
    /// Only finite values (fp6, fp4).
    Finite,
    /// Powers of two only (e8m0): no sign, zero, subnormals or infinity; all ones is NaN.
    ExponentOnly,
}

impl Specials {
    /// The name by which Python sees it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ieee => "ieee",
            Self::FiniteNan => "finite-nan",
            Self::Fnuz => "fnuz",
            Self::Finite => "finite",
            Self::ExponentOnly => "exponent-only",
        }
    }
}

/// The layout of a binary floating-point format: sign, exponent, mantissa from high bits to low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatSpec {
    /// Whether the top bit is a sign.
    pub signed: bool,
    /// Width of the exponent field in bits.
    pub exponent_bits: u32,
    /// Width of the explicit mantissa field in bits.
    pub mantissa_bits: u32,
    /// The value `2^(e - bias)` belongs to exponent field `e`.
    pub bias: i32,
    /// Meaning of the top codes.
    pub specials: Specials,
}

impl FloatSpec {
    /// All bits below the sign.
    #[must_use]
    pub const fn magnitude_mask(&self) -> u64 {
        (1 << (self.exponent_bits + self.mantissa_bits)) - 1
    }

    /// The sign bit, 0 in an unsigned format.
    #[must_use]
    pub const fn sign_bit(&self) -> u64 {
        if self.signed { self.magnitude_mask() + 1 } else { 0 }
    }

    /// Magnitude code of infinity, if the format has one.
    #[must_use]
    #[inline]
    pub const fn infinity_code(&self) -> Option<u64> {
        match self.specials {
            Specials::Ieee => Some(((1 << self.exponent_bits) - 1) << self.mantissa_bits),
            _ => None,
        }
    }

    /// Code of the canonical quiet NaN with a clear sign, if the format has a NaN.
    #[must_use]
    pub const fn nan_code(&self) -> Option<u64> {
        match self.specials {
            Specials::Ieee => Some(((1 << (self.exponent_bits + 1)) - 1) << (self.mantissa_bits - 1)),
            Specials::FiniteNan | Specials::ExponentOnly => Some(self.magnitude_mask()),
            Specials::Fnuz => Some(self.sign_bit()),
            Specials::Finite => None,
        }
    }

    /// Magnitude code of the largest finite value.
    #[must_use]
    pub const fn max_code(&self) -> u64 {
        match self.specials {
            Specials::Ieee => (((1 << self.exponent_bits) - 1) << self.mantissa_bits) - 1,
            Specials::FiniteNan | Specials::ExponentOnly => self.magnitude_mask() - 1,
            Specials::Fnuz | Specials::Finite => self.magnitude_mask(),
        }
    }

    /// Whether every value of the format is a value of `other`, exactly.
    #[must_use]
    pub const fn fits_in(&self, other: &Self) -> bool {
        let lowest = 1 - self.bias - self.mantissa_bits as i32;
        let highest = (1 << self.exponent_bits) - 1 - self.bias;
        self.mantissa_bits <= other.mantissa_bits
            && lowest >= 1 - other.bias - other.mantissa_bits as i32
            && highest <= (1 << other.exponent_bits) - 1 - other.bias
    }
}

/// What the bits of a format mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One byte, zero or not.
    Bool,
    /// Two's complement or unsigned integer in the low bits of its storage.
    Integer {
        /// Whether it has negative values.
        signed: bool,
    },
    /// Binary floating point.
    Float(FloatSpec),
    /// Two components of a float format: real, imaginary.
    Complex {
        /// Name of the component's format.
        component: &'static str,
    },
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Row {
    /// Canonical name, as in numpy and `ml_dtypes`.
    pub name: &'static str,
    /// Other accepted spellings: none that numpy reads as something else it has (its "i8" has 8 bytes).
    pub aliases: &'static [&'static str],
    /// Bits of one value (storage may be wider: formats below 8 bits take a byte in numpy arrays).
    pub bits: u32,
    /// Meaning of the bits.
    pub kind: Kind,
    /// Code of the format in safetensors files, if they know it.
    pub safetensors: Option<&'static str>,
}

const fn boolean(name: &'static str, aliases: &'static [&'static str], code: &'static str) -> Row {
    Row { name, aliases, bits: 1, kind: Kind::Bool, safetensors: Some(code) }
}

const fn int(
    name: &'static str,
    aliases: &'static [&'static str],
    bits: u32,
    safetensors: Option<&'static str>,
) -> Row {
    Row { name, aliases, bits, kind: Kind::Integer { signed: true }, safetensors }
}

const fn uint(
    name: &'static str,
    aliases: &'static [&'static str],
    bits: u32,
    safetensors: Option<&'static str>,
) -> Row {
    Row { name, aliases, bits, kind: Kind::Integer { signed: false }, safetensors }
}

#[derive(Clone, Copy)]
enum Sign {
    Signed,
    Unsigned,
}
use Sign::{Signed, Unsigned};
use Specials::{ExponentOnly, Finite, FiniteNan, Fnuz, Ieee};

const fn float(
    name: &'static str,
    aliases: &'static [&'static str],
    (sign, exponent_bits, mantissa_bits): (Sign, u32, u32),
    bias: i32,
    specials: Specials,
    safetensors: Option<&'static str>,
) -> Row {
    let signed = matches!(sign, Signed);
    let spec = FloatSpec { signed, exponent_bits, mantissa_bits, bias, specials };
    let bits = signed as u32 + exponent_bits + mantissa_bits;
    Row { name, aliases, bits, kind: Kind::Float(spec), safetensors }
}

const fn complex(
    name: &'static str,
    aliases: &'static [&'static str],
    bits: u32,
    component: &'static str,
    safetensors: Option<&'static str>,
) -> Row {
    Row { name, aliases, bits, kind: Kind::Complex { component }, safetensors }
}

/// Model files and inference servers call this one fp8 and float8. "e4m3" alone is no alias: OCP means this one, `ml_dtypes`
/// the one with infinity.
const E4M3FN_ALIASES: &[&str] = &["e4m3fn", "f8_e4m3fn", "fp8", "float8"];

/// The table.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    boolean("bool", &["bool_", "boolean"], "BOOL"),
    int("int1", &[], 1, None),
    int("int2", &[], 2, None),
    int("int4", &[], 4, None),
    int("int8", &[], 8, Some("I8")),
    int("int16", &[], 16, Some("I16")),
    int("int32", &[], 32, Some("I32")),
    int("int64", &[], 64, Some("I64")),
    uint("uint1", &[], 1, None),
    uint("uint2", &[], 2, None),
    uint("uint4", &[], 4, None),
    uint("uint8", &[], 8, Some("U8")),
    uint("uint16", &[], 16, Some("U16")),
    uint("uint32", &[], 32, Some("U32")),
    uint("uint64", &[], 64, Some("U64")),
    //    name                  aliases                     layout            bias  specials      safetensors
    float("float64",            &["f64", "fp64", "double"], (Signed, 11, 52), 1023, Ieee,         Some("F64")),
    float("float32",            &["f32", "fp32", "single"], (Signed, 8, 23),  127,  Ieee,         Some("F32")),
    float("float16",            &["f16", "fp16", "half"],   (Signed, 5, 10),  15,   Ieee,         Some("F16")),
    float("bfloat16",           &["bf16"],                  (Signed, 8, 7),   127,  Ieee,         Some("BF16")),
    float("float8_e3m4",        &["e3m4"],                  (Signed, 3, 4),   3,    Ieee,         None),
    float("float8_e4m3",        &[],                        (Signed, 4, 3),   7,    Ieee,         None),
    float("float8_e4m3fn",      E4M3FN_ALIASES,             (Signed, 4, 3),   7,    FiniteNan,    Some("F8_E4M3")),
    float("float8_e4m3fnuz",    &["e4m3fnuz"],              (Signed, 4, 3),   8,    Fnuz,         Some("F8_E4M3FNUZ")),
    float("float8_e4m3b11fnuz", &["e4m3b11fnuz"],           (Signed, 4, 3),   11,   Fnuz,         None),
    float("float8_e5m2",        &["e5m2"],                  (Signed, 5, 2),   15,   Ieee,         Some("F8_E5M2")),
    float("float8_e5m2fnuz",    &["e5m2fnuz"],              (Signed, 5, 2),   16,   Fnuz,         Some("F8_E5M2FNUZ")),
    float("float8_e8m0fnu",     &["e8m0fnu", "e8m0"],       (Unsigned, 8, 0), 127,  ExponentOnly, Some("F8_E8M0")),
    float("float8_e5m3fnu",     &["e5m3fnu"],               (Unsigned, 5, 3), 15,   FiniteNan,    None),
    float("float6_e2m3fn",      &["e2m3fn"],                (Signed, 2, 3),   1,    Finite,       Some("F6_E2M3")),
    float("float6_e3m2fn",      &["e3m2fn"],                (Signed, 3, 2),   3,    Finite,       Some("F6_E3M2")),
    float("float4_e2m1fn",      &["e2m1fn", "fp4"],         (Signed, 2, 1),   1,    Finite,       Some("F4")),
    complex("complex128", &["c128"], 128, "float64", None),
    complex("complex64", &["c64"], 64, "float32", Some("C64")),
    complex("complex32", &["c32"], 32, "float16", None),
    complex("bcomplex32", &["bc32"], 32, "bfloat16", None),
];

/// A format: the index of its row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Format(u8);

impl fmt::Debug for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Format {
    /// How many there are.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub const COUNT: usize = TABLE.len();

    /// Every format, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// The format with this canonical name (aliases: [`crate::parse`]).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|format| format.name() == name)
    }

    /// Its row.
    #[must_use]
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub const fn row(self) -> &'static Row {
        &TABLE[self.0 as usize]
    }

    /// Its position in the table.
    #[must_use]
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Meaning of its bits.
    #[must_use]
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn kind(self) -> Kind {
        self.row().kind
    }

    /// Bytes of one element in memory, as numpy and `ml_dtypes` store it.
    #[must_use]
    #[inline(always)]
    pub const fn item_size(self) -> usize {
        (self.row().bits as usize).div_ceil(8)
    }

    /// The layout, if it is a real float.
    #[must_use]
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn float(self) -> Option<FloatSpec> {
        match self.kind() {
            Kind::Float(spec) => Some(spec),
            _ => None,
        }
    }

    /// The format of the components of a complex format; `None` for a real one.
    #[must_use]
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn component(self) -> Option<Self> {
        match self.kind() {
            Kind::Complex { component } => Self::named(component),
            _ => None,
        }
    }

    /// Smallest and largest value of an integer format or bool.
    #[must_use]
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn integer_range(self) -> Option<(i128, i128)> {
        let bits = self.row().bits;
        match self.kind() {
            Kind::Bool => Some((0, 1)),
            Kind::Integer { signed: true } => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            Kind::Integer { signed: false } => Some((0, (1 << bits) - 1)),
            _ => None,
        }
    }
}

macro_rules! constants {
    ($($(#[$attribute:meta])* $constant:ident: $name:literal,)*) => {
        impl Format {
            $(
                #[doc = concat!("The format ", $name, ".")]
                $(#[$attribute])*
                pub const $constant: Self = Self::constant($name);
            )*

            #[cfg(test)]
            const CONSTANTS: &[Self] = &[$(Self::$constant),*];
        }
    };
}
constants! {
    BOOL: "bool",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    INT1: "int1",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    INT2: "int2",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    INT4: "int4",
    INT8: "int8",
    INT16: "int16",
    INT32: "int32",
    INT64: "int64",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    UINT1: "uint1",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    UINT2: "uint2",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    UINT4: "uint4",
    UINT8: "uint8",
    UINT16: "uint16",
    UINT32: "uint32",
    UINT64: "uint64",
    FLOAT64: "float64",
    FLOAT32: "float32",
    FLOAT16: "float16",
    BFLOAT16: "bfloat16",
    FLOAT8_E3M4: "float8_e3m4",
    FLOAT8_E4M3: "float8_e4m3",
    FLOAT8_E4M3FN: "float8_e4m3fn",
    FLOAT8_E4M3FNUZ: "float8_e4m3fnuz",
    FLOAT8_E4M3B11FNUZ: "float8_e4m3b11fnuz",
    FLOAT8_E5M2: "float8_e5m2",
    FLOAT8_E5M2FNUZ: "float8_e5m2fnuz",
    FLOAT8_E8M0FNU: "float8_e8m0fnu",
    FLOAT8_E5M3FNU: "float8_e5m3fnu",
    FLOAT6_E2M3FN: "float6_e2m3fn",
    FLOAT6_E3M2FN: "float6_e3m2fn",
    FLOAT4_E2M1FN: "float4_e2m1fn",
    COMPLEX128: "complex128",
    COMPLEX64: "complex64",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    COMPLEX32: "complex32",
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    BCOMPLEX32: "bcomplex32",
}

impl Format {
    /// The format of a name that a row of the table has; the compiler refuses another name of a constant.
    pub(crate) const fn constant(name: &str) -> Self {
        let mut index = 0;
        while index < TABLE.len() {
            if are_equal(TABLE[index].name.as_bytes(), name.as_bytes()) {
                return Self(index as u8);
            }
            index += 1;
        }
        panic!("no format has this name")
    }
}

/// Compares texts in a constant, where `==` is not yet at hand.
const fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_constant() {
        assert!(Format::all().eq(Format::CONSTANTS.iter().copied()));
    }
}
