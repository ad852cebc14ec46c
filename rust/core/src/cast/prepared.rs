//! A cast that is planned once and run many times, over dense elements in native byte order, on one thread.
//!
//! It may go by way of another format, rounding twice: what a library that computes in one format does to all others.

use std::mem::MaybeUninit;

use super::layout::Layout;
use super::plan::Plan;
use super::request::Request;
use super::run::{Job, Memory, Search};
use super::{Parts, Settings, Source, TILE, Target, axes};
use crate::codec::options::Options;
use crate::cpu::{DefaultEnvironment, Level};
use crate::error::Error;
use crate::format::Format;

/// The plan of a cast under default options; two, if it goes by way of another format.
#[allow(missing_debug_implementations, reason = "stages are loops: there is nothing to show")]
pub struct Prepared {
    first: Step,
    second: Option<Step>,
}

struct Step {
    source: Format,
    target: Format,
    parts: Parts,
    plan: Plan,
}

/// Elements of the format between two steps, of up to 16 bytes.
type Between = [MaybeUninit<[u64; 2]>; TILE];

impl Prepared {
    /// Plans the cast, by way of another format if one is named.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for complex to real.
    pub fn new(source: Format, through: Option<Format>, target: Format) -> Result<Self, Error> {
        let _environment = DefaultEnvironment::enter();
        Ok(match through {
            None => Self { first: Step::new(source, target)?, second: None },
            Some(middle) => {
                Self { first: Step::new(source, middle)?, second: Some(Step::new(middle, target)?) }
            }
        })
    }

    /// Casts `count` dense elements.
    ///
    /// # Safety
    /// They are readable at the source and writable at the target, which do not overlap.
    pub unsafe fn run(&self, source: *const u8, target: *mut u8, count: usize) {
        let Some(second) = &self.second else {
            // SAFETY: the caller's promise.
            return unsafe { self.first.run(source, target, count) };
        };
        let mut between: Between = [const { MaybeUninit::uninit() }; TILE];
        let middle = between.as_mut_ptr().cast::<u8>();
        for start in (0..count).step_by(TILE) {
            let count = TILE.min(count - start);
            // SAFETY: the caller's promise at both ends; the first step fills what the second reads, and a tile has
            // room for it.
            unsafe {
                self.first.run(source.add(start * self.first.source.item_size()), middle, count);
                second.run(middle, target.add(start * second.target.item_size()), count);
            }
        }
    }
}

impl Step {
    fn new(source: Format, target: Format) -> Result<Self, Error> {
        let parts = Parts::of(source, target)?;
        let request = Request {
            source: parts.source,
            target: parts.target,
            options: Options::default(),
            scaled: false,
            report: false,
        };
        Ok(Self { source, target, parts, plan: Plan::new(&request)? })
    }

    /// # Safety
    /// As for [`Prepared::run`].
    unsafe fn run(&self, source: *const u8, target: *mut u8, count: usize) {
        let (from, to) = ([self.source.item_size() as isize], [self.target.item_size() as isize]);
        let from = Source { pointer: source, strides: &from, format: self.source, swapped: false };
        let to = Target { pointer: target, strides: &to, format: self.target, swapped: false, fresh: false };
        let settings = Settings { options: Options::default(), report: false, threads: 1 };
        let layout = Layout::new(axes(&[count], &from, &to, None, &self.plan, &self.parts, &settings));
        let memory = Memory {
            source,
            target,
            scale: std::ptr::null(),
            source_swapped: false,
            target_swapped: false,
            real_to_complex: self.parts.real_to_complex,
        };
        let (level, search) = (Level::active(), Search::default());
        let job = Job { plan: &self.plan, layout: &layout, memory, level, search, dry: false };
        // SAFETY: the caller's promise.
        unsafe { job.run(0, layout.count) };
    }
}
