//! jmp's policies in one text: `"params=float32,compute=half,output=float32"`, or one dtype for all three.

use std::borrow::Cow;

use super::dialect::{Exception, JMP};
use super::name::{Refused, parse_dtype};

/// The dtypes of parameters, of computation, and of outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// What parameters are kept in.
    pub params: Cow<'static, str>,
    /// What is computed in.
    pub compute: Cow<'static, str>,
    /// What outputs are given in.
    pub output: Cow<'static, str>,
}

/// The keys, short and long.
const KEYS: [[&str; 2]; 3] = [["p", "params"], ["c", "compute"], ["o", "output"]];

/// The word for the accelerator's own half precision.
const HALF: &str = "half";

/// Parses such a text; `half` is what the word "half" stands for on this machine.
///
/// Parameters left out are the word "full", compute dtypes those of the parameters, outputs those of computation. Of
/// two values for one key the last holds.
///
/// # Errors
/// A part is not `key=dtype`, a key or a dtype is not one of jmp's.
pub fn parse_assignment(text: &str, half: &str) -> Result<Assignment, Refused> {
    let dtype = |word: &str| {
        if word == HALF {
            return Ok(Cow::Owned(half.to_owned()));
        }
        parse_dtype(word, &JMP).map_err(|refused| Refused {
            message: format!("{} {HALF:?} is the 16-bit float of the machine.", refused.message),
            ..refused
        })
    };
    if !text.contains('=') {
        let dtype = dtype(text)?;
        return Ok(Assignment { params: dtype.clone(), compute: dtype.clone(), output: dtype });
    }
    let mut given: [Option<Cow<'static, str>>; 3] = [const { None }; 3];
    for part in text.split(',') {
        let refused = |problem: &str| Refused {
            exception: Exception::Value,
            message: format!(
                "policy={text:?}: {part:?} {problem}; write p|params=, c|compute= or o|output= and a dtype, with \
                 commas between."
            ),
        };
        let mut sides = part.split('=');
        let (Some(key), Some(value), None) = (sides.next(), sides.next(), sides.next()) else {
            return Err(refused("is not one key and one dtype"));
        };
        let value = dtype(value)?;
        let position = KEYS.iter().position(|names| names.contains(&key));
        given[position.ok_or_else(|| refused("has an unknown key"))?] = Some(value);
    }
    let [params, compute, output] = given;
    let params = params.map_or_else(|| parse_dtype("full", &JMP), Ok)?;
    let compute = compute.unwrap_or_else(|| params.clone());
    let output = output.unwrap_or_else(|| compute.clone());
    Ok(Assignment { params, compute, output })
}
