//! Weights in blocks, of any shapes, layouts and options, also such as do not fit: an error, or codes and values that are
//! the same on every level.

#![no_main]

use castwise_core::Format;
use castwise_core::codec::options::{Named, Rounding};
use castwise_core::cpu::Level;
use castwise_core::quantization::{
    Array, Decoding, Direction, Encoded, Encoding, GlobalUse, Meaning, Packing, ScaleChoice, ScaleFormat,
    ScaleRule, Scheme, TABLE, block_amax, decode, encode, repack, swizzle,
};
use castwise_fuzz::{
    Place, Result, Unstructured, choose, draw_elements, draw_format, draw_shape, memory, placed,
};
use libfuzzer_sys::{Corpus, fuzz_target};

const PACKINGS: [&str; 6] = ["dense", "high-first", "padded", "awq", "halves-16", "halves-32"];

/// An array to read, or the shape of one to write.
struct Drawn {
    shape: Vec<usize>,
    format: Format,
    place: Place,
    bytes: Vec<u8>,
}

impl Drawn {
    fn new(
        input: &mut Unstructured<'_>,
        format: Format,
        shape: Vec<usize>,
        is_written: bool,
    ) -> Result<Self> {
        let place = Place::draw(input, &shape, format.item_size(), !is_written)?;
        let bytes = if is_written {
            memory(place.size)
        } else {
            let elements = draw_elements(input, format, shape.iter().product())?;
            placed(&place, &shape, format.item_size(), &elements)
        };
        Ok(Self { shape, format, place, bytes })
    }

    fn array(&self) -> Array {
        self.at(self.bytes.as_ptr().cast_mut())
    }

    /// The array in other memory.
    fn at(&self, memory: *mut u8) -> Array {
        Array {
            pointer: memory.wrapping_add(self.place.start),
            shape: self.shape[..].into(),
            strides: self.place.strides[..].into(),
            format: self.format,
        }
    }
}

fn named(name: &str) -> Format {
    Format::named(name).expect("a name of the table")
}

/// Draws a shape near the one that is right, mostly that.
fn nearly(input: &mut Unstructured<'_>, mut shape: Vec<usize>) -> Result<Vec<usize>> {
    if input.ratio(1, 16)? {
        match (input.int_in_range(0..=2)?, shape.len()) {
            (_, 0) => shape.push(2),
            (0, _) => _ = shape.pop(),
            (1, axes) => shape[input.int_in_range(0..=axes - 1)?] = input.int_in_range(0..=70)?,
            _ => shape.push(input.int_in_range(0..=3)?),
        }
    }
    Ok(shape)
}

/// Writes on every level, and checks that all write the same.
fn on_every_level(written: &[&Drawn], what: &str, mut write: impl FnMut(&[Array]) -> String) {
    let mut expected: Option<(String, Vec<Vec<u8>>)> = None;
    for level in [Level::PORTABLE].into_iter().chain(Level::available()) {
        level.activate();
        let mut rooms: Vec<Vec<u8>> = written.iter().map(|drawn| drawn.bytes.clone()).collect();
        let arrays: Vec<Array> =
            written.iter().zip(&mut rooms).map(|(drawn, room)| drawn.at(room.as_mut_ptr())).collect();
        let result = write(&arrays);
        for (drawn, room) in written.iter().zip(&rooms) {
            let gaps = drawn.place.gaps(&drawn.shape, drawn.format.item_size());
            let is_kept = gaps.iter().enumerate().all(|(byte, gap)| !gap || room[byte] == drawn.bytes[byte]);
            assert!(is_kept, "{what} {level:?}: written outside");
        }
        match &expected {
            None => expected = Some((result, rooms)),
            Some((first, bytes)) => {
                assert!(*first == result, "{what} {level:?}: {result} for {first}");
                // What was written by an error is of no use.
                let place = bytes.iter().zip(&rooms).position(|(one, other)| one != other);
                assert!(
                    first.starts_with("Err") || place.is_none(),
                    "{what} {level:?}: other bits, {place:?}"
                );
            }
        }
    }
}

fn check(mut input: Unstructured<'_>) -> Result<()> {
    let input = &mut input;
    let axes = choose(input, &[2, 2, 2, 3, 1, 4])?;
    let shape = draw_shape(input, axes)?;
    let threads = input.int_in_range(1..=3)?;
    let scheme: &'static Scheme = input.choose(TABLE)?;
    let recipes: Vec<&str> = scheme.recipes().collect();
    let recipe = choose(input, &recipes)?;
    let block = if input.ratio(2, 3)? {
        scheme.block
    } else {
        (choose(input, &[0, 1, 2, 3, 16])?, choose(input, &[0, 1, 2, 7, 16, 24, 32, 64, 128])?)
    };
    let name = if input.ratio(2, 3)? { "dense" } else { choose(input, &PACKINGS)? };
    let Ok(packing) = Packing::parse(name, scheme.bits) else { return Ok(()) };
    let columns = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().nth(1).copied().unwrap_or(1);
    let stack = &shape[..axes.saturating_sub(2)];
    let word = if matches!(packing, Packing::Padded | Packing::Awq) || input.ratio(1, 6)? { 4 } else { 1 };
    let packed = match packing {
        Packing::Padded => columns.div_ceil(32 / scheme.bits as usize) * 4,
        Packing::Halves(codes) => columns.div_ceil(codes) * codes / 2,
        _ => (columns * scheme.bits as usize).div_ceil(8),
    };
    let of_rows = |rows: usize, items: usize| [stack, &[rows, items]].concat();
    let part = |axis: usize, block: usize| axis.div_ceil(if block == 0 { axis.max(1) } else { block });
    let blocks = of_rows(part(rows, block.0), part(columns, block.1));
    let data_shape = nearly(input, of_rows(rows, packed.div_ceil(word)))?;
    let container = named(if word == 4 { "uint32" } else { "uint8" });

    let weight = draw_format(input, |format| format.float().is_some() || format.name() == "int8")?;
    let x = Drawn::new(input, weight, shape.clone(), false)?;
    let what = format!("{} {recipe} {name} {block:?} of {weight:?} {shape:?}", scheme.name);
    for level in Level::available() {
        level.activate();
        // SAFETY: places were made for the shape.
        let found = unsafe { block_amax(&x.array(), threads) };
        Level::PORTABLE.activate();
        // SAFETY: as above.
        let expected = unsafe { block_amax(&x.array(), 1) };
        assert!(format!("{found:?}") == format!("{expected:?}"), "amax of {what}, {level:?}");
    }

    let scale_format = match scheme.scale {
        ScaleFormat::Format(name) if input.ratio(9, 10)? => named(name),
        _ => draw_format(input, |format| format.component().is_none())?,
    };
    let scale_shape = nearly(input, blocks.clone())?;
    let data = Drawn::new(input, container, data_shape, true)?;
    let scale = Drawn::new(input, scale_format, scale_shape, true)?;
    let is_affine = scheme.zero_point && recipe == "mlx";
    let bias_shape = nearly(input, blocks.clone())?;
    let bias = if is_affine != input.ratio(1, 20)? {
        Some(Drawn::new(input, named("float32"), bias_shape, true)?)
    } else {
        None
    };
    let zero_shape = nearly(input, blocks.clone())?;
    let zero_point = if scheme.zero_point && !is_affine && input.ratio(1, 2)? {
        Some(Drawn::new(input, named("int8"), zero_shape, true)?)
    } else {
        None
    };
    let is_two_level = scheme.global_scale && recipe != "mlx";
    let global_shape = nearly(input, stack.to_vec())?;
    let global = if is_two_level != input.ratio(1, 20)? {
        Some(Drawn::new(input, named("float32"), global_shape, false)?)
    } else {
        None
    };
    let amax = if is_two_level || input.ratio(1, 8)? {
        Some(choose(input, &[8.0, 0.0, 1e-30, 3e38, f64::INFINITY, f64::NAN, -1.0])?)
    } else {
        None
    };
    let rounding = choose(input, Rounding::NAMES)?.1;
    let importance = if input.ratio(1, 8)? {
        let shape = nearly(input, shape.clone())?;
        Some(Drawn::new(input, named("float32"), shape, false)?)
    } else {
        None
    };
    let encoding = Encoding {
        x: x.array(),
        scheme,
        recipe: Some(recipe.to_owned()),
        block,
        packing,
        offset: if input.ratio(1, 4)? { choose(input, &[8, 128, -1, i32::MAX, i32::MIN])? } else { 0 },
        rule: if input.ratio(1, 6)? { Some(choose(input, ScaleRule::NAMES)?.1) } else { None },
        amax,
        global_scale: global.as_ref().map(Drawn::array),
        global_max: if input.ratio(1, 8)? { Some(choose(input, &[256.0, 0.0, f32::NAN])?) } else { None },
        scales: choose(input, ScaleChoice::NAMES)?.1,
        importance: importance.as_ref().map(Drawn::array),
        code_map: if input.ratio(1, 10)? { Some(map(input)?) } else { None },
        rounding: if input.ratio(1, 4)? { Some(rounding) } else { None },
        seed: input.arbitrary()?,
        nan_scales: input.arbitrary()?,
    };
    let written: Vec<&Drawn> =
        [Some(&data), Some(&scale), zero_point.as_ref(), bias.as_ref()].into_iter().flatten().collect();
    on_every_level(&written, &what, |arrays| {
        let mut rest = arrays[2..].iter().cloned();
        let zero_point = zero_point.as_ref().and_then(|_| rest.next());
        let bias = bias.as_ref().and_then(|_| rest.next());
        let to = Encoded { data: arrays[0].clone(), scale: arrays[1].clone(), zero_point, bias };
        // SAFETY: each has memory of its own.
        format!("{:?}", unsafe { encode(encoding.clone(), &to, threads) }.map(|_| ()))
    });

    let mut read = |format: Format, shape: &[usize], of: u8| -> Result<Option<Drawn>> {
        if !input.ratio(1, of)? {
            return Ok(None);
        }
        let shape = nearly(input, shape.to_vec())?;
        Drawn::new(input, format, shape, false).map(Some)
    };
    let codes = read(container, &of_rows(rows, packed.div_ceil(word)), 1)?;
    let scales = read(scale_format, &blocks, 1)?;
    let high = read(named("uint8"), &of_rows(rows, columns.div_ceil(8)), 12)?;
    let zeros = read(named("uint8"), &blocks, 5)?;
    let biases = read(named("bfloat16"), &blocks, 5)?;
    let group_index = read(named("int32"), &[columns], 12)?;
    let divisor = read(named("float32"), &[columns], 12)?;
    let globals = read(named("float32"), stack, 4)?;
    let Some(codes) = codes else { return Ok(()) };
    let element = draw_format(input, |format| format.component().is_none())?;
    let meaning = if input.ratio(1, 8)? { Meaning::Map(map(input)?) } else { Meaning::Format(element) };
    let global_use = choose(input, &[GlobalUse::Multiply, GlobalUse::Divide, GlobalUse::After])?;
    let exact = input.arbitrary()?;
    let decoding = Decoding {
        data: codes.array(),
        high: high.as_ref().map(Drawn::array),
        meaning,
        bits: if input.ratio(1, 8)? { input.int_in_range(1..=8)? } else { scheme.bits },
        packing,
        block,
        scale: scales.as_ref().map(Drawn::array),
        scale_divides: input.arbitrary()?,
        global_scale: globals.as_ref().map(|array| (array.array(), global_use)),
        offset: choose(input, &[0, 0, 8, -3, i32::MIN])?,
        zero_point: zeros.as_ref().map(Drawn::array),
        bias: biases.as_ref().map(Drawn::array),
        group_index: group_index.as_ref().map(Drawn::array),
        divisor: divisor.as_ref().map(Drawn::array),
        exact,
        narrow: !exact && input.arbitrary()?,
    };
    let target = draw_format(input, |_| true)?;
    let out_shape = nearly(input, shape.clone())?;
    let out = Drawn::new(input, target, out_shape, true)?;
    on_every_level(
        &[&out],
        &format!("{what}, decoded as {decoding:?} to {target:?} {:?}", out.shape),
        |arrays| {
            // SAFETY: as above.
            format!("{:?}", unsafe { decode(decoding.clone(), &arrays[0], threads) })
        },
    );

    let byte = choose(input, &["uint8", "int8"])?;
    let bytes = Drawn::new(input, named(byte), shape.clone(), true)?;
    let direction = if input.arbitrary()? { Direction::Pack(3) } else { Direction::Unpack(-8) };
    let (source, to) =
        if matches!(direction, Direction::Pack(_)) { (&bytes, &data) } else { (&codes, &bytes) };
    on_every_level(&[to], &format!("{direction:?} {what}"), |arrays| {
        let (one, other) = match direction {
            Direction::Pack(_) => (source.array(), arrays[0].clone()),
            Direction::Unpack(_) => (arrays[0].clone(), source.array()),
        };
        // SAFETY: as above.
        format!("{:?}", unsafe { repack(&one, &other, (packing, scheme.bits), direction, threads) })
    });
    let tiled_shape = nearly(input, of_rows(rows.next_multiple_of(128), columns.next_multiple_of(4)))?;
    let tiled = Drawn::new(input, named("uint8"), tiled_shape, true)?;
    on_every_level(&[&tiled], "swizzle", |arrays| {
        // SAFETY: as above.
        format!("{:?}", unsafe { swizzle(&bytes.array(), &arrays[0], false) })
    });
    Ok(())
}

fn map(input: &mut Unstructured<'_>) -> Result<Vec<f32>> {
    let count = choose(input, &[16, 16, 256, 15, 0])?;
    (0..count).map(|index| Ok(f32::from(input.arbitrary::<i8>()?) + index as f32 / 256.0)).collect()
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    if check(Unstructured::new(bytes)).is_ok() { Corpus::Keep } else { Corpus::Reject }
});
