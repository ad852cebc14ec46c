//! Casts the same dense elements again and again, for tools that count instructions:
//! `repeat_cast SOURCE TARGET ELEMENTS TIMES`.

use std::env;
use std::error::Error;
use std::hint::black_box;

use castwise_core::Format;
use castwise_core::cast::{Settings, cast_slice};
use castwise_core::codec::options::Options;

/// Bytes of an array, at least.
const ALLOCATED: usize = 1 << 18;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [source, target, elements, times] = arguments.as_slice() else {
        return Err("arguments: SOURCE TARGET ELEMENTS TIMES".into());
    };
    let format = |name: &str| Format::named(name).ok_or(format!("{name:?} is not a format"));
    let (source, target) = (format(source)?, format(target)?);
    let (elements, times): (usize, usize) = (elements.parse()?, times.parse()?);
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    // Small codes of every byte, so that floats are finite and differ. For few elements, what is allocated and filled
    // does not depend on their number.
    let [from_size, to_size] = [source, target].map(|format| elements * format.item_size());
    let from = (0..61).collect::<Vec<u8>>().repeat(from_size.max(ALLOCATED) / 61 + 1);
    let mut to = vec![0; to_size.max(ALLOCATED)];
    let (from, to) = (&from[..from_size], &mut to[..to_size]);
    for _ in 0..times {
        cast_slice(black_box(from), source, black_box(&mut *to), target, &settings)?;
    }
    Ok(())
}
