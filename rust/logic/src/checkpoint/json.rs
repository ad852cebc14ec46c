//! The JSON form of a header: one object, tensor name to entry, plus `__metadata__`.
//!
//! Entries are read into lists, not hash maps: the order of the metadata stays, of two equal names
//! none is lost, and a hostile header can claim a few times its length of memory only.

use core::fmt;
use std::collections::HashSet;

use serde_core::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_core::ser::{Serialize, SerializeMap, Serializer};

use super::entry::{Dtype, TensorEntry};

/// Free-form strings that travel with the tensors, in the order of the file.
pub type Metadata = Vec<(String, String)>;

/// The one key that is not a tensor.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// A header as it stands in the file, nothing checked but its form.
pub(super) struct RawHeader {
    pub(super) metadata: Option<Metadata>,
    pub(super) tensors: Vec<TensorEntry>,
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
                let TensorInfo { dtype, shape, data_offsets: (begin, end) } =
                    map.next_value().map_err(named)?;
                header.tensors.push(TensorEntry { name, dtype, shape, begin, end });
            }
        }
        Ok(header)
    }
}

/// The entry of a tensor, without its name.
struct TensorInfo {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for TensorInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InfoVisitor)
    }
}

struct InfoVisitor;

impl<'de> Visitor<'de> for InfoVisitor {
    type Value = TensorInfo;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorInfo, A::Error> {
        let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "dtype" => read_field(&mut map, "dtype", &mut dtype)?,
                "shape" => read_field(&mut map, "shape", &mut shape)?,
                "data_offsets" => read_field(&mut map, "data_offsets", &mut data_offsets)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(TensorInfo {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            data_offsets: data_offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

fn read_field<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    map: &mut A,
    name: &'static str,
    field: &mut Option<T>,
) -> Result<(), A::Error> {
    match field.replace(map.next_value()?) {
        None => Ok(()),
        Some(_) => Err(A::Error::duplicate_field(name)),
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
        for entry in &self.tensors {
            map.serialize_entry(&entry.name, &InfoRef(entry))?;
        }
        map.end()
    }
}

struct InfoRef<'a>(&'a TensorEntry);

impl Serialize for InfoRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TensorEntry { dtype, shape, begin, end, .. } = self.0;
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("dtype", dtype)?;
        map.serialize_entry("shape", shape)?;
        map.serialize_entry("data_offsets", &(begin, end))?;
        map.end()
    }
}

struct PairsRef<'a>(&'a Metadata);

impl Serialize for PairsRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}
