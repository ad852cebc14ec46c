//! Names of dtypes, of policies in every dialect, and of options: a meaning that its own name has too, or an error.

#![no_main]

use castwise_core::codec::options::{Named, NanRule, Overflow, Rounding};
use castwise_logic::policy::{
    Class, Dialect, JMP, KERAS, Policy, TF_LAYER, TF2, parse, parse_assignment, parse_dtype, plain, quantized,
};
use castwise_core::spelling::{likely_names, nearest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|texts: (&str, &str)| {
    let (name, other) = texts;
    match castwise_core::parse::parse(name) {
        Ok(format) => assert_eq!(castwise_core::parse::find(format.name()), Some(format)),
        Err(error) => assert!(error.to_string().contains(&format!("{name:?}"))),
    }
    for dialect in [&KERAS, &TF2, &TF_LAYER, &JMP] {
        check(name, dialect);
    }
    for &(_, class) in Class::NAMES {
        if let Ok(policy) = quantized(class, name, other) {
            assert_eq!(policy.class(), class);
        }
    }
    let _ = parse_assignment(name, "bfloat16");
    let _ = (Rounding::parse(name), Overflow::parse(name), NanRule::parse(name));
    let places = likely_names(name, &["float16", "bfloat16", "float8_e4m3fn", "mixed_bfloat16", other]);
    assert!(places.iter().all(|&place| place < 5));
    assert!(nearest(name, &[other.to_owned(), String::new()]).is_some());
});

fn check(name: &str, dialect: &Dialect) {
    if let Ok(dtype) = parse_dtype(name, dialect) {
        assert_eq!(parse_dtype(&dtype, dialect).as_ref(), Ok(&dtype));
    }
    let _ = plain(name, dialect);
    if let Ok(policy) = parse(name, dialect) {
        let again: Policy = parse(policy.name(), dialect).expect("a policy's name names a policy");
        assert_eq!(again, policy);
        for (_, text) in policy.config() {
            assert!(!text.is_empty());
        }
    }
}
