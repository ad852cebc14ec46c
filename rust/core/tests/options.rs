//! Casts with a factor, or with stochastic rounding, give the same on every level as the general route, which a report
//! takes.

use castwise_core::cast::{Scales, Settings, Source, Target, cast};
use castwise_core::codec::options::{NanRule, Options, Overflow, Rounding};
use castwise_core::cpu::Level;
use castwise_core::format::Format;

/// Rows of elements, one factor each.
struct Case<'a> {
    rows: usize,
    bytes: &'a [u8],
    source: Format,
    target: Format,
    factors: &'a [f64],
    options: Options,
}

impl Case<'_> {
    fn cast(&self, level: Level, report: bool) -> Vec<u8> {
        level.activate();
        let columns = self.bytes.len() / self.source.item_size() / self.rows;
        let mut room = vec![0; self.rows * columns * self.target.item_size()];
        let strides = |format: Format| [(columns * format.item_size()) as isize, format.item_size() as isize];
        let (from, to) = (strides(self.source), strides(self.target));
        let source =
            Source { pointer: self.bytes.as_ptr(), strides: &from, format: self.source, swapped: false };
        let pointer = room.as_mut_ptr();
        let target = Target { pointer, strides: &to, format: self.target, swapped: false, fresh: false };
        let pointer = self.factors.as_ptr().cast();
        let scales = (!self.factors.is_empty()).then_some(Scales { pointer, strides: &[8, 0] });
        let settings = Settings { options: self.options, report, threads: 1 };
        // SAFETY: both arrays hold as many elements as the shape has, and there is a factor for each row.
        unsafe { cast(&[self.rows, columns], source, target, scales, &settings) }.unwrap();
        room
    }

    fn check(&self) {
        let Self { rows, source, target, factors, options, .. } = self;
        let expected = self.cast(Level::PORTABLE, true);
        for level in Level::available() {
            let place = self.cast(level, false).iter().zip(&expected).position(|(found, want)| found != want);
            let what = format!("{source:?} to {target:?}, {rows} rows, {factors:?}, {options:?}, {level:?}");
            assert_eq!(place.map(|byte| byte / target.item_size()), None, "{what}");
        }
    }
}

/// Returns pseudo-random numbers, the same every time.
fn noise() -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state ^ (state >> 29)
    }
}

/// Returns codes of a source: all, if there are few; else random ones, and those whose products are at or next to a
/// result or a tie of the target.
fn codes(source: Format, target: Format, factor: f64) -> Vec<u8> {
    const COUNT: usize = 1 << 14;
    let mut next = noise();
    match source.item_size() {
        1 => (0..COUNT).map(|code| code as u8).collect(),
        2 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        _ => {
            let result_or_tie = |bits: u64| {
                let Some(spec) = target.float() else {
                    return f64::from((bits >> 40) as i32 % 1200 - 600) / 2.0;
                };
                let exponents = 1 << spec.exponent_bits.min(8);
                let exponent = (bits >> 40) as i32 % exponents - spec.bias - spec.mantissa_bits as i32;
                let fraction = bits as u32 & ((2 << spec.mantissa_bits) - 1);
                let significand = 1.0 + f64::from(fraction) / f64::from(2u32 << spec.mantissa_bits);
                2f64.powi(exponent) * significand
            };
            let beside = |bits: u64| {
                let number = (result_or_tie(bits) / factor) as f32;
                number.to_bits().wrapping_add((bits >> 32) as u32 % 7).wrapping_sub(3)
            };
            let code = |index: usize| {
                let bits = next();
                if index.is_multiple_of(4) { bits as u32 } else { beside(bits) }
            };
            (0..COUNT).map(code).flat_map(u32::to_le_bytes).collect()
        }
    }
}

fn named(name: &str) -> Format {
    Format::named(name).unwrap()
}

const FACTORS: [f64; 12] = [
    0.1,
    -1.0 / 3.0,
    1.5,
    -0.25,
    std::f64::consts::PI as f32 as f64,
    1e-5,
    7e10,
    1.2e-38,
    3e38,
    0.0,
    f64::INFINITY,
    1e300,
];

// One test: the level in use is one for the process.
#[test]
fn levels_agree_with_the_general_route() {
    let narrow = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz", "float6_e2m3fn"].map(named);
    let sources = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8"].map(named);
    let saturate = (Overflow::Saturate, NanRule::Zero);
    let rules = [(Overflow::Ieee, NanRule::Keep), saturate];
    let options = |rounding, (overflow, nan)| Options { rounding: Some(rounding), overflow, nan, seed: 3 };
    for source in sources {
        for target in narrow.into_iter().chain(["float32", "int8", "uint8"].map(named)) {
            for factor in FACTORS {
                let bytes = codes(source, target, factor);
                let nearest = [Rounding::NearestEven, Rounding::NearestAway];
                let all = nearest.into_iter().flat_map(|rounding| rules.map(|rule| (rounding, rule)));
                let directed = [Rounding::TowardsNegative, Rounding::TowardsZero].map(|one| (one, saturate));
                for (rounding, rule) in all.chain(directed) {
                    let options = options(rounding, rule);
                    Case { rows: 1, bytes: &bytes, source, target, factors: &[factor], options }.check();
                }
            }
            let bytes = codes(source, target, 1.0);
            for rounding in [Rounding::NearestAway, Rounding::Stochastic, Rounding::NearestEven] {
                for rule in rules {
                    let options = options(rounding, rule);
                    Case { rows: 1, bytes: &bytes, source, target, factors: &[], options }.check();
                }
            }
            let options = Options::default();
            Case { rows: 2, bytes: &bytes, source, target, factors: &[0.1, 0.7], options }.check();
        }
    }
}
