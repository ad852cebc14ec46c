//! Dtypes that producers compute in.

use crate::cast::{PlannedCast, Prepared, Settings, cast_piece};
use crate::codec::options::{Options, Overflow};
use crate::error::Error;
use crate::format::{FloatSpec, Format};
use crate::quantization::real::{Real, format};

pub(super) fn single() -> FloatSpec {
    format::<f32>().float().unwrap_or_else(|| unreachable!("float32 is a float"))
}

/// A dtype in which a producer computes: values rounded to it and back.
pub(super) struct Rounded {
    pub(super) to_format: PlannedCast,
    pub(super) to_real: Prepared,
    pub(super) format: Format,
}

impl Rounded {
    pub(super) fn new<T: Real>(to: Format) -> Result<Self, Error> {
        let options = Options { overflow: Overflow::Saturate, ..Options::default() };
        let to_format = PlannedCast::new((format::<T>(), to), &options, None)?;
        Ok(Self { to_format, to_real: Prepared::new(to, None, format::<T>())?, format: to })
    }

    /// Rounds values, and returns their bytes in the format.
    pub(super) fn round<T: Real>(&self, values: &mut [T], bytes: &mut Vec<u8>) {
        let count = values.len();
        bytes.resize(count * self.format.item_size(), 0);
        // SAFETY: there is room for as many elements of the format, and both are apart.
        unsafe {
            let from = values.as_mut_ptr().cast::<u8>();
            if !self.to_format.convert(from, bytes.as_mut_ptr(), count) {
                let options = Options { overflow: Overflow::Saturate, ..Options::default() };
                let settings = Settings { options, report: false, threads: 1 };
                let values = std::slice::from_raw_parts(from, size_of_val(values));
                let (source, target) = ((values, format::<T>(), false), (&mut bytes[..], self.format, false));
                // Nothing is refused with these options.
                let _ = cast_piece(0, source, target, &settings);
            }
            self.to_real.convert(bytes.as_ptr(), from, count);
        }
    }
}

/// Returns a number rounded to a dtype, where overflow is infinity.
pub(super) fn rounded(weight: Format, value: f32) -> Result<f32, Error> {
    let cast = Prepared::new(format::<f32>(), Some(weight), format::<f32>())?;
    let mut result = 0f32;
    // SAFETY: one element each.
    unsafe { cast.convert((&raw const value).cast(), (&raw mut result).cast(), 1) };
    Ok(result)
}
