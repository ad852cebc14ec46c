//! What is encoded, and what is written.

use crate::codec::options::{Named, Rounding};
use crate::error::Error;
use crate::quantization::packing::Packing;
use crate::quantization::recipe::{Family, Recipe};
use crate::quantization::rounded::single;
use crate::quantization::rows::{Array, Rows};
use crate::quantization::scale_rule::ScaleRule;
use crate::quantization::scheme::{Scheme, TABLE};
use crate::quantization::work::Extent;

/// Which scale each block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleChoice {
    /// That of its largest magnitude, as the recipe computes it.
    Amax,
    /// The stored one of least squared error.
    Best,
    /// Of NVFP4, the better one of two: its largest magnitude becomes 6 or 4.
    FourOverSix,
}

impl Named for ScaleChoice {
    const ARGUMENT: &'static str = "scales";
    const NAMES: &'static [(&'static str, Self)] =
        &[("amax", Self::Amax), ("best", Self::Best), ("four_over_six", Self::FourOverSix)];
}

/// The operands of an encoding. Each array has the axes of the stack, then rows, then those of a row's items.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// The weight.
    pub x: Array,
    /// What is stored.
    pub scheme: &'static Scheme,
    /// Whose arithmetic; `None`: the first of the scheme's.
    pub recipe: Option<String>,
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
    /// A float32 for each matrix, as [`global_scale`](crate::quantization::global_scale()) returns it.
    pub global_scale: Option<Array>,
    /// The largest scale of blocks under it; `None`: 448.
    pub global_max: Option<f32>,
    /// Which scale each block takes.
    pub scales: ScaleChoice,
    /// What the squared error of each element is multiplied by where scales are searched: float32 of the shape of `x`, with
    /// strides of 0 along axes on which it does not depend. Blocks of which it is all zero are searched without it.
    pub importance: Option<Array>,
    /// In place of the scheme's.
    pub code_map: Option<Vec<f32>>,
    /// Of codes; `None`: the recipe's.
    pub rounding: Option<Rounding>,
    /// Of stochastic rounding.
    pub seed: u64,
    /// Blocks with infinities or NaN get NaN as their scale; else they are refused.
    pub nan_scales: bool,
}

impl Encoding {
    /// Returns that of a weight by a scheme without options: in its blocks, by its first recipe, packed densely.
    #[must_use]
    pub fn new(x: Array, scheme: &'static Scheme) -> Self {
        Self {
            x,
            scheme,
            recipe: None,
            block: scheme.block,
            packing: Packing::Dense,
            offset: 0,
            rule: None,
            amax: None,
            global_scale: None,
            global_max: None,
            scales: ScaleChoice::Amax,
            importance: None,
            code_map: None,
            rounding: None,
            seed: 0,
            nan_scales: false,
        }
    }
}

/// What an encoding writes.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// Containers of packed codes, of 1 or 4 bytes.
    pub data: Array,
    /// A scale for each block.
    pub scale: Array,
    /// A zero point for each block, of one byte.
    pub zero_point: Option<Array>,
    /// A bias for each block.
    pub bias: Option<Array>,
}

impl Encoded {
    pub(super) fn arrays(&mut self) -> impl Iterator<Item = &mut Array> {
        let Self { data, scale, zero_point, bias } = self;
        [Some(data), Some(scale), zero_point.as_mut(), bias.as_mut()].into_iter().flatten()
    }
}

/// Checks all that does not depend on elements, but for the arrays of blocks.
///
/// # Errors
/// As for [`encode`](super::encode).
pub(super) fn check(
    encoding: &Encoding,
    to: &Encoded,
    recipe: &Recipe,
    extent: &Extent,
) -> Result<(), Error> {
    let scheme = encoding.scheme;
    let size = to.data.format.item_size();
    let items = extent.check("data", &to.data, extent.rows)?;
    let needed = encoding.packing.bytes(scheme.bits, extent.columns).div_ceil(size);
    if items != needed || (size != 1 && size != 4) {
        return refuse(format!(
            "data has {items} items of {size} bytes per row, {} codes of {} bits need {needed} of 1 or 4; give an \
             array of that width.",
            extent.columns, scheme.bits
        ));
    }
    let properties = recipe.steps.properties;
    let affine = properties.affine;
    let asymmetric = to.zero_point.is_some();
    if to.scale.format.float().is_none_or(|spec| !spec.fits_in(&single()) && spec.signed) {
        return refuse(format!(
            "scale has dtype {}; use a float of at most 32 bits, or codes of E8M0 or E4M3 in uint8 (scale_format).",
            to.scale.format.name()
        ));
    }
    check_choice(encoding, recipe, extent.block)?;
    if encoding.importance.is_some() && encoding.scales == ScaleChoice::Amax {
        return refuse(
            "importance is not valid with scales=\"amax\", which weights no errors; leave it out, or use \
             scales=\"best\"."
                .to_owned(),
        );
    }
    if to.bias.is_some() != affine || (asymmetric && (affine || !recipe.whole_range)) {
        return refuse(format!(
            "recipe={:?} of scheme={:?} {}; leave the other arrays out.",
            recipe.name,
            scheme.name,
            if affine { "has biases and no zero points" } else { "has no biases, or no zero points" }
        ));
    }
    if to.zero_point.as_ref().is_some_and(|array| array.format.item_size() != 1) {
        return refuse("zero_point has items of more than a byte; use int8.".to_owned());
    }
    let two_level = scheme.global_scale && properties.has_global;
    if encoding.global_scale.is_some() != two_level {
        return refuse(format!(
            "recipe={:?} of scheme={:?} {}.",
            recipe.name,
            scheme.name,
            if two_level {
                "needs a global_scale; give what global_scale() returns"
            } else {
                "has no global_scale; leave it out"
            }
        ));
    }
    if properties.needs_array_amax && encoding.amax.is_none() {
        return refuse(format!("recipe={:?} needs amax; give that of the array.", recipe.name));
    }
    Ok(())
}

/// Elements of a block whose scale is searched, at most: errors are added in float32, and several blocks fit into a piece.
const MOST_SEARCHED: usize = 256;

/// Of integers: a band has all elements of a block.
pub(super) const MOST_INTEGERS: usize = 1 << 17;

/// Returns the recipes of a scheme that have a choice of scales.
fn recipes_with(choice: ScaleChoice, scheme: &Scheme) -> Vec<&'static str> {
    match choice {
        ScaleChoice::Best => scheme.searched_recipes().collect(),
        ScaleChoice::FourOverSix if scheme.family != Family::TwoLevel => Vec::new(),
        ScaleChoice::Amax | ScaleChoice::FourOverSix => scheme.recipes().collect(),
    }
}

/// Refuses a choice of scales that a scheme, its recipe, or a rounding of codes, has not.
fn check_choice(encoding: &Encoding, recipe: &Recipe, (rows, columns): (usize, usize)) -> Result<(), Error> {
    let Scheme { name, family, .. } = *encoding.scheme;
    let scales = match encoding.scales {
        ScaleChoice::Amax => return Ok(()),
        ScaleChoice::Best => "best",
        ScaleChoice::FourOverSix => "four_over_six",
    };
    let recipes = recipes_with(encoding.scales, encoding.scheme);
    if recipes.is_empty() {
        let schemes = TABLE.iter().filter(|row| !recipes_with(encoding.scales, row).is_empty());
        return refuse(format!(
            "scales={scales:?} is not valid with scheme={name:?}; use scales=\"amax\", or one of the schemes {}.",
            schemes.map(|row| row.name).collect::<Vec<_>>().join(", ")
        ));
    }
    if !recipes.contains(&recipe.name) {
        return refuse(format!(
            "scales={scales:?} is not valid with recipe={:?} of scheme={name:?}; use scales=\"amax\", or one of the \
             recipes {}.",
            recipe.name,
            recipes.join(", ")
        ));
    }
    let is_nearest = matches!(encoding.rounding, None | Some(Rounding::NearestEven | Rounding::NearestAway));
    if !is_nearest {
        return refuse(format!(
            "scales={scales:?} is not valid with this rounding, as it is for codes that are the nearest; leave rounding \
             out, or use scales=\"amax\"."
        ));
    }
    let most = if family == Family::Integer { MOST_INTEGERS } else { MOST_SEARCHED };
    if rows.saturating_mul(columns) > most {
        return Err(Error::Unfit {
            message: format!(
                "scales={scales:?} is not valid with blocks of {rows}x{columns}; use at most {most} elements."
            ),
        });
    }
    if encoding.amax.is_some() && family != Family::TwoLevel {
        return refuse(format!(
            "scales={scales:?} is not valid with amax and scheme={name:?}, as errors are those of the elements; leave \
             amax out."
        ));
    }
    Ok(())
}

/// Takes an array of an item for each block.
pub(super) fn per_block(argument: &str, array: &Array, extent: &Extent) -> Result<Rows, Error> {
    let items = extent.check(argument, array, extent.row_blocks())?;
    if items != extent.column_blocks() {
        return refuse(format!(
            "{argument} has {items} items per row, {} columns in blocks of {} need {}; give one for each block.",
            extent.columns,
            extent.block.1,
            extent.column_blocks()
        ));
    }
    Ok(Rows::new(array, extent.stack.len()))
}

pub(super) fn refuse<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidOption { message })
}
