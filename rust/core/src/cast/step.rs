//! A plain cast from one format to another: planned once, because planning takes longer than casting a few elements.

use std::ptr;

use super::layout::Layout;
use super::operands::Parts;
use super::plan::Plan;
use super::request::Request;
use super::run::dense::Dense;
use super::run::{Job, Memory, Search, run_dense};
use crate::cached_once::CachedOnce;
use crate::cpu::{DefaultEnvironment, InstructionSet, Level};
use crate::error::Error;
use crate::format::Format;

/// Steps that were made: per level, source and target.
static KEPT: CachedOnce<Step, { InstructionSet::COUNT * Format::COUNT * Format::COUNT }> = CachedOnce::new();

/// A cast under default options, and nothing asked for besides.
pub(super) struct Step {
    pub(super) source: Format,
    pub(super) target: Format,
    pub(super) plan: Plan,
    parts: Parts,
}

impl Step {
    /// The one for a pair of formats, at the level in use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex to real.
    pub(super) fn between(source: Format, target: Format) -> Result<&'static Self, Error> {
        let level = Level::active();
        let place = (level.set() as usize * Format::COUNT + source.index()) * Format::COUNT + target.index();
        match KEPT.get(place) {
            Some(step) => Ok(step),
            None => Ok(KEPT.store(place, Self::new(source, target, level)?)),
        }
    }

    fn new(source: Format, target: Format, level: Level) -> Result<Self, Error> {
        let parts = Parts::of(source, target)?;
        let request = Request::plain(parts.source, parts.target);
        let plan = DefaultEnvironment::compute(&request, |request| Plan::new(request, level))?;
        Ok(Self { source, target, plan, parts })
    }

    /// Casts `count` dense elements in native byte order, on this thread.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    pub(super) unsafe fn run(&self, source: *const u8, target: *mut u8, count: usize) {
        let (plan, count) = (&self.plan, count * self.parts.components);
        let real_to_complex = self.parts.real_to_complex;
        debug_assert!(Dense::suits(plan), "nothing was asked for");
        let dense = Dense { plan, level: plan.level, source, target, count, real_to_complex, first: 0 };
        // SAFETY: the caller's promise.
        unsafe { run_dense(&dense) };
    }

    /// The layout of dense elements.
    pub(super) fn dense(&self, count: usize) -> Layout {
        let size = |format: Format| format.item_size() / self.parts.components;
        Layout::dense(count * self.parts.components, size(self.source), size(self.target))
    }

    /// What is to be done for elements of a layout; `swapped` says of source and target whether they are in the other
    /// byte order.
    pub(super) fn job<'a>(
        &'a self,
        layout: &'a Layout,
        (source, target): (*const u8, *mut u8),
        swapped: (bool, bool),
    ) -> Job<'a> {
        let memory = Memory {
            source,
            target,
            scale: ptr::null(),
            source_swapped: swapped.0,
            target_swapped: swapped.1,
            real_to_complex: self.parts.real_to_complex,
        };
        let level = self.plan.level;
        Job { plan: &self.plan, layout, memory, level, search: Search::default(), dry: false }
    }
}
