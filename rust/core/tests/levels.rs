//! Every CPU level gives the bits that the portable one gives, whatever the length, the alignment and the size.

use castwise_core::cast::{Settings, cast_slice};
use castwise_core::codec::options::{NanRule, Options, Overflow, Rounding};
use castwise_core::cpu::Level;
use castwise_core::format::{Format, Kind};

/// Returns pseudo-random bytes, the same every time.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn real() -> Vec<Format> {
    Format::all().filter(|format| format.component().is_none()).collect()
}

fn floats() -> Vec<Format> {
    Format::all().filter(|format| matches!(format.kind(), Kind::Float(_))).collect()
}

fn cast(level: Level, (from, source): (&[u8], Format), to: &mut [u8], target: Format, options: Options) {
    level.activate();
    let settings = Settings { options, report: false, threads: 1 };
    cast_slice(from, source, to, target, &settings).unwrap();
}

/// Compares all levels on one cast, at an odd address.
fn compare(bytes: &[u8], source: Format, target: Format, options: Options) {
    let count = (bytes.len() - 1) / source.item_size();
    let bytes = &bytes[1..=count * source.item_size()];
    let mut expected = vec![0; count * target.item_size()];
    cast(Level::PORTABLE, (bytes, source), &mut expected, target, options);
    for level in Level::available() {
        let mut room = vec![0xaa; expected.len() + 2];
        let end = room.len() - 1;
        cast(level, (bytes, source), &mut room[1..end], target, options);
        assert!(room[1..end] == expected, "{source:?} to {target:?}, {count}, {options:?}, {level:?}");
        assert_eq!([room[0], room[end]], [0xaa; 2], "written outside: {source:?} to {target:?}, {level:?}");
    }
}

/// Returns numbers around the limits of integers, as elements of a format; enough of each to fill registers.
fn around_integers(source: Format) -> Vec<u8> {
    let significands = [1.0, 1.0f64.next_up(), 1.25, 1.5, 1.75, 2.0f64.next_down(), f64::NAN, f64::INFINITY];
    let magnitudes = (-2..=66).flat_map(|exponent| {
        let scale = 2f64.powi(exponent);
        (0..10).flat_map(move |_| significands.map(|significand| [scale * significand, -scale * significand]))
    });
    // Finite ones alone too.
    let numbers: Vec<f64> = magnitudes.flatten().collect();
    let plain = numbers.iter().copied().filter(|number| number.is_finite());
    let bytes: Vec<u8> = numbers.iter().copied().chain(plain).flat_map(f64::to_ne_bytes).collect();
    let mut elements = vec![0; bytes.len() / 8 * source.item_size()];
    let double = Format::named("float64").unwrap();
    cast(Level::PORTABLE, (&bytes, double), &mut elements, source, Options::default());
    elements
}

const ROUNDINGS: [Rounding; 5] = [
    Rounding::NearestEven,
    Rounding::NearestAway,
    Rounding::TowardsZero,
    Rounding::TowardsNegative,
    Rounding::TowardsPositive,
];

// No other test here sets the level in use, which is one for the process.
#[test]
fn levels_agree() {
    let small = noise(4 * 5000);
    for source in real() {
        for target in real() {
            for count in [1, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 4095, 4096, 4171] {
                let length = (1 + count * source.item_size()).min(small.len());
                compare(&small[..length], source, target, Options::default());
            }
        }
    }
    let named = |name| Format::named(name).unwrap();
    let narrow = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz", "float6_e2m3fn"].map(named);
    for source in floats() {
        for target in narrow {
            for rounding in ROUNDINGS {
                for (overflow, nan) in [(Overflow::Ieee, NanRule::Keep), (Overflow::Saturate, NanRule::Zero)]
                {
                    let options = Options { rounding: Some(rounding), overflow, nan, seed: 0 };
                    compare(&small, source, target, options);
                }
            }
        }
    }
    for source in floats() {
        let elements = around_integers(source);
        for target in Format::all().filter(|target| target.integer_range().is_some()) {
            compare(&elements, source, target, Options::default());
            compare(&elements[source.item_size() - 1..], source, target, Options::default());
        }
        for target in ["int8", "uint8"].map(named) {
            for rounding in ROUNDINGS {
                let options = Options { rounding: Some(rounding), ..Options::default() };
                compare(&elements, source, target, options);
            }
        }
    }
    // More than the caches hold.
    let large = noise((1 << 24) + 4 * 77);
    for source in ["float32", "float16", "float8_e4m3fn"].map(named) {
        for target in ["float32", "bfloat16", "float8_e5m2"].map(named) {
            compare(&large, source, target, Options::default());
        }
    }
}

/// Reports are the same wherever elements lie, and however many fill no register.
#[test]
fn reports_do_not_depend_on_the_address() {
    let named = |name| Format::named(name).unwrap();
    let settings = Settings { options: Options::default(), report: true, threads: 1 };
    // With the second, some are outside the range of narrow targets.
    for most in [1.0, 1e6] {
        for count in [65, 96, 1000, 1024] {
            let numbers = (0..count).map(|i| (i as f32 * 0.731).sin() * if i % 7 == 0 { most } else { 1.0 });
            let elements: Vec<u8> = numbers.flat_map(f32::to_ne_bytes).collect();
            for target in ["float8_e4m3fn", "uint8", "float16", "bfloat16", "float64"].map(named) {
                let mut results = vec![0; count * target.item_size()];
                let reports = (0..4).map(|offset| {
                    let mut room = vec![0; elements.len() + offset];
                    room[offset..].copy_from_slice(&elements);
                    cast_slice(&room[offset..], named("float32"), &mut results, target, &settings).unwrap()
                });
                let reports: Vec<_> = reports.collect();
                assert!(
                    reports.iter().all(|report| *report == reports[0]),
                    "{target:?}, {count}: {reports:?}"
                );
            }
        }
    }
}
