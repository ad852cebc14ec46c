//! Everything that is decided before an element is read.

use super::operands::{Encoded, Encoding, check, per_block, refuse};
use super::rounded::{Rounded, single};
use super::scale_tables::ByTables;
use super::source::{Source, TURNED};
use crate::cast::{PlannedCast, Settings};
use crate::codec::odd_bf16::MANTISSA;
use crate::codec::options::{Options, Overflow, Rounding};
use crate::codec::reference::worth;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::kernels::tables::e2m1_codes::fits_e2m1;
use crate::quantization::arithmetic::PIECE;
use crate::quantization::element::Element;
use crate::quantization::element::names::{E2M1, E4M3, INT8, UINT8};
use crate::quantization::largest::Extremes;
use crate::quantization::nearest::Bounds;
use crate::quantization::packing::Packing;
use crate::quantization::real::{Real, bf16, format};
use crate::quantization::recipe::{Family, Recipe, Steps, Ties};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::scale_rule::Largest;
use crate::quantization::scaled::Float;
use crate::quantization::scheme::Scheme;
use crate::quantization::work::Extent;

/// The integers that codes may be.
#[derive(Clone, Copy)]
pub(super) struct Limits<T> {
    pub(super) low: T,
    pub(super) high: T,
}

/// An encoding with everything that is decided before an element is read.
pub(super) struct Encoder<T> {
    pub(super) what: Encoding,
    pub(super) recipe: &'static Recipe,
    pub(super) extent: Extent,
    pub(super) source: Source<T>,
    pub(super) data: Rows,
    /// Rows of packed codes are not dense, and are moved there item by item.
    pub(super) turns: bool,
    pub(super) scale: Rows,
    pub(super) zero_point: Option<Rows>,
    pub(super) bias: Option<(Rows, Rounded)>,
    /// To stored scales and back.
    pub(super) stored: Rounded,
    /// To the dtype of the weight and back, if the recipe computes in it.
    pub(super) weight: Option<Rounded>,
    /// The same, of quotients.
    pub(super) quotient: Option<Rounded>,
    pub(super) codes: PlannedCast,
    /// The format of values.
    pub(super) real: Format,
    /// What quotients are rounded to as they are computed.
    pub(super) float: Float,
    /// From there, and the format, if it is bf16.
    pub(super) bf16_codes: Option<(PlannedCast, Format)>,
    pub(super) element: Format,
    pub(super) settings: Settings,
    /// The largest element, in the recipe's sense.
    pub(super) max: T,
    pub(super) largest: Largest,
    pub(super) limits: Option<Limits<T>>,
    /// The same as codes, if there are codes beyond them.
    pub(super) code_limits: Option<(u8, u8)>,
    pub(super) global: Vec<T>,
    pub(super) map: Option<Bounds>,
    /// Columns of a band: whole blocks, and units of the packing.
    pub(super) wide: usize,
    /// Rows of an item are multiples of it.
    pub(super) tall: usize,
    pub(super) odd: bool,
    pub(super) level: Level,
    /// The largest magnitudes and extremes of all blocks, if they were found before.
    pub(super) grid: Option<Vec<(T, Extremes<T>)>>,
    /// Those of all blocks as bf16, if they were found with that of the array.
    pub(super) amaxes: Option<Vec<u16>>,
    /// What codes are found by, if not by quotients that are rounded.
    pub(super) by_tables: Option<ByTables>,
}

fn common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// No scale of finite elements is beyond this.
const LARGEST_SCALE: f64 = f32::MAX as f64 / 2.0;

/// Elements of a band of joined rows, or of one row, at most: they stay in the second cache.
pub(super) const JOINED: usize = 1 << 15;

/// Elements of a block that is worth finding its largest magnitude by several threads.
const LARGE: usize = 1 << 17;

/// Elements that are moved together, at most.
const MOST_TURNED: usize = 1 << 18;

/// Whether the largest magnitudes of blocks are found before, by all threads.
pub(super) fn is_large(extent: &Extent) -> bool {
    extent.block.0 * extent.block.1 > LARGE
}

/// Elements of a band of blocks of several rows, about, so that it is in the cache when it is read again.
const BAND: usize = 1 << 17;

impl<T: Real> Encoder<T> {
    /// # Safety
    /// As for [`encode`].
    #[expect(clippy::too_many_lines, reason = "every choice")]
    pub(super) unsafe fn new(what: Encoding, to: &Encoded) -> Result<Self, Error> {
        let scheme = what.scheme;
        let recipe = Recipe::find(what.recipe.as_deref(), scheme.family, scheme.name)?;
        let extent = Extent::of("x", &what.x, what.block)?;
        let stack = extent.stack.len();
        check(&what, to, recipe, &extent)?;
        let per_block = |argument: &str, array: &Array| per_block(argument, array, &extent);
        let asymmetric = to.zero_point.is_some();
        // SAFETY: the caller's promise.
        let global = unsafe { extent.per_matrix(what.global_scale.as_ref())? };
        let (element, limits, max, largest) = elements::<T>(scheme, recipe, asymmetric);
        let rounding = match recipe.ties {
            Ties::Away => Rounding::NearestAway,
            _ => Rounding::NearestEven,
        };
        let rounding = Some(what.rounding.unwrap_or(rounding));
        let options =
            Options { rounding, overflow: Overflow::Saturate, seed: what.seed, ..Options::default() };
        let map = match (scheme.element, &what.code_map) {
            (Element::Map(_), Some(map)) if map.len() == 1 << scheme.bits => Some(Bounds::new(map)),
            (Element::Map(map), None) => Some(Bounds::new(&map.map(f32::from_bits))),
            (_, None) => None,
            (_, Some(map)) => {
                return refuse(format!(
                    "code_map has {} values; give {} for a scheme with a code map, and none for others.",
                    map.len(),
                    1u32 << scheme.bits
                ));
            }
        };
        let rounds = |it_does: bool| {
            let same = what.x.format == format::<T>();
            (it_does && !same).then(|| Rounded::new::<T>(what.x.format)).transpose()
        };
        let mut source = Source::new(&what.x, &extent)?;
        let quotient = rounds(match recipe.family {
            Family::TwoLevel => false,
            _ => recipe.in_weight_dtype || (recipe.whole_in_weight_dtype && what.block == (0, 0)),
        })?;
        let at_once = !asymmetric && map.is_none() && rounding != Some(Rounding::Stochastic);
        let few_bits = element.float().is_some_and(|spec| spec.signed && spec.mantissa_bits + 2 <= MANTISSA);
        let float = if quotient.is_some() {
            // Without NaN, an amax of the caller's or scales that saturate, quotients are small.
            let spec = to.scale.format.float().unwrap_or_else(single);
            let saturates = worth(&spec, spec.max_code()) < LARGEST_SCALE;
            let finite = what.amax.is_none() && !what.nan_scales && !saturates;
            if at_once && source.is_bf16() && finite { Float::Bf16 } else { Float::F32 }
        } else if at_once
            && few_bits
            && size_of::<T>() == size_of::<f32>()
            && ties_of(&what, recipe, element) == Ties::Even
        {
            Float::OddBf16
        } else {
            Float::F32
        };
        let bf16_codes = (float != Float::F32).then(|| {
            let bf16 = bf16();
            PlannedCast::new((bf16, element), &options, None).map(|plan| (plan, bf16))
        });
        let unit = common_multiple(what.packing.unit(scheme.bits), extent.block.1.min(extent.columns.max(1)));
        let wide = if unit >= extent.columns {
            extent.columns.max(1)
        } else {
            unit * ((BAND / extent.block.0.min(extent.rows.max(1))).min(JOINED) / unit).max(1)
        };
        let data = Rows::new(&to.data, stack);
        let whole = if is_large(&extent) { 1 } else { extent.block.0 };
        let tall = TURNED.next_multiple_of(whole);
        let can_turn = tall * wide <= MOST_TURNED;
        source.turns &= can_turn;
        let turns = can_turn && !data.is_in_runs();
        let mut encoder = Self {
            recipe,
            turns,
            tall: if turns || source.turns { tall } else { whole },
            source,
            data,
            scale: per_block("scale", &to.scale)?,
            zero_point: to.zero_point.as_ref().map(|array| per_block("zero_point", array)).transpose()?,
            bias: match &to.bias {
                Some(array) => Some((per_block("bias", array)?, Rounded::new::<T>(array.format)?)),
                None => None,
            },
            stored: Rounded::new::<T>(to.scale.format)?,
            weight: rounds(recipe.in_weight_dtype)?,
            quotient,
            float,
            bf16_codes: bf16_codes.transpose()?,
            codes: PlannedCast::new((format::<T>(), element), &options, None)?,
            real: format::<T>(),
            element,
            settings: Settings { options, report: false, threads: 1 },
            max,
            largest,
            limits,
            code_limits: limits
                .filter(|_| map.is_none())
                .map(|limits| (limits.low.to_f64() as i16, limits.high.to_f64() as i16))
                .filter(|(low, high)| high - low < i16::from(u8::MAX))
                .map(|(low, high)| (low as u8, high as u8)),
            global: global.into_iter().map(T::from_f32).collect(),
            map,
            wide,
            odd: size_of::<T>() == 8,
            level: Level::active(),
            grid: None,
            amaxes: None,
            by_tables: None,
            extent,
            what,
        };
        encoder.by_tables = encoder.by_tables();
        Ok(encoder)
    }

    /// Returns what codes are found by, if not by quotients that are rounded.
    fn by_tables(&self) -> Option<ByTables> {
        let plain = self.source.is_bf16()
            && size_of::<T>() == size_of::<f32>()
            && !self.widens()
            && self.map.is_none()
            && !self.what.nan_scales
            && self.is_usual();
        let width = self.extent.block.1;
        match (self.element.name(), self.recipe.family) {
            _ if !plain => None,
            (E2M1, family @ (Family::Mx | Family::TwoLevel)) => {
                // The largest scale is that of the format, so larger elements have the largest code.
                let is_bounded = match family {
                    Family::TwoLevel => self.stored.format.name() == E4M3,
                    _ => self.has_powers(),
                };
                let has_tables = is_bounded
                    && matches!(self.ties(), Ties::Even | Ties::TowardsZero)
                    && self.what.offset == 0
                    && fits_e2m1(self.level, width)
                    && PIECE.is_multiple_of(width);
                has_tables.then_some(ByTables::OfScales)
            }
            (E4M3, _) if self.quotient.is_none() || self.float == Float::Bf16 => Some(ByTables::OfBlocks),
            _ => {
                let is_whole = self.float == Float::Bf16 && self.limits.is_some() && !self.multiplies();
                (is_whole && self.rounds_to_even()).then_some(ByTables::Integers)
            }
        }
    }

    /// Returns the bytes of the codes of so many columns.
    pub(super) fn bytes(&self, columns: usize) -> usize {
        self.what.packing.bytes(self.what.scheme.bits, columns)
    }

    /// Whether each code is a byte.
    pub(super) fn is_plain(&self) -> bool {
        (self.what.packing, self.what.scheme.bits) == (Packing::Dense, u8::BITS)
    }

    /// Whether the extremes of blocks are needed.
    pub(super) fn widens(&self) -> bool {
        self.zero_point.is_some() || self.bias.is_some()
    }

    /// What becomes of ties in codes of the element's format.
    pub(super) fn ties(&self) -> Ties {
        ties_of(&self.what, self.recipe, self.element)
    }

    /// Whether codes are drawn.
    pub(super) fn draws(&self) -> bool {
        self.what.rounding == Some(Rounding::Stochastic)
    }
}

/// Returns what becomes of ties in codes of a format.
pub(super) fn ties_of(what: &Encoding, recipe: &Recipe, element: Format) -> Ties {
    if what.rounding.is_none() && element.name() == E2M1 { recipe.ties } else { Ties::Even }
}

/// Returns the format of codes, the integers that they may be, the largest element in the recipe's sense, and as scale
/// rules see it.
fn elements<T: Real>(
    scheme: &Scheme,
    recipe: &Recipe,
    asymmetric: bool,
) -> (Format, Option<Limits<T>>, T, Largest) {
    let named =
        |name| Format::named(name).unwrap_or_else(|| unreachable!("schemes name formats of the table"));
    let bits = scheme.bits;
    let name = match scheme.element {
        Element::Format(INT8) if recipe.steps == Steps::Edge => UINT8,
        Element::Format(name) => name,
        Element::Map(_) => UINT8,
    };
    let element = named(name);
    let half = (1i64 << (bits - 1)) as f64;
    let limits = |low: f64, high: f64| Some(Limits { low: T::from_f64(low), high: T::from_f64(high) });
    if let Kind::Float(spec) = element.kind() {
        let value = worth(&spec, spec.max_code());
        let largest = Largest { value, mantissa_bits: spec.mantissa_bits, bits };
        // Codes of floats saturate by themselves.
        (element, None, T::from_f64(value), largest)
    } else {
        let largest = Largest { value: 127.0 / 64.0, mantissa_bits: 6, bits };
        let (low, high) = match recipe.steps {
            Steps::Edge => (0.0, 2.0 * half - 1.0),
            _ if recipe.whole_range || (bits < 8 && recipe.family == Family::Integer) => (-half, half - 1.0),
            _ => (1.0 - half, half - 1.0),
        };
        let max = if recipe.whole_range || asymmetric { half - 0.5 } else { half - 1.0 };
        (element, limits(low, high), T::from_f64(max), largest)
    }
}
