//! The errors of a tile, and the largest relative one: only elements that may exceed the largest so far are divided.

use super::extremes::bits;
use super::squares::{LANES, Values};
use crate::cpu::level::run_portable;
use crate::cpu::{InstructionSet, Kernel, Level, RawKernel};

/// Below this, products of relative errors and sources may lose bits.
pub(crate) const TINY: f32 = f32::from_bits((127 - 70) << 23);

/// What is known of the errors of a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorSummary {
    /// The largest magnitude, as bits.
    pub(crate) largest: u32,
    /// How many are zero.
    pub(crate) zeros: u32,
    /// Whether some relative error may exceed the largest so far.
    pub(crate) may_exceed: bool,
}

impl ErrorSummary {
    /// The summary of errors that are all zero.
    pub(crate) fn of_zeros(count: usize) -> Self {
        Self { largest: 0, zeros: count as u32, may_exceed: false }
    }
}

/// Replaces results by their errors; `FUSED` uses fused multiply-add.
struct ErrorLoop<const FUSED: bool> {
    sources: Values,
    results: *mut f32,
    ratio: f32,
}

impl<const FUSED: bool> RawKernel for ErrorLoop<FUSED> {
    type Output = ErrorSummary;

    #[inline(always)]
    unsafe fn run(self) -> ErrorSummary {
        let Self { sources, results, ratio } = self;
        let (mut largest, mut zeros, mut excess) = (0, 0, 0);
        for i in 0..sources.count() {
            // SAFETY: `i` is below the count, and the caller has made the pointer valid for as many results.
            let (x, error) = unsafe {
                let (x, place) = (sources.get(i), results.add(i));
                let error = *place - x;
                *place = error;
                (x, error.abs())
            };
            largest = bits(error).max(largest);
            zeros += u32::from(bits(error) == 0);
            let more = if FUSED { (-ratio).mul_add(x.abs(), error) } else { error - ratio * x.abs() };
            // As integers, the bits of floats keep their sign.
            excess = (more.to_bits() as i32).max(excess);
        }
        ErrorSummary { largest, zeros, may_exceed: excess > 0 }
    }
}

/// The largest relative error so far, as the error and its source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxRelativeError {
    error: f32,
    source: f32,
    /// The largest float32 that is not above the quotient; 0 if that is [`TINY`].
    ratio: f32,
}

impl Default for MaxRelativeError {
    fn default() -> Self {
        Self { error: 0.0, source: 1.0, ratio: 0.0 }
    }
}

impl MaxRelativeError {
    pub(crate) fn quotient(self) -> f64 {
        f64::from(self.error) / f64::from(self.source)
    }

    /// Replaces results by their errors.
    ///
    /// # Safety
    /// As many results as sources are readable and writable at the pointer.
    pub(crate) unsafe fn subtract(self, level: Level, sources: Values, results: *mut f32) -> ErrorSummary {
        let ratio = self.ratio(level);
        // SAFETY: the caller's promise.
        unsafe {
            if level.set() >= InstructionSet::Neon {
                level.run_raw(ErrorLoop::<true> { sources, results, ratio })
            } else {
                run_portable(ErrorLoop::<false> { sources, results, ratio })
            }
        }
    }

    /// Returns a ratio by which errors are compared with products of sources, rounded at levels without fused multiply-add.
    pub(crate) fn ratio(self, level: Level) -> f32 {
        // The product may be rounded up, so the ratio is taken lower.
        let less = if level.set() >= InstructionSet::Neon { 0 } else { 8 };
        f32::from_bits(self.ratio.to_bits().saturating_sub(less))
    }

    /// Takes the largest relative error of a tile, if it exceeds the largest so far. Returns whether it does.
    pub(crate) fn rise(&mut self, level: Level, sources: Values, errors: Values) -> bool {
        let risen = level.run(Rise { sources, errors, from: *self });
        *self = risen.unwrap_or(*self);
        risen.is_some()
    }

    #[inline]
    fn new(error: f32, source: f32) -> Self {
        let quotient = f64::from(error) / f64::from(source);
        let near = quotient as f32;
        let excess = u32::from(f64::from(near) > quotient);
        let ratio = if near < TINY { 0.0 } else { f32::from_bits(near.to_bits() - excess) };
        Self { error, source, ratio }
    }

    /// Returns whether the quotient is below another. Products of float32 are exact in float64.
    #[inline(always)]
    fn is_below(self, error: f32, source: f32) -> bool {
        f64::from(self.error) * f64::from(source) < f64::from(error) * f64::from(self.source)
    }
}

/// Finds the largest relative error, if it exceeds another. Products in float32, and where these are equal to errors in
/// float64, tell which groups of elements may rise: arrays of one value come here with each tile. No error is relative to zero.
struct Rise {
    sources: Values,
    /// As many.
    errors: Values,
    from: MaxRelativeError,
}

impl Kernel for Rise {
    type Output = Option<MaxRelativeError>;

    #[inline(always)]
    fn run(self) -> Option<MaxRelativeError> {
        let Self { sources, errors, from: mut most } = self;
        let mut risen = None;
        assert!(errors.count() == sources.count());
        for start in (0..sources.count()).step_by(LANES) {
            // SAFETY: `start` is below both counts, which are multiples of LANES, and so is `start + lane`.
            let at = |lane| unsafe { (sources.get(start + lane).abs(), errors.get(start + lane).abs()) };
            // An error above an exact product is not below the rounded one.
            let may_rise = |(x, error): (f32, f32)| (error >= most.ratio * x) & (error > 0.0) & (x > 0.0);
            // A loop, as `fold` may be a function of its own, which has not the features of the level.
            let mut any = 0;
            for lane in 0..LANES {
                any |= u32::from(may_rise(at(lane)));
            }
            if any == 0 {
                continue;
            }
            let rises = |most: MaxRelativeError, (x, error): (f32, f32)| most.is_below(error, x) & (x > 0.0);
            let mut found = 0;
            for lane in 0..LANES {
                found |= u64::from(rises(most, at(lane)));
            }
            if found == 0 {
                continue;
            }
            for (source, error) in (0..LANES).map(at) {
                if rises(most, (source, error)) {
                    most = MaxRelativeError::new(error, source);
                    risen = Some(most);
                }
            }
        }
        risen
    }
}
