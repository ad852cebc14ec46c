//! The executor: everything that is done to whole arrays is a pass over positions, shared between threads.
//!
//! What a position is, the pass says: an element of a layout, a chunk of gradients, an item of matrices in blocks.

use std::ops::Range;

use super::buffers::with_buffers;
use super::parallel::in_parts;
use super::workers::Workers;
use crate::cpu::DefaultEnvironment;

/// What is done with positions.
pub(crate) trait Pass: Sync {
    /// What a thread needs beside its outcome; kept between calls.
    type Buffers: Default + Send + 'static;
    /// What the positions of a thread add up to.
    type Outcome: Default + Send;

    /// Works on a range of positions, and adds to the outcome, in the default floating-point environment.
    ///
    /// # Safety
    /// The memory that belongs to these positions may be read and written as the pass says, and no other thread works on
    /// it.
    unsafe fn process(
        &self,
        positions: Range<usize>,
        buffers: &mut Self::Buffers,
        outcome: &mut Self::Outcome,
    );

    /// Adds the outcome of the range that follows.
    fn merge(outcome: &mut Self::Outcome, next: Self::Outcome);
}

/// The positions of a pass, and how threads share them.
#[derive(Clone, Copy)]
pub(crate) struct Positions {
    pub(crate) count: usize,
    /// Ranges begin at multiples of it.
    pub(crate) grain: usize,
    /// Bytes that are read and written.
    pub(crate) bytes: usize,
    /// How many positions a thread takes at a time, a multiple of the grain; none: each takes one range.
    pub(crate) turn: Option<usize>,
}

/// Runs a pass over all positions, on at most this many threads. Cuts are at multiples of the grain; where they are must not
/// show in the sum of outcomes.
///
/// # Safety
/// As for [`Pass::process`], of all positions.
pub(crate) unsafe fn run_pass<P: Pass>(pass: &P, positions: Positions, threads: usize) -> P::Outcome {
    let Positions { count, grain, bytes, turn } = positions;
    // SAFETY: the caller's promise; ranges are disjoint.
    let process = |range: Range<usize>| unsafe { process(pass, range) };
    let workers = Workers::engage(threads, bytes);
    if workers.count() == 1 {
        return process(0..count);
    }
    let part = turn.unwrap_or_else(|| count.div_ceil(workers.count()).next_multiple_of(grain)).max(1);
    let range = |index: usize| index * part..count.min((index + 1) * part);
    let mut whole = P::Outcome::default();
    in_parts(
        workers.count(),
        count.div_ceil(part),
        |index| process(range(index)),
        |outcome| P::merge(&mut whole, outcome),
    );
    whole
}

/// Not inlined, so that there is one piece of code for one thread and for several.
///
/// # Safety
/// As for [`Pass::process`].
#[inline(never)]
unsafe fn process<P: Pass>(pass: &P, range: Range<usize>) -> P::Outcome {
    let _environment = DefaultEnvironment::enter();
    let mut outcome = P::Outcome::default();
    // SAFETY: the caller's promise.
    with_buffers(|buffers| unsafe { pass.process(range, buffers, &mut outcome) });
    outcome
}
