//! Headers of safetensors files: what is accepted holds its promises, and is written and read again as it was.

#![no_main]

use castwise_logic::checkpoint::{build, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (data_len, text) = (u64::from(input.0), input.1);
    let header = match parse(text, data_len) {
        Ok(header) => header,
        Err(error) => return assert!(error.to_string().len() < 8 * text.len() + 1000),
    };
    let mut end = 0;
    for entry in &header.tensors {
        assert!(entry.begin == end && entry.end >= entry.begin, "{entry:?} after {end}");
        end = entry.end;
    }
    assert_eq!(end as u64, data_len);
    let asked = header
        .tensors
        .iter()
        .map(|entry| (entry.name.clone(), entry.dtype.code().to_owned(), entry.shape.clone()));
    let (bytes, places) =
        build(asked.collect(), header.metadata.clone()).expect("what was read can be written");
    let again = parse(&bytes[8..], data_len).expect("what was written can be read");
    assert_eq!(again.metadata, header.metadata);
    assert_eq!(again.tensors.len(), header.tensors.len());
    for (entry, (position, begin)) in again.tensors.iter().zip(places) {
        let asked = &header.tensors[position];
        assert_eq!((&entry.name, &entry.dtype, &entry.shape), (&asked.name, &asked.dtype, &asked.shape));
        assert_eq!(entry.begin, begin);
    }
});
