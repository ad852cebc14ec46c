//! Whole registers by one loop, and the remaining elements, or all of a few, one by one by another.

use super::vector_loop::{Step, in_steps};
use crate::cpu::Level;
use crate::kernels::stages::stage::{Span, Stage};
use crate::simd::Vector;

/// A loop over whole registers, and when to use it.
pub(super) struct Registers {
    stage: Box<dyn Stage>,
    /// Elements per step.
    step: usize,
    /// Bytes of a source element and of a result.
    from: usize,
    to: usize,
    /// Fewer elements are faster one by one.
    fewest: usize,
}

impl Registers {
    pub(super) fn new<V: Vector, S: Step<V, SIZE>, const SIZE: usize>(
        vectors: V,
        step: S,
        fewest: usize,
    ) -> Self {
        let stage = in_steps::<V, _, SIZE>(vectors, step);
        Self { stage, step: V::BYTES, from: S::FROM, to: SIZE, fewest }
    }

    /// Makes the stage, with the one for single elements.
    pub(super) fn then(self, elements: Box<dyn Stage>) -> Box<dyn Stage> {
        Box::new(ThenElements { registers: self, elements })
    }
}

/// Converts whole registers by one stage and the remaining elements one by one, which is faster than to pad a register.
struct ThenElements {
    registers: Registers,
    elements: Box<dyn Stage>,
}

// SAFETY: one stage writes the first, the other the rest.
unsafe impl Stage for ThenElements {
    unsafe fn run(&self, level: Level, span: Span) {
        let Registers { stage, step, from, to, fewest } = &self.registers;
        let whole = if span.count < *fewest { 0 } else { span.count - span.count % step };
        let rest = Span {
            source: span.source.wrapping_add(whole * from),
            target: span.target.wrapping_add(whole * to),
            count: span.count - whole,
            ..span
        };
        // SAFETY: the caller's promise: these are the elements of the span, one after the other.
        unsafe {
            if whole > 0 {
                stage.run(level, Span { count: whole, ..span });
            }
            self.elements.run(level, rest);
        }
    }

    unsafe fn run_with_zeros(&self, level: Level, span: Span) -> usize {
        self.registers.stage.run_with_zeros(level, span)
    }

    fn aligns(&self, count: usize) -> bool {
        count >= self.registers.fewest
    }
}
