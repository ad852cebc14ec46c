//! Cells of products: words of 16 bits times one factor, as cells of the words themselves.
//!
//! A factor above zero keeps words in their order, so that codes go up along them, each at the first word whose product
//! reaches the tie below that code. The ties are few, a quotient is next to the first word of each, and whether a product
//! reaches it is known exactly: the sign of a fused multiplication and subtraction is.

use super::cells::{CELLS, Cells, SIGN, Special, Up};
use crate::cast::request::Request;
use crate::codec::encode::SpecialCodes;
use crate::codec::options::Rounding;
use crate::codec::pivot::{Binary64, FloatPivot};
use crate::cpu::{Kernel, Level};
use crate::format::{FloatSpec, Specials};

/// From this many elements on, it pays to find the steps.
const PAYS_FROM: usize = 1 << 16;

/// The most codes of a sign.
const CODES: usize = 1 << 7;

/// The cells of a request, which multiplies words of a format, if they serve it; `plain` gives those of one that is like
/// it but for the factor.
pub(super) fn scaled_cells<'a>(
    request: &Request,
    words: &FloatSpec,
    level: Level,
    plain: impl FnOnce() -> Option<&'a Cells>,
) -> Option<Cells> {
    // As normal as that, no product with it comes near the ends of float64's range.
    let factor = request.factor.filter(|&factor| factor > 0.0 && (factor as f32).is_normal())?;
    let spec = request.target.float()?;
    let fits = request.target.item_size() == 1 && spec.signed && spec.specials != Specials::ExponentOnly;
    let ties_go_up = match request.rounding() {
        Rounding::NearestEven => false,
        Rounding::NearestAway => true,
        _ => return None,
    };
    if !fits || request.count < PAYS_FROM || request.watched() {
        return None;
    }
    let overflow = SpecialCodes::new(&spec, &request.options, request.rounding()).overflow[0];
    let last = [spec.max_code(), spec.max_code() + 1].into_iter().find(|&code| code == overflow)? as u16;
    let &Cells { sign, special, away, .. } = plain()?;
    let mut room = [Up { word: 0, code: 0 }; CODES];
    let count = level.run(Steps { factor, words, target: spec, last, ties_go_up, found: &mut room });
    let steps = &room[..count];
    // Infinities and NaN are what overflows are only if there are any.
    let overflows = count == usize::from(last);
    let special = if overflows { special } else { Special { ordinary: special.infinity - 1, ..special } };
    Cells::from_steps(0, steps, sign, special).filter(|_| away.is_none())
}

/// Looks for the first word of each code.
struct Steps<'a> {
    factor: f64,
    words: &'a FloatSpec,
    target: FloatSpec,
    /// The last code.
    last: u16,
    /// To odd codes too.
    ties_go_up: bool,
    found: &'a mut [Up; CODES],
}

impl Kernel for Steps<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Self { factor, words, target, last, ties_go_up, found } = self;
        let (inverse, infinity) = (1.0 / factor, (u32::from(SIGN) - (1 << words.mantissa_bits)) as u16);
        // Between two codes is a code of a format with one more bit.
        let ties = FloatSpec { mantissa_bits: target.mantissa_bits + 1, ..target };
        let word_below = |code: u16| below(words, number(&ties, 2 * code - 1) * inverse).min(infinity);
        // Cells are so large at least, or too many.
        let size = (word_below(last).saturating_sub(word_below(1)) / CELLS as u16 + 1).next_power_of_two();
        let (binade, normal) = (1 << target.mantissa_bits, 1 << words.mantissa_bits);
        for code in 1..=last {
            // Twice the tie of a code of the binade below, and twice its words, as long as both are normal.
            let half = if code > 2 * binade { found[usize::from(code - binade - 1)].word } else { 0 };
            let word = if half > normal {
                infinity.min(half + normal)
            } else {
                let tie = number(&ties, 2 * code - 1);
                let reaches = |word: u16| {
                    let beyond = number(words, word).mul_add(factor, -tie);
                    beyond > 0.0 || (beyond == 0.0 && (ties_go_up || code.is_multiple_of(2)))
                };
                let mut word = word_below(code);
                while word > 0 && reaches(word - 1) {
                    word -= 1;
                }
                while word < infinity && !reaches(word) {
                    word += 1;
                }
                word
            };
            if word == infinity {
                return usize::from(code - 1);
            }
            // Of five steps in two cells, three are in one.
            if code > 4 && word - found[usize::from(code - 5)].word < size {
                return 0;
            }
            found[usize::from(code - 1)] = Up { word, code: code as u8 };
        }
        usize::from(last)
    }
}

/// What a code below infinity is worth, in a format whose codes go up along magnitudes.
#[inline(always)]
fn number(spec: &FloatSpec, code: u16) -> f64 {
    let (field, fraction) = (code >> spec.mantissa_bits, code & ((1 << spec.mantissa_bits) - 1));
    let significand = if field > 0 { fraction | 1 << spec.mantissa_bits } else { fraction };
    let exponent = i32::from(field.max(1)) - spec.bias - spec.mantissa_bits as i32;
    f64::from(significand) * f64::from_bits(((exponent + Binary64::BIAS as i32) as u64) << Binary64::MANTISSA)
}

/// The code of the largest number of a format that is not above this one; or, beyond the range, infinity's or more.
#[inline(always)]
fn below(spec: &FloatSpec, number: f64) -> u16 {
    let bits = number.to_bits();
    let field = (bits >> Binary64::MANTISSA) as i32 - Binary64::BIAS as i32 + spec.bias;
    let kept = Binary64::MANTISSA - spec.mantissa_bits;
    if field >= 1 << spec.exponent_bits {
        return u16::MAX;
    }
    if field > 0 {
        let fraction = bits & ((1 << Binary64::MANTISSA) - 1);
        return (field as u16) << spec.mantissa_bits | (fraction >> kept) as u16;
    }
    let unit = spec.bias + spec.mantissa_bits as i32 - 1;
    (number * f64::from_bits(((unit + Binary64::BIAS as i32) as u64) << Binary64::MANTISSA)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::plan::Plan;
    use crate::cast::tables::general::results;
    use crate::cast::vectors::by_cells::cells;
    use crate::cast::vectors::direct::{half_spec, upper_spec};
    use crate::codec::options::{NanRule, Options, Overflow};
    use crate::codec::product::odd_product;
    use crate::codec::reference::value_of;
    use crate::format::Format;

    const FACTORS: [f64; 14] = [
        0.1,
        1.0 / 3.0,
        1.0,
        1.5,
        1.5 + f64::EPSILON,
        0.75 - f64::EPSILON,
        2.0,
        0.125,
        448.0 / 5.3,
        90.3,
        1e-3,
        57344.0 / 3.1,
        3e7,
        1e-6,
    ];

    #[test]
    fn cells_of_products_are_what_the_general_route_gives() {
        let mut found = 0;
        let targets = || Format::all().filter(|format| format.item_size() == 1 && format.float().is_some());
        for (spec, target) in
            [upper_spec(), half_spec()].into_iter().flat_map(|spec| targets().map(move |to| (spec, to)))
        {
            let source = Format::all().find(|format| format.float() == Some(spec)).unwrap();
            let values: Vec<f64> = (0..=u16::MAX).map(|word| value_of(&spec, u64::from(word))).collect();
            for (rounding, overflow, nan) in [
                (Rounding::NearestEven, Overflow::Ieee, NanRule::Keep),
                (Rounding::NearestAway, Overflow::Saturate, NanRule::Zero),
            ] {
                let options = Options { rounding: Some(rounding), overflow, nan, seed: 0 };
                let plain = Request { options, count: PAYS_FROM, ..Request::plain(source, target) };
                let wide = Request { source: Format::named("float64").unwrap(), ..plain };
                let plan = Plan::new(&wide, Level::PORTABLE).unwrap();
                for factor in FACTORS {
                    let request = Request { scaled: true, factor: Some(factor), ..plain };
                    let level = Level::PORTABLE;
                    let Some(cells) = scaled_cells(&request, &spec, level, || cells(spec, &request)) else {
                        continue;
                    };
                    found += 1;
                    let products = values.iter().map(|&value| odd_product(value, factor));
                    let expected = results(&plan, &products.flat_map(f64::to_ne_bytes).collect::<Vec<u8>>());
                    for word in 0..=u16::MAX {
                        let (code, wanted) = (cells.code(word), expected[usize::from(word)]);
                        assert_eq!(code, wanted, "{word:#x} {source:?} {target:?} {factor} {options:?}");
                    }
                }
            }
        }
        assert!(found > 300, "only {found} have cells");
    }

    #[test]
    fn what_has_no_cells_is_left_to_others() {
        let named = |name| Format::named(name).unwrap();
        let of = |target: &'static str, factor: f64| {
            let plain = Request::plain(named("bfloat16"), named(target));
            let request = Request { scaled: true, factor: Some(factor), count: PAYS_FROM, ..plain };
            scaled_cells(&request, &upper_spec(), Level::PORTABLE, || cells(upper_spec(), &request)).is_some()
        };
        assert!(of("float8_e4m3fn", 0.1));
        for factor in [-0.1, 0.0, f64::INFINITY, f64::NAN, 1e-60] {
            assert!(!of("float8_e4m3fn", factor), "{factor}");
        }
        assert!(!of("float8_e8m0fnu", 0.1));
    }
}
