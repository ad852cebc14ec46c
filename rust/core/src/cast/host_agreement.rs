//! Values that every library casts alike, without floating-point exceptions that hosts check.
//!
//! | source → target | values that differ | because |
//! |---|---|---|
//! | float of 16 bits or more | NaN | hosts differ in payloads; a signaling one raises "invalid" |
//! | float → integer | beyond the integer's range, NaN | C leaves it undefined |
//! | float or integer → float16 | beyond float16's range | some hosts raise "overflow", and some do not |
//! | float64 | nonzero values that are not normal in float32 | hosts that go through float32 raise "overflow", "underflow" |
//! | float → e8m0 | subnormals of float32 | hosts differ in the lowest interval |
//! | stored in more bits than it has | codes whose unused bits are not 0 | their meaning is not defined |

use crate::codec::pivot::{Binary32, FloatPivot};
use crate::codec::reference::value_of;
use crate::cpu::Level;
use crate::format::{FloatSpec, Format, Kind, Specials};
use crate::kernels::code_bounds::{CodeBounds, first_in};

/// Finds elements of one format on which hosts agree in casts to another, by their codes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAgreement {
    codes: CodeBounds,
    /// The bounds that exclude a NaN in the place of -0, whose code without the sign is that of 0.
    nan: Option<CodeBounds>,
    components: usize,
}

impl HostAgreement {
    /// Makes the bounds for a pair of formats; `None` if hosts agree on every code of the source.
    #[must_use]
    pub fn new(source: Format, target: Format) -> Option<Self> {
        let components = if source.component().is_some() { 2 } else { 1 };
        let source = source.component().unwrap_or(source);
        let target = target.component().unwrap_or(target);
        let (bits, size) = (source.row().bits, source.item_size());
        let full = u64::MAX >> (64 - 8 * size);
        let high = u64::MAX >> (64 - bits);
        let mut codes = CodeBounds { mask: full, flip: 0, base: 0, low: 0, high, size };
        if let Some(spec) = source.float() {
            restrict(&mut codes, &spec, target);
        } else if let (Some(limit), Some((_, largest))) = (overflow(target), source.integer_range()) {
            let limit = limit as u64;
            if largest >= i128::from(limit) {
                codes.high = limit - 1;
                if !matches!(source.kind(), Kind::Integer { signed: false }) {
                    codes.flip = 1 << (bits - 1);
                    codes.base = codes.flip - (limit - 1);
                    codes.high *= 2;
                }
            }
        }
        let is_integer = matches!(target.kind(), Kind::Integer { .. });
        let nan = source.float().filter(|spec| is_integer && spec.specials == Specials::Fnuz);
        let nan = nan.map(|spec| CodeBounds {
            mask: full,
            flip: 0,
            base: spec.sign_bit() + 1,
            low: 0,
            high: full - 1,
            size,
        });
        (nan.is_some() || codes.low > 1 || codes.high < codes.mask).then_some(Self { codes, nan, components })
    }

    /// Returns whether hosts agree on all of `count` dense elements in native byte order.
    ///
    /// # Safety
    /// They are readable.
    #[must_use]
    pub unsafe fn holds(&self, source: *const u8, count: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let holds = |bounds: CodeBounds| bounds.holds(Level::active(), source, count * self.components);
            holds(self.codes) && self.nan.is_none_or(holds)
        }
    }
}

/// Returns the first number that float16 rounds to infinity, for a target that is float16.
fn overflow(target: Format) -> Option<f64> {
    // Halfway between 65,504 and what the next number would be.
    (target == Format::FLOAT16).then_some(65_520.0)
}

/// Excludes the special values of a float source.
fn restrict(codes: &mut CodeBounds, spec: &FloatSpec, target: Format) {
    let finite = spec.max_code();
    // The codes of magnitudes grow with their values.
    let first_of = |limit: f64| first_in(0, finite + 1, |code| value_of(spec, code) >= limit);
    let signed_target = !matches!(target.kind(), Kind::Integer { signed: false });
    if signed_target {
        codes.mask &= !spec.sign_bit();
        codes.high = spec.magnitude_mask();
    }
    if codes.size > 1 {
        codes.high = codes.high.min(spec.infinity_code().unwrap_or(finite));
    }
    if let (Kind::Integer { .. }, Some((_, largest))) = (target.kind(), target.integer_range()) {
        // `largest + 1` is a power of two, so exact in float64.
        codes.high = first_of((largest + 1) as f64).saturating_sub(1);
    }
    if let Some(limit) = overflow(target).map(first_of)
        && limit <= finite
    {
        codes.high = codes.high.min(limit - 1);
    }
    let normal = 2f64.powi(1 - Binary32::BIAS as i32);
    if codes.size == 8 {
        codes.high = first_of(2f64.powi(Binary32::BIAS as i32)).min(codes.high + 1) - 1;
        codes.low = first_of(normal);
    }
    if target.float().is_some_and(|target| target.specials == Specials::ExponentOnly) {
        codes.low = first_of(normal);
    }
}
