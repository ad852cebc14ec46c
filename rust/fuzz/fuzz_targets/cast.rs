//! Casts of any layout, format and options: every level gives the bits, the report and the error of the portable one, of
//! dense arrays; nothing else is written, and nothing at all where an error says so.

#![no_main]

use castwise_core::Format;
use castwise_core::cast::{Scales, Settings, Source, Target, cast};
use castwise_core::codec::options::{Named, NanRule, Options, Overflow, Rounding};
use castwise_core::cpu::Level;
use castwise_fuzz::{
    Place, Result, Unstructured, choose, draw_elements, draw_format, draw_shape, gathered, memory, placed,
    swap_bytes,
};
use libfuzzer_sys::{Corpus, fuzz_target};

/// An operand: its format, whether its bytes are swapped, and where it lies.
#[derive(Clone, Debug)]
struct Operand {
    format: Format,
    swapped: bool,
    place: Place,
}

#[derive(Debug)]
struct Case {
    shape: Vec<usize>,
    source: Operand,
    target: Operand,
    scale: Option<Place>,
    /// The source is the target.
    in_place: bool,
    fresh: bool,
    options: Options,
    report: bool,
    threads: usize,
}

/// What a cast leaves behind.
#[derive(PartialEq)]
struct Outcome {
    memory: Vec<u8>,
    result: String,
    refused: bool,
}

const FACTORS: [f64; 12] =
    [1.0, 0.1, -1.0 / 3.0, 1.5, -0.25, 1e-5, 7e10, 1.2e-38, 3e38, 0.0, f64::INFINITY, 1e300];

fn draw(input: &mut Unstructured<'_>) -> Result<(Case, Vec<u8>, Vec<u8>)> {
    let axes = input.int_in_range(0..=4)?;
    let shape = draw_shape(input, axes)?;
    let (source, target) = (draw_format(input, |_| true)?, draw_format(input, |_| true)?);
    let in_place = source.item_size() == target.item_size() && input.ratio(1, 3)?;
    let mut operand = |format: Format, may_repeat| -> Result<Operand> {
        let place = Place::draw(input, &shape, format.item_size(), may_repeat)?;
        Ok(Operand { format, swapped: input.ratio(1, 8)?, place })
    };
    let target = operand(target, false)?;
    let mut source = operand(source, !in_place)?;
    if in_place {
        source.place = target.place.clone();
    }
    let scale = if input.ratio(1, 3)? { Some(Place::draw(input, &shape, 8, true)?) } else { None };
    let rounding = choose(input, Rounding::NAMES)?.1;
    let options = Options {
        rounding: if input.ratio(1, 2)? { None } else { Some(rounding) },
        overflow: choose(input, Overflow::NAMES)?.1,
        nan: choose(input, NanRule::NAMES)?.1,
        seed: input.arbitrary()?,
    };
    let (fresh, report) = (!in_place && input.arbitrary()?, input.arbitrary()?);
    let threads = input.int_in_range(1..=3)?;
    let count = shape.iter().product();
    let elements = draw_elements(input, source.format, count)?;
    let factors: Vec<f64> = (0..12).map(|_| choose(input, &FACTORS)).collect::<Result<_>>()?;
    let factors = (0..count).flat_map(|index| factors[index % 12].to_ne_bytes()).collect();
    let case = Case { shape, source, target, scale, in_place, fresh, options, report, threads };
    Ok((case, elements, factors))
}

impl Case {
    fn run(&self, level: Level, source: &[u8], factors: Option<&[u8]>) -> Outcome {
        level.activate();
        let mut room = if self.in_place { source.to_vec() } else { memory(self.target.place.size) };
        let settings = Settings { options: self.options, report: self.report, threads: self.threads };
        let (from, to) = (&self.source, &self.target);
        // All are inside of their memory, or one past its end where there are no elements.
        let to_pointer = room.as_mut_ptr().wrapping_add(to.place.start);
        let from_pointer = if self.in_place {
            to_pointer.cast_const()
        } else {
            source.as_ptr().wrapping_add(from.place.start)
        };
        let (strides, swapped) = (&from.place.strides, from.swapped);
        let source = Source { pointer: from_pointer, strides, format: from.format, swapped };
        let (strides, swapped) = (&to.place.strides, to.swapped);
        let target = Target { pointer: to_pointer, strides, format: to.format, swapped, fresh: self.fresh };
        let scales = self.scale.as_ref().zip(factors).map(|(place, bytes)| Scales {
            pointer: bytes.as_ptr().wrapping_add(place.start),
            strides: &place.strides,
        });
        // SAFETY: places were made for the shape, and targets have no element twice.
        let result = unsafe { cast(&self.shape, source, target, scales, &settings) };
        Outcome { memory: room, refused: result.is_err(), result: format!("{result:?}") }
    }
}

fn check(mut input: Unstructured<'_>) -> Result<()> {
    let (case, elements, factors) = draw(&mut input)?;
    let (from, to) = (case.source.format, case.target.format);
    let source = placed(&case.source.place, &case.shape, from.item_size(), &elements);
    let scale = case.scale.as_ref().map(|place| placed(place, &case.shape, 8, &factors));
    let expected = case.run(Level::PORTABLE, &source, scale.as_deref());
    for level in Level::available().filter(|&level| level != Level::PORTABLE) {
        let found = case.run(level, &source, scale.as_deref());
        assert!(
            found.result == expected.result,
            "{case:?} {level:?}: {} for {}",
            found.result,
            expected.result
        );
        let partial = expected.refused && case.fresh;
        let place = found.memory.iter().zip(&expected.memory).position(|(byte, other)| byte != other);
        assert!(partial || place.is_none(), "{case:?} {level:?}: byte {place:?}");
    }
    let before = if case.in_place { source.clone() } else { memory(case.target.place.size) };
    let gaps = case.target.place.gaps(&case.shape, to.item_size());
    let is_kept = |(byte, gap): (usize, &bool)| !gap || expected.memory[byte] == before[byte];
    assert!(gaps.iter().enumerate().all(is_kept), "{case:?}: written outside");
    if expected.refused {
        assert!(case.fresh || expected.memory == before, "{case:?}: written, and refused");
        return Ok(());
    }
    // The same elements, dense and in native order.
    let dense = |operand: &Operand| {
        let size = operand.format.item_size();
        let mut strides = vec![size as isize; case.shape.len()];
        for axis in (1..case.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * case.shape[axis] as isize;
        }
        let place = Place { start: 0, strides, size: size * case.shape.iter().product::<usize>() };
        Operand { format: operand.format, swapped: false, place }
    };
    let native = |bytes: &[u8], operand: &Operand| {
        let mut elements = gathered(bytes, &operand.place, &case.shape, operand.format.item_size());
        if operand.swapped {
            swap_bytes(&mut elements, operand.format);
        }
        elements
    };
    let scale_operand = |place: &Place| Operand {
        format: Format::named("float64").expect("float64 is a format"),
        swapped: false,
        place: place.clone(),
    };
    let flat = Case {
        source: dense(&case.source),
        target: dense(&case.target),
        scale: case.scale.as_ref().map(|place| dense(&scale_operand(place)).place),
        in_place: false,
        fresh: false,
        threads: 1,
        report: false,
        shape: case.shape.clone(),
        options: case.options,
    };
    let factors =
        case.scale.as_ref().zip(scale.as_ref()).map(|(place, bytes)| native(bytes, &scale_operand(place)));
    let found = flat.run(Level::PORTABLE, &native(&source, &case.source), factors.as_deref());
    assert!(!found.refused, "{case:?}: refused as a dense array only: {}", found.result);
    assert!(found.memory == native(&expected.memory, &case.target), "{case:?}: other bits as a dense array");
    Ok(())
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    if check(Unstructured::new(bytes)).is_ok() { Corpus::Keep } else { Corpus::Reject }
});
