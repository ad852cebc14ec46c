//! Names of formats, and what a wrong one may have meant.

use castwise_core::Format;
use castwise_core::parse::{find, listed_spellings};
use castwise_core::quantization::{Scheme, TABLE as SCHEMES};
use castwise_core::spelling;
use castwise_logic::policy::{self, KERAS};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// The canonical name of the format that the table, rather than numpy, calls so; None if there is none.
#[pyfunction]
pub(crate) fn format_name(name: &str) -> Option<&'static str> {
    find(name).map(Format::name)
}

/// The names that a wrong one probably means.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "the names are lent to the core")]
pub(crate) fn likely_names(wanted: &str, names: Vec<String>) -> Vec<String> {
    let texts: Vec<&str> = names.iter().map(String::as_str).collect();
    spelling::likely_names(wanted, &texts).into_iter().map(|place| names[place].clone()).collect()
}

const GGUF_TYPE: &str = "a quantization of GGUF files, which castwise dequantize reads; castwise.quantization.quantize makes q4_0 \
     to q8_0 and q2_k to q6_k of arrays, castwise quantize writes these and mixes such as q4_k_m, and llama-quantize of \
     llama.cpp makes others";

/// What a name of a quantization of GGUF files means; None for other names.
#[pyfunction]
pub(crate) fn gguf_type(name: &str) -> Option<&'static str> {
    spelling::is_gguf_type(name).then_some(GGUF_TYPE)
}

/// Makes the error for a name that neither the table nor numpy knows: what it is elsewhere, or what it may mean.
pub(crate) fn unknown_format(argument: &str, name: &str) -> PyErr {
    let policies = KERAS.mixed_names().map(|name| (name, format!("the dtype policy {name:?}")));
    let schemes = SCHEMES.iter().map(|row| (row.name, format!("the scheme {:?}", row.name)));
    let formats = listed_spellings().into_iter();
    let formats = formats.map(|(spelling, format)| (spelling, format!("{:?}", format.name())));
    let policy = policy::parse(name, &KERAS).ok();
    let hint = if let Some(policy) = policy.filter(|policy| policy.compute_dtype() != Some(name)) {
        let dtypes = [policy.compute_dtype(), policy.variable_dtype()].map(Option::unwrap_or_default);
        format!(
            " It is a dtype policy: give what it computes in, {:?}, or stores, {:?}.",
            dtypes[0], dtypes[1]
        )
    } else if spelling::is_gguf_type(name) {
        format!(" It is {GGUF_TYPE}.")
    } else if Scheme::find(name).is_ok() {
        " It is a scheme, which stores scales, too: use castwise.quantization, or castwise quantize --scheme."
            .to_owned()
    } else {
        let likely = spelling::likely_meanings(name, formats.chain(policies).chain(schemes));
        if likely.is_empty() { String::new() } else { format!(" Did you mean {}?", likely.join(" or ")) }
    };
    PyTypeError::new_err(format!(
        "{argument}={name:?} is not a format castwise knows.{hint} castwise.formats() lists all."
    ))
}
