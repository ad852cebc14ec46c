//! Reads the header of a GGUF file.
//!
//! ```text
//! header = "GGUF" ++ version (u32) ++ tensors (u64) ++ pairs (u64) ++ pair* ++ tensor*
//! pair   = key (text) ++ type (u32) ++ value
//! tensor = name (text) ++ axes (u32) ++ shape (u64 each, the last axis first) ++ type (u32) ++ offset (u64)
//! text   = length (u64) ++ UTF-8
//! array  = type (u32) ++ length (u64) ++ value*
//! ```
//!
//! All numbers are little-endian. Counts are not believed: no memory is taken for what was not read, and an array of
//! numbers is passed over in a step.

use std::collections::HashSet;

const MAGIC: &[u8] = b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
/// Axes of a tensor, at most: ggml's own limit.
pub const MAX_AXES: u32 = 4;
/// Bytes of a text, at most.
const MAX_TEXT: u64 = 64 << 20;
/// Bytes that are read at a time, at least.
const AHEAD: usize = 1 << 18;
/// The key of the alignment of tensors.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of tensors without that key.
const ALIGNMENT: u64 = 32;
/// The alignment divides by this.
pub const ALIGNMENT_UNIT: u64 = 8;

/// The type of a text.
const TEXT: u32 = 8;
/// The type of an array.
const ARRAY: u32 = 9;

/// A file that is read.
pub trait Source {
    /// Bytes that were read.
    type Bytes: AsRef<[u8]>;
    /// Why they were not.
    type Error;

    /// Returns the length of the file.
    fn size(&self) -> u64;
    /// Reads so many bytes, fewer where the file ends.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read(&mut self, begin: u64, count: usize) -> Result<Self::Bytes, Self::Error>;
}

/// A value of a header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A text.
    Text(&'a str),
    /// A whole number of a type without a sign.
    Unsigned(u64),
    /// A whole number of a type with a sign.
    Signed(i64),
    /// A number of a type of floating point.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// An array, which begins at this byte.
    Array(u64),
}

/// What a header says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Number of elements along each axis.
    pub shape: Vec<u64>,
    /// The number of its type.
    pub kind: u32,
    /// Its first byte, counted from the start of the data.
    pub offset: u64,
}

/// Where the data of a file stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Its first byte.
    pub start: u64,
    /// Each tensor begins at a multiple of this many bytes from there.
    pub alignment: u64,
    /// The byte after the last pair of the header.
    pub pairs_end: u64,
}

/// Why a header was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The source, or who takes the parts of the header, failed.
    Raised(E),
    /// The header is wrong.
    Refused(Fault),
}

impl<E> From<Fault> for Error<E> {
    fn from(fault: Fault) -> Self {
        Self::Refused(fault)
    }
}

/// What is wrong with a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file does not begin as a GGUF file.
    Magic,
    /// The file is of a version that is not read.
    Version(u32),
    /// The file ends within its header.
    Truncated,
    /// A text of so many bytes.
    LongText(u64),
    /// A text that is not UTF-8.
    NotUtf8(Vec<u8>),
    /// A value of a type that GGUF does not have.
    UnknownType(u32),
    /// An array of arrays, or of a type that GGUF does not have.
    NestedArray,
    /// A key that stands twice.
    RepeatedKey(String),
    /// The alignment is not a multiple of [`ALIGNMENT_UNIT`].
    Alignment,
    /// A tensor with more than [`MAX_AXES`] axes.
    Axes {
        /// Its name.
        name: String,
        /// How many it has.
        axes: u32,
    },
    /// A tensor of more elements than an address can count.
    Shape {
        /// Its name.
        name: String,
        /// Number of elements along each axis.
        shape: Vec<u64>,
    },
}

/// Reads the header of a file, and passes on its pairs, each with the bytes where it is, and then its tensors, in their
/// order.
///
/// # Errors
/// The header is wrong, or `source`, `pair` or `tensor` failed.
pub fn parse<S: Source>(
    source: S,
    mut pair: impl FnMut(&str, Value<'_>, u64) -> Result<(), S::Error>,
    mut tensor: impl FnMut(Tensor<'_>) -> Result<(), S::Error>,
) -> Result<Data, Error<S::Error>> {
    let mut cursor = Cursor::new(source, 0);
    if cursor.take(MAGIC.len())? != MAGIC {
        return Err(Fault::Magic.into());
    }
    let version = cursor.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(Fault::Version(version).into());
    }
    let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
    let mut alignment = ALIGNMENT;
    let mut keys = HashSet::new();
    for _ in 0..pairs {
        let begin = cursor.place;
        let key = cursor.text()?.to_owned();
        let value = cursor.value()?;
        if keys.contains(&key) {
            return Err(Fault::RepeatedKey(key).into());
        }
        if key == ALIGNMENT_KEY {
            alignment = whole(value);
        }
        pair(&key, value, begin).map_err(Error::Raised)?;
        keys.insert(key);
    }
    drop(keys);
    let pairs_end = cursor.place;
    if alignment == 0 || !alignment.is_multiple_of(ALIGNMENT_UNIT) {
        return Err(Fault::Alignment.into());
    }
    let mut name = String::new();
    for _ in 0..tensors {
        cursor.text()?.clone_into(&mut name);
        let shape = cursor.shape(&name)?;
        let (kind, offset) = (cursor.u32()?, cursor.u64()?);
        tensor(Tensor { name: &name, shape, kind, offset }).map_err(Error::Raised)?;
    }
    // No overflow: the product is the alignment, or less than twice the place, which has at most 63 bits.
    Ok(Data { start: cursor.place.div_ceil(alignment) * alignment, alignment, pairs_end })
}

/// Reads an array, and passes on its items in their order.
///
/// # Errors
/// The array is wrong, or `source` or `item` failed.
pub fn parse_array<S: Source>(
    source: S,
    begin: u64,
    mut item: impl FnMut(Value<'_>) -> Result<(), S::Error>,
) -> Result<(), Error<S::Error>> {
    let mut cursor = Cursor::new(source, begin);
    let (kind, count) = (cursor.u32()?, cursor.u64()?);
    for _ in 0..count {
        let value = if kind == TEXT { Value::Text(cursor.text()?) } else { cursor.number(kind)? };
        item(value).map_err(Error::Raised)?;
    }
    Ok(())
}

/// Returns a whole number that is not negative; 0 for another value.
fn whole(value: Value<'_>) -> u64 {
    match value {
        Value::Unsigned(number) => number,
        Value::Signed(number) => number.try_into().unwrap_or(0),
        Value::Bool(truth) => truth.into(),
        Value::Text(_) | Value::Float(_) | Value::Array(_) => 0,
    }
}

/// Returns how many bytes a number of a type has; `None` for other types.
fn width(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Reads a header from a byte on, never more than the file has.
struct Cursor<S: Source> {
    source: S,
    /// The bytes that were read last, and the place of the first of them.
    window: Option<S::Bytes>,
    begin: u64,
    place: u64,
}

impl<S: Source> Cursor<S> {
    fn new(source: S, place: u64) -> Self {
        Self { source, window: None, begin: place, place }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Error<S::Error>> {
        let present = self.window.as_ref().map_or(0, |window| window.as_ref().len());
        if self.place - self.begin + count as u64 > present as u64 {
            self.window = None; // Not two of them at a time.
            self.window = Some(self.source.read(self.place, count.max(AHEAD)).map_err(Error::Raised)?);
            self.begin = self.place;
        }
        let skip = (self.place - self.begin) as usize;
        self.place += count as u64;
        let window = self.window.as_ref().map_or(&[][..], AsRef::as_ref);
        Ok(window.get(skip..skip + count).ok_or(Fault::Truncated)?)
    }

    /// Returns a number of at most eight bytes.
    fn bits(&mut self, count: usize) -> Result<u64, Error<S::Error>> {
        let mut bytes = [0; 8];
        bytes[..count].copy_from_slice(self.take(count)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32, Error<S::Error>> {
        Ok(self.bits(4)? as u32)
    }

    fn u64(&mut self) -> Result<u64, Error<S::Error>> {
        self.bits(8)
    }

    fn text(&mut self) -> Result<&str, Error<S::Error>> {
        let count = self.u64()?;
        if count > MAX_TEXT {
            return Err(Fault::LongText(count).into());
        }
        let bytes = self.take(count as usize)?;
        Ok(core::str::from_utf8(bytes).map_err(|_| Fault::NotUtf8(bytes.to_vec()))?)
    }

    /// Returns a value with its type before it; of an array, which is passed over, the place.
    fn value(&mut self) -> Result<Value<'_>, Error<S::Error>> {
        match self.u32()? {
            TEXT => self.text().map(Value::Text),
            ARRAY => {
                let begin = self.place;
                self.skip_array()?;
                Ok(Value::Array(begin))
            }
            kind if width(kind).is_some() => self.number(kind),
            kind => Err(Fault::UnknownType(kind).into()),
        }
    }

    fn number(&mut self, kind: u32) -> Result<Value<'static>, Error<S::Error>> {
        let bits = self.bits(width(kind).ok_or(Fault::NestedArray)?)?;
        Ok(match kind {
            1 => Value::Signed((bits as i8).into()),
            3 => Value::Signed((bits as i16).into()),
            5 => Value::Signed((bits as i32).into()),
            6 => Value::Float(f32::from_bits(bits as u32).into()),
            7 => Value::Bool(bits != 0),
            11 => Value::Signed(bits as i64),
            12 => Value::Float(f64::from_bits(bits)),
            _ => Value::Unsigned(bits),
        })
    }

    fn skip_array(&mut self) -> Result<(), Error<S::Error>> {
        let (kind, count) = (self.u32()?, self.u64()?);
        if let Some(width) = width(kind) {
            let end = count.checked_mul(width as u64).and_then(|bytes| self.place.checked_add(bytes));
            self.place = end.filter(|&end| end <= self.source.size()).ok_or(Fault::Truncated)?;
            return Ok(());
        }
        if kind != TEXT {
            return Err(Fault::NestedArray.into());
        }
        for _ in 0..count {
            self.text()?;
        }
        Ok(())
    }

    /// Returns the shape of a tensor with this name.
    fn shape(&mut self, name: &str) -> Result<Vec<u64>, Error<S::Error>> {
        let axes = self.u32()?;
        if axes > MAX_AXES {
            return Err(Fault::Axes { name: name.to_owned(), axes }.into());
        }
        let mut shape = (0..axes).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        // Axes of length 0 do not help: numpy multiplies the others.
        let mut others = shape.iter().filter(|&&length| length != 0);
        let elements = others.try_fold(1_u64, |product, &length| product.checked_mul(length));
        if elements.is_none_or(|elements| elements > i64::MAX as u64) {
            return Err(Fault::Shape { name: name.to_owned(), shape }.into());
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::{Data, Error, Fault, Source, Tensor, Value, parse, parse_array};

    impl Source for &[u8] {
        type Bytes = Vec<u8>;
        type Error = ();

        fn size(&self) -> u64 {
            self.len() as u64
        }

        fn read(&mut self, begin: u64, count: usize) -> Result<Vec<u8>, ()> {
            let begin = self.len().min(begin as usize);
            Ok(self[begin..self.len().min(begin.saturating_add(count))].to_vec())
        }
    }

    fn text(value: &str) -> Vec<u8> {
        [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
    }

    /// A header of a text, a negative number, an array of texts and a tensor.
    fn sample() -> Vec<u8> {
        let word = |number: u32| number.to_le_bytes().to_vec();
        let long = |number: u64| number.to_le_bytes().to_vec();
        let start = [b"GGUF".to_vec(), word(3), long(1), long(3)];
        let pairs = [
            [text("a"), word(8), text("é")].concat(),
            [text("b"), word(1), vec![0xFE]].concat(),
            [text("c"), word(9), word(8), long(2), text("x"), text("")].concat(),
        ];
        let tensor = [text("w"), word(2), long(5), long(3), word(1), long(64)];
        [start.concat(), pairs.concat(), tensor.concat()].concat()
    }

    /// Reads a header, and writes what it has.
    fn read(bytes: &[u8]) -> Result<(Vec<String>, Data), Error<()>> {
        let (mut pairs, mut tensors) = (Vec::new(), Vec::new());
        let data = parse(
            bytes,
            |key, value, begin| {
                pairs.push(format!("{begin} {key}: {value:?}"));
                Ok(())
            },
            |Tensor { name, shape, kind, offset }| {
                tensors.push(format!("{name}: {shape:?} {kind} {offset}"));
                Ok(())
            },
        )?;
        Ok((pairs.into_iter().chain(tensors).collect(), data))
    }

    #[test]
    fn headers_are_read() {
        let bytes = sample();
        let (parts, data) = read(&bytes).unwrap();
        assert_eq!(parts, ["24 a: Text(\"é\")", "47 b: Signed(-2)", "61 c: Array(74)", "w: [3, 5] 1 64"]);
        let (start, pairs_end) = (bytes.len().next_multiple_of(32) as u64, 103);
        assert_eq!(data, Data { start, alignment: 32, pairs_end });
        let mut items = Vec::new();
        let item = |value: Value<'_>| {
            items.push(format!("{value:?}"));
            Ok(())
        };
        parse_array(&bytes[..], 74, item).unwrap();
        assert_eq!(items, ["Text(\"x\")", "Text(\"\")"]);
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let bytes = sample();
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Err(Fault::Truncated.into()), "{length}");
        }
        let changed = |place: usize, part: &[u8]| {
            let mut bytes = bytes.clone();
            bytes[place..place + part.len()].copy_from_slice(part);
            read(&bytes).unwrap_err()
        };
        let shape = bytes.len() - 28;
        for (place, part, fault) in [
            (3, &b"L"[..], Fault::Magic),
            (4, &[1], Fault::Version(1)),
            (8, &[255; 8], Fault::Truncated),
            (16, &[255; 8], Fault::LongText(3 << 48)),
            (24, &[255; 8], Fault::LongText(u64::MAX)),
            (45, &[0xFF], Fault::NotUtf8(vec![0xFF, 0xA9])),
            (56, &[13], Fault::UnknownType(13)),
            (55, b"a", Fault::RepeatedKey("a".to_owned())),
            (74, &[9], Fault::NestedArray),
            (74, &[4, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], Fault::Truncated),
            (shape - 4, &[5], Fault::Axes { name: "w".to_owned(), axes: 5 }),
            (shape + 7, &[128], Fault::Shape { name: "w".to_owned(), shape: vec![3, (1 << 63) + 5] }),
        ] {
            assert_eq!(changed(place, part), fault.into(), "{place}");
        }
    }
}
