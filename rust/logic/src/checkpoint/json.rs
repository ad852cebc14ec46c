//! The JSON form of a header: one object, tensor name to entry, plus `__metadata__`.
//!
//! The crate's own (de)serializer goes through hash maps: it keeps the last of two equal names and
//! loses the order of the metadata. Reading straight into lists avoids both, and keeps the memory
//! that a hostile header can claim to a few times its length.

use core::fmt;
use std::collections::HashSet;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Free-form strings that travel with the tensors, in the order of the file.
pub type Metadata = Vec<(String, String)>;

/// The one key that is not a tensor.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// A header as it stands in the file, nothing checked but its form.
pub(super) struct RawHeader {
    pub(super) metadata: Option<Metadata>,
    pub(super) tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object that maps tensor names to their entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut seen = HashSet::new();
        let mut header = RawHeader { metadata: None, tensors: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            let named = |error: A::Error| A::Error::custom(format!("{name:?}: {error}"));
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("{name:?} occurs twice")));
            }
            if name == METADATA_KEY {
                let entries = map.next_value::<Option<StringPairs>>().map_err(named)?;
                header.metadata = entries.map(|pairs| pairs.0);
            } else {
                let entry = map.next_value::<TensorInfo>().map_err(named)?;
                header.tensors.push((name, entry));
            }
        }
        Ok(header)
    }
}

/// An object whose values are all strings, in the order of the file.
struct StringPairs(Metadata);

impl<'de> Deserialize<'de> for StringPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = StringPairs;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object that maps strings to strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringPairs, A::Error> {
        let mut seen = HashSet::new();
        let mut pairs = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("{key:?} occurs twice")));
            }
            pairs.push((key, value));
        }
        Ok(StringPairs(pairs))
    }
}

impl Serialize for RawHeader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(pairs) = &self.metadata {
            map.serialize_entry(METADATA_KEY, &PairsRef(pairs))?;
        }
        for (name, entry) in &self.tensors {
            map.serialize_entry(name, entry)?;
        }
        map.end()
    }
}

struct PairsRef<'a>(&'a Metadata);

impl Serialize for PairsRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}
