//! The operands of a cast: arrays, factors and settings.

use crate::codec::options::Options;
use crate::error::Error;
use crate::format::Format;

/// A strided array to read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The first element.
    pub pointer: *const u8,
    /// Bytes between elements, per axis.
    pub strides: &'a [isize],
    /// Their format.
    pub format: Format,
    /// They are stored in the other byte order.
    pub swapped: bool,
}

/// A strided array to write, of the same shape.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The first element.
    pub pointer: *mut u8,
    /// Bytes between elements, per axis.
    pub strides: &'a [isize],
    /// Their format.
    pub format: Format,
    /// They are stored in the other byte order.
    pub swapped: bool,
    /// This memory is uninitialized: it may be left half written when an error is returned.
    pub fresh: bool,
}

/// Native-endian float64 factors, strided over the same shape (stride 0 along broadcast axes).
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// The first factor.
    pub pointer: *const u8,
    /// Bytes between factors, per axis.
    pub strides: &'a [isize],
}

impl Scales<'_> {
    /// Returns the one factor for all elements of a shape, if there is one.
    ///
    /// # Safety
    /// The factors of the shape's elements are readable.
    pub(crate) unsafe fn only(&self, shape: &[usize]) -> Option<f64> {
        let varies = shape.iter().zip(self.strides).any(|(&length, &stride)| length > 1 && stride != 0);
        if varies || shape.contains(&0) {
            return None;
        }
        // SAFETY: there is an element, and the first one's factor is at the pointer.
        Some(unsafe { self.pointer.cast::<f64>().read_unaligned() })
    }
}

/// Everything else about a cast.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Rounding, overflow, NaN, seed.
    pub options: Options,
    /// Report what was lost.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub report: bool,
    /// Threads it may use.
    pub threads: usize,
}

impl Default for Settings {
    /// The default options on one thread, without a report.
    fn default() -> Self {
        Options::default().into()
    }
}

impl From<Options> for Settings {
    /// Options on one thread, without a report.
    fn from(options: Options) -> Self {
        Self { options, report: false, threads: 1 }
    }
}

/// The real formats that a pair of formats is cast by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) source: Format,
    pub(crate) target: Format,
    /// Components per element, as one more axis.
    pub(crate) components: usize,
    /// Targets get an imaginary part of +0.
    pub(crate) real_to_complex: bool,
}

impl Parts {
    pub(crate) fn of(source: Format, target: Format) -> Result<Self, Error> {
        match (source.component(), target.component()) {
            (None, None) => Ok(Self { source, target, components: 1, real_to_complex: false }),
            (Some(source), Some(target)) => {
                Ok(Self { source, target, components: 2, real_to_complex: false })
            }
            (None, Some(target)) => Ok(Self { source, target, components: 1, real_to_complex: true }),
            (Some(_), None) => Err(Error::Unsupported { source, target }),
        }
    }
}

/// Returns the number of elements, if source and target both hold them in C order without gaps.
pub(crate) fn dense_count(shape: &[usize], source: &Source<'_>, target: &Target<'_>) -> Option<usize> {
    let mut count = 1;
    let sizes = [source.format.item_size(), target.format.item_size()];
    for (axis, &length) in shape.iter().enumerate().rev() {
        let found = [source.strides[axis], target.strides[axis]];
        if length != 1 && found != sizes.map(|size| (count * size) as isize) {
            return None;
        }
        count *= length;
    }
    Some(count)
}
