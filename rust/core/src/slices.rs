//! Casts of typed slices.

#![allow(unsafe_code, reason = "reads and writes slices as bytes")]

use crate::cast::{Settings, cast_slice};
use crate::elements::{Element, bytes_of, bytes_of_mut};
use crate::error::Error;
use crate::report::CastReport;

/// Casts every element of `source` into the place in `target` with the same index. Each value is rounded once.
///
/// `settings` are [`Settings`], or [`Options`](crate::Options) on one thread.
///
/// # Errors
/// [`Error::Length`] if the slices have different lengths; [`Error::Unsupported`] for complex to real;
/// [`Error::Overflow`] and [`Error::Nan`] if the options ask for them. An error leaves `target` untouched.
///
/// # Examples
/// ```
/// use castwise_core::{F8E4M3Fn, Options, cast};
/// let mut codes = [F8E4M3Fn(0); 3];
/// cast(&[1.0f32, -0.5, 3.3], &mut codes, Options::default())?;
/// assert_eq!(codes, [F8E4M3Fn(0x38), F8E4M3Fn(0xb0), F8E4M3Fn(0x45)]);
/// # Ok::<(), castwise_core::Error>(())
/// ```
pub fn cast<S: Element, T: Element>(
    source: &[S],
    target: &mut [T],
    settings: impl Into<Settings>,
) -> Result<(), Error> {
    let settings = Settings { report: false, ..settings.into() };
    run(source, target, &settings).map(drop)
}

/// Casts as [`cast()`] does, and returns what was lost.
///
/// # Errors
/// As for [`cast()`].
///
/// # Examples
/// ```
/// use castwise_core::{F16, Options, cast_and_report};
/// let mut codes = [F16(0); 2];
/// let report = cast_and_report(&[1.0f64, 1e-9], &mut codes, Options::default())?;
/// assert_eq!((report.exact, report.underflowed), (1, 1));
/// # Ok::<(), castwise_core::Error>(())
/// ```
pub fn cast_and_report<S: Element, T: Element>(
    source: &[S],
    target: &mut [T],
    settings: impl Into<Settings>,
) -> Result<CastReport, Error> {
    let settings = Settings { report: true, ..settings.into() };
    Ok(run(source, target, &settings)?.unwrap_or_default())
}

fn run<S: Element, T: Element>(
    source: &[S],
    target: &mut [T],
    settings: &Settings,
) -> Result<Option<CastReport>, Error> {
    if source.len() != target.len() {
        return Err(Error::Length { argument: "target", length: target.len(), needed: source.len() });
    }
    // SAFETY: a cast writes codes of the target's format only.
    cast_slice(bytes_of(source), S::FORMAT, unsafe { bytes_of_mut(target) }, T::FORMAT, settings)
}
