//! Literals of Python, as `.npy` headers hold them: read, written anew, and read again as the same.

#![no_main]

use castwise_logic::checkpoint::literal::{Build, Fault, Group, parse};
use libfuzzer_sys::fuzz_target;

/// Writes values as literals.
struct Written;

impl Build for Written {
    type Value = String;
    type Error = ();

    fn text(&mut self, literal: &str) -> Result<String, ()> {
        Ok(literal.to_owned())
    }

    fn truth(&mut self, value: bool) -> Result<String, ()> {
        Ok(if value { "True" } else { "False" }.to_owned())
    }

    fn whole(&mut self, value: u128) -> Result<String, ()> {
        Ok(value.to_string())
    }

    fn group(&mut self, kind: Group, items: Vec<String>) -> Result<String, ()> {
        Ok(match kind {
            Group::Tuple => format!("({})", items.iter().map(|item| format!("{item},")).collect::<String>()),
            Group::List => format!("[{}]", items.join(",")),
            Group::Dict => {
                let pairs = items.chunks_exact(2).map(|pair| format!("{}:{}", pair[0], pair[1]));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
            }
        })
    }

    fn refuse(&mut self, fault: Fault<'_, String>) {
        assert!(!format!("{fault:?}").is_empty());
    }
}

fuzz_target!(|text: &str| {
    if let Ok(written) = parse(text, &mut Written) {
        assert_eq!(parse(&written, &mut Written).as_ref(), Ok(&written));
    }
});
