//! Floats of 16 and 32 bits to narrower ones and to integers of 8 bits, rounded stochastically: draws are computed in registers too.
//!
//! ```text
//! draw     as crate::codec::random has it, for as many lanes as a register has
//! places   the bits of a magnitude; below the smallest normal result, in units of that result's last place
//! sum      places + as many of the draw's top bits as there are bits to drop
//! code     min((sum >> bits dropped) - rebias, code of overflows)
//! ```
//! This equals the general route (see [`crate::codec::stochastic`]) unless
//! * bits were cut off, and the remaining ones and the draw sum to all ones below the code: a carry from the bits that
//!   were cut off would change the code;
//! * or the element is NaN.
//!
//! Registers with such elements, which are rare, are left to the general route.
//!
//! Sources of 16 bits have zeros in the lower half of a float32, which cause no carry: the top 16 bits of each draw are
//! enough, and the last step of a draw does not change them. Tiny values, which have other bits there, need all the
//! bits that are dropped, as float32 does; where those are at most 16, the last step is left out too.
//!
//! Two targets have quicker ways, from values with their signs:
//! * float16, where all results are normal or zero: the bits to drop are cleared in the sum, and what remains is
//!   converted exactly by the machine;
//! * integers of 8 bits: sum and code are those of fixed-point numbers.

use std::marker::PhantomData;

use super::float_source::{Bf16Source, F16Source, F32Source, Floats};
use super::lane_draws::Draws;
use super::shapes::Shape;
use super::shapes::shape_of;
use super::stochastic_codes::{Bf16Codes, ByteCodes, Integers, Results, Rule, U16Codes};
use super::to_f32::four;
use crate::codec::random::Keys;
use crate::cpu::{Level, RawKernel};
use crate::kernels::request::Request;
use crate::kernels::stages::stage::Span;
use crate::simd::halves::{self, INFINITY};
use crate::simd::{StochasticOps, with_vectors};

/// A conversion that computes its own draws.
///
/// # Safety
/// It calls `general` for elements of the span only.
pub(crate) unsafe trait StochasticStage: Send + Sync {
    /// Converts the elements of a span, whose indices share their upper 32 bits; the lower ones count from `first`.
    /// `general(start, count)` converts some of them by the general route.
    ///
    /// # Safety
    /// The elements of the span are readable and writable, and source and target do not overlap.
    unsafe fn run(&self, span: Span, keys: Keys, first: u32, general: &dyn Fn(usize, usize));
}

const SIGN: u32 = 1 << 31;
/// The constants in registers.
#[derive(Clone, Copy)]
struct Ready<V: StochasticOps> {
    rule: Rule,
    smallest: V::F32s,
    below_code: V::Integers,
}

impl<V: StochasticOps> Ready<V> {
    /// # Safety
    /// The level's features.
    #[inline(always)]
    unsafe fn new(rule: Rule) -> Self {
        Self {
            rule,
            smallest: V::from_bits(V::splat32(rule.smallest.to_bits())),
            below_code: V::splat32((1 << rule.dropped) - 1),
        }
    }

    /// Whether registers hold the even and the odd elements of bf16 in turn.
    #[inline(always)]
    const fn paired<F: Floats, R: Results<V, SIZE>, const SIZE: usize>() -> bool {
        F::SHIFTED && !R::OF_VALUES
    }

    /// Converts as many elements as a register has bytes, unless one of them is undecided. With `CUTS`, bits may be cut
    /// off.
    ///
    /// # Safety
    /// The level's features, and as many elements at the pointer.
    #[inline(always)]
    unsafe fn block<F: Floats, R: Results<V, SIZE>, const SIZE: usize, const CUTS: bool>(
        &self,
        floats: F,
        draws: Draws<V>,
        source: *const u8,
    ) -> Block<[V::Integers; SIZE]> {
        let not_drawn = u32::BITS - self.rule.dropped;
        let [least, most] = R::DROPPED;
        // SAFETY: the caller's promise; each quarter of the elements lies in a quarter of their bytes.
        unsafe {
            // Of each element, the 16 bits with the sign on top.
            let (mut sums, signs);
            if Self::paired::<F, R, SIZE>() {
                signs = [V::load(source), V::load(source.add(V::BYTES))];
                let (low, high) = (
                    V::and(signs[0], V::splat16(!halves::SIGN)),
                    V::and(signs[1], V::splat16(!halves::SIGN)),
                );
                if V::any16(V::above16(V::max16(low, high), V::splat16(INFINITY))) {
                    return Block::General;
                }
                // Subtracting one moves zeros behind all other magnitudes.
                let less = V::splat16(u16::MAX);
                let least = V::min16(V::add16(low, less), V::add16(high, less));
                if !CUTS && V::any_below16(least, V::splat16(self.rule.tiny)) {
                    return Block::Cuts;
                }
                let odd = V::splat32(u32::MAX << 16);
                sums = [V::raised(low), V::and(low, odd), V::raised(high), V::and(high, odd)];
            } else {
                let [a, b, c, d] = four::<V, F>(floats, source);
                if V::any_nan([a, b]) | V::any_nan([c, d]) {
                    return Block::General;
                }
                if R::OF_VALUES
                    && let Some(codes) = R::of_values(&self.rule, [a, b, c, d], draws)
                {
                    return Block::Results(codes);
                }
                sums = [V::bits(a), V::bits(b), V::bits(c), V::bits(d)];
                signs = if F::SIZE == 2 {
                    [V::load(source), V::load(source.add(V::BYTES))]
                } else {
                    [V::unzip16(sums[0], sums[1]).1, V::unzip16(sums[2], sums[3]).1]
                };
            }
            for (register, sum) in sums.iter_mut().enumerate() {
                let draw = V::shr32(draws.of(register, CUTS && most > u16::BITS), not_drawn);
                if !R::SHIFTED {
                    if !Self::paired::<F, R, SIZE>() {
                        *sum = V::and(*sum, V::splat32(!SIGN));
                    }
                    *sum = V::fixed_below(*sum, self.smallest);
                }
                *sum = V::add32(*sum, draw);
            }
            // Most often their lower halves, which take less to test, decide it.
            let maybe = CUTS && (least < u16::BITS || V::any_low_ones(sums));
            if maybe && V::any_have(sums, self.below_code) {
                return Block::General;
            }
            R::of_sums(&self.rule, sums, signs, Self::paired::<F, R, SIZE>())
                .map_or(Block::General, Block::Results)
        }
    }
}

/// The outcome of a block.
enum Block<T> {
    Results(T),
    /// Some values are so small that bits are cut off.
    Cuts,
    /// The general route is needed.
    General,
}

/// The conversion on one level.
struct InBlocks<V, F, R, const SIZE: usize> {
    source: F,
    rule: Rule,
    vectors: V,
    results: PhantomData<R>,
}

struct BlockLoop<'a, V, F, R, const SIZE: usize> {
    blocks: &'a InBlocks<V, F, R, SIZE>,
    span: Span,
    keys: Keys,
    first: u32,
    general: &'a dyn Fn(usize, usize),
}

impl<V: StochasticOps, F: Floats, R: Results<V, SIZE>, const SIZE: usize> RawKernel
    for BlockLoop<'_, V, F, R, SIZE>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { blocks: &InBlocks { source: floats, rule, .. }, span, keys, first, general } = self;
        let Span { source, target, count, .. } = span;
        if count < V::BYTES {
            return general(0, count);
        }
        // SAFETY: `InBlocks` runs this on the level, and its caller vouches for `count` elements at the pointers.
        unsafe {
            let ready = Ready::<V>::new(rule);
            let paired = Ready::<V>::paired::<F, R, SIZE>();
            let mut draws = Draws::<V>::new(keys, first, paired);
            let mut start = 0;
            while start < count {
                if count - start < V::BYTES {
                    // The last block overlaps the one before it.
                    start = count - V::BYTES;
                    draws = Draws::<V>::new(keys, first.wrapping_add(start as u32), paired);
                }
                let from = source.add(start * F::SIZE);
                let cuts = !R::SHIFTED && F::SIZE == F32Source::SIZE;
                let mut block = if cuts {
                    ready.block::<F, R, SIZE, true>(floats, draws, from)
                } else {
                    ready.block::<F, R, SIZE, false>(floats, draws, from)
                };
                if matches!(block, Block::Cuts) {
                    block = ready.block::<F, R, SIZE, true>(floats, draws, from);
                }
                if let Block::Results(results) = block {
                    for (part, &result) in results.iter().enumerate() {
                        V::store(target.add(start * SIZE + part * V::BYTES), result);
                    }
                } else {
                    general(start, V::BYTES);
                }
                draws = draws.next();
                start += V::BYTES;
            }
        }
    }
}

// SAFETY: a block ends with the span, or before; a span shorter than a block is left to `general` whole.
unsafe impl<V: StochasticOps, F: Floats, R: Results<V, SIZE>, const SIZE: usize> StochasticStage
    for InBlocks<V, F, R, SIZE>
{
    unsafe fn run(&self, span: Span, keys: Keys, first: u32, general: &dyn Fn(usize, usize)) {
        let kernel = BlockLoop { blocks: self, span, keys, first, general };
        self.vectors.run(kernel);
    }
}

/// Makes the conversion for a request on a level, if there is one.
pub(crate) fn stochastic_stage(request: &Request, level: Level) -> Option<Box<dyn StochasticStage>> {
    let rule = Rule::new(request)?;
    with_vectors!(level, vectors => match shape_of(&request.source.float()?)? {
        Shape::F32 => to(vectors, request, rule, F32Source),
        Shape::Bf16 => to(vectors, request, rule, Bf16Source),
        Shape::F16 => to(vectors, request, rule, F16Source),
    })?
}

fn to<V: StochasticOps, F: Floats>(
    vectors: V,
    request: &Request,
    rule: Rule,
    source: F,
) -> Option<Box<dyn StochasticStage>> {
    let Some(target) = request.target.float() else {
        return Some(boxed::<V, F, Integers, 1>(vectors, source, rule));
    };
    match (shape_of(&target), request.target.item_size()) {
        (Some(Shape::Bf16), _) => Some(boxed::<V, F, Bf16Codes, 2>(vectors, source, rule)),
        (Some(Shape::F16), _) if const { F::SIZE == 4 } => {
            Some(boxed::<V, F, U16Codes, 2>(vectors, source, rule))
        }
        (None, 1) => Some(boxed::<V, F, ByteCodes, 1>(vectors, source, rule)),
        _ => None,
    }
}

fn boxed<V: StochasticOps, F: Floats, R: Results<V, SIZE>, const SIZE: usize>(
    vectors: V,
    source: F,
    rule: Rule,
) -> Box<dyn StochasticStage> {
    Box::new(InBlocks::<V, F, R, SIZE> { source, rule, vectors, results: PhantomData })
}
