//! A tensor in the header of a safetensors file, and the dtypes that it may have.

use serde_core::de::{Deserialize, Deserializer, Error};
use serde_core::ser::{Serialize, Serializer};

/// The code of each dtype and the bits of an element, in the order of `Dtype` in the `safetensors` crate: writers place
/// tensors from the last to the first.
const DTYPES: [(&str, usize); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

const CODES: [&str; DTYPES.len()] = {
    let mut codes = [""; DTYPES.len()];
    let mut index = 0;
    while index < codes.len() {
        codes[index] = DTYPES[index].0;
        index += 1;
    }
    codes
};

/// One tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Unique name within the file.
    pub name: String,
    /// The format of the elements.
    pub dtype: Dtype,
    /// Number of elements along each axis.
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the data.
    pub begin: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A dtype that tensors of a file may have; those of a greater one are placed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dtype(usize);

impl Dtype {
    /// Finds a dtype by its code; the error names all codes.
    pub(super) fn with_code<E: Error>(code: &str) -> Result<Self, E> {
        let index = CODES.iter().position(|&known| known == code);
        index.map(Self).ok_or_else(|| E::unknown_variant(code, &CODES))
    }

    /// Returns the code, as files spell it.
    #[must_use]
    pub fn code(self) -> &'static str {
        DTYPES[self.0].0
    }

    /// Returns the bits of an element.
    #[must_use]
    pub fn bits(self) -> usize {
        DTYPES[self.0].1
    }
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::with_code(&String::deserialize(deserializer)?)
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}
