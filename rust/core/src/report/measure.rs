//! Measures what each tile lost, by float64 values and the encoder's flags, and adds it to a [`CastReport`].

use super::cast_report::CastReport;
use super::counters::{Columns, Counters};
use super::squares;
use super::values::Values;
use crate::codec::reference;
use crate::cpu::Level;
use crate::format::Format;
use crate::kernels::tile::Tile;

/// Compares the tiles of one cast.
pub(crate) struct Meter {
    source: Values,
    target: Values,
    smallest_normal: f64,
    wraps: bool,
}

impl Meter {
    /// Makes the meter for a pair of real formats; `wraps` says that values beyond the range wrap.
    pub(crate) fn new(source: Format, target: Format, wraps: bool) -> Self {
        // The code after the largest subnormal; without subnormals nothing is below the smallest normal.
        let smallest_normal = target
            .float()
            .filter(|spec| spec.mantissa_bits > 0)
            .map_or(0.0, |spec| reference::value_of(&spec, 1 << spec.mantissa_bits));
        Self { source: Values::new(source), target: Values::new(target), smallest_normal, wraps }
    }

    /// Adds one tile to a report.
    ///
    /// # Safety
    /// `source` and `target` are valid for `count` elements of their formats, `count` at most [`crate::cast::TILE`].
    pub(crate) unsafe fn measure(
        &self,
        level: Level,
        (source, target): (*const u8, *const u8),
        scales: Option<&[f64]>,
        flags: &[u8],
        scratch: &mut MeterScratch,
        report: &mut CastReport,
    ) {
        let count = flags.len();
        let tiles = [&mut scratch.near, &mut scratch.rest, &mut scratch.result, &mut scratch.result_rest];
        let [near, rest, result, result_rest] = tiles.map(|tile| &mut tile.0[..count]);
        let exact = self.source.is_exact() && self.target.is_exact() && scales.is_none();
        if !exact {
            rest.fill(0.0);
            result_rest.fill(0.0);
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.source.read(level, source, near, rest);
            self.target.read(level, target, result, result_rest);
        }
        if let Some(scales) = scales {
            for ((near, rest), &scale) in near.iter_mut().zip(&mut *rest).zip(scales) {
                let product = *near * scale;
                *rest = near.mul_add(scale, -product) + *rest * scale;
                *rest = if rest.is_finite() { *rest } else { 0.0 };
                // Scaled values beyond float64's range are clamped to it: a finite value stays finite.
                let finite = near.is_finite() && scale.is_finite();
                let vanished = product == 0.0 && *near != 0.0 && scale != 0.0;
                *near = match product {
                    _ if finite && product.is_infinite() => f64::MAX.copysign(product),
                    _ if vanished => f64::from_bits(1).copysign(product),
                    _ => product,
                };
            }
        }
        let room = [&mut scratch.roots, &mut scratch.errors, &mut scratch.quotients];
        let [roots, errors, quotients] = room.map(|tile| &mut tile.0[..count]);
        let rests = (!exact).then_some((&*rest, &*result_rest));
        let columns = Columns { sources: near, results: result, rests, roots, errors, quotients, flags };
        let (smallest_normal, wraps) = (self.smallest_normal, self.wraps);
        let most = level.run(Counters { columns, report, smallest_normal, wraps });
        let full = count.next_multiple_of(squares::LANES);
        let sums = [&mut report.signal, &mut report.noise];
        for ((sum, tile), most) in sums.into_iter().zip([&mut scratch.roots, &mut scratch.errors]).zip(most) {
            tile.0[count..full].fill(0.0);
            squares::add_f64s(sum, level, &tile.0[..full], most, false);
        }
    }
}

/// The columns of one tile, reused for all tiles.
#[derive(Default)]
pub(crate) struct MeterScratch {
    near: Box<Tile<f64>>,
    rest: Box<Tile<f64>>,
    result: Box<Tile<f64>>,
    result_rest: Box<Tile<f64>>,
    roots: Box<Tile<f64>>,
    errors: Box<Tile<f64>>,
    quotients: Box<Tile<f64>>,
}
