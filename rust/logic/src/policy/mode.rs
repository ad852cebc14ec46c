//! The quantization modes of Keras: data. A new mode is a row.

use castwise_core::codec::options::Named;

/// The class that presents a policy, by its name in Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// One dtype, or a mixed pair.
    Plain,
    /// A mode without parameters of its own.
    Quantized,
    /// Float8 with delayed scaling.
    Float8,
    /// Four-bit integers in blocks.
    Int4,
    /// Weights quantized by GPTQ.
    Gptq,
    /// Weights quantized with regard to activations.
    Awq,
}

impl Named for Class {
    const ARGUMENT: &'static str = "class_name";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("DTypePolicy", Self::Plain),
        ("QuantizedDTypePolicy", Self::Quantized),
        ("QuantizedFloat8DTypePolicy", Self::Float8),
        ("Int4DTypePolicy", Self::Int4),
        ("GPTQDTypePolicy", Self::Gptq),
        ("AWQDTypePolicy", Self::Awq),
    ];
}

/// An integer that stands in a mode behind a slash: `gptq/<weight_bits>/<group_size>`.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) domain: Domain,
    /// A word that older files have in place of a number, and what it means.
    pub(super) word: Option<(&'static str, i64)>,
}

/// Which integers are valid.
#[derive(Debug)]
pub(super) enum Domain {
    /// Just these.
    OneOf(&'static [i64]),
    /// A size, or -1 for the whole axis.
    SizeOrWhole,
}

impl Domain {
    pub(super) fn contains(&self, value: i64) -> bool {
        match self {
            Self::OneOf(values) => values.contains(&value),
            Self::SizeOrWhole => value == -1 || value >= 1,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::OneOf(values) => {
                let words: Vec<String> = values.iter().map(ToString::to_string).collect();
                words.join(" or ")
            }
            Self::SizeOrWhole => "-1 (the whole axis) or a size of 1 or more".to_owned(),
        }
    }
}

/// One quantization mode.
#[derive(Debug)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    /// The class of `<name>_from_<source>`.
    pub(super) bare: Option<Class>,
    /// The class of `<name>/<parameter>..._from_<source>`.
    pub(super) detailed: Option<Class>,
    pub(super) parameters: &'static [Parameter],
    /// A compute dtype whose range is too small for the mode.
    pub(super) refused_compute: Option<&'static str>,
}

const GROUP_SIZE: Parameter = Parameter { name: "group_size", domain: Domain::SizeOrWhole, word: None };

const fn weight_bits(valid: &'static [i64]) -> Parameter {
    Parameter { name: "weight_bits", domain: Domain::OneOf(valid), word: None }
}

pub(super) static MODES: [Mode; 6] = [
    Mode {
        name: "int8",
        bare: Some(Class::Quantized),
        detailed: None,
        parameters: &[],
        refused_compute: Some("float16"),
    },
    Mode {
        name: "float8",
        bare: Some(Class::Float8),
        detailed: None,
        parameters: &[],
        refused_compute: None,
    },
    Mode {
        name: "int4",
        bare: Some(Class::Quantized),
        detailed: Some(Class::Int4),
        // Keras up to 3.15 wrote "None" for -1, and could not read it.
        parameters: &[Parameter {
            name: "block_size",
            domain: Domain::SizeOrWhole,
            word: Some(("None", -1)),
        }],
        refused_compute: None,
    },
    Mode {
        name: "gptq",
        bare: None,
        detailed: Some(Class::Gptq),
        parameters: &[weight_bits(&[2, 3, 4, 8]), GROUP_SIZE],
        refused_compute: None,
    },
    Mode {
        name: "awq",
        bare: None,
        detailed: Some(Class::Awq),
        parameters: &[weight_bits(&[4]), GROUP_SIZE],
        refused_compute: None,
    },
    Mode {
        name: "ternary",
        bare: Some(Class::Quantized),
        detailed: None,
        parameters: &[],
        refused_compute: None,
    },
];

impl Mode {
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        MODES.iter().find(|mode| mode.name == name)
    }

    /// How the mode is written, with its parameters' names.
    pub(super) fn pattern(&self) -> String {
        let parts = self.parameters.iter().map(|parameter| format!("/<{}>", parameter.name));
        std::iter::once(self.name.to_owned()).chain(parts).collect()
    }
}
