//! Dtypes that producers compute in, and the scale of a whole array.

use crate::cast::{PlannedCast, Prepared, Settings, cast_piece};
use crate::codec::options::{Options, Overflow};
use crate::codec::reference::worth;
use crate::cpu::DefaultEnvironment;
use crate::error::Error;
use crate::format::{FloatSpec, Format};
use crate::quantization::real::{Real, format};
use crate::quantization::recipe::{Family, Recipe, Steps};

pub(super) fn single() -> FloatSpec {
    format::<f32>().float().unwrap_or_else(|| unreachable!("float32 is a float"))
}

/// A dtype in which a producer computes: values rounded to it and back.
pub(super) struct Rounded {
    pub(super) there: PlannedCast,
    pub(super) back: Prepared,
    pub(super) format: Format,
}

impl Rounded {
    pub(super) fn new<T: Real>(to: Format) -> Result<Self, Error> {
        let options = Options { overflow: Overflow::Saturate, ..Options::default() };
        let there = PlannedCast::new((format::<T>(), to), &options, None)?;
        Ok(Self { there, back: Prepared::new(to, None, format::<T>())?, format: to })
    }

    /// Rounds values, and returns their bytes in the format.
    pub(super) fn round<T: Real>(&self, values: &mut [T], bytes: &mut Vec<u8>) {
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

/// The largest value of E4M3, the format of NVFP4's block scales.
pub(super) const GLOBAL_MAX: f32 = 448.0;

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
pub(super) fn global_scale_here(
    amax: f32,
    recipe: &str,
    weight: Format,
    global_max: f32,
) -> Result<f32, Error> {
    let recipe = Recipe::find(Some(recipe), Family::TwoLevel, "nvfp4")?;
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
pub(super) fn rounded(weight: Format, value: f32) -> Result<f32, Error> {
    let there = Prepared::new(format::<f32>(), Some(weight), format::<f32>())?;
    let mut result = 0f32;
    // SAFETY: one element each.
    unsafe { there.run((&raw const value).cast(), (&raw mut result).cast(), 1) };
    Ok(result)
}

/// `TransformerEngine`'s factor of a whole array.
pub(super) fn encode_scale(amax: f32, whole: f32) -> f32 {
    if amax == 0.0 { 1.0 } else { (whole / amax).min(f32::MAX) }
}
