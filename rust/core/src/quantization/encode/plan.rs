//! Everything that is decided before an element is read.

use super::amaxes::Amaxes;
use super::by_tables::{ByTables, Reference};
use super::codes::{Codes, Shift};
use super::encoder::{BlockArrays, Encoder, JOINED, is_large};
use super::importance::Importance;
use super::integer_search::IntegerSearch;
use super::operands::{Encoded, Encoding, ScaleChoice, check, per_block, refuse};
use super::packed::Packed;
use super::scale_search::ScaleSearch;
use super::scales::{Limits, Scales};
use super::source::{Source, TRANSPOSED_ROWS};
use crate::cast::{PlannedCast, Settings};
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::options::{Options, Overflow, Rounding};
use crate::codec::reference::worth;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::quantization::element::Element;
use crate::quantization::element::names::{E2M1, E4M3, E8M0, INT8, UINT8};
use crate::quantization::nearest::Bounds;
use crate::quantization::real::{Real, bf16, format};
use crate::quantization::recipe::{Family, GLOBAL_MAX, Recipe, Ties};
use crate::quantization::rounded::{Rounded, single};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::scale_rule::{Largest, ScaleRule, addend};
use crate::quantization::scaled::Float;
use crate::quantization::scheme::Scheme;
use crate::quantization::steps::{Functions, Numbers};
use crate::quantization::work::Extent;

/// No scale of finite elements is beyond this.
const LARGEST_SCALE: f64 = f32::MAX as f64 / 2.0;

/// Elements that are moved together, at most.
const MOST_TRANSPOSED: usize = 1 << 18;

/// Elements of a band of blocks of several rows, about, so that it is in the cache when it is read again.
const BAND: usize = 1 << 17;

/// Elements of an array for which a table of errors is worth it.
const TABLED: usize = 1 << 13;

/// Plans an encoding by a recipe.
///
/// # Safety
/// As for [`encode`](super::encode), of a global scale and of importance.
#[expect(clippy::too_many_lines, reason = "every choice")]
pub(super) unsafe fn plan<T: Real>(
    encoding: Encoding,
    to: &Encoded,
    recipe: &'static Recipe,
    steps: Functions<T>,
) -> Result<Encoder<T>, Error> {
    let scheme = encoding.scheme;
    let extent = Extent::of("x", &encoding.x, encoding.block)?;
    let stack = extent.stack.len();
    check(&encoding, to, recipe, &extent)?;
    let per_block = |argument: &str, array: &Array| per_block(argument, array, &extent);
    let is_asymmetric = to.zero_point.is_some();
    // SAFETY: the caller's promise.
    let global = unsafe { extent.per_matrix(encoding.global_scale.as_ref())? };
    let Elements { element, limits, max, largest } = elements::<T>(scheme, recipe, is_asymmetric);
    let rounding = encoding.rounding.unwrap_or(match recipe.ties {
        Ties::Away => Rounding::NearestAway,
        _ => Rounding::NearestEven,
    });
    let options = Options {
        rounding: Some(rounding),
        overflow: Overflow::Saturate,
        seed: encoding.seed,
        ..Options::default()
    };
    let ties = if encoding.rounding.is_none() && element.name() == E2M1 { recipe.ties } else { Ties::Even };
    let map = code_map(scheme, encoding.code_map.as_deref())?;
    let rounds = |it_does: bool| {
        let same = encoding.x.format == format::<T>();
        (it_does && !same).then(|| Rounded::new::<T>(encoding.x.format)).transpose()
    };
    let mut source = Source::new(&encoding.x, &extent)?;
    let searches_integers = encoding.scales != ScaleChoice::Amax && scheme.family == Family::Integer;
    let quotient = rounds(match recipe.family {
        Family::TwoLevel => false,
        // Codes are the nearest ones to elements.
        Family::Integer if searches_integers => false,
        _ => recipe.in_weight_dtype || (recipe.whole_in_weight_dtype && encoding.block == (0, 0)),
    })?;
    let at_once = !is_asymmetric && map.is_none() && rounding != Rounding::Stochastic;
    let fits_odd_bf16 = element.float().is_some_and(|spec| spec.signed && spec.mantissa_bits + 2 <= MANTISSA);
    let float = if quotient.is_some() {
        // Without NaN, an amax of the caller's or scales that saturate, quotients are small.
        let spec = to.scale.format.float().unwrap_or_else(single);
        let saturates = worth(&spec, spec.max_code()) < LARGEST_SCALE;
        let finite = encoding.amax.is_none() && !encoding.nan_scales && !saturates;
        if at_once && source.is_bf16() && finite { Float::Bf16 } else { Float::F32 }
    } else if at_once && fits_odd_bf16 && T::IS_SINGLE && ties == Ties::Even {
        Float::OddBf16
    } else {
        Float::F32
    };
    let bf16_cast = (float != Float::F32).then(|| {
        let bf16 = bf16();
        PlannedCast::new((bf16, element), &options, None).map(|plan| (plan, bf16))
    });
    let data = Rows::new(&to.data, stack);
    let (wide, whole) =
        (band_columns(&encoding, &extent), if is_large(&extent) { 1 } else { extent.block.0 });
    let tall = TRANSPOSED_ROWS.next_multiple_of(whole);
    let can_transpose = tall * wide <= MOST_TRANSPOSED;
    source.transposes &= can_transpose;
    let transposes = can_transpose && !data.is_in_runs();
    let tall = if transposes || source.transposes { tall } else { whole };
    let arrays = BlockArrays {
        scale: per_block("scale", &to.scale)?,
        zero_point: to.zero_point.as_ref().map(|array| per_block("zero_point", array)).transpose()?,
        bias: match &to.bias {
            Some(array) => Some((per_block("bias", array)?, Rounded::new::<T>(array.format)?)),
            None => None,
        },
    };
    let level = Level::active();
    let properties = recipe.steps.properties;
    let multiplies = properties.multiplies && !(properties.powers && element.name() == INT8);
    let least_amax = || {
        let spec = encoding.x.format.float()?;
        Some(T::from_f64(worth(&spec, 1 << spec.mantissa_bits)))
    };
    let numbers = Numbers {
        max,
        largest,
        power_addend: addend(encoding.rule.or(recipe.rule).unwrap_or(ScaleRule::Floor), &largest),
        least_amax: if recipe.normal && encoding.block != (0, 0) { least_amax() } else { None },
        is_asymmetric,
        has_powers: to.scale.format.name() == E8M0,
        multiplies,
        weight: rounds(recipe.in_weight_dtype)?,
        narrow: narrow(encoding.x.format),
        level,
    };
    // Of blocks under a global scale, it is not the caller's that bounds elements.
    let given = encoding.amax.filter(|_| !scheme.global_scale);
    let scales = Scales {
        recipe,
        steps,
        numbers,
        stored: Rounded::new::<T>(to.scale.format)?,
        global: global.into_iter().map(T::from_f32).collect(),
        whole: encoding.global_max.unwrap_or(GLOBAL_MAX) * 6.0,
        array_amax: encoding.amax,
        limits,
        is_usual: given.is_none() && matches!(rounding, Rounding::NearestEven | Rounding::NearestAway),
    };
    let code_limits = limits
        .filter(|_| map.is_none())
        .map(|limits| (limits.low.to_f64() as i16, limits.high.to_f64() as i16))
        .filter(|(low, high)| high - low < i16::from(u8::MAX))
        .map(|(low, high)| (low as u8, high as u8));
    let codes = Codes {
        cast: PlannedCast::new((format::<T>(), element), &options, None)?,
        real: format::<T>(),
        bf16_cast: bf16_cast.transpose()?,
        float,
        quotient,
        element,
        ties,
        map,
        limits,
        code_limits,
        offset: encoding.offset,
        allows_nan: encoding.nan_scales,
        shift: shift(to),
        multiplies,
        // Directions tell from zero what is too small for them.
        by_powers: properties.powers && multiplies && scales.is_usual,
        settings: Settings { options, report: false, threads: 1 },
        level,
    };
    let (values, stored) = ((element, largest.value), (to.scale.format, recipe.least));
    // SAFETY: the caller's promise.
    let importance =
        encoding.importance.as_ref().map(|it| unsafe { Importance::new(it, &encoding.x, stack) });
    let importance = importance.transpose()?;
    let (search, integer_search) = if searches_integers {
        let stored = to.scale.format.float().unwrap_or_else(single);
        let decoded = encoding.x.format.float().unwrap_or_else(single);
        let most = worth(&decoded, decoded.max_code());
        let search = limits.map(|limits| {
            IntegerSearch::new((limits, is_asymmetric), recipe.signs, (&stored, most), importance)
        });
        (None, search)
    } else {
        let choice = (encoding.scales, importance);
        let is_tabled = source.is_bf16() && extent.matrices() * extent.rows * extent.columns >= TABLED;
        (ScaleSearch::new(choice, encoding.x.format, values, stored, is_tabled), None)
    };
    if search.is_none() && integer_search.is_none() && encoding.scales != ScaleChoice::Amax {
        let name = to.scale.format.name();
        return refuse(format!("scale has dtype {name}; use {E4M3} or {E8M0} where scales are searched."));
    }
    let by_tables = if T::IS_SINGLE {
        ByTables::new(&source, Reference { scales: &scales, codes: &codes }, extent.block.1)
    } else {
        None
    };
    let has_extremes = is_asymmetric || to.bias.is_some();
    let amaxes =
        Amaxes::new(source, extent.clone(), has_extremes, given.map(T::from_f64), encoding.nan_scales);
    let (packing, bits, columns) = (encoding.packing, scheme.bits, extent.columns);
    Ok(Encoder {
        amaxes,
        scales,
        codes,
        by_tables,
        packed: Packed { rows: data, packing, bits, columns, transposes, level },
        arrays,
        search,
        integer_search,
        wide,
        tall,
        x: encoding.x,
        global_max: encoding.global_max,
        level,
        extent,
    })
}

/// Returns the smallest normal and the largest number of a dtype with fewer exponents than float32.
fn narrow<T: Real>(dtype: Format) -> Option<(T, T)> {
    let spec = dtype.float()?;
    let [least, most] = [1 << spec.mantissa_bits, spec.max_code()].map(|code| worth(&spec, code));
    (least > f64::from(f32::MIN_POSITIVE)).then(|| (T::from_f64(least), T::from_f64(most)))
}

/// Returns what shifts of blocks are, if they have any.
fn shift(to: &Encoded) -> Option<Shift> {
    let of_elements = to.bias.as_ref().map(|_| Shift::Bias);
    of_elements.or(to.zero_point.as_ref().map(|_| Shift::ZeroPoint))
}

/// Returns the columns of a band: whole blocks, and units of the packing.
fn band_columns(encoding: &Encoding, extent: &Extent) -> usize {
    let columns = extent.columns.max(1);
    let unit = common_multiple(encoding.packing.unit(encoding.scheme.bits), extent.block.1.min(columns));
    if unit >= extent.columns {
        columns
    } else {
        unit * ((BAND / extent.block.0.min(extent.rows.max(1))).min(JOINED) / unit).max(1)
    }
}

fn common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Returns the bounds between codes of a scheme with a code map.
fn code_map(scheme: &Scheme, map: Option<&[f32]>) -> Result<Option<Bounds>, Error> {
    match (scheme.element, map) {
        (Element::Map(_), Some(map)) if map.len() == 1 << scheme.bits => Ok(Some(Bounds::new(map))),
        (Element::Map(map), None) => Ok(Some(Bounds::new(&map.map(f32::from_bits)))),
        (_, None) => Ok(None),
        (_, Some(map)) => refuse(format!(
            "code_map has {} values; give {} for a scheme with a code map, and none for others.",
            map.len(),
            1u32 << scheme.bits
        )),
    }
}

/// What codes mean.
struct Elements<T> {
    /// The format of codes.
    element: Format,
    /// The integers that they may be.
    limits: Option<Limits<T>>,
    /// The largest element, in the recipe's sense, and as scale rules see it.
    max: T,
    largest: Largest,
}

/// Returns what the codes of a scheme mean for a recipe.
fn elements<T: Real>(scheme: &Scheme, recipe: &Recipe, asymmetric: bool) -> Elements<T> {
    let named =
        |name| Format::named(name).unwrap_or_else(|| unreachable!("schemes name formats of the table"));
    let (bits, affine) = (scheme.bits, recipe.steps.properties.affine);
    let element = named(match scheme.element {
        Element::Format(INT8) if affine => UINT8,
        Element::Format(name) => name,
        Element::Map(_) => UINT8,
    });
    let half = (1i64 << (bits - 1)) as f64;
    if let Kind::Float(spec) = element.kind() {
        let value = worth(&spec, spec.max_code());
        let largest = Largest { value, mantissa_bits: spec.mantissa_bits, bits };
        // Codes of floats saturate by themselves.
        Elements { element, limits: None, max: T::from_f64(value), largest }
    } else {
        let largest = Largest { value: 127.0 / 64.0, mantissa_bits: 6, bits };
        let (low, high) = if affine {
            (0.0, 2.0 * half - 1.0)
        } else if recipe.whole_range || (bits < 8 && recipe.family == Family::Integer) {
            (-half, half - 1.0)
        } else {
            (1.0 - half, half - 1.0)
        };
        let limits = Some(Limits { low: T::from_f64(low), high: T::from_f64(high) });
        let max = if recipe.whole_range || asymmetric { half - 0.5 } else { half - 1.0 };
        Elements { element, limits, max: T::from_f64(max), largest }
    }
}
