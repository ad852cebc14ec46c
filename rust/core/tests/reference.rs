//! Every rounding of every small float format against the definition: neighbors found by value, nothing shared with
//! the encoders but the meaning of a code. Formats without a numpy dtype are tested here only.

use castwise_core::cast::{Settings, cast_slice};
use castwise_core::codec::options::{Named, Options, Overflow, Rounding};
use castwise_core::codec::reference::value_of;
use castwise_core::cpu::Level;
use castwise_core::format::{FloatSpec, Format, Specials};

/// Finite values of a format in ascending order, each with its code.
fn ladder(spec: &FloatSpec) -> Vec<(f64, u64)> {
    let codes = 0..=(spec.magnitude_mask() | spec.sign_bit());
    let mut ladder: Vec<_> =
        codes.map(|code| (value_of(spec, code), code)).filter(|(value, _)| value.is_finite()).collect();
    // Of the two zeros the positive one comes last, and stands for both.
    ladder.sort_by(|a, b| a.0.total_cmp(&b.0));
    ladder.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            *kept = *next;
        }
        same
    });
    ladder
}

/// The code that `x` must get, or `None` where more than one is right.
fn expected(
    spec: &FloatSpec,
    ladder: &[(f64, u64)],
    x: f64,
    rounding: Rounding,
    overflow: Overflow,
) -> Option<u64> {
    let sign = if x.is_sign_negative() { spec.sign_bit() } else { 0 };
    let (low, high) = (ladder[0], ladder[ladder.len() - 1]);
    if x.is_nan() {
        return Some(match (spec.nan_code(), spec.specials) {
            (Some(code), Specials::Fnuz) => code,
            (Some(code), _) => code | sign,
            (None, _) => spec.sign_bit() ^ sign,
        });
    }
    let saturates = overflow == Overflow::Saturate;
    let limit = if x > 0.0 { high.1 } else { low.1 };
    let beyond = match (saturates, spec.infinity_code(), spec.nan_code()) {
        (true, ..) | (_, None, None) => limit,
        (_, Some(infinity), _) => infinity | sign,
        (_, None, Some(nan)) => nan | sign,
    };
    let no_zero = spec.specials == Specials::ExponentOnly;
    if no_zero && x <= 0.0 {
        return Some(if saturates { 0 } else { beyond });
    }
    if x.is_infinite() {
        return Some(beyond);
    }
    if no_zero && x < low.0 {
        return Some(low.1);
    }
    if x == 0.0 {
        return Some(if spec.specials == Specials::Fnuz { 0 } else { sign });
    }
    if x < 0.0 && !spec.signed {
        // Below the range, however near to zero.
        let inwards = matches!(rounding, Rounding::TowardsZero | Rounding::TowardsPositive);
        return Some(if inwards { 0 } else { beyond });
    }
    let position = ladder.partition_point(|&(value, _)| value <= x);
    let below = position.checked_sub(1).map(|at| ladder[at]);
    if let Some((value, code)) = below
        && value == x
    {
        return Some(code);
    }
    // One step beyond the range: where the ladder would go on if there were more exponents.
    let step = 2f64.powi(high.0.log2().floor() as i32 - spec.mantissa_bits as i32);
    let above = ladder.get(position).copied().unwrap_or((high.0 + step, u64::MAX));
    let below = below.unwrap_or(if spec.signed { (low.0 - step, u64::MAX) } else { (f64::MIN, u64::MAX) });
    let up = match rounding {
        Rounding::TowardsPositive => true,
        Rounding::TowardsNegative => false,
        Rounding::TowardsZero => x < 0.0,
        Rounding::NearestEven | Rounding::NearestAway => {
            let (down, up) = (x - below.0, above.0 - x);
            let away = x > 0.0;
            if down == up && rounding == Rounding::NearestAway {
                away
            } else if down == up {
                // The significand is even where the code is; a power of two alone is odd.
                let even = |(_, code): (f64, u64)| code != u64::MAX && code % 2 == 0;
                if no_zero {
                    true
                } else if above.1 == u64::MAX {
                    !even(below)
                } else {
                    even(above)
                }
            } else {
                up < down
            }
        }
        Rounding::Stochastic => return None,
        other => panic!("{other:?} has no reference"),
    };
    let chosen = if up { above } else { below };
    // The top of the ladder is where overflow begins.
    if chosen.1 == u64::MAX || x > high.0 && x >= high.0 + step || x < low.0 && x <= low.0 - step {
        let inwards = match rounding {
            Rounding::TowardsZero => true,
            Rounding::TowardsPositive => x < 0.0,
            Rounding::TowardsNegative => x > 0.0,
            _ => false,
        };
        return Some(if inwards { limit } else { beyond });
    }
    if chosen.0 == 0.0 {
        return Some(if spec.specials == Specials::Fnuz { 0 } else { sign });
    }
    Some(chosen.1)
}

/// Values around every code of the format and beyond both its ends.
fn probes(ladder: &[(f64, u64)]) -> Vec<f64> {
    let mut probes =
        vec![0.0, -0.0, f64::INFINITY, -f64::INFINITY, f64::NAN, -f64::NAN, 1e300, -1e300, 1e-300];
    for pair in ladder.windows(2) {
        let middle = f64::midpoint(pair[0].0, pair[1].0);
        for x in [pair[0].0, middle, pair[1].0] {
            probes.extend([x, x.next_up(), x.next_down()]);
        }
    }
    let high = ladder[ladder.len() - 1].0;
    for factor in [1.01, 1.03125, 1.0625, 1.07, 1.125, 1.25, 1.3, 1.5, 1.6, 2.0] {
        probes.extend([high * factor, -high * factor]);
    }
    probes
}

#[test]
fn every_rounding_of_every_small_float_is_the_definition() {
    let double = Format::named("float64").unwrap();
    for target in Format::all().filter(|format| format.row().bits <= 16) {
        let Some(spec) = target.float() else { continue };
        let ladder = ladder(&spec);
        let probes = probes(&ladder);
        let source: Vec<u8> = probes.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let size = target.item_size();
        let mut codes = vec![0u8; probes.len() * size];
        for level in Level::available() {
            level.activate();
            for &(name, rounding) in Rounding::NAMES {
                for overflow in [Overflow::Ieee, Overflow::Saturate] {
                    let options = Options { rounding: Some(rounding), overflow, ..Options::default() };
                    // With a report the general encoder runs, without it the fast one where there is one.
                    for report in [false, true] {
                        let settings = Settings { options, report, threads: 1 };
                        cast_slice(&source, double, &mut codes, target, &settings).unwrap();
                        for (x, code) in probes.iter().zip(codes.chunks(size)) {
                            let got = code.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
                            if let Some(wanted) = expected(&spec, &ladder, *x, rounding, overflow) {
                                assert_eq!(
                                    got, wanted,
                                    "{x:e} to {target:?}, {name}, {overflow:?}, {level:?}, report={report}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_code_decodes_to_its_value_at_every_level() {
    let double = Format::named("float64").unwrap();
    let single = Format::named("float32").unwrap();
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    for format in Format::all().filter(|format| format.row().bits <= 16) {
        let Some(spec) = format.float() else { continue };
        let codes: Vec<u64> = (0..=(spec.magnitude_mask() | spec.sign_bit())).collect();
        let size = format.item_size();
        let source: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes()[..size].to_vec()).collect();
        for level in Level::available() {
            level.activate();
            let mut wide = vec![0u8; codes.len() * 8];
            cast_slice(&source, format, &mut wide, double, &settings).unwrap();
            let mut narrow = vec![0u8; codes.len() * 4];
            cast_slice(&source, format, &mut narrow, single, &settings).unwrap();
            for (at, &code) in codes.iter().enumerate() {
                let wanted = value_of(&spec, code);
                let wide = f64::from_ne_bytes(wide[at * 8..][..8].try_into().unwrap());
                let narrow = f32::from_ne_bytes(narrow[at * 4..][..4].try_into().unwrap());
                let same = |got: f64| got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
                assert!(same(wide) && same(f64::from(narrow)), "{format:?} code {code:#x}: {wide}, {narrow}");
            }
        }
    }
}
