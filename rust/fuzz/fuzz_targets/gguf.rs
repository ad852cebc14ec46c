//! Headers of GGUF files, and their arrays: no more is taken for them than was read.

#![no_main]

use castwise_logic::checkpoint::gguf::{MAX_AXES, Source, Value, parse, parse_array};
use libfuzzer_sys::fuzz_target;

#[derive(Clone, Copy)]
struct File<'a>(&'a [u8]);

impl<'a> Source for File<'a> {
    type Bytes = &'a [u8];
    type Error = ();

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, begin: u64, count: usize) -> Result<&'a [u8], ()> {
        let rest = self.0.get(begin as usize..).unwrap_or_default();
        Ok(&rest[..count.min(rest.len())])
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (mut pairs, mut tensors, mut arrays) = (0, 0, Vec::new());
    let data = parse(
        File(bytes),
        |_, value, begin| {
            assert!(begin < bytes.len() as u64);
            pairs += 1;
            if let Value::Array(begin) = value {
                arrays.push(begin);
            }
            Ok(())
        },
        |tensor| {
            tensors += 1;
            assert!(tensor.shape.len() <= MAX_AXES as usize);
            let elements = tensor.shape.iter().try_fold(1u64, |count, &axis| count.checked_mul(axis));
            assert!(elements.is_some() || tensor.shape.contains(&0), "{:?}", tensor.shape);
            Ok(())
        },
    );
    // A pair takes 13 bytes or more, a tensor 24.
    assert!(13 * pairs + 24 * tensors <= bytes.len());
    if let Ok(data) = data {
        assert!(data.start.is_multiple_of(data.alignment));
        assert!(data.pairs_end <= data.start);
    }
    for begin in arrays {
        let mut items = 0;
        let read = parse_array(File(bytes), begin, |_| {
            items += 1;
            Ok(())
        });
        assert!(items <= bytes.len());
        read.expect("an array that was passed over can be read");
    }
});
