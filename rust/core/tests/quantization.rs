//! Weights in blocks: decoding against the definition of formats, encoding against decoding, on every level.

use std::ops::Range;

use castwise_core::Format;
use castwise_core::cast::{Settings, cast_slice};
use castwise_core::codec::options::Options;
use castwise_core::codec::reference::value_of;
use castwise_core::cpu::Level;
use castwise_core::parse::parse;
use castwise_core::quantization::{
    Array, Decoding, Element, Encoded, Encoding, GlobalUse, Meaning, Packing, ScaleChoice, Scheme, TABLE,
    block_amax, decode, encode,
};

const ROWS: usize = 3;
const COLUMNS: usize = 1056;

/// An array in memory of its own.
struct Owned {
    bytes: Vec<u8>,
    shape: Vec<usize>,
    strides: Vec<isize>,
    format: Format,
}

impl Owned {
    fn new(name: &str, shape: &[usize], mut byte: impl FnMut(usize) -> u8) -> Self {
        let format = parse(name).unwrap();
        let mut strides = vec![format.item_size() as isize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as isize;
        }
        let count = shape.iter().product::<usize>() * format.item_size();
        Self { bytes: (0..count).map(&mut byte).collect(), shape: shape.to_vec(), strides, format }
    }

    fn of_f32(shape: &[usize], value: impl Fn(usize) -> f32) -> Self {
        Self::new("float32", shape, |byte| value(byte / 4).to_ne_bytes()[byte % 4])
    }

    fn get(&self) -> Array {
        Array { pointer: self.bytes.as_ptr().cast_mut(), ..self.described() }
    }

    fn described(&self) -> Array {
        let (shape, strides) = (self.shape[..].into(), self.strides[..].into());
        Array { pointer: std::ptr::null_mut(), shape, strides, format: self.format }
    }

    fn target(&mut self) -> Array {
        Array { pointer: self.bytes.as_mut_ptr(), ..self.described() }
    }
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

fn cast(values: &[u8], from: &str, to: Format) -> Vec<u8> {
    let from = parse(from).unwrap();
    let mut result = vec![0; values.len() / from.item_size() * to.item_size()];
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    cast_slice(values, from, &mut result, to, &settings).unwrap();
    result
}

fn plain(data: Array, element: Format, bits: u32, width: usize) -> Decoding {
    Decoding {
        data,
        high: None,
        meaning: Meaning::Format(element),
        bits,
        packing: Packing::parse("dense", bits).unwrap(),
        block: (1, width),
        scale: None,
        scale_divides: false,
        global_scale: None,
        offset: 0,
        zero_point: None,
        bias: None,
        group_index: None,
        divisor: None,
        exact: false,
        narrow: false,
    }
}

#[test]
fn every_code_decodes_to_its_product() {
    let mut next = random(1);
    for (name, bits, width) in [
        ("float4_e2m1fn", 4, 32),
        ("float4_e2m1fn", 4, 16),
        ("float4_e2m1fn", 4, 24),
        ("float6_e3m2fn", 6, 32),
        ("float6_e2m3fn", 6, 96),
        ("float8_e4m3fn", 8, 32),
        ("float8_e5m2", 8, COLUMNS),
    ] {
        let element = parse(name).unwrap();
        let spec = element.float().unwrap();
        let per_row = COLUMNS * bits / 8;
        let data = Owned::new("uint8", &[ROWS, per_row], |_| next() as u8);
        let blocks = COLUMNS / width;
        let scales: Vec<f32> =
            (0..ROWS * blocks).map(|_| f32::from_bits(next() as u32 % 0x1000_0000 + 0x3000_0000)).collect();
        let scale = Owned::of_f32(&[ROWS, blocks], |index| scales[index]);
        let code = |row: usize, column: usize| {
            let bit = column * bits;
            let word = |byte: usize| data.bytes.get(row * per_row + byte).map_or(0, |&byte| u16::from(byte));
            let both = word(bit / 8) | word(bit / 8 + 1) << 8;
            u64::from(both >> (bit % 8)) & ((1 << bits) - 1)
        };
        let places = || (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
        let value = |(row, column)| value_of(&spec, code(row, column));
        let factor = |(row, column): (usize, usize)| scales[row * blocks + column / width];
        let nan = |value: f32| if value.is_nan() { f32::NAN } else { value };
        let peer: Vec<u8> =
            places().flat_map(|place| nan(value(place) as f32 * factor(place)).to_ne_bytes()).collect();
        let nan = |value: f64| if value.is_nan() { f64::NAN } else { value };
        let exact: Vec<u8> =
            places().flat_map(|place| nan(value(place) * f64::from(factor(place))).to_ne_bytes()).collect();
        for level in Level::available() {
            level.activate();
            for target in ["bfloat16", "float16", "float32", "float64"] {
                let target_format = parse(target).unwrap();
                for (is_exact, values, from) in [(false, &peer, "float32"), (true, &exact, "float64")] {
                    let mut out = Owned::new(target, &[ROWS, COLUMNS], |_| 0xa5);
                    let decoding = Decoding {
                        scale: Some(scale.get()),
                        exact: is_exact,
                        ..plain(data.get(), element, bits as u32, width)
                    };
                    // SAFETY: arrays of their own.
                    unsafe { decode(decoding, &out.target(), 2) }.unwrap();
                    let expected = cast(values, from, target_format);
                    assert!(out.bytes == expected, "{name} {width} {target} {is_exact} {}", level.name());
                }
            }
        }
    }
}

#[test]
fn schemes_encode_alike_on_every_level_and_decode_to_what_is_near() {
    let mut next = random(2);
    let values: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|_| (next() as f32 / 2f32.powi(30) - 1.0) * 2f32.powi(next() as i32 % 8 - 4))
        .collect();
    let x = Owned::of_f32(&[ROWS, COLUMNS], |index| values[index]);
    for scheme in TABLE {
        for recipe in scheme.recipes() {
            check(scheme, recipe, &x, &values);
        }
    }
}

/// The scheme is blamed only if none of its recipes has the choice.
#[test]
fn a_refusal_of_scales_names_the_recipe_or_the_schemes_that_have_them() {
    let x = Owned::of_f32(&[ROWS, COLUMNS], |index| index as f32);
    for (name, recipe, scales, expected) in [
        (
            "int4_group",
            "mlx",
            ScaleChoice::Best,
            "recipe=\"mlx\" of scheme=\"int4_group\"; use scales=\"amax\", or one of the recipes compressed-tensors",
        ),
        (
            "fp8_channel",
            "deepseek",
            ScaleChoice::Best,
            "scheme=\"fp8_channel\"; use scales=\"amax\", or one of the schemes mxfp8_e4m3",
        ),
        (
            "mxfp4",
            "torchao",
            ScaleChoice::FourOverSix,
            "scheme=\"mxfp4\"; use scales=\"amax\", or one of the schemes nvfp4.",
        ),
    ] {
        let scheme = Scheme::find(name).unwrap();
        let (mut data, mut scale) = (
            Owned::new("uint8", &[ROWS, COLUMNS * scheme.bits as usize / 8], |_| 0),
            Owned::of_f32(&[1, 1], |_| 0.0),
        );
        let to = Encoded { data: data.target(), scale: scale.target(), zero_point: None, bias: None };
        let encoding = Encoding { scales, ..encoding(&x, scheme, recipe) };
        // SAFETY: arrays of their own.
        let message = unsafe { encode(encoding, &to, 1) }.err().unwrap().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn largest_magnitudes_of_ragged_blocks_of_16_bits_are_found_on_every_level() {
    let mut next = random(3);
    for (name, pitch) in ["bfloat16", "float16"].into_iter().flat_map(|name| [(name, 1096), (name, COLUMNS)])
    {
        // Without the upper bit of the exponent they are finite; what lies behind the columns that are seen is larger.
        let words: Vec<u16> = (0..ROWS * pitch).map(|_| next() as u16 & 0xbfff).collect();
        for (columns, step) in
            [(1, 1), (15, 1), (16, 1), (33, 1), (511, 1), (1049, 1), (1024, 1), (COLUMNS, 1), (300, 2)]
        {
            let is_seen = |word: usize| word % pitch < columns * step && (word % pitch).is_multiple_of(step);
            let word = |word: usize| if is_seen(word) { words[word] } else { 0x5fff };
            let mut x = Owned::new(name, &[ROWS, pitch], |byte| word(byte / 2).to_ne_bytes()[byte % 2]);
            (x.shape[1], x.strides[1]) = (columns, 2 * step as isize);
            let whole = cast(&x.bytes, name, parse("float32").unwrap());
            let at = |row: usize, column: usize| {
                let start = 4 * (row * pitch + column * step);
                f32::from_ne_bytes(whole[start..start + 4].try_into().unwrap()).abs()
            };
            let largest = |rows: Range<usize>, columns: Range<usize>| {
                let places = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
                places.fold(0f32, |most, (row, column)| most.max(at(row, column)))
            };
            for (level, tall, wide) in Level::available()
                .flat_map(|level| [1, 2].map(|tall| (level, tall)))
                .flat_map(|(level, tall)| [16, 24, 32, 64, 100, columns].map(|wide| (level, tall, wide)))
            {
                level.activate();
                // SAFETY: an array of its own.
                let found = unsafe { block_amax(&x.get(), 2) }.unwrap();
                assert_eq!(
                    found,
                    f64::from(largest(0..ROWS, 0..columns)),
                    "{name} {columns} {}",
                    level.name()
                );
                // Scales of bitsandbytes are these magnitudes.
                let found = scales_of(&x, (tall, wide));
                let places = (0..ROWS.div_ceil(tall)).flat_map(|row| {
                    (0..columns.div_ceil(wide)).map(move |column| (row * tall, column * wide))
                });
                let expected: Vec<f32> = places
                    .map(|(row, column)| {
                        largest(row..ROWS.min(row + tall), column..columns.min(column + wide))
                    })
                    .collect();
                assert_eq!(found, expected, "{name} {columns} {step} {tall}x{wide} {}", level.name());
            }
            let last = 2 * ((ROWS - 1) * pitch + (columns - 1) * step);
            x.bytes[last..last + 2].copy_from_slice(&u16::MAX.to_ne_bytes());
            for level in Level::available() {
                level.activate();
                // SAFETY: as above.
                assert!(unsafe { block_amax(&x.get(), 1) }.unwrap().is_nan(), "{name} {}", level.name());
            }
        }
    }
}

/// Encodes by a code map, and returns the scales.
fn scales_of(x: &Owned, block: (usize, usize)) -> Vec<f32> {
    let (rows, columns) = (x.shape[0], x.shape[1]);
    let blocks = [rows.div_ceil(block.0), columns.div_ceil(block.1)];
    let mut data = Owned::new("uint8", &[rows, columns.div_ceil(2)], |_| 0xa5);
    let mut scale = Owned::new("float32", &blocks, |_| 0xa5);
    let encoding = Encoding { block, ..encoding(x, Scheme::find("bnb_nf4").unwrap(), "bitsandbytes") };
    let to = Encoded { data: data.target(), scale: scale.target(), zero_point: None, bias: None };
    // SAFETY: arrays of their own.
    unsafe { encode(encoding, &to, 2) }.unwrap();
    scale.bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

/// An encoding without options.
fn encoding(x: &Owned, scheme: &'static Scheme, recipe: &str) -> Encoding {
    Encoding { recipe: Some(recipe.to_owned()), ..Encoding::new(x.get(), scheme) }
}

/// Encodes with one recipe on every level; where codes are nearest, decodes again.
fn check(scheme: &'static Scheme, recipe: &str, x: &Owned, values: &[f32]) {
    let (rows, columns) = scheme.block;
    let block = (if rows == 0 { ROWS } else { rows }, if columns == 0 { COLUMNS } else { columns });
    let blocks = [ROWS.div_ceil(block.0), COLUMNS.div_ceil(block.1)];
    let affine = scheme.zero_point && recipe == "mlx";
    let two_level = scheme.global_scale && recipe != "mlx";
    let global = Owned::of_f32(&[], |_| if recipe == "compressed-tensors" { 336.0 } else { 1.0 / 336.0 });
    let mut first: Option<Vec<Vec<u8>>> = None;
    for level in Level::available() {
        level.activate();
        let packed = COLUMNS * scheme.bits as usize / 8;
        let mut data = Owned::new("uint8", &[ROWS, packed], |_| 0xa5);
        let name = match scheme.scale {
            castwise_core::quantization::ScaleFormat::Format(name) => name,
            castwise_core::quantization::ScaleFormat::Weight => "float32",
        };
        let mut scale = Owned::new(name, &blocks, |_| 0xa5);
        let mut bias = Owned::new("float32", &blocks, |_| 0xa5);
        let encoding = Encoding {
            amax: two_level.then_some(8.0),
            global_scale: two_level.then(|| global.get()),
            ..encoding(x, scheme, recipe)
        };
        let to = Encoded {
            data: data.target(),
            scale: scale.target(),
            zero_point: None,
            bias: affine.then(|| bias.target()),
        };
        // SAFETY: arrays of their own.
        unsafe { encode(encoding, &to, 2) }.unwrap();
        let found = vec![data.bytes.clone(), scale.bytes.clone(), bias.bytes.clone()];
        assert!(
            first.get_or_insert_with(|| found.clone()) == &found,
            "{} {recipe} {}",
            scheme.name,
            level.name()
        );
        let Element::Format(element) = scheme.element else { continue };
        let signed = scheme.family == castwise_core::quantization::Family::Integer;
        if signed && !affine && scheme.bits != 8 {
            continue;
        }
        let element = parse(if affine { "uint8" } else { element }).unwrap();
        let mut out = Owned::new("float32", &[ROWS, COLUMNS], |_| 0);
        let unit = Owned::of_f32(&[], |_| scheme.unit);
        let hundred = Owned::of_f32(&[], |_| 127.0);
        let decoding = Decoding {
            block: scheme.block,
            scale: Some(scale.get()),
            scale_divides: recipe == "keras",
            bias: affine.then(|| bias.get()),
            global_scale: match (two_level, recipe) {
                (true, "compressed-tensors") => Some((global.get(), GlobalUse::Divide)),
                (true, _) => Some((global.get(), GlobalUse::Multiply)),
                (false, "bitsandbytes") => Some((hundred.get(), GlobalUse::After)),
                (false, _) if scheme.unit != 1.0 => Some((unit.get(), GlobalUse::Multiply)),
                (false, _) => None,
            },
            ..plain(data.get(), element, scheme.bits, 1)
        };
        // SAFETY: as above.
        unsafe { decode(decoding, &out.target(), 1) }.unwrap();
        let decoded = out.bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()));
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        // The step of the largest codes, of at least 2 bits with a sign; floor loses up to a quarter of the top binade.
        let step = largest * if scheme.bits >= 6 { 0.26 } else { 0.7 };
        for (value, decoded) in values.iter().zip(decoded) {
            assert!((value - decoded).abs() <= step, "{} {recipe}: {value} -> {decoded}", scheme.name);
        }
    }
}
