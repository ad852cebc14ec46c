//! Everything that is decided before an element is read.

use super::block_arithmetic::{BlockArithmetic, Narrowing};
use super::containers::Containers;
use super::decoder::Decoder;
use super::operands::{Decoding, GlobalUse, Meaning, PerBlock, group_index, per_row, refuse};
use super::results::{Bf16Products, Results};
use super::tables::{Parts, Tables};
use super::values::CodeValues;
use crate::cast::Prepared;
use crate::cpu::Level;
use crate::error::Error;
use crate::format::{Format, Kind};
use crate::kernels::vectors::shapes::shape_of;
use crate::quantization::arithmetic::{LANES, PIECE};
use crate::quantization::packing::Packing;
use crate::quantization::real::{Real, bf16, format};
use crate::quantization::rows::{Array, Rows};
use crate::quantization::scaled::{MOST_EXPONENT, NO_EXPONENTS};
use crate::quantization::work::Extent;

/// Rows of a piece whose operands are not dense.
const TALL: usize = 16;

/// Columns of such a piece.
const NARROW: usize = PIECE / TALL;

/// Elements from which on shorter pieces are faster: the caches fetch the next one meanwhile.
const LONG: usize = 1 << 21;

/// Plans a decoding.
///
/// # Safety
/// As for [`decode`](super::decode), of group indices, divisors and a global scale.
pub(super) unsafe fn plan<T: Real>(decoding: Decoding, out: &Array) -> Result<Decoder<T>, Error> {
    // SAFETY: the caller's promise.
    let plan = unsafe { Plan::new(decoding, out, format::<T>())? };
    let Plan { extent, containers, values, results, per_block, numbers, narrowing, decoding, .. } = plan;
    let [scale, zero_point, bias] = per_block;
    let reals = |numbers: Vec<f32>| numbers.into_iter().map(T::from_f32).collect();
    let level = plan.level;
    let arithmetic = BlockArithmetic {
        scale,
        zero_point,
        bias,
        global: reals(numbers.global),
        global_use: decoding.global_scale.as_ref().map(|&(_, global_use)| global_use),
        groups: numbers.groups,
        offset: T::from_f32(decoding.offset as f32),
        scale_divides: decoding.scale_divides,
        exact: decoding.exact,
        narrowing,
        level,
        is_odd: decoding.exact && out.format != format::<T>(),
    };
    let parts = Parts {
        extent: &extent,
        containers: &containers,
        values: &values,
        arithmetic: &arithmetic,
        results: &results,
    };
    let has_tables = numbers.divisors.is_none();
    let tables = if has_tables { Tables::new(parts, plan.is_float, only_scales(&decoding)) } else { None };
    Ok(Decoder {
        containers,
        values,
        arithmetic,
        products: plan.products,
        divisors: numbers.divisors.map(reals),
        results,
        tables,
        global_scale: decoding.global_scale,
        wide: plan.wide,
        tall: plan.tall,
        level,
        extent,
    })
}

/// What is decided whichever floats blocks are computed in.
struct Plan {
    extent: Extent,
    containers: Containers,
    values: CodeValues,
    results: Results,
    /// Scales, zero points and biases.
    per_block: [Option<PerBlock>; 3],
    numbers: Numbers,
    narrowing: Option<Narrowing>,
    products: Option<Bf16Products>,
    /// Codes are those of a float.
    is_float: bool,
    wide: usize,
    tall: usize,
    level: Level,
    decoding: Decoding,
}

/// What is read when a decoding is planned.
struct Numbers {
    global: Vec<f32>,
    groups: Option<Vec<u32>>,
    divisors: Option<Vec<f32>>,
}

impl Plan {
    /// Makes one for blocks that are computed in a format.
    ///
    /// # Safety
    /// As for [`plan`].
    unsafe fn new(decoding: Decoding, out: &Array, real: Format) -> Result<Self, Error> {
        if out.format.float().is_none() {
            return refuse(format!("out has dtype {}; use a real float.", out.format.name()));
        }
        let extent = Extent::of("out", out, decoding.block)?;
        let (stack, level) = (extent.stack.len(), Level::active());
        let high = decoding.high.as_ref();
        let containers = Containers {
            data: rows_of_containers("data", &decoding.data, (decoding.packing, decoding.bits), &extent)?,
            high: high
                .map(|high| rows_of_containers("high", high, (Packing::Dense, 1), &extent))
                .transpose()?,
            packing: decoding.packing,
            bits: decoding.bits,
            level,
        };
        let values = code_values(&decoding, real)?;
        let grouped = decoding.group_index.is_some();
        let per_block = |argument: &str, array: &Option<Array>| {
            array.as_ref().map(|array| PerBlock::new(argument, array, &extent, grouped)).transpose()
        };
        let per_block = [
            per_block("scale", &decoding.scale)?,
            per_block("zero_point", &decoding.zero_point)?,
            per_block("bias", &decoding.bias)?,
        ];
        let widths = per_block.each_ref().map(|items| items.as_ref().map(|items| items.items.width()));
        // SAFETY: the caller's promise.
        let numbers = unsafe {
            Numbers {
                global: extent.per_matrix(decoding.global_scale.as_ref().map(|(array, _)| array))?,
                groups: decoding
                    .group_index
                    .as_ref()
                    .map(|array| group_index(array, &extent, widths))
                    .transpose()?,
                divisors: decoding.divisor.as_ref().map(|array| per_row(array, &extent)).transpose()?,
            }
        };
        let results = Results {
            out: Rows::new(out, stack),
            cast: Prepared::new(real, None, out.format)?,
            shape: out.format.float().and_then(|spec| shape_of(&spec)),
        };
        let narrows = decoding.narrow && decoding.bias.is_some() && out.format != real;
        let narrowing = || {
            let to_narrow = Prepared::new(real, None, out.format)?;
            Ok(Narrowing { to_narrow, to_real: Prepared::new(out.format, None, real)? })
        };
        let unit = decoding.packing.unit(decoding.bits);
        let is_dense = containers.data.is_in_runs()
            && results.out.is_dense()
            && containers.high.as_ref().is_none_or(Rows::is_in_runs);
        let (widest, tall) = if is_dense { (widest(&extent), 1) } else { (NARROW, TALL) };
        let is_float = matches!(decoding.meaning, Meaning::Format(format) if format.float().is_some());
        Ok(Self {
            products: bf16_products(&decoding, &extent, level)?,
            narrowing: narrows.then(narrowing).transpose()?,
            wide: widest / unit * unit,
            extent,
            containers,
            values,
            results,
            per_block,
            numbers,
            is_float,
            tall,
            level,
            decoding,
        })
    }
}

/// Takes an array of containers.
fn rows_of_containers(
    argument: &str,
    array: &Array,
    (packing, bits): (Packing, u32),
    extent: &Extent,
) -> Result<Rows, Error> {
    let size = array.format.item_size();
    if size != 1 && size != 4 {
        let name = array.format.name();
        return refuse(format!("{argument} has dtype {name}; give a view of it of 1 or 4 bytes per item."));
    }
    let items = extent.check(argument, array, extent.rows)?;
    let needed = packing.bytes(bits, extent.columns).div_ceil(size);
    if items != needed {
        return refuse(format!(
            "{argument} has {items} items of {size} bytes per row, {} codes of {bits} bits need {needed}; \
             give an array of that width.",
            extent.columns
        ));
    }
    Ok(Rows::new(array, extent.stack.len()))
}

/// Returns what codes mean, as floats of a format.
fn code_values(decoding: &Decoding, real: Format) -> Result<CodeValues, Error> {
    let bits = decoding.bits + u32::from(decoding.high.is_some());
    match &decoding.meaning {
        &Meaning::Format(element) if element.row().bits <= 8 && bits <= 8 => {
            Ok(CodeValues::Cast(Prepared::new(element, None, real)?))
        }
        Meaning::Map(map) if map.len() == 1 << bits => {
            let mut entries = Box::new([0f32; 256]);
            entries[..map.len()].copy_from_slice(map);
            Ok(CodeValues::Map(entries))
        }
        Meaning::Format(format) => {
            refuse(format!("element={:?} is not valid; use a format of at most 8 bits.", format.name()))
        }
        Meaning::Map(map) => {
            refuse(format!("code_map has {} values, codes of {bits} bits need {}.", map.len(), 1 << bits))
        }
    }
}

/// Returns the columns of a piece of dense rows.
fn widest(extent: &Extent) -> usize {
    if extent.matrices() * extent.rows * extent.columns > LONG { PIECE / 2 } else { PIECE }
}

/// Whether values are products with scales, and all else but biases is in these.
fn only_scales(decoding: &Decoding) -> bool {
    let others = [&decoding.zero_point, &decoding.group_index, &decoding.divisor];
    decoding.scale.is_some()
        && others.iter().all(|other| other.is_none())
        && !decoding.exact
        && !decoding.scale_divides
        && decoding.global_scale.as_ref().is_none_or(|(_, global_use)| *global_use != GlobalUse::After)
}

/// Returns the products by way of bf16, if results are products of values that it holds and scales of blocks that are not
/// short.
fn bf16_products(decoding: &Decoding, extent: &Extent, level: Level) -> Result<Option<Bf16Products>, Error> {
    let pays =
        only_scales(decoding) && decoding.bias.is_none() && decoding.offset == 0 && extent.block.1 >= LANES;
    match decoding.meaning {
        Meaning::Format(format) if pays && format.kind() != Kind::Bool => {
            let is_int8 = format.kind() == Kind::Integer { signed: true } && format.row().bits == u8::BITS;
            // Not E8M0, the one without a sign: its values have exponents of the whole range.
            let is_near = format.float().is_none_or(|spec| spec.signed);
            let exponents = if is_near { (-MOST_EXPONENT, MOST_EXPONENT) } else { NO_EXPONENTS };
            Ok(Some(Bf16Products { cast: Prepared::new(format, None, bf16())?, is_int8, exponents, level }))
        }
        _ => Ok(None),
    }
}
