//! Floats to packed codes with their scales, band by band.
//!
//! ```text
//! item of work: whole blocks of a matrix of the stack, for one thread
//! band:         blocks side by side. Largest magnitudes; scales and factors by the recipe; codes; packing
//! ```
//! A row of blocks that is no longer than a tile is read once. Blocks of more elements than an item have their largest
//! magnitudes found before, by all threads.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::arithmetic::operation::{ADD, DIVIDE, MULTIPLY, SUBTRACT};
use super::arithmetic::{Blocks, apply, by_block, limit, on_level, with_one};
use super::element::Element;
use super::element::names::{E2M1, E8M0, INT8, UINT8};
use super::largest::{Extremes, raise_largest, widen};
use super::nearest::{Bounds, e2m1_towards_zero, limit_codes, nearest};
use super::packing::{Packing, pack};
use super::real::{Real, format};
use super::recipe::{Family, Recipe, Steps, Ties, ZeroScale};
use super::rows::{Array, Rows};
use super::scale_rule::{Largest, ScaleRule, addend, power, power_code};
use super::scaled::{Float, Scaling, reciprocals, scale};
use super::scheme::Scheme;
use super::work::{Extent, Item, run_items};
use crate::cast::{PlannedCast, Prepared, Settings, cast_piece};
use crate::codec::options::{Options, Overflow, Rounding};
use crate::codec::reference::worth;
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::kernels::tile::{TILE, Tile};
use crate::kernels::vectors::shapes::{Shape, shape_of};

/// The smallest error of two ways to scale a block of NVFP4: to 6 or to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourOverSix {
    /// The mean square.
    Squares,
    /// The mean magnitude.
    Magnitudes,
    /// The largest magnitude.
    Largest,
}

impl crate::codec::options::Named for FourOverSix {
    const ARGUMENT: &'static str = "four_over_six";
    const NAMES: &'static [(&'static str, Self)] =
        &[("mse", Self::Squares), ("mae", Self::Magnitudes), ("abs_max", Self::Largest)];
}

/// The operands of an encoding. Each array has the axes of the stack, then rows, then those of a row's items.
#[derive(Clone, Copy, Debug)]
pub struct Encoding<'a> {
    /// The weight.
    pub x: Array<'a>,
    /// What is stored.
    pub scheme: &'static Scheme,
    /// Whose arithmetic; `None`: the first of the scheme's.
    pub recipe: Option<&'a str>,
    /// Rows and columns that share a scale; 0: a whole axis.
    pub block: (usize, usize),
    /// Where codes go in their containers.
    pub packing: Packing,
    /// Added to codes before they are packed.
    pub offset: i32,
    /// In place of the recipe's rule.
    pub rule: Option<ScaleRule>,
    /// In place of the largest magnitude of each block, or of the array where there is a scale for it.
    pub amax: Option<f64>,
    /// A float32 for each matrix, as [`global_scale`] returns it.
    pub global_scale: Option<Array<'a>>,
    /// The largest scale of blocks under it; `None`: 448.
    pub global_max: Option<f32>,
    /// Each block takes the better one of two scales.
    pub four_over_six: Option<FourOverSix>,
    /// In place of the scheme's.
    pub code_map: Option<&'a [f32]>,
    /// Of codes; `None`: the recipe's.
    pub rounding: Option<Rounding>,
    /// Of stochastic rounding.
    pub seed: u64,
    /// Blocks with infinities or NaN get NaN as their scale; else they are refused.
    pub nan_scales: bool,
}

/// What an encoding writes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    /// Containers of packed codes, of 1 or 4 bytes.
    pub data: Array<'a>,
    /// A scale for each block.
    pub scale: Array<'a>,
    /// A zero point for each block, of one byte.
    pub zero_point: Option<Array<'a>>,
    /// A bias for each block.
    pub bias: Option<Array<'a>>,
}

fn refuse<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidOption { message })
}

/// Encodes floats of any format and strides; those of more than 32 bits by float64's arithmetic.
///
/// # Errors
/// [`Error::InvalidOption`] for shapes and formats that do not fit, and for an element that is not finite;
/// [`Error::UnknownOption`] for a recipe that the scheme has not. What was written by then is of no use.
///
/// # Safety
/// The elements of `x` and of the global scale are readable, those of the other arrays writable, and they overlap
/// neither themselves nor each other.
pub unsafe fn encode(encoding: &Encoding<'_>, to: &Encoded<'_>, threads: usize) -> Result<(), Error> {
    let name = encoding.x.format.name();
    let Some(spec) = encoding.x.format.float() else {
        return refuse(format!("x has dtype {name}; use a real float."));
    };
    // SAFETY: passed on.
    unsafe {
        if spec.fits_in(&single()) {
            Encoder::<f32>::new(encoding, to)?.run(threads)
        } else {
            Encoder::<f64>::new(encoding, to)?.run(threads)
        }
    }
}

fn single() -> crate::format::FloatSpec {
    format::<f32>().float().unwrap_or_else(|| unreachable!("float32 is a float"))
}

/// Returns the largest magnitude of an array: NaN if an element is NaN, 0 if there are none.
///
/// # Errors
/// [`Error::InvalidOption`] if the elements are not floats.
///
/// # Safety
/// The elements are readable.
pub unsafe fn block_amax(x: &Array<'_>, threads: usize) -> Result<f64, Error> {
    if x.format.float().is_none() {
        return refuse(format!("x has dtype {}; use a real float.", x.format.name()));
    }
    // SAFETY: passed on.
    unsafe {
        if x.format.float().is_some_and(|spec| spec.fits_in(&single())) {
            largest_of::<f32>(x, threads)
        } else {
            largest_of::<f64>(x, threads)
        }
    }
}

/// # Safety
/// As for [`block_amax`].
unsafe fn largest_of<T: Held>(x: &Array<'_>, threads: usize) -> Result<f64, Error> {
    let extent = Extent::of("x", x, (0, 0))?;
    let source = Source::<T>::new(x, &extent)?;
    let whole = Mutex::new(T::default());
    run_items(&extent, (TILE, 1), extent.columns * x.format.item_size(), threads, |item| {
        let mut largest = [T::default()];
        T::with_buffers(|buffers| {
            for row in item.rows.clone() {
                let (columns, blocks) = (item.columns.clone(), (extent.columns, 0));
                // SAFETY: the caller's promise.
                unsafe {
                    source.raise(
                        (item.matrix, row, 1),
                        (columns.start, columns.end),
                        blocks,
                        &mut largest,
                        buffers,
                    );
                }
            }
        });
        if let Ok(mut whole) = whole.lock() {
            *whole = whole.larger(largest[0]);
        }
        Ok(())
    })?;
    Ok(whole.into_inner().map_or(f64::NAN, T::to_f64))
}

/// Returns floats as their bits.
fn bits_of<T: Real>(values: &mut [T]) -> &mut [T::Bits] {
    // SAFETY: as large, and all bits are valid in both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// A dtype in which a producer computes: values rounded to it and back.
struct Rounded {
    there: PlannedCast,
    back: Prepared,
    format: Format,
}

impl Rounded {
    fn new<T: Real>(to: Format) -> Result<Self, Error> {
        let options = Options { overflow: Overflow::Saturate, ..Options::default() };
        let there = PlannedCast::new((format::<T>(), to), &options, None)?;
        Ok(Self { there, back: Prepared::new(to, None, format::<T>())?, format: to })
    }

    /// Rounds values, and returns their bytes in the format.
    fn round<T: Real>(&self, values: &mut [T], bytes: &mut Vec<u8>) {
        let count = values.len();
        bytes.resize(count * self.format.item_size(), 0);
        // SAFETY: there is room for as many elements of the format, and both are apart.
        unsafe {
            let from = values.as_mut_ptr().cast::<u8>();
            if !self.there.run(from, bytes.as_mut_ptr(), count) {
                let options = Options { overflow: Overflow::Saturate, ..Options::default() };
                let settings = Settings { options, report: false, threads: 1 };
                let values = std::slice::from_raw_parts(from, size_of_val(values));
                let (source, target) = ((values, format::<T>(), false), (&mut bytes[..], self.format, false));
                // Nothing is refused with these options.
                let _ = cast_piece(0, source, target, &settings);
            }
            self.back.run(bytes.as_ptr(), from, count);
        }
    }
}

/// What bitsandbytes divides by at least.
const SMALLEST_AMAX: f32 = 1e-38;

/// The largest value of E4M3, the format of NVFP4's block scales.
const GLOBAL_MAX: f32 = 448.0;

/// Returns the second-level scale of NVFP4 for the largest magnitude of a weight, as a recipe computes it: the factor
/// of block scales, or what compressed-tensors divides them by.
///
/// # Errors
/// [`Error::UnknownOption`] for a recipe without one.
pub fn global_scale(amax: f32, recipe: &str, weight: Format, global_max: Option<f32>) -> Result<f32, Error> {
    DefaultEnvironment::compute((amax, global_max.unwrap_or(GLOBAL_MAX)), |(amax, global_max)| {
        global_scale_here(amax, recipe, weight, global_max)
    })
}

/// Does the same in the caller's environment.
fn global_scale_here(amax: f32, recipe: &str, weight: Format, global_max: f32) -> Result<f32, Error> {
    let element = Element::Format(E2M1);
    let recipe = Recipe::find(Some(recipe), Family::TwoLevel, element)?;
    let whole = global_max * 6.0;
    Ok(match recipe.steps {
        Steps::DividedGlobal => {
            let weight = if weight.item_size() > 4 { format::<f32>() } else { weight };
            let spec = weight.float().unwrap_or_else(single);
            let smallest = worth(&spec, 1 << spec.mantissa_bits) as f32;
            let scale = rounded(weight, rounded(weight, 1.0 / amax.max(smallest))? * whole)?;
            if scale.is_finite() && amax.is_finite() { scale } else { 1.0 }
        }
        Steps::SingleLevel => 1.0,
        _ if amax == 0.0 => 1.0,
        Steps::EncodeScale => 1.0 / encode_scale(amax, whole),
        _ => amax / whole,
    })
}

/// Returns a number rounded to a dtype, where overflow is infinity.
fn rounded(weight: Format, value: f32) -> Result<f32, Error> {
    let there = Prepared::new(format::<f32>(), Some(weight), format::<f32>())?;
    let mut result = 0f32;
    // SAFETY: one element each.
    unsafe { there.run((&raw const value).cast(), (&raw mut result).cast(), 1) };
    Ok(result)
}

/// `TransformerEngine`'s factor of a whole array.
fn encode_scale(amax: f32, whole: f32) -> f32 {
    if amax == 0.0 { 1.0 } else { (whole / amax).min(f32::MAX) }
}

/// The weight, as tiles of floats.
struct Source<T> {
    x: Rows,
    cast: Prepared,
    /// Elements are floats of the type already, and need not be moved.
    is_direct: bool,
    /// Elements have 16 bits, in the order of their magnitudes after the sign.
    is_short: bool,
    /// They are the upper halves of float32.
    is_bf16: bool,
    level: Level,
    real: PhantomData<T>,
}

impl<T: Real> Source<T> {
    fn new(x: &Array<'_>, extent: &Extent) -> Result<Self, Error> {
        let rows = Rows::new(x, extent.stack.len());
        let shape = x.format.float().and_then(|spec| shape_of(&spec));
        Ok(Self {
            cast: Prepared::new(x.format, None, format::<T>())?,
            is_direct: rows.is_dense() && x.format == format::<T>(),
            is_short: matches!(shape, Some(Shape::Bf16 | Shape::F16)),
            is_bf16: shape == Some(Shape::Bf16),
            x: rows,
            level: Level::active(),
            real: PhantomData,
        })
    }

    /// Returns up to a tile of a row as it is stored: where it is, which may not be aligned, or in the room for it.
    ///
    /// # Safety
    /// The elements are readable.
    unsafe fn read(
        &self,
        matrix: usize,
        row: usize,
        (start, count): (usize, usize),
        raw: &mut Tile<u64>,
    ) -> *const u8 {
        // SAFETY: the caller's promise; elements have up to 8 bytes.
        unsafe {
            let from = self.x.row(matrix, row);
            self.x.read(self.level, from, (1, start, count), raw.0.as_mut_ptr().cast()).0
        }
    }

    /// Does the same as floats.
    ///
    /// # Safety
    /// The elements are readable, and there is room for them.
    unsafe fn load(
        &self,
        matrix: usize,
        row: usize,
        (start, count): (usize, usize),
        (raw, room): (&mut Tile<u64>, *mut T),
    ) -> *const T {
        // SAFETY: the caller's promise.
        unsafe {
            let found = self.read(matrix, row, (start, count), raw);
            if self.is_direct {
                return found.cast();
            }
            self.cast.run(found, room.cast(), count);
            room
        }
    }
}

impl<T: Real> Source<T> {
    /// Raises the largest magnitudes of blocks by rows between two columns, given the width of blocks and the number of the
    /// first one.
    ///
    /// # Safety
    /// The elements are readable.
    unsafe fn raise(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (begin, end): (usize, usize),
        (width, first): (usize, usize),
        amax: &mut [T],
        buffers: &mut Buffers<T>,
    ) {
        let Buffers { raw, values, shorts, constant, .. } = buffers;
        shorts.clear();
        shorts.resize(if self.is_short { amax.len() } else { 0 }, 0);
        // What lies densely is read where it is.
        let at_once = self.is_direct || (self.is_short && self.x.is_dense());
        let step = if at_once { end - begin } else { TILE };
        for row in row..row + rows {
            for start in (begin..end).step_by(step) {
                let count = step.min(end - start);
                let blocks = Blocks { width, begun: start % width };
                let here = start / width - first..(start + count).div_ceil(width) - first;
                // SAFETY: the caller's promise.
                unsafe {
                    if self.is_short {
                        let found = self.read(matrix, row, (start, count), raw);
                        raise_largest(self.level, (found.cast(), count), blocks, &mut shorts[here]);
                    } else {
                        let room = (&mut *raw, values.0.as_mut_ptr());
                        let found = self.load(matrix, row, (start, count), room);
                        raise_largest(self.level, (found.cast(), count), blocks, bits_of(&mut amax[here]));
                    }
                }
            }
        }
        if self.is_short {
            constant.clear();
            constant.resize(amax.len(), T::default());
            // SAFETY: there are as many.
            unsafe { self.cast.run(shorts.as_ptr().cast(), constant.as_mut_ptr().cast(), shorts.len()) };
            for (amax, &found) in amax.iter_mut().zip(constant.iter()) {
                *amax = amax.larger(found);
            }
        }
    }
}

/// The buffers of a thread; vectors have an entry for each block of a band.
#[derive(Default)]
struct Buffers<T: Real> {
    raw: Tile<u64>,
    values: Tile<T>,
    codes: Tile<u8>,
    packed: Tile<u32>,
    bytes: Vec<u8>,
    rounded: Vec<u8>,
    /// The largest magnitudes of elements of 16 bits.
    shorts: Vec<u16>,
    amax: Vec<T>,
    extremes: Vec<Extremes<T>>,
    scale: Vec<T>,
    factors: Vec<T>,
    shifts: Vec<T>,
    reciprocals: Vec<f32>,
    constant: Vec<T>,
}

/// The integers that codes may be.
#[derive(Clone, Copy)]
struct Limits<T> {
    low: T,
    high: T,
}

/// An encoding with everything that is decided before an element is read.
struct Encoder<'a, T> {
    what: &'a Encoding<'a>,
    recipe: &'static Recipe,
    extent: Extent,
    source: Source<T>,
    data: Rows,
    scale: Rows,
    zero_point: Option<Rows>,
    bias: Option<(Rows, Rounded)>,
    /// To stored scales and back.
    stored: Rounded,
    /// To the dtype of the weight and back, if the recipe computes in it.
    weight: Option<Rounded>,
    /// The same, of quotients.
    quotient: Option<Rounded>,
    codes: PlannedCast,
    /// The format of values.
    real: Format,
    /// From bf16, where quotients are rounded to it at once.
    bf16_codes: Option<PlannedCast>,
    element: Format,
    settings: Settings,
    /// The largest element, in the recipe's sense.
    max: T,
    largest: Largest,
    limits: Option<Limits<T>>,
    /// The same as codes, if there are codes beyond them.
    code_limits: Option<(u8, u8)>,
    global: Vec<T>,
    map: Option<Bounds>,
    /// Columns of a band: whole blocks, and units of the packing.
    wide: usize,
    odd: bool,
    level: Level,
    failed: AtomicBool,
    /// The largest magnitudes and extremes of all blocks, if they were found before.
    grid: Option<Vec<(T, Extremes<T>)>>,
}

fn common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Elements of a band of blocks of several rows, about, so that it is in the cache when it is read again.
const BAND: usize = 1 << 17;

/// Elements of a band of joined rows, at most: they stay in the innermost cache.
const JOINED: usize = 1 << 13;

/// Elements of a block that is worth finding its largest magnitude by several threads.
const LARGE: usize = 1 << 17;

impl<'a, T: Held> Encoder<'a, T> {
    /// # Safety
    /// As for [`encode`].
    #[expect(clippy::too_many_lines, reason = "every check of an operand, and every choice")]
    unsafe fn new(what: &'a Encoding<'a>, to: &Encoded<'_>) -> Result<Self, Error> {
        let scheme = what.scheme;
        let recipe = Recipe::find(what.recipe, scheme.family, scheme.element)?;
        let extent = Extent::of("x", &what.x, what.block)?;
        let stack = extent.stack.len();
        let per_block = |argument: &str, array: &Array<'_>| {
            let found = extent.check(argument, array, extent.row_blocks())?;
            if found != extent.column_blocks() {
                return refuse(format!(
                    "{argument} has {found} items per row, {} columns in blocks of {} need {}; give one for each block.",
                    extent.columns,
                    extent.block.1,
                    extent.column_blocks()
                ));
            }
            Ok(Rows::new(array, stack))
        };
        let size = to.data.format.item_size();
        let found = extent.check("data", &to.data, extent.rows)?;
        let needed = what.packing.bytes(scheme.bits, extent.columns).div_ceil(size);
        if found != needed || (size != 1 && size != 4) {
            return refuse(format!(
                "data has {found} items of {size} bytes per row, {} codes of {} bits need {needed} of 1 or 4; give an \
                 array of that width.",
                extent.columns, scheme.bits
            ));
        }
        let affine = recipe.steps == Steps::Edge;
        let asymmetric = to.zero_point.is_some();
        if to.scale.format.float().is_none_or(|spec| !spec.fits_in(&single()) && spec.signed) {
            return refuse(format!(
                "scale has dtype {}; use a float of at most 32 bits, or uint8 with scale_format.",
                to.scale.format.name()
            ));
        }
        if what.four_over_six.is_some() && scheme.family != Family::TwoLevel {
            return refuse(format!(
                "four_over_six is not valid with scheme={:?}; use it with nvfp4.",
                scheme.name
            ));
        }
        if to.bias.is_some() != affine || (asymmetric && (affine || !recipe.whole_range)) {
            return refuse(format!(
                "recipe={:?} of scheme={:?} {}; leave the other arrays out.",
                recipe.name,
                scheme.name,
                if affine { "has biases and no zero points" } else { "has no biases, or no zero points" }
            ));
        }
        if to.zero_point.is_some_and(|array| array.format.item_size() != 1) {
            return refuse("zero_point has items of more than a byte; use int8.".to_owned());
        }
        let two_level = scheme.global_scale && recipe.steps != Steps::SingleLevel;
        if what.global_scale.is_some() != two_level {
            return refuse(format!(
                "global_scale={} is not valid with recipe={:?} of scheme={:?}; {}.",
                if two_level { "None" } else { "given" },
                recipe.name,
                scheme.name,
                if two_level { "give what global_scale() returns" } else { "leave it out" }
            ));
        }
        if recipe.steps == Steps::EncodeScale && what.amax.is_none() {
            return refuse(format!(
                "amax=None is not valid with recipe={:?}; give that of the array.",
                recipe.name
            ));
        }
        // SAFETY: the caller's promise.
        let global = unsafe { what.global_scale.map_or(Ok(Vec::new()), |array| extent.per_matrix(&array))? };
        let (element, limits, max, largest) = elements::<T>(scheme, recipe, asymmetric);
        let rounding = match recipe.ties {
            Ties::Away => Rounding::NearestAway,
            _ => Rounding::NearestEven,
        };
        let rounding = Some(what.rounding.unwrap_or(rounding));
        let options =
            Options { rounding, overflow: Overflow::Saturate, seed: what.seed, ..Options::default() };
        let map = match (scheme.element, what.code_map) {
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
        let source = Source::new(&what.x, &extent)?;
        let quotient = rounds(match recipe.family {
            Family::TwoLevel => false,
            _ => recipe.in_weight_dtype || (recipe.whole_in_weight_dtype && what.block == (0, 0)),
        })?;
        // Without an amax of the caller's or NaN, quotients are finite.
        let at_once = quotient.is_some()
            && source.is_bf16
            && !asymmetric
            && what.amax.is_none()
            && !what.nan_scales
            && rounding != Some(Rounding::Stochastic);
        let bf16_codes = at_once.then(|| PlannedCast::new((what.x.format, element), &options, None));
        let unit = common_multiple(what.packing.unit(scheme.bits), extent.block.1.min(extent.columns.max(1)));
        Ok(Self {
            recipe,
            source,
            data: Rows::new(&to.data, stack),
            scale: per_block("scale", &to.scale)?,
            zero_point: to.zero_point.map(|array| per_block("zero_point", &array)).transpose()?,
            bias: match to.bias {
                Some(array) => Some((per_block("bias", &array)?, Rounded::new::<T>(array.format)?)),
                None => None,
            },
            stored: Rounded::new::<T>(to.scale.format)?,
            weight: rounds(recipe.in_weight_dtype)?,
            quotient,
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
            wide: if unit >= extent.columns {
                extent.columns.max(1)
            } else {
                unit * ((BAND / extent.block.0.min(extent.rows.max(1))).min(TILE) / unit).max(1)
            },
            odd: size_of::<T>() == 8,
            level: Level::active(),
            failed: AtomicBool::new(false),
            grid: None,
            what,
            extent,
        })
    }

    /// # Safety
    /// As for [`encode`].
    unsafe fn run(mut self, threads: usize) -> Result<(), Error> {
        let bytes = self.source.x.size() * self.extent.columns + self.data.size() * self.data.width();
        let (block, columns) = (self.extent.block, self.extent.columns);
        // SAFETY: the caller's promise; items are apart.
        unsafe {
            if block.0 * block.1 > LARGE {
                self.grid = Some(self.find_grid(bytes, threads)?);
            }
            let tall = if self.grid.is_some() { 1 } else { block.0 };
            let joins = self.joins();
            run_items(&self.extent, (self.wide, tall), bytes, threads, |item| {
                let columns = if joins { item.rows.len() * columns } else { columns };
                T::with_buffers(|buffers| self.item(item, joins, columns, buffers));
                Ok(())
            })?;
            if self.failed.load(Ordering::Relaxed) { self.first_not_finite() } else { Ok(()) }
        }
    }

    /// Finds the largest magnitudes and the extremes of all blocks.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn find_grid(&self, bytes: usize, threads: usize) -> Result<Vec<(T, Extremes<T>)>, Error> {
        let (down, across) = (self.extent.row_blocks(), self.extent.column_blocks());
        let grid =
            Mutex::new(vec![(T::default(), Extremes::default()); self.extent.matrices() * down * across]);
        let width = self.extent.block.1;
        // SAFETY: the caller's promise.
        run_items(&self.extent, (TILE, 1), bytes, threads, |item| unsafe {
            T::with_buffers(|buffers| {
                for row in item.rows.clone() {
                    let (first, last) = (item.columns.start / width, item.columns.end.div_ceil(width));
                    buffers.clear(last - first);
                    let columns = (item.columns.start, item.columns.end);
                    self.measure((item.matrix, row, 1), columns, first, buffers);
                    let place = (item.matrix * down + self.extent.row_block(row)) * across + first;
                    let Ok(mut grid) = grid.lock() else { return };
                    let found = buffers.amax.iter().zip(&buffers.extremes);
                    for (known, (&amax, extremes)) in grid[place..].iter_mut().zip(found) {
                        known.0 = known.0.larger(amax);
                        known.1.include(extremes.low);
                        known.1.include(extremes.high);
                    }
                }
            });
            Ok(())
        })?;
        Ok(grid.into_inner().unwrap_or_default())
    }

    /// Adds rows, between two columns, to what is known of their blocks, the first of which has this number.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn measure(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (begin, end): (usize, usize),
        first: usize,
        buffers: &mut Buffers<T>,
    ) {
        let width = self.extent.block.1;
        let mut amax = std::mem::take(&mut buffers.amax);
        // SAFETY: the caller's promise.
        unsafe { self.source.raise((matrix, row, rows), (begin, end), (width, first), &mut amax, buffers) };
        buffers.amax = amax;
        if self.zero_point.is_none() && self.bias.is_none() {
            return;
        }
        let Buffers { raw, values, extremes, .. } = buffers;
        for row in row..row + rows {
            for start in (begin..end).step_by(TILE) {
                let count = TILE.min(end - start);
                let blocks = Blocks { width, begun: start % width };
                let here = start / width - first..(start + count).div_ceil(width) - first;
                // SAFETY: the caller's promise.
                unsafe {
                    let room = (&mut *raw, values.0.as_mut_ptr());
                    let found = self.source.load(matrix, row, (start, count), room);
                    widen(self.level, (found, count), blocks, &mut extremes[here]);
                }
            }
        }
    }

    /// Whether the rows of an item follow each other without gaps in every array and share no blocks, and are as good as
    /// one row.
    fn joins(&self) -> bool {
        let Extent { columns, block, .. } = self.extent;
        let across = self.extent.column_blocks();
        let unit = self.what.packing.unit(self.what.scheme.bits);
        let blocks = [Some(&self.scale), self.zero_point.as_ref(), self.bias.as_ref().map(|bias| &bias.0)];
        block.0 == 1
            && self.grid.is_none()
            && columns <= JOINED
            && columns % block.1 == 0
            && columns % unit == 0
            && self.source.x.is_gapless(columns)
            && self.data.is_gapless(self.data.width())
            && blocks.into_iter().flatten().all(|rows| rows.is_gapless(across))
    }

    /// Encodes an item of work, whose rows are joined to one of so many columns or have as many.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn item(&self, item: &Item, joins: bool, columns: usize, buffers: &mut Buffers<T>) {
        let (tall, width) = (self.extent.block.0, self.extent.block.1);
        if joins {
            let wide = (JOINED / self.extent.columns).max(1) * self.extent.columns;
            for start in (0..columns).step_by(wide) {
                let end = columns.min(start + wide);
                let (first, blocks) = (start / width, (end - start) / width);
                // SAFETY: the caller's promise for these rows.
                unsafe {
                    self.band((item.matrix, item.rows.start, 1), (start, end), (first, blocks), buffers);
                };
            }
            return;
        }
        let mut row = item.rows.start;
        while row < item.rows.end {
            let rows = (tall - row % tall).min(item.rows.end - row);
            for start in item.columns.clone().step_by(self.wide) {
                let end = item.columns.end.min(start + self.wide).min(columns);
                let (first, blocks) = (start / width, end.div_ceil(width) - start / width);
                // SAFETY: the caller's promise for these rows and columns.
                unsafe { self.band((item.matrix, row, rows), (start, end), (first, blocks), buffers) };
            }
            row += rows;
        }
    }

    /// Encodes blocks side by side, or some of their rows.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn band(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, end): (usize, usize),
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) {
        let row_block = self.extent.row_block(row);
        buffers.clear(blocks);
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(grid) = &self.grid {
                let place =
                    (matrix * self.extent.row_blocks() + row_block) * self.extent.column_blocks() + first;
                let found = &grid[place..place + blocks];
                for ((amax, extremes), known) in buffers.amax.iter_mut().zip(&mut buffers.extremes).zip(found)
                {
                    (*amax, *extremes) = *known;
                }
            } else {
                self.measure((matrix, row, rows), (start, end), first, buffers);
            }
            if let (Some(amax), false) = (self.what.amax, self.what.scheme.global_scale) {
                let found = buffers.amax.iter().all(|amax| amax.to_f64().is_finite());
                buffers.amax.fill(T::from_f64(if found { amax } else { f64::NAN }));
            }
            let mut largest = [T::default()];
            let whole = Blocks { width: blocks.max(1), begun: 0 };
            let found = (buffers.amax.as_ptr().cast(), blocks);
            raise_largest(self.level, found, whole, bits_of(&mut largest));
            if !largest[0].is_finite() && !self.what.nan_scales {
                self.failed.store(true, Ordering::Relaxed);
                return;
            }
            if let Some(error) = self.what.four_over_six {
                self.better_scales((matrix, row, rows), (start, end), first, error, buffers);
            } else {
                self.scales(matrix, 1.0, buffers);
            }
            if row % self.extent.block.0 == 0 {
                self.write_blocks(matrix, row_block, (first, blocks), buffers);
            }
            for row in row..row + rows {
                for begin in (start..end).step_by(self.tile_width()) {
                    let count = self.tile_width().min(end - begin);
                    let Buffers { raw, values, .. } = &mut *buffers;
                    let from = if self.source.is_bf16 && self.bias.is_none() {
                        (self.source.read(matrix, row, (begin, count), raw), Float::Bf16)
                    } else {
                        let room = (raw, values.0.as_mut_ptr());
                        (self.source.load(matrix, row, (begin, count), room).cast(), Float::F32)
                    };
                    self.tile(matrix, row, (from, begin, count), first, buffers);
                }
            }
        }
    }

    /// Columns of a tile: a multiple of the packing's unit.
    fn tile_width(&self) -> usize {
        let unit = self.what.packing.unit(self.what.scheme.bits);
        TILE / unit * unit
    }

    /// Writes the scales, zero points and biases of a band.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn write_blocks(
        &self,
        matrix: usize,
        row_block: usize,
        (first, blocks): (usize, usize),
        buffers: &mut Buffers<T>,
    ) {
        let (level, items) = (self.level, (1, first, blocks));
        // SAFETY: the caller's promise; the vectors have an entry for each block.
        unsafe {
            self.scale.write(level, self.scale.row(matrix, row_block), items, buffers.bytes.as_ptr());
            if let Some(zero_point) = &self.zero_point {
                buffers.bytes.clear();
                buffers.bytes.extend(buffers.shifts.iter().map(|shift| shift.to_f64() as i8 as u8));
                zero_point.write(level, zero_point.row(matrix, row_block), items, buffers.bytes.as_ptr());
            }
            if let Some((bias, to)) = &self.bias {
                let Buffers { shifts, constant, bytes, .. } = buffers;
                constant.clear();
                constant.extend_from_slice(shifts);
                to.round(constant, bytes);
                bias.write(level, bias.row(matrix, row_block), items, bytes.as_ptr());
            }
        }
    }

    /// Finds two scales for each block of a band, with which its largest magnitude becomes 6 or 4, and takes the one with the
    /// smaller error, of two alike that of 6.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn better_scales(
        &self,
        (matrix, row, rows): (usize, usize, usize),
        (start, end): (usize, usize),
        first: usize,
        error: FourOverSix,
        buffers: &mut Buffers<T>,
    ) {
        let width = self.extent.block.1;
        let divides = self.recipe.steps == Steps::DividedGlobal;
        let global = self.global.get(matrix).map_or(1.0, |global| global.to_f64());
        let spec = self.element.float().unwrap_or_else(single);
        let elements: [f64; 16] = std::array::from_fn(|code| worth(&spec, code as u64));
        let mut found = [6.0, 4.0].map(|_| (Vec::new(), Vec::new(), Vec::new(), Vec::new()));
        for (stretch, found) in [1.0, 1.5].into_iter().zip(&mut found) {
            self.scales(matrix, stretch, buffers);
            let mut errors = vec![0f64; buffers.scale.len()];
            for row in row..row + rows {
                for begin in (start..end).step_by(TILE) {
                    let count = TILE.min(end - begin);
                    let Buffers { raw, values, codes, factors, reciprocals, scale, .. } = &mut *buffers;
                    let here = begin / width - first..(begin + count).div_ceil(width) - first;
                    let blocks = Blocks { width, begun: begin % width };
                    let mut room = Tile::<T>::default();
                    let to = values.0.as_mut_ptr();
                    // SAFETY: the caller's promise; both buffers have room for a tile.
                    let from = unsafe {
                        let from = self.source.load(matrix, row, (begin, count), (raw, room.0.as_mut_ptr()));
                        let reciprocals = reciprocals.get(here.clone()).unwrap_or_default();
                        let ends = ((from.cast(), Float::F32), (to, Float::F32));
                        self.quotients(ends, count, blocks, (&factors[here], reciprocals));
                        from
                    };
                    self.round(0, (&values.0, Float::F32), &mut codes.0[..count]);
                    for index in 0..count {
                        let block = (begin + index) / width - first;
                        let scale = scale[block].to_f64();
                        let scale = if divides { scale / global } else { scale * global };
                        // SAFETY: as above.
                        let value = unsafe { from.add(index).read_unaligned() }.to_f64();
                        let off = (value - elements[usize::from(codes.0[index] & 15)] * scale).abs();
                        errors[block] = match error {
                            FourOverSix::Squares => errors[block] + off * off,
                            FourOverSix::Magnitudes => errors[block] + off,
                            FourOverSix::Largest => errors[block].max(off),
                        };
                    }
                }
            }
            let Buffers { scale, factors, reciprocals, .. } = &mut *buffers;
            *found = (errors, scale.clone(), factors.clone(), reciprocals.clone());
        }
        let [to_six, to_four] = found;
        let Buffers { scale, factors, reciprocals, bytes, .. } = buffers;
        for block in 0..scale.len() {
            let taken = if to_four.0[block] < to_six.0[block] { &to_four } else { &to_six };
            (scale[block], factors[block]) = (taken.1[block], taken.2[block]);
            if let (Some(place), Some(&taken)) = (reciprocals.get_mut(block), taken.3.get(block)) {
                *place = taken;
            }
        }
        self.stored.round(scale, bytes);
    }

    /// Multiplies the elements of a tile by the factors of their blocks, or divides them.
    ///
    /// # Safety
    /// As for [`scale`].
    unsafe fn quotients(
        &self,
        (from, to): ((*const u8, Float), (*mut T, Float)),
        count: usize,
        blocks: Blocks,
        (factors, reciprocals): (&[T], &[f32]),
    ) {
        let (level, tile) = (self.level, (from.0.cast(), to.0, count));
        // SAFETY: passed on.
        unsafe {
            if let Some(numbers) = T::f32s(factors) {
                let reciprocals = if self.multiplies() { &[] } else { reciprocals };
                let to = (to.0.cast(), to.1);
                scale(level, Scaling { from, to, count, blocks, numbers, reciprocals });
            } else if self.multiplies() {
                by_block::<T, MULTIPLY>(level, tile, blocks, factors, self.odd);
            } else {
                by_block::<T, DIVIDE>(level, tile, blocks, factors, self.odd);
            }
        }
    }

    /// Finds the scales of a band, and what codes are computed with: `factors`, and `shifts` for zero points and
    /// biases. `bytes` becomes the stored scales.
    #[expect(clippy::too_many_lines, reason = "a line or two for each of the recipes' steps")]
    fn scales(&self, matrix: usize, stretch: f32, buffers: &mut Buffers<T>) {
        let recipe = self.recipe;
        let global = self.global.get(matrix).copied().unwrap_or(T::ONE);
        let Buffers { amax, extremes, scale, factors, shifts, constant, bytes, rounded, .. } = buffers;
        let found = &mut buffers.reciprocals;
        let blocks = amax.len();
        let mut to_weight = |values: &mut [T]| {
            if let Some(weight) = &self.weight {
                weight.round(values, rounded);
            }
        };
        let with = |values: &mut [T], operation: u8, number: T| self.with(values, operation, number);
        scale.clear();
        scale.extend_from_slice(amax);
        let six = T::from_f32(6.0);
        let encode_scale = T::from_f32(encode_scale(
            self.what.amax.unwrap_or(0.0) as f32,
            self.what.global_max.unwrap_or(GLOBAL_MAX) * 6.0,
        ));
        match recipe.steps {
            Steps::Quotient if self.zero_point.is_some() => {
                for (scale, extremes) in scale.iter_mut().zip(extremes.iter()) {
                    let Extremes { low, high } = extremes.with_zero();
                    *scale = high.combine::<SUBTRACT, false>(low);
                }
                to_weight(scale);
                with(scale, DIVIDE, self.max.combine::<ADD, false>(self.max));
                to_weight(scale);
            }
            Steps::Quotient | Steps::ThenReciprocal => {
                with(scale, DIVIDE, self.max);
                to_weight(scale);
            }
            Steps::Reciprocal | Steps::Amax => {
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, scale);
                with(factors, MULTIPLY, self.max);
                if recipe.steps == Steps::Reciprocal {
                    scale.fill(T::ONE);
                    self.combine(scale, DIVIDE, factors);
                }
            }
            Steps::Inverse => {
                with(scale, ADD, T::from_f32(1e-7));
                constant.clear();
                constant.extend_from_slice(scale);
                scale.fill(self.max);
                self.combine(scale, DIVIDE, constant);
            }
            Steps::Power => {
                let rule = self.what.rule.or(recipe.rule).unwrap_or(ScaleRule::Floor);
                powers(self.level, scale, addend(rule, &self.largest), &self.largest);
            }
            Steps::DividedGlobal => {
                with(scale, DIVIDE, six);
                to_weight(scale);
                with(scale, MULTIPLY, global);
            }
            Steps::ProductWithSix => with(scale, DIVIDE, six.combine::<MULTIPLY, false>(global)),
            Steps::ReciprocalGlobal | Steps::TwoQuotients => {
                with(scale, DIVIDE, six);
                with(scale, DIVIDE, global);
            }
            Steps::EncodeScale => {
                let sixth = T::ONE.combine::<DIVIDE, false>(six);
                with(scale, MULTIPLY, encode_scale.combine::<MULTIPLY, false>(sixth));
            }
            Steps::SingleLevel => with(scale, DIVIDE, six),
            Steps::Edge => self.edges(extremes, scale, shifts),
            Steps::Nearest => {}
        }
        if recipe.family == Family::TwoLevel {
            if stretch != 1.0 {
                with(scale, MULTIPLY, T::from_f32(stretch));
            }
            limit(self.level, scale, T::from_f32(recipe.least), T::from_f32(GLOBAL_MAX));
        }
        let as_powers = self.stored.format.name() == E8M0;
        if as_powers && recipe.steps != Steps::Power {
            let one = Largest { value: 1.0, mantissa_bits: 0, bits: 8 };
            powers(self.level, scale, addend(ScaleRule::Ceil, &one), &one);
        }
        let zero = match recipe.zero {
            ZeroScale::Value(code) if as_powers && recipe.steps == Steps::Power => power(code as i64) as f32,
            ZeroScale::Value(value) => value,
            ZeroScale::Epsilon => self.epsilon(),
        };
        let has_zero = !matches!(recipe.steps, Steps::Edge | Steps::Inverse);
        let (zero, nothing, nan) = (T::from_f32(zero), T::default(), T::from_f32(f32::NAN));
        on_level::<T>(self.level, || {
            for (scale, &amax) in scale.iter_mut().zip(amax.iter()) {
                let finite = if amax == nothing && has_zero { zero } else { *scale };
                *scale = if amax.is_finite() { finite } else { nan };
            }
        });
        // Codes are computed with scales as they are stored, or as they were before.
        constant.clear();
        constant.extend_from_slice(scale);
        self.stored.round(constant, bytes);
        let replaces = matches!(recipe.steps, Steps::Quotient | Steps::DividedGlobal);
        if replaces && zero != nothing && constant.contains(&nothing) {
            for scale in constant.iter_mut().filter(|scale| **scale == nothing) {
                *scale = zero;
            }
            self.stored.round(constant, bytes);
        }
        if recipe.family == Family::Integer && matches!(recipe.steps, Steps::Edge | Steps::ThenReciprocal) {
            factors.clear();
            factors.extend_from_slice(scale);
        }
        scale.clear();
        scale.extend_from_slice(constant);
        let with = |values: &mut Vec<T>, start: &[T], operation: u8, number: T| {
            values.clear();
            values.extend_from_slice(start);
            self.with(values, operation, number);
        };
        match recipe.steps {
            Steps::Quotient | Steps::SingleLevel | Steps::Inverse => {
                factors.clear();
                factors.extend_from_slice(scale);
            }
            Steps::Power => {
                factors.clear();
                factors.resize(blocks, if self.element.name() == INT8 { T::from_f32(64.0) } else { T::ONE });
                self.combine(factors, DIVIDE, scale);
            }
            Steps::Reciprocal if as_powers => {
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, scale);
            }
            Steps::Reciprocal | Steps::Amax | Steps::Edge => {}
            Steps::ThenReciprocal => {
                let before = if recipe.family == Family::Integer { factors.clone() } else { scale.clone() };
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, &before);
                to_weight(factors);
            }
            Steps::Nearest => {
                constant.clear();
                constant.extend(
                    scale
                        .iter()
                        .map(|scale| scale.limited(T::from_f32(SMALLEST_AMAX), T::from_f32(f32::INFINITY))),
                );
                factors.clear();
                factors.resize(blocks, T::ONE);
                self.combine(factors, DIVIDE, constant);
            }
            Steps::DividedGlobal => with(factors, scale, DIVIDE, global),
            Steps::ProductWithSix | Steps::TwoQuotients => with(factors, scale, MULTIPLY, global),
            Steps::ReciprocalGlobal => {
                factors.clear();
                factors.resize(blocks, T::ONE.combine::<DIVIDE, false>(global));
                self.combine(factors, DIVIDE, scale);
            }
            Steps::EncodeScale => {
                with(factors, scale, MULTIPLY, T::ONE.combine::<DIVIDE, false>(encode_scale));
                let product = factors.clone();
                factors.fill(T::ONE);
                self.combine(factors, DIVIDE, &product);
                limit(self.level, factors, T::default(), T::from_f32(f32::MAX));
            }
        }
        if self.zero_point.is_some() {
            shifts.clear();
            shifts.extend(extremes.iter().map(|extremes| extremes.with_zero().low));
            self.combine(shifts, DIVIDE, scale);
            to_weight(shifts);
            let limits = self.limits.unwrap_or(Limits { low: T::default(), high: T::default() });
            for shift in shifts.iter_mut() {
                *shift = limits.low.combine::<SUBTRACT, false>(*shift);
            }
            to_weight(shifts);
            for shift in shifts.iter_mut() {
                *shift = T::from_f64(shift.limited(limits.low, limits.high).to_f64().round_ties_even());
            }
            // 0 / 0, which torch turns into the integer 0.
            for (shift, _) in shifts.iter_mut().zip(amax.iter()).filter(|(_, amax)| amax.to_f64() == 0.0) {
                *shift = T::default();
            }
        }
        // Where there is no scale, or none that is a number, codes are 0.
        let none = if self.multiplies() { nothing } else { T::from_f32(f32::INFINITY) };
        let (is_edge, needs_scale) = (recipe.steps == Steps::Edge, recipe.steps != Steps::EncodeScale);
        on_level::<T>(self.level, || {
            for (factor, (&scale, &amax)) in factors.iter_mut().zip(scale.iter().zip(amax.iter())) {
                let is_zero = !is_edge && (amax == nothing || (needs_scale && scale == nothing));
                *factor = if is_zero || !amax.is_finite() { none } else { *factor };
            }
        });
        if let (false, Some(factors), Some(amax)) = (self.multiplies(), T::f32s(factors), T::f32s(amax)) {
            let level = if self.what.amax.is_none() { self.level } else { Level::PORTABLE };
            reciprocals(level, factors, amax, found);
        }
    }

    /// Applies an operation to numbers and one other.
    fn with(&self, values: &mut [T], operation: u8, number: T) {
        match operation {
            SUBTRACT => with_one::<T, SUBTRACT>(self.level, values, number, self.odd),
            MULTIPLY => with_one::<T, MULTIPLY>(self.level, values, number, self.odd),
            DIVIDE => with_one::<T, DIVIDE>(self.level, values, number, self.odd),
            _ => with_one::<T, ADD>(self.level, values, number, self.odd),
        }
    }

    /// Whether codes are products with the factors; else they are quotients.
    fn multiplies(&self) -> bool {
        matches!(
            self.recipe.steps,
            Steps::Reciprocal
                | Steps::Amax
                | Steps::Inverse
                | Steps::ThenReciprocal
                | Steps::ReciprocalGlobal
                | Steps::EncodeScale
                | Steps::Power
                | Steps::Nearest
        )
    }

    /// Scales and biases of MLX: the edge of larger magnitude is a whole number of steps from zero.
    fn edges(&self, extremes: &[Extremes<T>], scale: &mut [T], bias: &mut Vec<T>) {
        bias.clear();
        let steps = T::from_f64((1u64 << self.what.scheme.bits) as f64 - 1.0);
        for (scale, &Extremes { low, high }) in scale.iter_mut().zip(extremes) {
            let range = high.combine::<SUBTRACT, false>(low).combine::<DIVIDE, false>(steps);
            let range = range.limited(T::from_f32(1e-7), T::from_f32(f32::INFINITY));
            let from_low = low.larger(T::default()) > high.larger(T::default());
            let (edge, step) =
                if from_low { (low, range) } else { (high, T::default().combine::<SUBTRACT, false>(range)) };
            let whole = T::from_f64(edge.combine::<DIVIDE, false>(step).to_f64().round_ties_even());
            if whole == T::default() {
                *scale = step;
                bias.push(T::default());
            } else {
                *scale = edge.combine::<DIVIDE, false>(whole);
                bias.push(edge);
            }
        }
    }

    /// The distance from 1 to the next value of the format of scales.
    fn epsilon(&self) -> f32 {
        let bits = self.stored.format.float().map_or(0, |spec| spec.mantissa_bits);
        2f32.powi(-(bits as i32))
    }

    /// Applies an operation that is known at run time. Of float64, results are rounded to odd, for they are rounded
    /// again.
    fn combine(&self, values: &mut [T], operation: u8, other: &[T]) {
        match operation {
            SUBTRACT => apply::<T, SUBTRACT>(self.level, values, other, self.odd),
            MULTIPLY => apply::<T, MULTIPLY>(self.level, values, other, self.odd),
            DIVIDE => apply::<T, DIVIDE>(self.level, values, other, self.odd),
            _ => apply::<T, ADD>(self.level, values, other, self.odd),
        }
    }

    /// Turns the values of a tile of a row into packed codes.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn tile(
        &self,
        matrix: usize,
        row: usize,
        (mut from, start, count): ((*const u8, Float), usize, usize),
        first: usize,
        buffers: &mut Buffers<T>,
    ) {
        let (level, width) = (self.level, self.extent.block.1);
        let Buffers { values, codes, factors, shifts, rounded, packed, reciprocals, .. } = buffers;
        let blocks = Blocks { width, begun: start % width };
        let here = start / width - first..(start + count).div_ceil(width) - first;
        let factors = &factors[here.clone()];
        let shifts = shifts.get(here.clone()).unwrap_or_default();
        let to = values.0.as_mut_ptr();
        let float = if self.bf16_codes.is_some() { Float::Bf16 } else { Float::F32 };
        // SAFETY: the caller's promise, and the buffer has room for a tile.
        unsafe {
            if self.bias.is_some() {
                by_block::<T, SUBTRACT>(level, (from.0.cast(), to, count), blocks, shifts, self.odd);
                from = (to.cast(), Float::F32);
            }
            // Products take no reciprocals.
            let reciprocals = reciprocals.get(here).unwrap_or_default();
            self.quotients((from, (to, float)), count, blocks, (factors, reciprocals));
        }
        let (values, codes) = (&mut values.0[..count], &mut codes.0[..count]);
        if let (Some(quotient), Float::F32) = (&self.quotient, float) {
            quotient.round(values, rounded);
        }
        if self.zero_point.is_some() {
            let to = values.as_mut_ptr();
            // SAFETY: these are the elements of the slice.
            unsafe { by_block::<T, ADD>(level, (to, to, count), blocks, shifts, self.odd) };
            if let Some(weight) = &self.weight {
                weight.round(values, rounded);
            }
        }
        // Codes saturate, and are limited after they are rounded; but NaN takes the lower limit.
        if let (Some(limits), true) = (self.limits, self.what.nan_scales) {
            limit(level, values, limits.low, limits.high);
        }
        let index = ((matrix * self.extent.rows + row) * self.extent.columns + start) as u64;
        // SAFETY: the caller's promise; there is room for the codes of a tile, at most a byte each.
        unsafe {
            let (packing, bits, size) = (self.what.packing, self.what.scheme.bits, self.data.size());
            let (from, to) = (packing.bytes(bits, start), packing.bytes(bits, start + count));
            let items = to.div_ceil(size) - from / size;
            let direct = self.data.is_dense() && items * size == to - from;
            let there = self.data.row(matrix, row).wrapping_add(from);
            if direct && bits == 8 {
                return self.round(index, (values, float), std::slice::from_raw_parts_mut(there, count));
            }
            self.round(index, (values, float), codes);
            if direct {
                return pack(level, (packing, bits), codes.as_ptr(), there, count);
            }
            let room = packed.0.as_mut_ptr().cast::<u8>();
            room.write_bytes(0, items * size);
            pack(level, (packing, bits), codes.as_ptr(), room, count);
            self.data.write(level, self.data.row(matrix, row), (1, from / size, items), room);
        }
    }

    /// Rounds values, or the bf16 that a tile begins with, to codes, the first of which has this flat index, and adds the
    /// offset.
    fn round(&self, index: u64, (values, float): (&[T], Float), codes: &mut [u8]) {
        if let Some(bounds) = &self.map {
            nearest(self.level, values, bounds, codes);
        } else {
            self.round_to_element(index, (values, float), codes);
        }
        if self.code_limits.is_some() || self.what.offset != 0 {
            let signed = self.element.kind() == (Kind::Integer { signed: true });
            let limits =
                self.code_limits.unwrap_or(if signed { (1 << 7, i8::MAX as u8) } else { (0, u8::MAX) });
            limit_codes(self.level, codes, limits, signed, self.what.offset as u8);
        }
    }

    /// Rounds to codes of the element's format.
    fn round_to_element(&self, index: u64, (values, float): (&[T], Float), codes: &mut [u8]) {
        let ties = if self.what.rounding.is_none() && self.element.name() == E2M1 {
            self.recipe.ties
        } else {
            Ties::Even
        };
        if ties != Ties::Even {
            e2m1_towards_zero(self.level, &values[..codes.len()], codes);
            let negative_zeros = ties == Ties::TowardsZeroNegative;
            for (code, value) in codes.iter_mut().zip(values) {
                if (*code).trailing_zeros() >= 3 {
                    let is_zero = value.to_f64() == 0.0;
                    *code = if negative_zeros && (is_zero || *code == 8) { 8 } else { 0 };
                }
            }
            return;
        }
        // SAFETY: there are as many codes as values, of one byte each, apart from them.
        unsafe {
            let from = values.as_ptr().cast::<u8>();
            let stochastic = self.what.rounding == Some(Rounding::Stochastic);
            let (plan, format) = match (&self.bf16_codes, float) {
                (Some(plan), Float::Bf16) => (plan, self.what.x.format),
                _ => (&self.codes, self.real),
            };
            if stochastic || !plan.run(from, codes.as_mut_ptr(), codes.len()) {
                let values = std::slice::from_raw_parts(from, codes.len() * format.item_size());
                let (source, target) = ((values, format, false), (codes, self.element, false));
                // Nothing is refused with these options.
                let _ = cast_piece(index, source, target, &self.settings);
            }
        }
    }

    /// Returns the error for the first element in C order that is not finite.
    ///
    /// # Safety
    /// As for [`encode`].
    unsafe fn first_not_finite(&self) -> Result<(), Error> {
        let Extent { rows, columns, .. } = self.extent;
        let mut found = None;
        T::with_buffers(|buffers| {
            for row in 0..self.extent.matrices() * rows {
                for start in (0..columns).step_by(TILE) {
                    let count = TILE.min(columns - start);
                    let Buffers { raw, values, .. } = &mut *buffers;
                    // SAFETY: the caller's promise.
                    unsafe {
                        let room = (raw, values.0.as_mut_ptr());
                        let tile = self.source.load(row / rows, row % rows, (start, count), room);
                        let value = |place: usize| tile.add(place).read_unaligned();
                        if let Some(place) = (0..count).find(|&place| !value(place).is_finite()) {
                            found = Some((row, start + place, value(place).to_f64()));
                            return;
                        }
                    }
                }
            }
        });
        let Some((row, column, value)) = found else { return Ok(()) };
        let (mut rest, mut index) = (row / rows, vec![row % rows, column]);
        for &length in self.extent.stack.iter().rev() {
            index.insert(0, rest % length);
            rest /= length;
        }
        refuse(format!(
            "x has {value} at index {index:?}, for which no scale is right; set nonfinite=\"nan\" to give its block a \
             scale of NaN."
        ))
    }
}

/// Replaces magnitudes by the powers of two of their blocks.
fn powers<T: Real>(level: Level, values: &mut [T], addend: u64, largest: &Largest) {
    on_level::<T>(level, || {
        for value in values {
            *value = T::from_f64(power(power_code(value.to_f64(), addend, largest)));
        }
    });
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

impl<T: Real> Buffers<T> {
    /// Forgets the blocks of the last band.
    fn clear(&mut self, blocks: usize) {
        self.amax.clear();
        self.amax.resize(blocks, T::default());
        self.extremes.clear();
        self.extremes.resize(blocks, Extremes::default());
    }
}

/// A type whose buffers each thread keeps.
trait Held: Real {
    /// Calls a function with the buffers of this thread.
    fn with_buffers(function: impl FnOnce(&mut Buffers<Self>));
}

/// Keeps the buffers of a thread between calls: clearing them each time would take longer than a small array.
macro_rules! held {
    ($real:ty, $name:ident) => {
        thread_local! {
            static $name: RefCell<Box<Buffers<$real>>> = RefCell::default();
        }
        impl Held for $real {
            fn with_buffers(function: impl FnOnce(&mut Buffers<Self>)) {
                $name.with_borrow_mut(|buffers| function(buffers));
            }
        }
    };
}
held!(f32, F32_BUFFERS);
held!(f64, F64_BUFFERS);
