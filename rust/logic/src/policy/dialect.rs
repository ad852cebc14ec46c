//! What each system accepts as the name of a dtype or policy. A dialect is one value; nothing else differs.
//!
//! These are facts about other systems, as observed in Keras 3.15, `tf_keras` 2.21 and jmp 0.0.4, so they stand beside
//! the table of formats, not in it: a system may know a word that is not a format ("string"), or not know a format.

use std::borrow::Cow;

/// The kind of exception by which a system refuses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    /// The value is wrong.
    Value,
    /// The system takes it for a wrong type.
    Type,
}

/// One system's language of names.
#[derive(Debug)]
pub struct Dialect {
    /// How the system is called in errors.
    pub system: &'static str,
    /// Dtypes whose own name is accepted.
    pub(super) dtypes: &'static [&'static str],
    /// Other spellings, each with the dtype it means.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// Names of two dtypes: the policy's, its compute dtype, its variable dtype.
    pub(super) mixed: &'static [(&'static str, &'static str, &'static str)],
    /// A suffix that may follow every dtype and stays part of its name (TF's reference dtypes).
    pub(super) suffix: Option<&'static str>,
    /// The name that leaves both dtypes open until a layer sees its first input.
    pub(super) open: Option<&'static str>,
    /// Names that were once valid.
    pub(super) removed: Option<Removed>,
    /// Dtypes that floats may have where nothing else is said.
    pub floatx: &'static [&'static str],
    /// Whether `<mode>_from_<source>` names a quantized policy.
    pub(super) quantizes: bool,
    /// How a name is refused.
    pub refusal: Exception,
}

/// Names that a system no longer takes, with its advice.
#[derive(Debug)]
pub(super) struct Removed {
    /// What such a name ends in.
    pub(super) suffix: &'static str,
    /// What stands before the suffix, and what to use instead.
    pub(super) advice: &'static [(&'static str, &'static str)],
}

const MIXED: &[(&str, &str, &str)] =
    &[("mixed_float16", "float16", "float32"), ("mixed_bfloat16", "bfloat16", "float32")];

/// Keras 3.
pub static KERAS: Dialect = Dialect {
    system: "Keras",
    dtypes: &[
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
        "string",
        "float8_e4m3fn",
        "float8_e5m2",
        "complex64",
        "complex128",
    ],
    aliases: &[("int", "int32")],
    mixed: MIXED,
    suffix: None,
    open: None,
    removed: None,
    floatx: &["bfloat16", "float16", "float32", "float64"],
    quantizes: true,
    refusal: Exception::Value,
};

/// TF 2: `Policy(name)`.
pub static TF2: Dialect = TF2_POLICY;

/// TF 2: the `dtype` argument of a layer, which takes the same dtypes; any other value is a wrong type.
pub static TF_LAYER: Dialect = Dialect { open: None, removed: None, refusal: Exception::Type, ..TF2_POLICY };

const TF2_POLICY: Dialect = Dialect {
    system: "TensorFlow",
    dtypes: &[
        "bfloat16",
        "bool",
        "complex64",
        "complex128",
        "float16",
        "float32",
        "float64",
        "float4_e2m1fn",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "int2",
        "int4",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint2",
        "uint4",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "qint8",
        "qint16",
        "qint32",
        "quint8",
        "quint16",
        "resource",
        "variant",
        "string",
    ],
    aliases: &[("double", "float64"), ("float", "float32"), ("half", "float16")],
    mixed: MIXED,
    suffix: Some("_ref"),
    open: Some("_infer"),
    removed: Some(Removed {
        suffix: "_float32_vars",
        advice: &[
            ("infer", "'mixed_float16' or 'mixed_bfloat16'"),
            ("infer_with", "'mixed_float16' or 'mixed_bfloat16'"),
            ("float16_with", "'mixed_float16'"),
            ("bfloat16_with", "'mixed_bfloat16'"),
        ],
    }),
    floatx: &["float16", "float32", "float64"],
    quantizes: false,
    refusal: Exception::Value,
};

/// jmp: the words of `get_policy`.
pub static JMP: Dialect = Dialect {
    system: "jmp",
    dtypes: &["bfloat16", "float16", "float32", "float64"],
    aliases: &[
        ("bf16", "bfloat16"),
        ("f16", "float16"),
        ("full", "float32"),
        ("f32", "float32"),
        ("f64", "float64"),
    ],
    mixed: &[],
    suffix: None,
    open: None,
    removed: None,
    floatx: &[],
    quantizes: false,
    refusal: Exception::Value,
};

impl Dialect {
    /// The names of two dtypes.
    pub fn mixed_names(&self) -> impl Iterator<Item = &'static str> {
        self.mixed.iter().map(|&(mixed, ..)| mixed)
    }

    /// The compute dtype of a name of two dtypes; none for other names.
    #[must_use]
    pub fn mixed_compute_dtype(&self, name: &str) -> Option<&'static str> {
        self.mixed.iter().find(|(mixed, ..)| *mixed == name).map(|&(_, compute, _)| compute)
    }

    /// The word that the system writes for a dtype: its first other spelling, if there is one.
    #[must_use]
    pub fn word_for<'a>(&self, dtype: &'a str) -> &'a str {
        self.aliases.iter().find(|(_, meant)| *meant == dtype).map_or(dtype, |&(alias, _)| alias)
    }

    /// The dtype that a spelling means: case counts, spaces are not removed.
    pub(super) fn dtype(&self, spelling: &str) -> Option<Cow<'static, str>> {
        let word = self.suffix.and_then(|suffix| spelling.strip_suffix(suffix)).unwrap_or(spelling);
        let alias = self.aliases.iter().find(|(alias, _)| *alias == word).map(|&(_, dtype)| dtype);
        let dtype = alias.or_else(|| self.dtypes.iter().copied().find(|&dtype| dtype == word))?;
        let suffix = &spelling[word.len()..];
        Some(if suffix.is_empty() { Cow::Borrowed(dtype) } else { Cow::Owned(format!("{dtype}{suffix}")) })
    }
}
