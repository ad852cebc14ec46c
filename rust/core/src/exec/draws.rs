//! Random numbers for stochastic rounding.

use super::buffers::with_buffers;
use super::scratch::Scratch;
use crate::codec::random::{Draw, Stream};
use crate::cpu::{Kernel, Level};
use crate::kernels::stages::stage::Span;
use crate::kernels::tile::TILE;
use crate::layout::{INDEX, Run};
use crate::route::Route;

/// Fills a buffer with the draws of evenly spaced indices.
struct Draws<'a, D> {
    stream: Stream,
    first: u64,
    step: u64,
    words: &'a mut [D],
}

impl<D: Draw> Kernel for Draws<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { stream, first, step, words } = self;
        let upper = |index: u64| (index >> u32::BITS) as u32;
        let steps = (words.len() as u64).saturating_sub(1);
        let last = first.wrapping_add(steps.wrapping_mul(step));
        let keys = D::keys(stream, upper(first));
        if upper(first) == upper(last) {
            for (i, draw) in words.iter_mut().enumerate() {
                let lower = (first as u32).wrapping_add((i as u32).wrapping_mul(step as u32));
                *draw = D::draw(keys, lower);
            }
            return;
        }
        for (i, draw) in words.iter_mut().enumerate() {
            let index = first.wrapping_add((i as u64).wrapping_mul(step));
            *draw = D::draw(D::keys(stream, upper(index)), index as u32);
        }
    }
}

/// Fills a buffer with the draws of the elements of runs.
pub(super) fn fill<D: Draw>(level: Level, stream: Stream, runs: &[Run], mut draws: &mut [D]) {
    for run in runs.iter().flat_map(Run::each_row) {
        let (here, rest) = draws.split_at_mut(run.count);
        let (first, step) = (run.offsets[INDEX] as u64, run.strides[INDEX] as u64);
        level.run(Draws { stream, first, step, words: here });
        draws = rest;
    }
}

/// Runs the stages of a route over elements that have the indices from `first` on, each with its draw.
///
/// # Safety
/// The elements are readable at the source and writable at the target, which do not overlap unless they coincide.
pub(super) unsafe fn convert_with_draws(route: &Route, span: Span, stream: Stream, first: u64) {
    let Some(stochastic) = route.stochastic.as_ref().filter(|_| span.source != span.target.cast_const())
    else {
        // SAFETY: passed on.
        return unsafe { in_tiles(route, span, stream, first) };
    };
    let mut start = 0;
    while start < span.count {
        let index = first.wrapping_add(start as u64);
        let (upper, lower) = ((index >> u32::BITS) as u32, index as u32);
        // Up to the last index with this upper half.
        let alike = usize::try_from((1 << u32::BITS) - u64::from(lower)).unwrap_or(usize::MAX);
        let part = part(route, &span, start, alike.min(span.count - start));
        let general = |from: usize, count: usize| {
            let part = self::part(route, &part, from, count);
            // SAFETY: the caller's promise, for some of the elements: `StochasticStage` asks for no others.
            unsafe { in_tiles(route, part, stream, index.wrapping_add(from as u64)) };
        };
        // SAFETY: as above.
        unsafe { stochastic.run(part, stream.keys(upper, false), lower, &general) };
        start += part.count;
    }
}

/// Returns a part of a span.
fn part(route: &Route, span: &Span, start: usize, count: usize) -> Span {
    let source = span.source.wrapping_add(start * route.source_size);
    let target = span.target.wrapping_add(start * route.target_size);
    Span { source, target, count, ..*span }
}

/// # Safety
/// As for [`convert_with_draws`].
unsafe fn in_tiles(route: &Route, span: Span, stream: Stream, first: u64) {
    with_buffers(|Scratch { work, .. }: &mut Scratch| {
        for start in (0..span.count).step_by(TILE) {
            let Span { source, target, count, .. } = part(route, &span, start, TILE.min(span.count - start));
            let first = first.wrapping_add(start as u64);
            if route.lane_size == size_of::<u64>() {
                let words = &mut work.wide_draws.0[..count];
                route.level.run(Draws { stream, first, step: 1, words });
            } else {
                route.level.run(Draws { stream, first, step: 1, words: &mut work.draws.0[..count] });
            }
            // SAFETY: the caller's promise, for a part of the span, at most a tile; there are as many draws.
            unsafe { route.convert((source, target), count, work) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::options::{NanRule, Options, Overflow, Rounding};
    use crate::format::Format;
    use crate::kernels::request::Request;

    const COUNT: usize = 4096 + 77;

    /// Returns the results of a level for elements that have the indices from `first` on, by the route and by its
    /// stages.
    fn both(request: &Request, level: Level, elements: &[u8], first: u64) -> [Vec<u8>; 2] {
        let plan = Route::new(request, level).unwrap();
        let (stages, stream) = (
            Route { stochastic: None, ..Route::new(request, level).unwrap() },
            Stream::new(request.options.seed),
        );
        [plan, stages].map(|plan| {
            let count = elements.len() / plan.source_size;
            let mut results = vec![0; count * plan.target_size];
            let span = Span { source: elements.as_ptr(), target: results.as_mut_ptr(), count, ..Span::EMPTY };
            // SAFETY: as many elements, and room for as many results.
            unsafe { convert_with_draws(&plan, span, stream, first) };
            results
        })
    }

    /// Values whose sum with their draws is all ones: their lowest bits decide whether they are rounded up.
    fn on_the_edge(target: Format, stream: Stream) -> Vec<u8> {
        // Integers are multiples of 1, as 2^7 is in a format with 7 bits of mantissa.
        let (mantissa_bits, bias) = target.float().map_or((7, -6), |spec| (spec.mantissa_bits, spec.bias));
        let dropped = 23 - mantissa_bits;
        let keys = <u32 as Draw>::keys(stream, 0);
        let places = 2f64.powi(1 - bias - 23);
        let numbers = (0..COUNT).map(|index| {
            let rest = (1 << dropped) - 1 - (u32::draw(keys, index as u32) >> (u32::BITS - dropped));
            let more = [0.0, 0.125, 0.5, 0.875][index % 4];
            ((f64::from(rest) + more) * places) as f32 * if index % 8 < 4 { 1.0 } else { -1.0 }
        });
        numbers.flat_map(f32::to_ne_bytes).collect()
    }

    /// Numbers from 32767 to 32768, whose sums in fixed point with 16 bits of fraction are near the largest.
    fn near_the_largest() -> Vec<u8> {
        (0..COUNT).flat_map(|index| (32767.0 + (index % 256) as f32 / 256.0).to_ne_bytes()).collect()
    }

    #[test]
    fn what_draws_by_itself_gives_what_stages_do() {
        let named = |name| Format::named(name).unwrap();
        let mut found = 0;
        for source in ["float32", "bfloat16", "float16"].map(named) {
            for target in Format::all().filter(|format| format.item_size() <= 2) {
                for (overflow, nan) in [(Overflow::Ieee, NanRule::Keep), (Overflow::Saturate, NanRule::Zero)]
                {
                    let options = Options { rounding: Some(Rounding::Stochastic), overflow, nan, seed: 9 };
                    let request = Request { options, ..Request::plain(source, target) };
                    for level in Level::available() {
                        let plan = Route::new(&request, level).unwrap();
                        if plan.stochastic.is_none() {
                            continue;
                        }
                        found += 1;
                        let what = format!("{source:?} {target:?} {options:?} {level:?}");
                        let edges = if source == named("float32") {
                            vec![on_the_edge(target, Stream::new(options.seed)), near_the_largest()]
                        } else {
                            // Small numbers of every kind.
                            let codes = (0..COUNT).map(|index| (index * 7) as u16 ^ (index as u16) << 15);
                            vec![codes.flat_map(u16::to_ne_bytes).collect()]
                        };
                        for edge in edges {
                            for first in [0, (1 << 32) - 1000, (1 << 33) - 64] {
                                let [results, expected] = both(&request, level, &edge, first);
                                assert!(results == expected, "{what} {first}");
                            }
                            for count in [1, 15, 16, 31, 32, 63, 64, 65, 100, 128] {
                                let [results, expected] =
                                    both(&request, level, &edge[..count * plan.source_size], 5);
                                assert!(results == expected, "{what} {count}");
                            }
                        }
                    }
                }
            }
        }
        assert!(found > 0 || Level::available().count() == 1);
    }
}
