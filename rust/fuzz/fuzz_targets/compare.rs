//! Comparisons and surveys of any layout: every level gives what the portable one gives, of dense arrays.

#![no_main]

use castwise_core::Format;
use castwise_core::cast::Source;
use castwise_core::compare::compare;
use castwise_core::cpu::Level;
use castwise_core::survey::survey;
use castwise_fuzz::{
    Place, Result, Unstructured, draw_elements, draw_format, draw_shape, gathered, placed, swap_bytes,
};
use libfuzzer_sys::{Corpus, fuzz_target};

struct Array {
    format: Format,
    swapped: bool,
    place: Place,
    bytes: Vec<u8>,
}

impl Array {
    fn source(&self) -> Source<'_> {
        let pointer = self.bytes.as_ptr().wrapping_add(self.place.start);
        Source { pointer, strides: &self.place.strides, format: self.format, swapped: self.swapped }
    }

    /// The same elements, dense and in native order.
    fn dense(&self, shape: &[usize]) -> Self {
        let size = self.format.item_size();
        let mut bytes = gathered(&self.bytes, &self.place, shape, size);
        if self.swapped {
            swap_bytes(&mut bytes, self.format);
        }
        let mut strides = vec![size as isize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as isize;
        }
        let place = Place { start: 0, strides, size: bytes.len() };
        Self { format: self.format, swapped: false, place, bytes }
    }
}

fn check(mut input: Unstructured<'_>) -> Result<()> {
    let axes = input.int_in_range(0..=4)?;
    let shape = draw_shape(&mut input, axes)?;
    let count = shape.iter().product();
    let mut draw = |format: Option<Format>| -> Result<Array> {
        let format = format.map_or_else(|| draw_format(&mut input, |_| true), Ok)?;
        let place = Place::draw(&mut input, &shape, format.item_size(), true)?;
        let elements = draw_elements(&mut input, format, count)?;
        let bytes = placed(&place, &shape, format.item_size(), &elements);
        Ok(Array { format, swapped: input.ratio(1, 8)?, place, bytes })
    };
    let first = draw(None)?;
    let second = draw(Some(first.format))?;
    let third = draw(None)?;
    let (measures, threads) = (input.arbitrary()?, input.int_in_range(1..=3)?);
    for other in [&second, &third] {
        let run = |level: Level, first: &Array, other: &Array, threads| {
            level.activate();
            // SAFETY: places were made for the shape.
            format!("{:?}", unsafe { compare(&shape, first.source(), other.source(), measures, threads) })
        };
        let expected = run(Level::PORTABLE, &first.dense(&shape), &other.dense(&shape), 1);
        for level in Level::available() {
            let found = run(level, &first, other, threads);
            let what = (&shape, first.format, other.format, &first.place, &other.place);
            assert!(found == expected, "{what:?} {level:?}: {found} for {expected}");
        }
    }
    if first.format.component().is_none() {
        let run = |level: Level, array: &Array, threads| {
            level.activate();
            // SAFETY: as above.
            format!("{:?}", unsafe { survey(&shape, array.source(), threads) })
        };
        let expected = run(Level::PORTABLE, &first.dense(&shape), 1);
        for level in Level::available() {
            assert!(
                run(level, &first, threads) == expected,
                "{shape:?} {:?} {:?} {level:?}",
                first.format,
                first.place
            );
        }
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    if check(Unstructured::new(bytes)).is_ok() { Corpus::Keep } else { Corpus::Reject }
});
