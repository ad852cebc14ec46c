//! Every CPU level gives the bits that the portable one gives: every code of every format of 16 bits or fewer, and the
//! float32 that roundings turn on, to every format, under every option, with factors too.

use std::sync::Mutex;

use castwise_core::cast::{Scales, Settings, Source, Target, cast, cast_slice};
use castwise_core::codec::options::{Named, NanRule, Options, Overflow, Rounding};
use castwise_core::cpu::Level;
use castwise_core::format::{Format, Specials};

fn real() -> impl Iterator<Item = Format> {
    Format::all().filter(|format| format.component().is_none())
}

fn narrow_floats() -> impl Iterator<Item = Format> {
    real().filter(|format| format.float().is_some() && format.row().bits <= 32)
}

fn has_zero(format: Format) -> bool {
    format.float().is_none_or(|spec| spec.specials != Specials::ExponentOnly)
}

/// The elements of one source.
struct Elements {
    format: Format,
    bytes: Vec<u8>,
}

impl Elements {
    fn every_code(format: Format) -> Self {
        let bytes = match format.item_size() {
            1 => (0..=u8::MAX).collect(),
            _ => (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect(),
        };
        Self { format, bytes }
    }

    /// Every float32 with one of these lower 16 bits. Ties of all narrower formats are among them, for lower halves
    /// that are 0 or a tie; and NaN with payloads in either half.
    fn float32(lower: &[u32]) -> Self {
        let format = Format::named("float32").unwrap();
        let words = (0..=0xffff_u32).flat_map(|upper| lower.iter().map(move |lower| upper << 16 | lower));
        Self { format, bytes: words.flat_map(u32::to_ne_bytes).collect() }
    }

    /// The float64 that test roundings to a format: its values, the midpoints between them and beyond the last, and
    /// neighbors of these at the distance of a float32 and of a float64.
    fn float64_around(format: Format) -> Self {
        let codes = Self::every_code(format);
        let source = Format::named("float64").unwrap();
        let numbers = codes.cast(Level::PORTABLE, source, Options::default(), None);
        let numbers: Vec<f64> =
            numbers.chunks_exact(8).map(|bytes| f64::from_ne_bytes(bytes.try_into().unwrap())).collect();
        let before = numbers.windows(2).map(|two| two[0] + (two[1] - two[0]) / 2.0);
        let beyond = numbers.windows(3).map(|three| three[1] + (three[1] - three[0]) / 2.0);
        let near = [0, 1, 1 << 28, 1 << 29].map(|bits: i64| [bits, -bits]);
        let all: Vec<f64> = numbers.iter().copied().chain(before).chain(beyond).collect();
        // Grouped by distance: registers with rare cases among others, and registers without rare cases.
        let bits = near
            .into_iter()
            .flatten()
            .flat_map(|near| all.iter().map(move |number| (number.to_bits() as i64).wrapping_add(near)));
        Self { format: source, bytes: bits.flat_map(i64::to_ne_bytes).collect() }
    }

    /// Integers of 32 or 64 bits with few bits set, their neighbors, and those that differ from them in one bit: ties
    /// of all significands of up to 12 bits, and what two roundings would turn into ties. Grouped by size: registers of
    /// integers that float32 holds, of others, and of both.
    fn integers_around_ties(format: Format) -> Self {
        let size = format.item_size();
        let upper =
            (0..8 * size as u32).flat_map(|shift| (0..1u64 << 12).step_by(7).map(move |top| top << shift));
        let near = (0..8 * size as u32).flat_map(|shift| [0x101, 0x403, 0xfff].map(|top: u64| top << shift));
        let one_bit =
            near.flat_map(|top| (0..64).flat_map(move |bit| [top.wrapping_sub(1 << bit), top | 1 << bit]));
        let all: Vec<u64> = upper.chain(one_bit).collect();
        let with_neighbors = all
            .iter()
            .flat_map(|&code| [code, code.wrapping_add(1), code.wrapping_sub(1), code.wrapping_neg()]);
        let bytes = with_neighbors.flat_map(|code| match size {
            4 => (code as u32).to_ne_bytes().to_vec(),
            _ => code.to_ne_bytes().to_vec(),
        });
        Self { format, bytes: bytes.collect() }
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.format.item_size()
    }

    fn cast(&self, level: Level, target: Format, options: Options, factor: Option<f64>) -> Vec<u8> {
        level.activate();
        let mut results = vec![0u8; self.count() * target.item_size()];
        let settings = Settings { options, report: false, threads: 1 };
        let Some(factor) = factor else {
            cast_slice(&self.bytes, self.format, &mut results, target, &settings).unwrap();
            return results;
        };
        let strides = [self.format, target].map(|format| [format.item_size() as isize]);
        let from = Source {
            pointer: self.bytes.as_ptr(),
            strides: &strides[0],
            format: self.format,
            swapped: false,
        };
        let to = Target {
            pointer: results.as_mut_ptr(),
            strides: &strides[1],
            format: target,
            swapped: false,
            fresh: false,
        };
        let scales = Scales { pointer: (&raw const factor).cast(), strides: &[0] };
        // SAFETY: the vectors hold as many elements, and there is one factor for all of them.
        unsafe { cast(&[self.count()], from, to, Some(scales), &settings).unwrap() };
        results
    }

    /// Compares the levels. NaN stay NaN in a format without zero, for which "zero" is refused.
    fn compare(&self, target: Format, options: Options, factor: Option<f64>) {
        let nan = if has_zero(target) { options.nan } else { NanRule::Keep };
        let options = Options { nan, ..options };
        let expected = self.cast(Level::PORTABLE, target, options, factor);
        for level in Level::available().filter(|level| *level != Level::PORTABLE) {
            let found = self.cast(level, target, options, factor);
            if found != expected {
                let size = target.item_size();
                let mut both = found.chunks(size).zip(expected.chunks(size));
                let at = both.position(|(found, expected)| found != expected).unwrap();
                let element = &self.bytes[at * self.format.item_size()..][..self.format.item_size()];
                panic!(
                    "{:?} {element:02x?} (native bytes, element {at}) times {factor:?} to {target:?}, {options:?}: \
                     {level:?} gives {:02x?}, portable {:02x?}",
                    self.format,
                    &found[at * size..][..size],
                    &expected[at * size..][..size]
                );
            }
        }
    }
}

/// The rules for overflow and NaN.
type Rules = [(Overflow, NanRule)];

const ALL_RULES: &Rules = &[
    (Overflow::Ieee, NanRule::Keep),
    (Overflow::Ieee, NanRule::Zero),
    (Overflow::Saturate, NanRule::Keep),
    (Overflow::Saturate, NanRule::Zero),
];

fn options(roundings: &[Rounding], rules: &Rules) -> Vec<Options> {
    let with = |rounding| {
        rules.iter().map(move |&(overflow, nan)| Options { rounding: Some(rounding), overflow, nan, seed: 5 })
    };
    roundings.iter().copied().flat_map(with).collect()
}

/// Factors whose products are exact, rounded, not held by a float32, and such that many results overflow or underflow.
const FACTORS: [f64; 5] = [0.125, 448.0 / 3.0, 0.1, -3.0e4, 1.5e-7];

/// Compares in all roundings, and with factors.
fn compare_all(elements: &Elements, targets: impl Iterator<Item = Format>, rules: &Rules) {
    let every: Vec<_> = Rounding::NAMES.iter().map(|&(_, rounding)| rounding).collect();
    let plain = options(&every, rules);
    let scaled = options(&[Rounding::NearestEven, Rounding::NearestAway], rules);
    for target in targets {
        for &options in &plain {
            elements.compare(target, options, None);
        }
        for factor in FACTORS.map(Some) {
            for &options in &scaled {
                elements.compare(target, options, factor);
            }
        }
    }
}

/// The level in use is one for the process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn levels_agree_on_every_code() {
    let _turn = TURN.lock();
    for format in real().filter(|format| format.row().bits <= 16) {
        compare_all(&Elements::every_code(format), real(), ALL_RULES);
    }
}

#[test]
fn levels_agree_on_ties_of_float32() {
    let _turn = TURN.lock();
    let ties = Elements::float32(&[0, 0x1000, 0x7fff, 0x8001]);
    compare_all(&ties, narrow_floats(), ALL_RULES);
}

#[test]
fn levels_agree_on_ties_of_float64() {
    let _turn = TURN.lock();
    let roundings =
        [Rounding::NearestEven, Rounding::NearestAway, Rounding::TowardsZero, Rounding::TowardsNegative];
    let rules = [ALL_RULES[0], ALL_RULES[3]];
    for target in narrow_floats().filter(|format| format.row().bits <= 16) {
        let elements = Elements::float64_around(target);
        for options in options(&roundings, &rules) {
            elements.compare(target, options, None);
        }
    }
}

#[test]
fn levels_agree_on_ties_of_integers() {
    let _turn = TURN.lock();
    for source in ["int32", "uint32", "int64", "uint64"].map(|name| Format::named(name).unwrap()) {
        let elements = Elements::integers_around_ties(source);
        for target in narrow_floats().filter(|target| target.row().bits <= 16) {
            for options in options(&[Rounding::NearestEven, Rounding::TowardsZero], ALL_RULES) {
                elements.compare(target, options, None);
            }
        }
    }
}

/// Returns lower 16 bits at ties of all mantissas from 7 bits on, on either side of them, and others.
fn lower_halves() -> Vec<u32> {
    let ties = (0..16).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    let mut all: Vec<u32> = ties.chain([0xffff, 0xfffe, 0x3000, 0xaaaa]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
#[ignore = "takes minutes: to be run for new kernels"]
fn levels_agree_on_millions_of_float32() {
    let _turn = TURN.lock();
    let many = Elements::float32(&lower_halves());
    compare_all(&many, narrow_floats(), &[ALL_RULES[0], ALL_RULES[3]]);
}
