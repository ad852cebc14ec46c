//! What a policy is, once its name is understood.

use std::borrow::Cow;

use super::mode::{Class, Mode};

/// A dtype policy. Equal policies mean the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    pub(super) class: Class,
    pub(super) name: String,
    pub(super) compute: Option<Cow<'static, str>>,
    pub(super) variable: Option<Cow<'static, str>>,
    pub(super) quantization: Option<Quantization>,
}

/// How a quantized policy differs from its source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Quantization {
    /// The mode's name, with its parameters: "gptq/4/128".
    pub(super) written: String,
    pub(super) mode: &'static str,
    /// In the order of the mode's row; none for a mode that stands alone.
    pub(super) parameters: Vec<i64>,
    pub(super) source: String,
}

impl Policy {
    /// The class that presents it.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// Canonical name; the caller's spelling for one dtype.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What layers compute in; None where it is left open.
    #[must_use]
    pub fn compute_dtype(&self) -> Option<&str> {
        self.compute.as_deref()
    }

    /// What layers keep their variables in; None where it is left open.
    #[must_use]
    pub fn variable_dtype(&self) -> Option<&str> {
        self.variable.as_deref()
    }

    /// "int8", "float8", "int4", "gptq", "awq", "ternary", or None.
    #[must_use]
    pub fn quantization_mode(&self) -> Option<&str> {
        self.quantization.as_ref().map(|quantization| quantization.mode)
    }

    /// The name of the policy without its quantization.
    #[must_use]
    pub fn source_name(&self) -> &str {
        self.quantization.as_ref().map_or(&self.name, |quantization| &quantization.source)
    }

    /// The mode's parameters by name: `block_size`, or `weight_bits` and `group_size`.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, i64)> {
        self.quantization.iter().flat_map(|quantization| {
            let row = Mode::find(quantization.mode).map_or(&[][..], |mode| mode.parameters);
            row.iter().map(|parameter| parameter.name).zip(quantization.parameters.iter().copied())
        })
    }

    /// What Keras writes in a file for it: keys in Keras' order.
    #[must_use]
    pub fn config(&self) -> Vec<(&'static str, &str)> {
        match &self.quantization {
            None => vec![("name", &self.name)],
            Some(quantization) => {
                vec![("mode", &quantization.written), ("source_name", &quantization.source)]
            }
        }
    }
}
